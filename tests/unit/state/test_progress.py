"""Does the engine still move, and has it work: what counts as movement, and whose gauges are believed."""

from __future__ import annotations

import pytest

from llm_exporter.state.store import EngineStore
from readings_made import INF, histogram, layout, of, reading, scalar

RUNNING, WAITING, TOKENS = scalar("requests_running"), scalar("requests_waiting_capacity"), scalar("generation_tokens")
ACTIVE, IDLE = scalar("http_requests_active", rank=""), scalar("scheduler_idle_seconds")


def still(*pages: dict[object, float]) -> float:
    """Stillness after pages ten seconds apart."""
    store = EngineStore()
    at = 0.0
    for number, page in enumerate(pages):
        at = 10.0 * number
        store.add(of(page), at)  # type: ignore[arg-type]
    return store.progress.still_seconds(at)


WORK = {RUNNING: 2.0, WAITING: 0.0, TOKENS: 50.0}


def test_work_without_movement_is_stillness() -> None:
    assert still(WORK, WORK, WORK, WORK) == 30


def test_tokens_are_movement() -> None:
    assert still(WORK, WORK, WORK | {TOKENS: 51.0}, WORK | {TOKENS: 51.0}) == 10


def test_without_work_nothing_is_still() -> None:
    idle = WORK | {RUNNING: 0.0}
    assert still(idle, idle, idle) == 0


def test_requests_that_wait_for_room_are_work() -> None:
    waiting = WORK | {RUNNING: 0.0, WAITING: 3.0}
    assert still(waiting, waiting, waiting) == 20


def test_stillness_counts_from_when_the_work_came() -> None:
    idle = WORK | {RUNNING: 0.0}
    assert still(idle, idle, WORK, WORK) == 10


def test_kv_use_that_changes_is_a_chunked_prefill_that_runs() -> None:
    usage = scalar("kv_cache_usage")
    assert still(WORK | {usage: 0.1}, WORK | {usage: 0.2}, WORK | {usage: 0.3}) == 0


def test_a_first_token_alone_is_movement() -> None:
    shape = layout([RUNNING, *histogram("time_to_first_token", [1.0, INF])])
    store = EngineStore()
    for at, count in ((0.0, 3.0), (10.0, 3.0), (20.0, 4.0)):
        store.add(reading(shape, [1.0, count, count, count / 2]), at)
    assert store.progress.still_seconds(20.0) == 0


@pytest.mark.parametrize(
    ("further", "expected"),
    [
        ({ACTIVE: 0.0}, 0.0),  # nobody waits at the routes: SGLang's gauges keep the last batch for a while
        ({ACTIVE: 3.0}, 20.0),  # a hang: the gauges are frozen, the clients still wait
    ],
)
def test_sglangs_frozen_gauges_are_overruled_by_its_routes(further: dict[object, float], expected: float) -> None:
    page = WORK | further
    assert still(page, page, page) == expected


def test_sglang_in_a_hang_shows_work_by_its_routes_alone() -> None:
    page = {RUNNING: 0.0, TOKENS: 5.0, ACTIVE: 2.0}
    assert still(page, page, page) == 20


def test_a_scheduler_that_books_idle_time_has_no_work() -> None:
    assert still(*(WORK | {IDLE: 10.0 * n} for n in range(4))) == 0


def test_a_restart_is_movement() -> None:
    assert still(WORK, WORK, WORK | {TOKENS: 1.0}) == 0
