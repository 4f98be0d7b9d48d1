"""Wherever the bytes of a stream are cut, the same events come out, each at the cut that ends it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.sources.sse import EventReader, Piece, interpret

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
    exact = interpret(Piece(float(place), data[place : place + 1]) for place in range(len(data)))
    pieces, at = [], 0
    for piece in cut(data, places):
        at += len(piece)
        pieces.append(Piece(float(at - 1), piece))
    coarse = interpret(pieces)
    ends = [piece.at for piece in pieces]

    def rounded(moment: float | None) -> float | None:
        return None if moment is None else next(end for end in ends if end >= moment)

    assert coarse.first_chunk_at == rounded(exact.first_chunk_at)
    assert coarse.first_token_at == rounded(exact.first_token_at)
    assert coarse.token_times == [rounded(moment) for moment in exact.token_times]
    assert (coarse.text, coarse.done, coarse.error) == (exact.text, exact.done, exact.error)


TOKEN, ROLE = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n'
packets = st.lists(
    st.sampled_from([TOKEN, ROLE, b": ping\n\n", b": ping\n", b"data: [DONE]\n\n", TOKEN.replace(b"\n", b"\r\n")]), max_size=12
)


@given(packets, st.lists(st.booleans(), min_size=12, max_size=12))
def test_where_the_kernel_joined_packets_each_time_lies_within_what_is_said_of_it(sent: list[bytes], joined_to_last: list[bool]) -> None:
    """Packet n arrives at second n; those that are joined are read at once, and only the first and last moment are known."""
    exact = interpret(Piece(float(second), data) for second, data in enumerate(sent))
    pieces: list[Piece] = []
    for second, (data, joined) in enumerate(zip(sent, joined_to_last, strict=False)):
        if joined and pieces:
            last = pieces.pop()
            pieces.append(Piece(float(second), last.data + data, since=last.since))
        else:
            pieces.append(Piece(float(second), data, since=float(second)))
    found = interpret(pieces)
    assert len(found.token_times) == len(exact.token_times)
    assert found.token_times == sorted(found.token_times)
    if exact.first_token_at is not None:
        assert found.first_token_at is not None
        assert abs(found.first_token_at - exact.first_token_at) <= found.first_token_error
    else:
        assert found.first_token_at is None


@given(st.binary(max_size=300))
def test_no_bytes_raise(data: bytes) -> None:
    interpret([Piece(0.0, data)])
