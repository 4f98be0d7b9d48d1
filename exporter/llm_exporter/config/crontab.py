"""Crontab expressions (`0 8 * * mon`): checked, split with weekdays by name, and when they come due in a time zone.

A local time that the clocks skip comes as many minutes later as they skip (03:30 at 04:30). One that comes twice counts the first time
where minute and hour are given; where one of them is open (`*/30 * * * *`) it counts twice, so that the rhythm goes on, as in cron.
`daemon/schedule.py` is told moments and owns the scheduler.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONGEST_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_SEARCH_DAYS = 366 * 8 + 2  # 29 February comes at least that often
_EXAMPLE = 'write five fields, for example "0 8 * * mon" (minute hour day month weekday)'


class Crontab(NamedTuple):
    """The five fields, each `*` or a comma-separated list of plain values; weekdays by name (`mon`), months by number."""

    minute: str
    hour: str
    day: str
    month: str
    weekday: str


def parse_crontab(text: str) -> Crontab:
    """Split a crontab expression.

    Raises:
        ValueError: it is none, or it never comes due; the message says what to write instead.
    """
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"has {len(fields)} field{'s' * (len(fields) != 1)} instead of 5; {_EXAMPLE}")
    minute = _field(fields[0], "minute", 0, 59)
    hour = _field(fields[1], "hour", 0, 23)
    day = _field(fields[2], "day", 1, 31)
    month = _field(fields[3], "month", 1, 12, MONTHS)
    weekday = _field(fields[4], "weekday", 0, 7, WEEKDAYS)
    if day is not None and weekday is not None:
        raise ValueError("names both days of the month and weekdays, which cron reads as either; write * for one of them")
    if day is not None and min(day) > max(_LONGEST_MONTH_DAYS[number - 1] for number in month or range(1, 13)):
        raise ValueError("names a day that its months never have; write a day between 1 and 28")
    names = None if weekday is None else [WEEKDAYS[number] for number in sorted({number % 7 for number in weekday})]
    return Crontab(_list(minute), _list(hour), _list(day), _list(month), "*" if names is None else ",".join(names))


def _list(values: list[int] | None) -> str:
    return "*" if values is None else ",".join(map(str, values))


def _field(text: str, what: str, low: int, high: int, names: tuple[str, ...] = ()) -> list[int] | None:
    """Values that the field names in order; None for all of them."""
    if text == "*":
        return None
    values: set[int] = set()
    for part in text.lower().split(","):
        match = re.fullmatch(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", part, re.ASCII)
        if not match:
            raise ValueError(f"has a {what} {part!r} that is not understood; {_EXAMPLE}")
        star, first, last, step = match.groups()
        start = low if star else _number(first, what, low, high, names)
        end = high if star or (step and not last) else _number(last or first, what, low, high, names)
        if star and what == "weekday":
            end = 6
        if start > end or (step and int(step) == 0):
            raise ValueError(f"has a {what} {part!r} that is never reached; {_EXAMPLE}")
        values.update(range(start, end + 1, int(step or 1)))
    return sorted(values)


def _number(text: str, what: str, low: int, high: int, names: tuple[str, ...]) -> int:
    if text in names:
        return names.index(text) + low
    if text.isdecimal() and low <= int(text) <= high:
        return int(text)
    allowed = f"{low} to {high}" + (f" or {names[0]} to {names[-1]}" if names else "")
    raise ValueError(f"has the {what} {text!r}; write {allowed}")


def next_fire(crontab: str, timezone: str, after: datetime) -> datetime:
    """First scheduled moment after `after`, in UTC.

    Raises:
        ValueError: the crontab is none, or never comes due.
    """
    fields, zone, rhythm = parse_crontab(crontab), ZoneInfo(timezone), has_rhythm(crontab)
    local = after.astimezone(zone).date()
    # A moment moved by a clock change may belong to the day before.
    for offset in range(-1, _SEARCH_DAYS):
        for moment in _moments(fields, zone, local + timedelta(days=offset), rhythm=rhythm):
            if moment > after:
                return moment
    raise ValueError(f"the schedule {crontab!r} never comes due")


def previous_fire(crontab: str, timezone: str, until: datetime) -> datetime:
    """Last scheduled moment at or before `until`, in UTC.

    Raises:
        ValueError: as `next_fire`.
    """
    fields, zone, rhythm = parse_crontab(crontab), ZoneInfo(timezone), has_rhythm(crontab)
    local = until.astimezone(zone).date()
    for offset in range(1, -_SEARCH_DAYS, -1):
        for moment in reversed(_moments(fields, zone, local + timedelta(days=offset), rhythm=rhythm)):
            if moment <= until:
                return moment
    raise ValueError(f"the schedule {crontab!r} never comes due")


def has_rhythm(crontab: str) -> bool:
    """Minute or hour begins with `*`: what cron calls a wildcard job, which is an interval rather than a time of day."""
    return any(field.startswith("*") for field in crontab.split()[:2])


def _moments(fields: Crontab, zone: ZoneInfo, day: date, *, rhythm: bool) -> Sequence[datetime]:
    """Scheduled moments that belong to a local day, in UTC, ascending, each once."""
    if not _has(fields.month, day.month) or not _has(fields.day, day.day):
        return ()
    if fields.weekday != "*" and WEEKDAYS[day.isoweekday() % 7] not in fields.weekday.split(","):
        return ()
    before, after = (
        datetime(start.year, start.month, start.day, tzinfo=zone).utcoffset() or timedelta() for start in (day, day + timedelta(days=1))
    )
    repeats = rhythm and after < before
    moments = set()
    for hour in _values(fields.hour, 24):
        for minute in _values(fields.minute, 60):
            # fold=0: the first of two; in a gap it is read with the offset before it, which is the shift that we want.
            local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
            moments.add(local.astimezone(UTC))
            if not repeats:
                continue
            if _is_repeated(second := local.replace(fold=1)):
                moments.add(second.astimezone(UTC))
            # Half an hour back would leave 90 minutes between 01:00 and 02:00, so the old reckoning ends with the repetition.
            old = local.replace(tzinfo=UTC) - before
            if fields.hour == "*" and _is_repeated(old.astimezone(zone)):
                moments.add(old)
    return sorted(moments)


def _is_repeated(local: datetime) -> bool:
    """The second occurrence of a local time that comes twice."""
    return local.fold == 1 and (local.utcoffset() or timedelta()) < (local.replace(fold=0).utcoffset() or timedelta())


def _values(field: str, count: int) -> Sequence[int]:
    return range(count) if field == "*" else [int(part) for part in field.split(",")]


def _has(field: str, value: int) -> bool:
    return field == "*" or str(value) in field.split(",")
