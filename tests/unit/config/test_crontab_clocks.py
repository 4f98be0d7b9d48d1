"""Crontabs over changes of the clock: intervals keep their rhythm, times of day come once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from llm_exporter.config.crontab import has_rhythm, next_fire, previous_fire

FORWARD = {"Europe/Berlin": "2027-03-28", "America/New_York": "2027-03-14", "Australia/Lord_Howe": "2027-10-03"}
BACK = {"Europe/Berlin": "2027-10-31", "America/New_York": "2027-11-07", "Australia/Lord_Howe": "2027-04-04"}
NIGHTS = [(zone, day) for days in (FORWARD, BACK) for zone, day in days.items()]


def moments(crontab: str, zone: str, day: str) -> list[datetime]:
    """All from noon of the day before to noon of the day, in UTC."""
    noon = datetime.fromisoformat(f"{day}T12:00").replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found, moment = [], next_fire(crontab, zone, noon - timedelta(days=1))
    while moment <= noon:
        found.append(moment)
        moment = next_fire(crontab, zone, moment)
    return found


def clock(crontab: str, zone: str, day: str) -> list[str]:
    """What the clock on the wall shows in the small hours."""
    local = [moment.astimezone(ZoneInfo(zone)) for moment in moments(crontab, zone, day)]
    return [f"{at:%H:%M}" for at in local if f"{at:%Y-%m-%d}" == day and at.hour < 4]


@pytest.mark.parametrize(("zone", "day"), NIGHTS)
@pytest.mark.parametrize(
    ("crontab", "minutes"), [("*/30 * * * *", 30), ("0,30 * * * *", 30), ("*/20 * * * *", 20), ("0 * * * *", 60), ("*/10 * * * *", 10)]
)
def test_an_interval_has_no_hole_when_the_clocks_change(zone: str, day: str, crontab: str, minutes: int) -> None:
    gaps = {later - earlier for earlier, later in pairwise(moments(crontab, zone, day))}
    assert max(gaps) == timedelta(minutes=minutes)
    if zone != "Australia/Lord_Howe" or minutes in (10, 30):  # half an hour is no whole number of the others: there it comes early once
        assert len(gaps) == 1


@pytest.mark.parametrize(("zone", "day"), NIGHTS)
@pytest.mark.parametrize("crontab", ["30 2 * * *", "30 1 * * *", "45 1 * * sun", "0 4 * * *"])
def test_a_time_of_day_comes_once(zone: str, day: str, crontab: str) -> None:
    assert len(moments(crontab, zone, day)) == 1


def test_the_clock_shows_a_repeated_hour_twice() -> None:
    again = ["02:00", "02:30"]
    assert clock("*/30 * * * *", "Europe/Berlin", "2027-10-31") == ["00:00", "00:30", "01:00", "01:30", *again, *again, "03:00", "03:30"]
    assert clock("*/30 2 * * *", "Europe/Berlin", "2027-10-31") == [*again, *again]
    assert clock("*/30 3 * * *", "Europe/Berlin", "2027-10-31") == ["03:00", "03:30"]  # not in the repeated hour before
    assert clock("30 1 * * *", "Australia/Lord_Howe", "2027-04-04") == ["01:30"]
    assert clock("30 2 * * *", "Europe/Berlin", "2027-03-28") == ["03:30"]
    assert clock("15 2 * * *", "Australia/Lord_Howe", "2027-10-03") == ["02:45"]


@pytest.mark.parametrize(("zone", "day"), NIGHTS)
@pytest.mark.parametrize("crontab", ["*/20 * * * *", "*/20 1-2 * * *", "30 2 * * *", "0 * * * *"])
def test_backwards_the_same_moments_come(zone: str, day: str, crontab: str) -> None:
    found = moments(crontab, zone, day)
    back, until = [], found[-1]
    while until >= found[0]:
        back.append(until)
        until = previous_fire(crontab, zone, until - timedelta(seconds=1))
    assert back[::-1] == found


@pytest.mark.parametrize(
    ("crontab", "yes"),
    [("*/30 * * * *", True), ("*/5 3 * * *", True), ("0 */2 * * *", True), ("0 4 * * *", False), ("0,30 1-4 * * *", False)],
)
def test_what_has_a_rhythm(crontab: str, yes: bool) -> None:
    assert has_rhythm(crontab) is yes
