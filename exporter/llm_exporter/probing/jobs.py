"""When which module is sent to which target: plain data for the scheduler.

In: the targets with the modules they name, and the modules. Out: one `ProbeJob` per pair. `daemon/schedule.py` turns each into a job of
APScheduler whose function calls `ProbeRunner.run`; `max_instances=1` and `coalesce=True` hold for all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from llm_exporter.probing.manners import ProbeModule

_JITTER_RATIO = 0.1
_MOST_JITTER_SECONDS = 30.0
# A ladder that was missed (the exporter was down, or the machine slept) may start so much late; later it would meet the morning's users.
_CRON_GRACE_SECONDS = 900


class ScheduledModule(ProbeModule, Protocol):
    """A probe module with its time zone."""

    @property
    def timezone(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """One recurring run.

    Attributes:
        interval_seconds, crontab: one of the two; the crontab is read in `timezone`.
        first_delay_seconds: of an interval job, so that the probes of many targets do not start at one moment; the same after each restart.
        jitter_seconds: each run starts at random up to so much earlier or later.
        grace_seconds: a run that is later than this is missed, counted and left out.
    """

    target: str
    module: str
    interval_seconds: float | None
    crontab: str | None
    timezone: str
    first_delay_seconds: float
    jitter_seconds: float
    grace_seconds: float

    @property
    def id(self) -> str:
        """Unique among the probes, stable over reloads."""
        return f"probe {self.target} {self.module}"


def jobs_of(targets: Iterable[tuple[str, Iterable[str]]], modules: Mapping[str, ScheduledModule]) -> tuple[ProbeJob, ...]:
    """One job per target and module. Targets are (name, names of modules), already validated against `modules`."""
    return tuple(_job(target, name, modules[name]) for target, names in targets for name in names)


def _job(target: str, name: str, module: ScheduledModule) -> ProbeJob:
    interval = module.interval
    if interval is None:
        return ProbeJob(target, name, None, module.schedule, module.timezone, 0.0, _MOST_JITTER_SECONDS, _CRON_GRACE_SECONDS)
    place = zlib.crc32(f"{target}\0{name}".encode()) / 2**32
    jitter = min(_JITTER_RATIO * interval, _MOST_JITTER_SECONDS)
    return ProbeJob(target, name, interval, None, module.timezone, place * interval, jitter, interval)
