"""Jobs: what a reload keeps, what a failure costs, and crontabs over daylight-saving changes."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pytest

from llm_exporter.config.model import ProbeModule
from llm_exporter.daemon.probes import Probes
from llm_exporter.daemon.schedule import At, Every, Job, Schedule
from llm_exporter.errors import LlmExporterError
from llm_exporter.expose.page import Page


class Counted:
    def __init__(self) -> None:
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self.changed = threading.Condition()

    def __call__(self, task: str, outcome: str, n: int) -> None:
        with self.changed:
            self.outcomes[task, outcome] += n
            self.changed.notify_all()

    def wait_for(self, task: str, outcome: str, n: int = 1) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.outcomes[task, outcome] >= n, 10)


def test_jobs_run_and_are_counted_and_a_bug_in_one_ends_nothing() -> None:
    counted = Counted()
    schedule = Schedule(counted)

    def bug() -> None:
        raise RuntimeError("bug")

    schedule.apply({"good": Job("a", Every(0.02, first=0.0), lambda: None, 1), "bad": Job("b", Every(0.02, first=0.0), bug, 1)})
    schedule.start()
    try:
        assert counted.wait_for("a", "ok", 2)
        assert counted.wait_for("b", "failed", 2)
    finally:
        schedule.stop()


def test_what_failed_outside_is_one_line_and_only_a_bug_has_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    counted = Counted()
    schedule = Schedule(counted)

    def outside() -> None:
        raise LlmExporterError("the review failed with code 1: Prometheus refuses connections")

    def bug() -> None:
        raise RuntimeError("bug")

    schedule.apply({"outside": Job("report", Every(0.02, first=0.0), outside, 1), "bug": Job("b", Every(0.02, first=0.0), bug, 1)})
    schedule.start()
    try:
        assert counted.wait_for("report", "failed")
        assert counted.wait_for("b", "failed")
    finally:
        schedule.stop()
    lines = [record.getMessage() for record in caplog.records if record.name == "llm_exporter.schedule"]
    assert "job outside failed: the review failed with code 1: Prometheus refuses connections" in lines
    assert all("in bug" in line for line in lines if "job bug" in line)
    assert any("job bug" in line for line in lines)


def test_a_job_never_overlaps_with_itself() -> None:
    counted, release, inside = Counted(), threading.Event(), []

    def slow() -> None:
        inside.append(1)
        release.wait(10)

    schedule = Schedule(counted)
    schedule.apply({"slow": Job("a", Every(0.02, first=0.0), slow, 1)})
    schedule.start()
    try:
        assert counted.wait_for("a", "overlapped")
        assert len(inside) == 1
    finally:
        release.set()
        schedule.stop()


def test_a_reload_keeps_the_rhythm_of_what_did_not_change() -> None:
    schedule = Schedule(Counted())
    schedule.apply({"a": Job("t", Every(1000.0), lambda: None, (1,)), "b": Job("t", Every(1000.0), lambda: None, (1,))})
    schedule.start()
    try:
        before = schedule.next_run("a"), schedule.next_run("b")
        schedule.apply({"a": Job("t", Every(1000.0), lambda: None, (1,)), "b": Job("t", Every(500.0), lambda: None, (2,))})
        assert schedule.next_run("a") == before[0]
        assert schedule.next_run("b") != before[1]
        schedule.apply({"a": Job("t", Every(1000.0), lambda: None, (1,))})
        assert schedule.next_run("b") is None
    finally:
        schedule.stop()


def test_a_job_by_moments_schedules_the_next_one_even_when_it_fails() -> None:
    counted = Counted()
    schedule = Schedule(counted)

    def following(after: datetime) -> datetime:
        return after + timedelta(milliseconds=20)

    def bug() -> None:
        raise RuntimeError("bug")

    schedule.apply({"m": Job("t", At(following), bug, 1)})
    schedule.start()
    try:
        assert counted.wait_for("t", "failed", 2)
    finally:
        schedule.stop()


class NoFleet:
    running: ClassVar[dict[str, object]] = {}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        # Europe/Berlin, 02:30 does not exist on 28 March 2027: it runs as much later as the clocks skip
        (datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 3, 28, 1, 30, tzinfo=UTC)),
        (datetime(2027, 3, 28, 1, 30, tzinfo=UTC), datetime(2027, 3, 29, 0, 30, tzinfo=UTC)),
        # and comes twice on 31 October 2027: it runs the first time only
        (datetime(2027, 10, 30, 12, tzinfo=UTC), datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
        (datetime(2027, 10, 31, 0, 30, tzinfo=UTC), datetime(2027, 11, 1, 1, 30, tzinfo=UTC)),
    ],
)
def test_a_ladder_by_crontab_over_daylight_saving_changes(after: datetime, expected: datetime) -> None:
    module = ProbeModule(schedule="30 2 * * *", timezone="Europe/Berlin", timeout=20.0)
    when = Probes(Page((), lambda: 0.0), NoFleet())._when("t ladder", module)  # type: ignore[arg-type]
    assert isinstance(when, At)
    assert when.following(after) == expected
