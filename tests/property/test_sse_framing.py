"""Wherever an HTTP/1.1 answer is cut, the same body comes out, and nothing but a FetchError is ever raised."""

from __future__ import annotations

import contextlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.errors import FetchError
from llm_exporter.sources.response import ResponseReader

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=8)
places = st.lists(st.integers(min_value=0, max_value=600), max_size=25)


def cut(data: bytes, where: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in where)})
    return [data[start:end] for start, end in pairwise(edges)]


def read(data: bytes, where: list[int]) -> tuple[bytes, bool, int]:
    reader = ResponseReader(10_000)
    body = b"".join(reader.feed(piece) for piece in cut(data, where))
    return body, reader.complete, reader.status


@given(bodies, places, st.booleans(), st.sampled_from([b"", b";ext=1"]))
def test_chunks(parts: list[bytes], where: list[int], interim: bool, extension: bytes) -> None:
    data = b"HTTP/1.1 100 Continue\r\n\r\n" * interim + HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    data += b"".join(b"%X%s\r\n%s\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n\r\n"
    assert read(data, where) == (b"".join(parts), True, 200)


@given(bodies, places)
def test_a_length(parts: list[bytes], where: list[int]) -> None:
    body = b"".join(parts)
    got, complete, status = read(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, where)
    assert (got, status) == (body, 200)
    assert complete or not body


@given(bodies, places)
def test_until_the_end(parts: list[bytes], where: list[int]) -> None:
    assert read(HEAD + b"\r\n" + b"".join(parts), where) == (b"".join(parts), False, 200)


@given(st.binary(max_size=200), places, st.booleans())
def test_any_bytes_give_an_answer_or_a_reason(data: bytes, where: list[int], headed: bool) -> None:
    with contextlib.suppress(FetchError):
        read((HEAD + b"Transfer-Encoding: chunked\r\n\r\n") * headed + data, where)
