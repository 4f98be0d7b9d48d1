"""Windows: which frames count, increases, histograms whose edges change, quantiles as in PromQL."""

from __future__ import annotations

import math

import pytest

from llm_exporter.state.store import EngineStore
from llm_exporter.state.window import HistogramIncrease, frames_within
from readings_made import INF, histogram, layout, of, reading, scalar

TOKENS = scalar("generation_tokens")
SHAPE = layout([TOKENS])


def store_with(*points: tuple[float, float]) -> EngineStore:
    store = EngineStore()
    for at, value in points:
        store.add(reading(SHAPE, [value]), at)
    return store


def test_a_scrape_exactly_as_old_as_the_window_still_counts() -> None:
    window = store_with((0, 1), (30, 2), (60, 5)).window("m", "1m", 60)
    assert (window.seconds, window.increase("generation_tokens")) == (60, 4)


def test_an_older_scrape_does_not() -> None:
    window = store_with((0, 1), (31, 2), (61, 5)).window("m", "1m", 60)
    assert (window.seconds, window.increase("generation_tokens")) == (30, 3)


def test_a_window_that_is_not_full_uses_what_there_is() -> None:
    window = store_with((0, 1), (5, 3)).window("m", "5m", 300)
    assert (window.seconds, window.scrapes, window.increase("generation_tokens")) == (5, 2, 2)


def test_the_ring_forgets_what_no_window_needs() -> None:
    store = store_with(*((t, t) for t in range(0, 1000, 5)))
    assert store.frames[0].at >= 995 - 301
    assert len(store.frames) <= 62


def test_across_a_reset_the_increase_counts_from_zero() -> None:
    assert store_with((0, 1_000_000), (15, 500)).window("m", "1m", 60).increase("generation_tokens") == 500


def test_a_field_that_is_absent_has_no_increase() -> None:
    assert store_with((0, 1), (5, 2)).window("m", "1m", 60).increase("prompt_tokens") is None


def test_a_series_born_in_the_window_counts_from_zero() -> None:
    store = EngineStore()
    store.add(of({TOKENS: 5}), 0)
    store.add(of({TOKENS: 6, scalar("preemptions"): 3}), 5)
    assert store.window("m", "1m", 60).increase("preemptions") == 3


def test_gauges_come_with_their_times() -> None:
    running = scalar("requests_running")
    store = EngineStore()
    for at, value in ((0, 1), (5, 4)):
        store.add(of({running: value}), at)
    assert store.window("m", "1m", 60).gauge("requests_running") == [(0, 1), (5, 4)]


def test_another_engine_under_the_address_starts_anew() -> None:
    store = store_with((0, 100))
    store.add(reading(SHAPE, [150], engine="sglang"), 5)
    assert len(store.frames) == 1


def hist_store(*pages: tuple[float, list[float], list[float]]) -> EngineStore:
    store = EngineStore()
    for at, bounds, values in pages:
        store.add(reading(layout(histogram("time_to_first_token", bounds)), values), at)
    return store


def test_edges_that_change_are_never_compared_with_each_other() -> None:
    old, new = [1.0, INF], [0.5, 2.0, INF]
    store = hist_store((0, old, [5, 9, 4.0]), (5, new, [1, 2, 3, 1.0]), (10, new, [2, 4, 6, 2.0]))
    gained = store.window("m", "1m", 60).histogram("time_to_first_token")
    assert gained is not None
    assert (gained.bounds, gained.cumulative) == ((0.5, 2.0, INF), (1, 2, 3))


def test_the_first_page_with_new_edges_gives_nothing() -> None:
    store = hist_store((0, [1.0, INF], [5, 9, 4.0]), (5, [2.0, INF], [6, 10, 5.0]))
    assert store.window("m", "1m", 60).histogram("time_to_first_token") is None


def test_a_bucket_read_before_its_predecessor_never_gains_less() -> None:
    store = hist_store((0, [1.0, 2.0, INF], [0, 0, 0, 0.0]), (60, [1.0, 2.0, INF], [50, 49, 60, 50.0]))
    gained = store.window("m", "1m", 60).histogram("time_to_first_token")
    assert gained is not None
    assert gained.cumulative == (50, 50, 60)


@pytest.mark.parametrize(
    ("q", "bounds", "cumulative", "value", "saturated", "width"),
    [
        (0.99, (1.0, 2.5, INF), (950, 995, 1000), 2.3333333, False, 1.5),  # s6-interp
        (0.999, (1.0, 2.5, INF), (950, 995, 1000), 2.5, True, INF),  # s6-censored
        (0.5, (1.0, INF), (10, 10), 0.5, False, 1.0),  # the first bucket starts at 0
        (0.5, (1.0, 2.0, INF), (0, 10, 10), 1.5, False, 1.0),
    ],
)
def test_quantile_is_promqls(
    q: float, bounds: tuple[float, ...], cumulative: tuple[float, ...], value: float, saturated: bool, width: float
) -> None:
    got = HistogramIncrease(bounds, cumulative, None).quantile(q)
    assert got is not None
    assert got.value == pytest.approx(value, abs=1e-6)
    assert (got.saturated, got.width) == (saturated, width)


def test_no_observations_no_quantile_and_no_mean() -> None:
    empty = HistogramIncrease((1.0, INF), (0, 0), 0.0)
    assert empty.quantile(0.5) is None
    assert empty.mean is None


def test_frames_within_always_holds_the_newest() -> None:
    store = store_with((0, 1), (1000, 2))
    assert [frame.at for frame in frames_within(store.frames, 60)] == [1000]


def test_start_times_that_come_back_are_several_servers() -> None:
    start = scalar("process_start_time", rank="")
    store = EngineStore()
    for at, began in enumerate((1.0e9, 2.0e9, 1.0e9, 2.0e9)):
        store.add(of({TOKENS: 5.0 + at, start: began}), float(at))
    assert store.identity_unstable
    restarts = store.counted.restarts
    store.add(of({TOKENS: 9.0, start: 1.0e9}), 9.0)
    assert store.counted.restarts == restarts


def test_one_restart_is_not_several_servers() -> None:
    start = scalar("process_start_time", rank="")
    store = EngineStore()
    for at, began in enumerate((1.0e9, 2.0e9, 2.0e9)):
        store.add(of({TOKENS: 5.0 + at, start: began}), float(at))
    assert not store.identity_unstable
    assert store.counted.restarts == 1


def test_widths_of_saturated_quantiles_are_unbounded() -> None:
    got = HistogramIncrease((1.0, INF), (0, 10), None).quantile(0.5)
    assert got is not None
    assert got.saturated
    assert math.isinf(got.width)
