"""Pages that name other models or ranks at each scrape: memory stays bounded, and what is still counted stays right."""

from __future__ import annotations

import pytest

from llm_exporter.state import counters
from llm_exporter.state.counters import CounterBook
from readings_made import INF, histogram, of, scalar


def remembered(book: CounterBook) -> int:
    return max(len(book._raw), len(book._base), len(book._held), len(book._gone), sum(map(len, book._vanished.values())))


@pytest.mark.parametrize("what", ["model", "rank"])
def test_names_that_change_for_ever_do_not_fill_memory(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "VANISHED_MOST", 100)
    book = CounterBook()
    for number in range(500):
        slots = [scalar("generation_tokens", **{what: f"x{number}"}), *histogram("ttft", (0.1, INF), **{what: f"x{number}"})]
        book.add(of(dict.fromkeys(slots, 5.0)))
    assert remembered(book) <= 100 + 2 * len(slots)


def test_the_widest_deployment_is_remembered_when_most_of_its_ranks_vanish() -> None:
    book = CounterBook()
    every = {scalar("generation_tokens", rank=str(rank)): 10.0 for rank in range(320)}
    book.add(of(every))
    merged, _ = book.add(of(dict(list(every.items())[:4])))
    assert merged.published[0] == 3200.0
    merged, _ = book.add(of(every))
    assert merged.published[0] == merged.unwrapped[0] == 3200.0


def test_a_rank_that_comes_and_goes_is_counted_once() -> None:
    book = CounterBook()
    first, second = scalar("generation_tokens", rank="0"), scalar("generation_tokens", rank="1")
    for number in range(1, 20):
        merged, changes = book.add(of({first: 10.0 * number, **({second: 100.0 + number} if number % 2 else {})}))
        latest = 100.0 + (number if number % 2 else number - 1)
        assert merged.published[0] == 10.0 * number + latest
        assert not changes.restarted


def test_those_gone_longest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "VANISHED_MOST", 2)
    book = CounterBook()
    ranks = [scalar("generation_tokens", rank=name) for name in "abcd"]
    book.add(of({ranks[0]: 1.0, ranks[3]: 7.0}))
    book.add(of({ranks[1]: 10.0, ranks[3]: 7.0}))
    book.add(of({ranks[2]: 100.0, ranks[3]: 7.0}))
    merged, _ = book.add(of({ranks[3]: 7.0}))
    assert merged.published[0] == 117.0  # without the 1 of a
