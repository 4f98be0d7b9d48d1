"""When a review is due, and which window it covers. Pure: no clock, no thread, no scheduler.

In: the crontab and time zone of the configuration, the end of the last review, a moment. Out: `Run`, and the command line of the child
process. Called by `daemon/schedule.py`, which owns the scheduler. Windows reach from one scheduled moment to the next, so they join
without gap or overlap whatever the clocks do: a week with a change has 167 or 169 hours. Runs that were missed are made up by one, from
the end of the last review. When a crontab comes due is `config/crontab.py`'s to say.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from llm_exporter.config.crontab import previous_fire

LONGEST_WINDOW = timedelta(days=35)  # the history that a review reads


class Run(NamedTuple):
    """A review that is due: its window, both ends aware and in UTC."""

    start: datetime
    end: datetime

    @property
    def name(self) -> str:
        """Directory of this review below the reports directory; sorts by time."""
        return stamp_name(self.end)


def stamp_name(end: datetime) -> str:
    """Name of a review by the end of its window: 2027-03-28T0030Z."""
    return end.astimezone(UTC).strftime("%Y-%m-%dT%H%MZ")


def due(crontab: str, timezone: str, last_end: datetime | None, now: datetime) -> Run | None:
    """The review that should be made now, if any.

    Args:
        crontab: `report.schedule`.
        timezone: `report.timezone`.
        last_end: end of the window of the last review that was made; None where there is none.
        now: aware.

    Returns:
        The window from the end of the last review (or the scheduled moment before, where there is none within 35 days) to the last
        scheduled moment; None where that review exists. At the very first start nothing is due: the first review comes with its moment.
    """
    latest = previous_fire(crontab, timezone, now)
    if last_end is None or last_end >= latest:
        return None
    start = last_end if latest - last_end <= LONGEST_WINDOW else previous_fire(crontab, timezone, latest - timedelta(seconds=1))
    return Run(start.astimezone(UTC), latest)


def scheduled(crontab: str, timezone: str, last_end: datetime | None, moment: datetime) -> Run:
    """The review of a scheduled moment that has come: from the end of the last review, or from the scheduled moment before."""
    run = due(crontab, timezone, last_end, moment)
    if run is not None:
        return run
    end = previous_fire(crontab, timezone, moment)
    return Run(previous_fire(crontab, timezone, end - timedelta(seconds=1)), end)


def command_line(config_file: Path, directory: Path, run: Run) -> list[str]:
    """Arguments of the child process that makes this review."""
    return [
        sys.executable,
        "-m",
        "llm_exporter",
        "report",
        "--config.file",
        str(config_file),
        "--start",
        _rfc3339(run.start),
        "--end",
        _rfc3339(run.end),
        "--out",
        str(directory / run.name),
        "--post-webhook",
        "--quiet",
    ]


def _rfc3339(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
