"""Reads the body of an answer under two caps: bytes on the wire and bytes after decompression.

In: an `http.client` response whose socket keeps a deadline. Out: the plain bytes, or `FetchError` too_large, truncated, not_metrics.
A gzip bomb is unpacked piece by piece and left as soon as it passes the cap, so memory stays below cap plus one piece.
"""

from __future__ import annotations

import http.client
import zlib
from typing import NamedTuple

from llm_exporter.errors import FetchError

PIECE_BYTES = 256 * 1024
_GZIP_WBITS = 31


class Body(NamedTuple):
    """A body and what it cost on the wire."""

    data: bytes
    wire_bytes: int


def read_body(response: http.client.HTTPResponse, max_bytes: int) -> Body:
    """Reads to the end of the body, whichever way it is framed (length, chunks, or end of connection)."""
    coding = (response.getheader("Content-Encoding") or "identity").strip().lower()
    if coding not in ("identity", "gzip", "x-gzip", ""):
        raise FetchError("not_metrics", "the body is compressed in a way that was not asked for (gzip is understood)")
    announced = response.length
    if response.headers.defects or (announced is None and not response.chunked and response.getheader("Content-Length")):
        raise FetchError("not_metrics", "the head of the answer is malformed")
    if announced is not None and announced > max_bytes:
        raise FetchError("too_large", f"Content-Length says {announced} bytes; the limit is {max_bytes}")
    unpack = _Gunzip(max_bytes) if coding in ("gzip", "x-gzip") else None
    pieces: list[bytes] = []
    wire_bytes = 0
    while True:
        try:
            piece = response.read(PIECE_BYTES)
        except ValueError:  # http.client takes "-5" for the length of a chunk, and then cannot read as much
            raise FetchError("not_metrics", "the chunks of the answer are malformed") from None
        if not piece:
            break
        wire_bytes += len(piece)
        if wire_bytes > max_bytes:
            raise FetchError("too_large", f"the body is longer than {max_bytes} bytes")
        if unpack is None:
            pieces.append(piece)
        else:
            unpack.feed(piece, pieces)
    if response.length:  # http.client gives a short body without a word when it is read in pieces
        raise FetchError("truncated", f"{wire_bytes} of {announced} bytes came")
    if announced is None and not response.chunked and not wire_bytes:
        # an end of connection ends such a body, and also a head: http.client does not say which
        raise FetchError("truncated", "the connection ended before the answer's body")
    if unpack is not None:
        unpack.finish()
    return Body(pieces[0] if len(pieces) == 1 else b"".join(pieces), wire_bytes)


class _Gunzip:
    """Unpacks one or more gzip members up to a total size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left = max_bytes
        self._stream = zlib.decompressobj(_GZIP_WBITS)
        self._fed = False

    def feed(self, data: bytes, pieces: list[bytes]) -> None:
        """Appends what `data` unpacks to."""
        while data:
            if self._stream.eof:  # a further member follows
                self._stream = zlib.decompressobj(_GZIP_WBITS)
            self._fed = True
            try:
                out = self._stream.decompress(data, min(self._left + 1, PIECE_BYTES))
            except zlib.error:
                raise FetchError("truncated", "the gzip data are damaged") from None
            self._left -= len(out)
            if self._left < 0:
                raise FetchError("too_large", f"the body unpacks to more than {self._max_bytes} bytes")
            if out:
                pieces.append(out)
            data = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail

    def finish(self) -> None:
        """Raises when the last member has not ended."""
        if self._fed and not self._stream.eof:
            raise FetchError("truncated", "the gzip data end too early")
