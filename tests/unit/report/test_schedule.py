"""When a review is due and which window it covers, over clock changes; the field case SCH-01."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.config.crontab import next_fire, previous_fire
from llm_exporter.report.schedule import Run, command_line, due, scheduled, stamp_name

CASE = Path(__file__).parents[2] / "fixtures" / "cases" / "SCH-01"
HELSINKI = ZoneInfo("Europe/Helsinki")
CRON, ZONE = "30 3 * * sun", "Europe/Helsinki"


def local(text: str, fold: int = 0) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=HELSINKI, fold=fold).astimezone(UTC)


def runs_between(start: datetime, end: datetime) -> list[Run]:
    runs: list[Run] = []
    moment = next_fire(CRON, ZONE, start - timedelta(seconds=1))
    while moment <= end:
        runs.append(scheduled(CRON, ZONE, runs[-1].end if runs else None, moment))
        moment = next_fire(CRON, ZONE, moment)
    return runs


def test_the_night_the_clock_jumps_forward() -> None:
    """SCH-01: three runs, windows that join, the last two add up to 335 h."""
    clock = json.loads((CASE / "clock.json").read_text())
    runs = runs_between(datetime.fromisoformat(clock["start"]), datetime.fromisoformat(clock["end"]))
    expect = {check["signal"]: check for check in json.loads((CASE / "expect.json").read_text())["checks"]}
    assert len(runs) == expect["report_runs"]["value"]
    assert all(before.end == after.start for before, after in pairwise(runs))
    hours = sum((run.end - run.start).total_seconds() for run in runs[-2:]) / 3600
    assert hours == pytest.approx(expect["report_window_hours_sum"]["value"], abs=expect["report_window_hours_sum"]["tol"])
    ends = [run.end.astimezone(HELSINKI) for run in runs]
    assert [f"{end:%Y-%m-%dT%H:%M}" for end in ends] == ["2027-03-21T03:30", "2027-03-28T04:30", "2027-04-04T03:30"]


def test_the_night_the_clock_falls_back_runs_once() -> None:
    runs = runs_between(local("2027-10-24T12:00"), local("2027-11-08T00:00"))
    assert [run.end for run in runs] == [local("2027-10-31T03:30"), local("2027-11-07T03:30")]
    assert (runs[1].end - runs[1].start) == timedelta(hours=169)


@given(
    st.datetimes(datetime.fromisoformat("2024-01-01"), datetime.fromisoformat("2032-01-01")),
    st.sampled_from(["30 3 * * sun", "0 8 * * mon", "*/20 2-3 * * *", "0 0 1 * *"]),
)
def test_next_and_previous_agree(moment: datetime, cron: str) -> None:
    now = moment.replace(tzinfo=UTC)
    before, after = previous_fire(cron, ZONE, now), next_fire(cron, ZONE, now)
    assert before <= now < after
    assert previous_fire(cron, ZONE, after) == after
    assert previous_fire(cron, ZONE, after - timedelta(seconds=1)) == before
    assert next_fire(cron, ZONE, before) == after


def test_missed_runs_are_made_up_once_and_leave_no_gap() -> None:
    last = local("2027-02-07T03:30")
    run = due(CRON, ZONE, last, local("2027-02-25T12:00"))
    assert run == Run(last, local("2027-02-21T03:30"))
    assert due(CRON, ZONE, run.end, local("2027-02-25T12:01")) is None


def test_after_a_long_silence_only_the_last_window_is_reviewed() -> None:
    run = due(CRON, ZONE, local("2026-01-04T03:30"), local("2027-02-25T12:00"))
    assert run == Run(local("2027-02-14T03:30"), local("2027-02-21T03:30"))


def test_a_new_exporter_waits_for_its_first_moment() -> None:
    assert due(CRON, ZONE, None, local("2027-02-25T12:00")) is None
    assert scheduled(CRON, ZONE, None, local("2027-02-28T03:30")) == Run(local("2027-02-21T03:30"), local("2027-02-28T03:30"))


def test_a_schedule_that_never_comes_is_refused() -> None:
    with pytest.raises(ValueError, match="day"):
        next_fire("0 0 31 2 *", ZONE, local("2027-02-25T12:00"))


def test_the_child_is_told_its_window_and_its_directory() -> None:
    run = Run(local("2027-03-21T03:30"), local("2027-03-28T04:30"))
    line = command_line(Path("/etc/x.yaml"), Path("reports"), run)
    assert line[2:4] == ["llm_exporter", "report"]
    assert "2027-03-21T01:30:00Z" in line
    assert "2027-03-28T01:30:00Z" in line
    assert str(Path("reports") / stamp_name(run.end)) in line
    assert run.name == "2027-03-28T0130Z"
