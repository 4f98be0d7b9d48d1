"""Wherever the bytes of a stream are cut, the same events come out, each at the cut that ends it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.sources.sse import EventReader, interpret

line_ends = st.sampled_from([b"\n", b"\r\n", b"\r"])
texts = st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12)
lines = st.one_of(
    texts.map(lambda t: f"data: {t}".encode()),
    texts.map(lambda t: f"data:{t}".encode()),
    texts.map(lambda t: f": {t}".encode()),
    texts.map(lambda t: f"event: {t}".encode()),
    st.sampled_from(['{"choices":[{"delta":{"content":"é世"}}]}', "[DONE]"]).map(lambda t: f"data: {t}".encode()),
    st.just(b""),
    st.binary(max_size=6),
)
streams = st.lists(st.tuples(lines, line_ends).map(b"".join), max_size=25).map(b"".join)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(streams, st.lists(st.integers(min_value=0, max_value=2000), max_size=30))
def test_any_cut_gives_the_same_events(data: bytes, places: list[int]) -> None:
    whole = EventReader().feed(data)
    reader = EventReader()
    assert [event for piece in cut(data, places) for event in reader.feed(piece)] == whole


@given(streams)
def test_byte_by_byte_gives_the_same_events(data: bytes) -> None:
    reader = EventReader()
    assert [event for place in range(len(data)) for event in reader.feed(data[place : place + 1])] == EventReader().feed(data)


@given(streams, st.lists(st.integers(min_value=0, max_value=2000), max_size=10))
def test_times_are_those_of_the_byte_that_ends_the_event_to_within_the_cut(data: bytes, places: list[int]) -> None:
    """The exact moment of an event is that of its last byte, where byte n arrives at second n. A coarser cut can only be later, and at
    most by the rest of the piece."""
    exact = interpret((float(place), data[place : place + 1]) for place in range(len(data)))
    pieces, at = [], 0
    for piece in cut(data, places):
        at += len(piece)
        pieces.append((float(at - 1), piece))
    coarse = interpret(pieces)
    ends = [moment for moment, _ in pieces]

    def rounded(moment: float | None) -> float | None:
        return None if moment is None else next(end for end in ends if end >= moment)

    assert coarse.first_chunk_at == rounded(exact.first_chunk_at)
    assert coarse.first_token_at == rounded(exact.first_token_at)
    assert coarse.token_times == [rounded(moment) for moment in exact.token_times]
    assert (coarse.text, coarse.done, coarse.error) == (exact.text, exact.done, exact.error)


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    interpret([(0.0, data)])
