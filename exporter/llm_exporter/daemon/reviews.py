"""The weekly review in the daemon: when it is due, the child process that makes it, and the directory that keeps it.

The child is `llm-exporter report`: numpy and matplotlib never enter this process.
"""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from llm_exporter.config.crontab import next_fire
from llm_exporter.config.model import Report
from llm_exporter.daemon.schedule import At, Every, Job
from llm_exporter.errors import LlmExporterError
from llm_exporter.expose.page import Page
from llm_exporter.report import directory
from llm_exporter.report.schedule import Run, command_line, due

log = logging.getLogger("llm_exporter.reviews")

OWNER = "reviews"
# A review that takes longer than this hangs.
LONGEST_RUN_SECONDS = 3600.0
# How often a missed review is looked for: at the start, after a sleep of the machine, after a failure.
CATCH_UP_SECONDS = 900.0
FIRST_LOOK_SECONDS = 30.0


class Reviews:
    """Schedule and directory of reviews.

    Args:
        page: where the time of the last review is published.
        config_file: given to the child.
        run_child: runs a command line; stands in for subprocess in tests.
    """

    def __init__(self, page: Page, config_file: Path, run_child: Callable[[Sequence[str]], None] | None = None) -> None:
        self._page = page
        self._config_file = config_file
        self._run_child = run_child or _run
        self.config: Report | None = None
        self._making = threading.Lock()

    @property
    def directory(self) -> Path | None:
        """Where reviews are kept; None without a schedule."""
        return None if self.config is None else Path(self.config.directory)

    def apply(self, config: Report | None) -> dict[str, Job]:
        """Takes over the configuration; returns the jobs to schedule."""
        self.config = config
        self.publish()
        if config is None or config.schedule is None:
            return {}
        crontab, timezone = config.schedule, config.timezone

        def following(after: datetime) -> datetime:
            # the hour that a review ends with must have been scraped and recorded
            return next_fire(crontab, timezone, after) + timedelta(minutes=1)

        settings = (crontab, timezone, str(config.directory))
        return {
            "review": Job("report", At(following), self.catch_up, settings),
            "review catch-up": Job("report", Every(CATCH_UP_SECONDS, first=FIRST_LOOK_SECONDS), self.catch_up, settings),
        }

    def catch_up(self) -> None:
        """Makes the review that is due now, if any: once, whatever was missed, and never beside another one."""
        if not self._making.acquire(blocking=False):
            return  # the other job makes it
        try:
            self._make()
        finally:
            self._making.release()

    def _make(self) -> None:
        config, where = self.config, self.directory
        if config is None or config.schedule is None or where is None:
            return
        last_end = directory.last_window_end(where)
        run = due(config.schedule, config.timezone, last_end, datetime.now(UTC))
        if run is None and last_end is None:
            run = self._first(config)
        if run is None:
            return
        log.info("making the review of %s to %s", run.start.isoformat(), run.end.isoformat(), extra={"task": "report"})
        self._run_child(command_line(self._config_file, where, run))
        directory.retain(where, config.keep)
        self.publish()

    def _first(self, config: Report) -> Run | None:
        """At the very first start nothing is due; the first review comes with its moment."""
        crontab, timezone = config.schedule or "", config.timezone
        now = datetime.now(UTC)
        moment = next_fire(crontab, timezone, now - timedelta(minutes=5))
        if moment > now:
            return None
        before = moment - timedelta(days=7)
        return Run(before, moment)

    def publish(self) -> None:
        """Publishes when the last review was finished, read back from the directory."""
        where = self.directory
        self._page.put(OWNER, [] if where is None else [directory.family(directory.last_success(where))])

    def rows(self) -> list[dict[str, Any]]:
        """Rows of the index, newest first."""
        where = self.directory
        return [] if where is None else [entry.row() for entry in directory.entries(where)]


def _run(arguments: Sequence[str]) -> None:
    # the command line is our own, made in report/schedule.py; nothing of it comes from outside
    finished = subprocess.run(list(arguments), check=False, capture_output=True, text=True, timeout=LONGEST_RUN_SECONDS)  # noqa: S603
    if finished.returncode:
        last = (finished.stderr.strip().splitlines() or ["no output"])[-1]
        raise LlmExporterError(f"the review failed with code {finished.returncode}: {last}")
