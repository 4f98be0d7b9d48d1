"""What is calendar: jobs at an interval or by crontab, through APScheduler. The only module that imports it.

Jobs never overlap with themselves, and whatever becomes of one run (failed, missed, overlapped; all counted), the next one comes.
APScheduler reads the wall clock. A crontab wants that; an interval does not, so intervals are planned on the monotonic clock
(`_Beat`) and moved with every step of the wall clock. Scrapes are not here: they follow the monotonic clock (`loop.py`).
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.jobstores.base import JobLookupError
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger

from llm_exporter.errors import LlmExporterError

log = logging.getLogger("llm_exporter.schedule")

# A job that starts later than this after its time counts as missed; several missed runs are one.
GRACE_SECONDS = 60
# How often the wall clock is held against the monotonic one, and what difference is a step of it.
LOOK_SECONDS = 1.0
STEP_SECONDS = 0.05
# A probe waits for its server: each has a thread, or servers that hang would hold up those that do not. Threads start as they are needed.
LANES = {"default": 8, "probes": 256}
_EARLY_SECONDS = 0.001  # APScheduler counts in microseconds and may wake that much before the moment

_OUTCOMES = {EVENT_JOB_EXECUTED: "ok", EVENT_JOB_ERROR: "failed", EVENT_JOB_MISSED: "missed", EVENT_JOB_MAX_INSTANCES: "overlapped"}


class Every(NamedTuple):
    """Run each `seconds`, each run up to `jitter` seconds off, the first after `first` seconds (None: one interval)."""

    seconds: float
    jitter: float = 0.0
    first: float | None = None


class At(NamedTuple):
    """Run at the moments that `following(after)` gives: the next one after a moment, both aware; each up to `jitter` seconds later."""

    following: Callable[[datetime], datetime]
    jitter: float = 0.0


class Job(NamedTuple):
    """A job by name. `settings` is compared on reload: equal ones keep their rhythm. `task` is the label of the counter.

    `lane` is one of LANES: jobs of one lane do not hold up those of another.
    """

    task: str
    when: Every | At
    work: Callable[[], None]
    settings: Any = None
    lane: str = "default"


class _Clocks:
    """What the wall clock is ahead of the monotonic one, as last looked at."""

    def __init__(self, steady: Callable[[], float], wall: Callable[[], float]) -> None:
        self.steady, self._wall = steady, wall
        self.ahead = 0.0
        self.look()

    def look(self) -> float:
        """Looks again; the step that the wall clock made, 0 where it is none."""
        before = self.steady()
        wall = self._wall()
        after = self.steady()
        step = wall - (before + after) / 2 - self.ahead
        if abs(step) <= STEP_SECONDS + (after - before):  # the difference of two reads of the clocks, or slow adjustment
            return 0.0
        self.ahead += step
        return step

    def wall_of(self, moment: float) -> datetime:
        """Wall time of a monotonic moment."""
        return datetime.fromtimestamp(moment + self.ahead, UTC)

    def moment_of(self, wall: datetime) -> float:
        """The inverse."""
        return wall.timestamp() - self.ahead


class _Beat(BaseTrigger):  # type: ignore[misc]  # APScheduler has no types
    """`Every` on the monotonic clock. The jitter shifts single runs, never the rhythm."""

    def __init__(self, every: Every, clocks: _Clocks) -> None:
        self._every, self._clocks = every, clocks
        self._first = clocks.steady() + (every.seconds if every.first is None else every.first)
        self._number, self.moment = 0, self._first

    def __str__(self) -> str:  # in APScheduler's own log lines
        return f"every {self._every.seconds:g} s"

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:
        """Called by APScheduler several times for one run: moves on only when the planned moment has come."""
        at, (seconds, jitter, _) = self._clocks.moment_of(now), self._every
        if previous_fire_time is not None and at >= self.moment - _EARLY_SECONDS:
            self._number = max(self._number + 1, math.floor((at + jitter - self._first) / seconds) + 1)
            self.moment = self._first + self._number * seconds + random.uniform(-jitter, jitter)  # noqa: S311  # no secret
        return self._clocks.wall_of(self.moment)


class _Moments(BaseTrigger):  # type: ignore[misc]
    """`At`. It always has a next moment, so no lost run ends the schedule."""

    def __init__(self, at: At) -> None:
        self._at = at

    def __str__(self) -> str:
        return "by crontab"

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime:  # noqa: ARG002  # APScheduler's form
        """The first moment after `now`, whatever became of the previous one."""
        return self._at.following(now) + timedelta(seconds=random.uniform(0, self._at.jitter))  # noqa: S311


class _Scheduler(BackgroundScheduler):  # type: ignore[misc]
    """Looks at the clocks before it looks at the jobs, and never sleeps long, since the wall clock may be set meanwhile."""

    def __init__(self, look: Callable[[], object], **options: Any) -> None:
        self._look = look
        super().__init__(**options)

    def _process_jobs(self) -> float | None:
        try:
            self._look()
            wait: float | None = super()._process_jobs()
        except Exception:
            log.exception("bug in the scheduler: it goes on")
            return LOOK_SECONDS
        return None if wait is None else min(wait, LOOK_SECONDS)


class Schedule:
    """All jobs of the daemon.

    Args:
        count: told (task, outcome, n).
        steady: monotonic seconds.
        wall: unix seconds.
    """

    def __init__(
        self,
        count: Callable[[str, str, int], None],
        *,
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._count = count
        self._clocks = _Clocks(steady, wall)
        self._scheduler = _Scheduler(
            self.follow_clock,
            timezone=ZoneInfo("UTC"),
            executors={lane: ThreadPoolExecutor(threads) for lane, threads in LANES.items()},
            job_defaults={"max_instances": 1, "coalesce": True, "misfire_grace_time": GRACE_SECONDS},
        )
        self._scheduler.add_listener(self._note, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED | EVENT_JOB_MAX_INSTANCES)
        self._jobs: dict[str, Job] = {}

    def start(self) -> None:
        """Starts the scheduler's thread."""
        self._scheduler.start()

    def stop(self) -> None:
        """Ends the thread; jobs that run are not waited for."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

    def apply(self, jobs: Mapping[str, Job]) -> None:
        """Makes the jobs those of `jobs`; one whose settings did not change keeps its rhythm."""
        for name in [name for name in self._jobs if name not in jobs]:
            self._remove(name)
        for name, job in jobs.items():
            old = self._jobs.get(name)
            if old is not None and (old.settings, old.task) == (job.settings, job.task) and job.settings is not None:
                continue
            if old is not None:
                self._remove(name)
            self._add(name, job)

    def _add(self, name: str, job: Job) -> None:
        self._jobs[name] = job
        trigger = _Beat(job.when, self._clocks) if isinstance(job.when, Every) else _Moments(job.when)
        self._scheduler.add_job(job.work, trigger, id=name, name=name, executor=job.lane)

    def _remove(self, name: str) -> None:
        self._jobs.pop(name, None)
        with suppress(JobLookupError):
            self._scheduler.remove_job(name)

    def follow_clock(self) -> None:
        """Moves the jobs with a step of the wall clock: an interval keeps its distance; a calendar that would be late comes earlier.

        The scheduler calls it before each look at its jobs. Moments that a step forward has passed by are left to be counted as missed.
        """
        step = self._clocks.look()
        if not step:
            return
        now = self._clocks.wall_of(self._clocks.steady())
        if abs(step) > 1.0:
            log.warning("the wall clock was set by %+.1f s: intervals keep their rhythm, calendars follow the clock", step)
        for job in self._scheduler.get_jobs():
            if getattr(job, "next_run_time", None) is None:
                continue
            with suppress(JobLookupError):  # removed meanwhile
                if isinstance(job.trigger, _Beat):
                    job.modify(next_run_time=self._clocks.wall_of(job.trigger.moment))
                elif step < -GRACE_SECONDS:
                    job.modify(next_run_time=min(job.next_run_time, job.trigger.get_next_fire_time(None, now)))

    def _note(self, event: JobEvent) -> None:
        job = self._jobs.get(event.job_id)
        task = job.task if job is not None else "other"
        outcome = _OUTCOMES[event.code]
        if event.code == EVENT_JOB_ERROR:
            if isinstance(event.exception, LlmExporterError):  # what failed is not this program: a traceback would say nothing
                log.error("job %s failed: %s", event.job_id, event.exception, extra={"task": task})
            else:
                log.error("bug in job %s: %r\n%s", event.job_id, event.exception, event.traceback, extra={"task": task})
        self._count(task, outcome, 1)

    def next_run(self, name: str) -> datetime | None:
        """When the job runs next; None where it is not scheduled."""
        job = self._scheduler.get_job(name)
        moment = getattr(job, "next_run_time", None)
        return moment if isinstance(moment, datetime) else None
