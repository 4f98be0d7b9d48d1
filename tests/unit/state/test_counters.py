"""Counters across resets: what is published, what windows see, and when a fall is a restart."""

from __future__ import annotations

import pytest

from llm_exporter.state.counters import CounterBook
from readings_made import INF, histogram, layout, of, reading, scalar

TOKENS = scalar("generation_tokens")
PROMPTS = scalar("prompt_tokens")
RUNNING = scalar("requests_running")
START = scalar("process_start_time", rank="")


def numbers(book: CounterBook, *readings: object) -> list[tuple[float, float]]:
    """(published, unwrapped) of the first column after each reading."""
    found = []
    for one in readings:
        merged, _ = book.add(one)  # type: ignore[arg-type]
        found.append((merged.published[0], merged.unwrapped[0]))
    return found


def test_published_falls_with_the_engine_and_unwrapped_counts_on_from_zero() -> None:
    shape = layout([TOKENS, PROMPTS])
    book = CounterBook()
    assert numbers(book, reading(shape, [100, 50]), reading(shape, [7, 3])) == [(100, 100), (7, 107)]


def test_a_restart_is_told_once() -> None:
    shape = layout([TOKENS, PROMPTS])
    book = CounterBook()
    told = [book.add(reading(shape, values))[1].restarted for values in ([100, 50], [7, 3], [9, 4], [9, 4])]
    assert told == [False, True, False, False]


def test_a_small_dip_of_one_series_is_a_torn_read_and_no_restart() -> None:
    shape = layout([TOKENS, PROMPTS, scalar("preemptions")])
    book = CounterBook()
    book.add(reading(shape, [100, 50, 5]))
    merged, changes = book.add(reading(shape, [99, 60, 6]))
    assert not changes.restarted
    assert changes.anomalies == 1
    assert (merged.published[0], merged.unwrapped[0]) == (99, 100)


def test_one_series_that_is_born_again_counts_from_zero() -> None:
    shape = layout([TOKENS, PROMPTS, scalar("preemptions")])
    book = CounterBook()
    book.add(reading(shape, [100, 50, 5]))
    merged, changes = book.add(reading(shape, [4, 60, 6]))
    assert not changes.restarted
    assert merged.unwrapped[0] == 104


def test_a_new_start_time_is_a_restart_even_when_every_counter_grew() -> None:
    shape = layout([TOKENS, START])
    book = CounterBook()
    book.add(reading(shape, [10, 1000.0]))
    merged, changes = book.add(reading(shape, [15, 2000.0]))
    assert changes.restarted
    assert (merged.published[0], merged.unwrapped[0]) == (15, 25)


def test_a_rank_that_restarts_alone_keeps_its_last_value_in_the_published_sum() -> None:
    a, b = scalar("generation_tokens", rank="0"), scalar("generation_tokens", rank="1")
    shape = layout([a, b])
    book = CounterBook()
    got = numbers(book, reading(shape, [100, 200]), reading(shape, [110, 5]), reading(shape, [2, 8]))
    # 110 + (200 + 5); then the other restarts too: all have restarted, and the sum is the engines' own again
    assert got == [(300, 300), (315, 315), (10, 320)]


def test_a_rank_that_vanishes_stays_in_the_sum_and_can_come_back() -> None:
    a, b = scalar("generation_tokens", rank="0"), scalar("generation_tokens", rank="1")
    book = CounterBook()
    got = numbers(book, of({a: 100, b: 200}), of({a: 110}), of({a: 120, b: 230}))
    assert got == [(300, 300), (310, 310), (350, 350)]


def test_a_vanished_rank_that_comes_back_from_zero_is_added_to_what_it_was() -> None:
    a, b = scalar("generation_tokens", rank="0"), scalar("generation_tokens", rank="1")
    book = CounterBook()
    got = numbers(book, of({a: 100, b: 200}), of({a: 110}), of({a: 120, b: 30}))
    assert got[-1] == (350, 350)


def test_gauges_of_a_vanished_rank_leave_the_sum() -> None:
    a, b = scalar("requests_running", rank="0"), scalar("requests_running", rank="1")
    book = CounterBook()
    assert numbers(book, of({a: 3, b: 4}), of({a: 3})) == [(7, 7), (3, 3)]


def test_usage_of_ranks_is_the_highest_and_mean_is_the_mean() -> None:
    slots = [scalar(f, rank=r) for f in ("kv_cache_usage", "kv_cache_usage_mean") for r in ("0", "1")]
    merged, _ = CounterBook().add(reading(layout(slots), [0.2, 0.6, 0.2, 0.6]))
    assert list(merged.published) == pytest.approx([0.6, 0.4])


def test_a_whole_histogram_is_one_voice_when_restarts_are_judged() -> None:
    # 20 buckets fall in one torn histogram; the other counters grow: no restart
    bounds = [float(i) for i in range(20)] + [INF]
    shape = layout([TOKENS, PROMPTS, *histogram("time_to_first_token", bounds)])
    book = CounterBook()
    book.add(reading(shape, [100, 50, *([8.0] * 21), 4.0]))
    _, changes = book.add(reading(shape, [110, 60, *([7.0] * 21), 4.5]))
    assert not changes.restarted


def test_ranks_with_different_edges_are_merged_where_the_edges_agree() -> None:
    slots = [*histogram("time_to_first_token", [0.1, 1.0, INF], rank="0"), *histogram("time_to_first_token", [0.5, 1.0, INF], rank="1")]
    merged, _ = CounterBook().add(reading(layout(slots), [1, 2, 3, 1.5, 10, 20, 30, 15.0]))
    columns = merged.table.histograms["m", "time_to_first_token"]
    assert columns.bounds == (1.0, INF)
    assert list(merged.published[columns.first : columns.first + 2]) == [22, 33]
    assert merged.published[columns.sum_at] == 16.5


def test_reading_anomalies_are_passed_on() -> None:
    _, changes = CounterBook().add(reading(layout([TOKENS]), [1.0], anomalies={"nan": 2}))
    assert changes.anomalies == 2


def test_an_idle_restart_from_zero_to_zero_is_no_fall() -> None:
    shape = layout([TOKENS, RUNNING])
    book = CounterBook()
    book.add(reading(shape, [0, 5]))
    assert not book.add(reading(shape, [0, 1]))[1].restarted
