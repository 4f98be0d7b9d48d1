"""What is calendar: jobs at an interval or by crontab, through APScheduler. The only module that imports it.

Jobs never overlap with themselves; one that was missed is made up once. Outcomes are counted: ok, failed, missed, overlapped. Scrapes are
not here: they follow the monotonic clock (`loop.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MAX_INSTANCES, EVENT_JOB_MISSED, JobEvent
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from llm_exporter.errors import LlmExporterError

log = logging.getLogger("llm_exporter.schedule")

# A job that starts later than this after its time counts as missed; made-up runs are coalesced into one.
GRACE_SECONDS = 60
THREADS = 16

_OUTCOMES = {EVENT_JOB_EXECUTED: "ok", EVENT_JOB_ERROR: "failed", EVENT_JOB_MISSED: "missed", EVENT_JOB_MAX_INSTANCES: "overlapped"}


class Every(NamedTuple):
    """Run each `seconds`, each run up to `jitter` seconds off, the first after `first` seconds (None: one interval)."""

    seconds: float
    jitter: float = 0.0
    first: float | None = None


class At(NamedTuple):
    """Run at the moments that `following(after)` gives: the next one after a moment, both aware."""

    following: Callable[[datetime], datetime]


class Job(NamedTuple):
    """A job by name. `settings` is compared on reload: equal ones keep their rhythm. `task` is the label of the counter."""

    task: str
    when: Every | At
    work: Callable[[], None]
    settings: Any = None


class Schedule:
    """All jobs of the daemon.

    Args:
        count: told (task, outcome, n).
    """

    def __init__(self, count: Callable[[str, str, int], None]) -> None:
        self._count = count
        self._scheduler = BackgroundScheduler(
            timezone=ZoneInfo("UTC"),
            executors={"default": ThreadPoolExecutor(THREADS)},
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
        if isinstance(job.when, Every):
            trigger = IntervalTrigger(seconds=job.when.seconds, jitter=job.when.jitter or None, timezone=ZoneInfo("UTC"))
            soon = {} if job.when.first is None else {"next_run_time": datetime.now(ZoneInfo("UTC")) + timedelta(seconds=job.when.first)}
            self._scheduler.add_job(job.work, trigger, id=name, name=job.task, **soon)
        else:
            self._add_moment(name, job)

    def _add_moment(self, name: str, job: Job) -> None:
        assert isinstance(job.when, At)
        now = datetime.now(ZoneInfo("UTC"))
        moment = job.when.following(now)

        def run() -> None:
            if self._jobs.get(name) is job:
                self._add_moment(name, job)  # the next one first: a run that fails must not end the schedule
            job.work()

        self._scheduler.add_job(run, DateTrigger(moment), id=name, name=job.task, replace_existing=True)

    def _remove(self, name: str) -> None:
        self._jobs.pop(name, None)
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

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
