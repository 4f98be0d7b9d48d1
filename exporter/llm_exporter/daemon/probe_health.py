"""Which probes fail or rest: a line in the log when one begins to and when it works again, and rows for the status page and the API.

`daemon/probes.py` tells it of every run. What the server said is in it, short and without our credentials (`probing/run.py` sees to it).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from llm_exporter.probing.run import Outcome, ProbeTarget

log = logging.getLogger("llm_exporter.probes")

# A skip that will not pass by itself: the operator has to say something.
_MISCONFIGURED = frozenset({"skipped_unknown_engine", "skipped_context"})


@dataclass(slots=True)
class _Health:
    url: str
    result: str = ""
    detail: str = ""
    failures: int = 0  # in a row
    failing_since: float | None = None  # unix seconds
    advice: str = ""
    resting: bool = False  # as of the last time that it was due
    rest_told: bool = False


class ProbeHealth:
    """Of all configured probes, by (target, module). Thread-safe.

    Args:
        wall: unix seconds.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], _Health] = {}

    def keep_only(self, urls: Mapping[tuple[str, str], str]) -> None:
        """What is configured, with the URL of the target. What is gone is forgotten, and so is what another URL showed."""
        with self._lock:
            before = self._known
            self._known = {pair: before[pair] if pair in before and before[pair].url == url else _Health(url) for pair, url in urls.items()}

    def note(self, target: ProbeTarget, module: str, outcome: Outcome) -> None:
        """A run has ended, was skipped, or was not made for a rest. One of a URL that is not configured (any more) is nobody's news."""
        if outcome.resting:
            self._rests(target, module, outcome)
            return
        bad = outcome.result in _MISCONFIGURED or (outcome.sent and outcome.result != "success")
        self._advise(target, module, outcome)
        if not bad and not outcome.sent:
            return  # busy, loading, out of budget: says nothing about the probe
        with self._lock:
            health = self._known.get((target.name, module))
            if health is None or health.url != target.url:
                return
            before, began = health.failures, health.failing_since is None
            health.result, health.detail = outcome.result, outcome.detail
            health.failures = before + 1 if bad else 0
            health.failing_since = (self._wall() if began else health.failing_since) if bad else None
            health.resting, health.rest_told = False, health.rest_told and bad
        where = {"target": target.name, "probe_module": module, "reason": outcome.result}
        if bad and began:
            log.warning("probe begins to fail: %s%s", outcome.result, f": {health.detail}" if health.detail else "", extra=where)
        elif not bad and before:
            log.info("probe works again after %d that failed", before, extra=where)

    def _rests(self, target: ProbeTarget, module: str, outcome: Outcome) -> None:
        """Says once in a row of failures that runs are left out; as a warning where nothing has told of failures, as after a reload."""
        with self._lock:
            health = self._known.get((target.name, module))
            if health is None or health.url != target.url:
                return
            health.result, health.detail = health.result or outcome.result, health.detail or outcome.detail
            told, health.resting, health.rest_told = health.rest_told, True, True
            level = logging.WARNING if health.failing_since is None else logging.INFO
        if not told:
            log.log(level, "probe is %s", outcome.detail, extra={"target": target.name, "probe_module": module, "reason": outcome.result})

    def _advise(self, target: ProbeTarget, module: str, outcome: Outcome) -> None:
        """Says once what the operator should know although nothing failed; again only after a run that had nothing to say, or else."""
        with self._lock:
            health = self._known.get((target.name, module))
            if health is None or health.url != target.url or not (outcome.sent or outcome.advice):
                return
            before, health.advice = health.advice, outcome.advice
            health.result = health.result or outcome.result
        if outcome.advice and outcome.advice != before and outcome.result not in _MISCONFIGURED:
            log.warning("probe: %s", outcome.advice, extra={"target": target.name, "probe_module": module, "reason": outcome.result})

    def rows(self, target: str) -> list[dict[str, Any]]:
        """A row for each probe of a target that has run."""
        with self._lock:
            return [_row(module, health) for (name, module), health in self._known.items() if name == target and health.result]


def _row(module: str, health: _Health) -> dict[str, Any]:
    since = None if health.failing_since is None else datetime.fromtimestamp(health.failing_since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "module": module,
        "result": health.result,
        "detail": health.detail or health.advice,
        "failing": since is not None,
        "failures_in_a_row": health.failures,
        "failing_since": since,
        "resting": health.resting,
    }
