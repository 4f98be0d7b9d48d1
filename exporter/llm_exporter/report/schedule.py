"""When a review is due, and which window it covers. Pure: no clock, no thread, no scheduler.

In: the crontab and time zone of the configuration, the end of the last review, a moment. Out: `Run`, and the command line of the child
process. Called by `daemon/schedule.py`, which owns the scheduler. Windows reach from one scheduled moment to the next, so they join
without gap or overlap whatever the clocks do: a week with a change has 167 or 169 hours. A local time that the clocks skip runs as many
minutes later as they skip (03:30 at 04:30); one that comes twice runs the first time. Runs that were missed are made up by one, from the
end of the last review.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

from llm_exporter.config.crontab import WEEKDAYS, Crontab, parse_crontab

LONGEST_WINDOW = timedelta(days=35)  # the history that a review reads
_SEARCH_DAYS = 366 * 8 + 2  # 29 February comes at least that often


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


def next_fire(crontab: str, timezone: str, after: datetime) -> datetime:
    """First scheduled moment after `after`, in UTC.

    Raises:
        ValueError: the crontab is none, or never comes due.
    """
    fields, zone = parse_crontab(crontab), ZoneInfo(timezone)
    local = after.astimezone(zone).date()
    # A moment moved by a clock change may belong to the day before.
    for offset in range(-1, _SEARCH_DAYS):
        for moment in _moments(fields, zone, local + timedelta(days=offset)):
            if moment > after:
                return moment
    raise ValueError(f"the schedule {crontab!r} never comes due")


def previous_fire(crontab: str, timezone: str, until: datetime) -> datetime:
    """Last scheduled moment at or before `until`, in UTC.

    Raises:
        ValueError: as `next_fire`.
    """
    fields, zone = parse_crontab(crontab), ZoneInfo(timezone)
    local = until.astimezone(zone).date()
    for offset in range(1, -_SEARCH_DAYS, -1):
        for moment in reversed(_moments(fields, zone, local + timedelta(days=offset))):
            if moment <= until:
                return moment
    raise ValueError(f"the schedule {crontab!r} never comes due")


def _moments(fields: Crontab, zone: ZoneInfo, day: date) -> Sequence[datetime]:
    """Scheduled moments that belong to a local day, in UTC, ascending, each once."""
    if not _has(fields.month, day.month) or not _has(fields.day, day.day):
        return ()
    if fields.weekday != "*" and WEEKDAYS[day.isoweekday() % 7] not in fields.weekday.split(","):
        return ()
    moments = set()
    for hour in _values(fields.hour, 24):
        for minute in _values(fields.minute, 60):
            # fold=0: the first of two; in a gap it is read with the offset before it, which is the shift that we want.
            moments.add(datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).astimezone(UTC))
    return sorted(moments)


def _values(field: str, count: int) -> Sequence[int]:
    return range(count) if field == "*" else [int(part) for part in field.split(",")]


def _has(field: str, value: int) -> bool:
    return field == "*" or str(value) in field.split(",")


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
