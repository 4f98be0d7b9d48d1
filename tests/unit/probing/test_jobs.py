from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from apscheduler.triggers.cron import CronTrigger

from fakes.probing import LADDER, Module
from llm_exporter.probing.jobs import jobs_of

MODULES = {
    "short": Module(interval=30.0),
    "ladder": LADDER,
    "berlin": Module(interval=None, schedule="30 2 * * *", timezone="Europe/Berlin"),
}


def test_one_job_per_target_and_module() -> None:
    jobs = jobs_of([("a", ["short", "ladder"]), ("b", ["short"])], MODULES)
    assert [(job.target, job.module) for job in jobs] == [("a", "short"), ("a", "ladder"), ("b", "short")]
    assert len({job.id for job in jobs}) == 3


def test_an_interval_job_is_spread_within_its_interval_and_stays_there() -> None:
    jobs = jobs_of([(f"t{number}", ["short"]) for number in range(100)], MODULES)
    delays = [job.first_delay_seconds for job in jobs]
    assert all(0 <= delay < 30 for delay in delays)
    assert len({int(delay / 3) for delay in delays}) == 10
    assert delays == [job.first_delay_seconds for job in jobs_of([(f"t{number}", ["short"]) for number in range(100)], MODULES)]
    assert {job.jitter_seconds for job in jobs} == {3.0}


def test_a_calendar_job_carries_its_crontab_and_zone() -> None:
    (job,) = jobs_of([("a", ["berlin"])], MODULES)
    assert (job.interval_seconds, job.crontab, job.timezone) == (None, "30 2 * * *", "Europe/Berlin")
    assert job.grace_seconds == 900


def fires(crontab: str, zone: str, start: datetime, days: int) -> list[datetime]:
    trigger = CronTrigger.from_crontab(crontab, timezone=zone)
    found: list[datetime] = []
    now = start
    while (moment := trigger.get_next_fire_time(found[-1] if found else None, now)) is not None and moment < start + timedelta(days=days):
        found.append(moment)
        now = moment + timedelta(microseconds=1)
    return found


@pytest.mark.parametrize("start", [datetime(2026, 3, 27, 12, tzinfo=UTC), datetime(2026, 10, 23, 12, tzinfo=UTC)])
def test_four_in_the_morning_is_once_a_day_over_both_changes_of_the_clock(start: datetime) -> None:
    moments = fires("0 4 * * *", "Europe/Berlin", start, 4)
    assert [moment.hour for moment in moments] == [4, 4, 4, 4]
    assert len({moment.date() for moment in moments}) == 4
    gaps = {(later - earlier) for earlier, later in pairwise(moment.astimezone(UTC) for moment in moments)}
    assert gaps in ({timedelta(hours=24), timedelta(hours=23)}, {timedelta(hours=24), timedelta(hours=25)})


def test_an_hour_that_does_not_exist_costs_at_most_that_day() -> None:
    moments = fires("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 27, 12, tzinfo=UTC), 4)
    assert {moment.day for moment in moments} >= {28, 30, 31}
    assert len(moments) <= 4
