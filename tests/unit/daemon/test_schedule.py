"""Jobs: what a reload keeps, what a failure costs, and crontabs over daylight-saving changes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import ClassVar

import pytest

from llm_exporter.config.model import ProbeModule
from llm_exporter.daemon.probes import Probes
from llm_exporter.daemon.schedule import At, Every, Job, Schedule, _Beat, _Clocks
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


def each_instant(after: datetime) -> datetime:
    return after + timedelta(milliseconds=20)


def test_a_run_that_overlaps_the_next_moment_does_not_end_a_calendar() -> None:
    counted, release = Counted(), threading.Event()
    schedule = Schedule(counted)
    schedule.apply({"ladder": Job("probe", At(each_instant), lambda: release.wait(10), 1)})  # type: ignore[arg-type]
    schedule.start()
    try:
        assert counted.wait_for("probe", "overlapped", 2)
        assert schedule.next_run("ladder") is not None
        release.set()
        assert counted.wait_for("probe", "ok", 2)
    finally:
        release.set()
        schedule.stop()


class Leaping(datetime):
    """The wall clock of APScheduler's executors, which say what is missed."""

    ahead: ClassVar[timedelta] = timedelta(0)

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.ahead


@pytest.mark.parametrize("when", [At(each_instant), Every(0.02, first=0.0)], ids=["calendar", "interval"])
def test_a_missed_run_is_counted_and_does_not_end_the_schedule(when: At | Every, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apscheduler.executors.base.datetime", Leaping)
    monkeypatch.setattr(Leaping, "ahead", timedelta(hours=1))
    counted, runs = Counted(), []
    schedule = Schedule(counted)
    schedule.apply({"ladder": Job("probe", when, lambda: runs.append(1), 1)})
    schedule.start()
    try:
        assert counted.wait_for("probe", "missed", 2)
        assert not runs
        monkeypatch.setattr(Leaping, "ahead", timedelta(0))
        assert counted.wait_for("probe", "ok", 2)
    finally:
        schedule.stop()


class Stepped:
    """A schedule on clocks of ours, whose own thread does nothing."""

    def __init__(self) -> None:
        self.steady, self.wall = 1000.0, 1_800_000_000.0
        self.schedule = Schedule(Counted(), steady=lambda: self.steady, wall=lambda: self.wall)
        self.schedule._scheduler.start(paused=True)

    def pass_time(self, seconds: float, *, step: float = 0.0) -> None:
        self.steady += seconds
        self.wall += seconds + step
        self.schedule.follow_clock()

    def left(self, name: str) -> float:
        moment = self.schedule.next_run(name)
        assert moment is not None
        return moment.timestamp() - self.wall


@pytest.fixture
def stepped() -> Iterator[Stepped]:
    made = Stepped()
    yield made
    made.schedule.stop()


@pytest.mark.parametrize("step", [-7200.0, -30.0, 0.0, 0.2, 3600.0, 86400.0 * 365])
def test_an_interval_keeps_its_distance_when_the_wall_clock_is_set(stepped: Stepped, step: float) -> None:
    stepped.schedule.apply({"hb": Job("probe", Every(30.0, first=10.0), lambda: None, 1)})
    assert stepped.left("hb") == pytest.approx(10.0)
    stepped.pass_time(4.0, step=step)
    assert stepped.left("hb") == pytest.approx(6.0, abs=0.001)


def test_a_calendar_comes_earlier_when_the_clock_is_set_back_and_is_left_alone_by_a_step_forward(stepped: Stepped) -> None:
    def each_minute(after: datetime) -> datetime:
        return after.replace(second=0, microsecond=0) + timedelta(minutes=1)

    stepped.schedule.apply({"ladder": Job("probe", At(each_minute), lambda: None, 1)})
    stepped.schedule._scheduler.modify_job("ladder", next_run_time=each_minute(datetime.fromtimestamp(stepped.wall, UTC)))
    first = stepped.schedule.next_run("ladder")
    stepped.pass_time(1.0, step=3600.0)
    assert stepped.schedule.next_run("ladder") == first  # due, and late: the scheduler counts it as missed and plans the next one
    stepped.pass_time(1.0, step=-7200.0)
    assert 0 < stepped.left("ladder") <= 60


def test_the_schedulers_own_thread_follows_a_step_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_exporter.daemon.schedule.LOOK_SECONDS", 0.02)
    ahead, looked = [0.0], threading.Event()

    def wall() -> float:
        if ahead[0]:
            looked.set()
        return time.time() + ahead[0]

    schedule = Schedule(Counted(), wall=wall)
    schedule.apply({"hb": Job("probe", Every(100_000.0), lambda: None, 1)})
    schedule.start()
    try:
        before = schedule.next_run("hb")
        ahead[0] = -7200.0
        assert looked.wait(10)
        looked.clear()
        assert looked.wait(10)  # the second look begins after the first one has moved the jobs
        after = schedule.next_run("hb")
        assert before is not None
        assert after is not None
        assert (before - after).total_seconds() == pytest.approx(7200, abs=0.5)
    finally:
        schedule.stop()


def planned(beat: _Beat, clocks: _Clocks, late: float, runs: int) -> list[float]:
    """Monotonic moments of some runs, each seen `late` seconds after its time; every moment is asked for twice, as APScheduler does."""
    moments = []
    for _ in range(runs):
        moments.append(beat.moment)
        due = clocks.wall_of(beat.moment)
        now = due + timedelta(seconds=late)
        following = beat.get_next_fire_time(due, now)
        assert following > now
        assert beat.get_next_fire_time(due, now) == following
    return moments


@pytest.mark.parametrize("late", [0.0, 0.001, 0.4])
@pytest.mark.parametrize("jitter", [0.0, 0.1])
def test_jitter_shifts_runs_and_never_the_rhythm(jitter: float, late: float) -> None:
    clocks = _Clocks(lambda: 500.0, lambda: 1_800_000_000.0)
    moments = planned(_Beat(Every(1.0, jitter, first=0.0), clocks), clocks, late, 200)
    assert [moment - 500.0 for moment in moments] == [pytest.approx(number, abs=jitter + 0.001) for number in range(200)]


def test_a_beat_that_was_slept_through_is_not_made_up() -> None:
    clocks = _Clocks(lambda: 500.0, lambda: 1_800_000_000.0)
    moments = planned(_Beat(Every(1.0, first=0.0), clocks), clocks, 5.5, 3)
    assert [moment - 500.0 for moment in moments] == [0.0, 6.0, 12.0]


def test_jobs_that_hang_hold_up_no_others_of_their_lane_and_no_other_lane() -> None:
    counted, release = Counted(), threading.Event()
    schedule = Schedule(counted)
    hung = {f"hung {n}": Job("hung", Every(1000.0, first=0.0), lambda: release.wait(20), 1, "probes") for n in range(60)}  # type: ignore[arg-type]
    fine = {"fine": Job("probe", Every(0.02, first=0.5), lambda: None, 1, "probes")}
    schedule.apply(hung | fine | {"discovery": Job("discovery", Every(0.02, first=0.5), lambda: None, 1)})
    schedule.start()
    try:
        assert counted.wait_for("probe", "ok", 5)
        assert counted.wait_for("discovery", "ok", 5)
        assert not counted.outcomes["hung", "ok"]
    finally:
        release.set()
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
