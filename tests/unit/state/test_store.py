"""What the store counts and when: restarts where a start time stands beside ranks, impossible gains, targets that come late."""

from __future__ import annotations

from llm_exporter.state.store import EngineStore
from readings_made import layout, reading, scalar

TOKENS, PROMPTS = scalar("generation_tokens"), scalar("prompt_tokens")
START = scalar("process_start_time", rank="")


def test_a_rank_that_counts_nothing_keeps_no_sum_up() -> None:
    # the start time belongs to no rank; it does not move where only the engine core behind the page is new
    shape = layout([TOKENS, PROMPTS, START])
    store = EngineStore()
    store.add(reading(shape, [100, 50, 1e9]), 0)
    merged = store.add(reading(shape, [7, 3, 1e9]), 5)
    assert list(merged.published[:2]) == [7, 3]
    assert list(merged.unwrapped[:2]) == [107, 53]
    assert store.counted.restarts == 1


def test_a_restart_is_counted_once_and_noted_in_time() -> None:
    shape = layout([TOKENS, PROMPTS])
    store = EngineStore()
    for at, values in ((0, [100, 50]), (5, [7, 3]), (10, [9, 4])):
        store.add(reading(shape, values), at)
    assert store.counted.restarts == 1
    assert store.started_at == 5


def test_more_hits_than_lookups_between_two_scrapes_are_an_anomaly() -> None:
    shape = layout([scalar("prefix_cache_hit_tokens"), scalar("prefix_cache_queried_tokens")])
    store = EngineStore()
    store.add(reading(shape, [0, 0]), 0)
    store.add(reading(shape, [10, 5]), 5)
    assert store.counted.anomalies == 1


def test_after_a_long_silence_a_window_has_one_scrape_only() -> None:
    shape = layout([TOKENS])
    store = EngineStore()
    store.add(reading(shape, [10]), 0)
    store.add(reading(shape, [500]), 1000)
    for name, seconds in (("1m", 60.0), ("5m", 300.0)):
        window = store.window("m", name, seconds)
        assert (window.scrapes, window.seconds) == (1, 0)
