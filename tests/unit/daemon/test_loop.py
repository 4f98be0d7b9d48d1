"""When ticks come, and that a bug in one does not end the loop."""

from __future__ import annotations

import threading

import pytest

from llm_exporter.daemon.loop import Loop, first_offset, next_due


@pytest.mark.parametrize(
    ("due", "now", "following", "missed"),
    [(10.0, 10.1, 15.0, 0), (10.0, 14.9, 15.0, 0), (10.0, 15.0, 20.0, 1), (10.0, 27.0, 30.0, 3)],
)
def test_ticks_that_were_slept_through_are_counted_and_not_made_up(due: float, now: float, following: float, missed: int) -> None:
    assert next_due(due, now, 5.0) == (following, missed)


def test_first_ticks_are_spread_and_the_same_each_time() -> None:
    offsets = [first_offset(f"t{i}", 5.0) for i in range(50)]
    assert offsets == [first_offset(f"t{i}", 5.0) for i in range(50)]
    assert len(set(offsets)) > 40
    assert all(0 <= offset < 5 for offset in offsets)


def test_a_bug_costs_one_tick() -> None:
    ticks, counted, done = [], [], threading.Event()

    def tick(now: float) -> None:
        ticks.append(now)
        if len(ticks) == 1:
            raise RuntimeError("bug")
        done.set()

    loop = Loop("t", tick, 0.001, lambda outcome, n: counted.append(outcome))
    loop.start()
    assert done.wait(5)
    loop.stop(5)
    assert not loop.alive
    assert counted[0] == "failed"
    assert "ok" in counted
