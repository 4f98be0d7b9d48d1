"""Takes an HTTP/1.1 response apart while it comes, whatever the reads cut.

In: bytes as `sources/wire.py` reads them. Out: status, headers, and the body without its chunk framing. `sources/probe.py` is the only
caller. What does not follow the grammar is refused: Python's own `isdigit` and `int` also take `²`, `-5` and five thousand digits.
"""

from __future__ import annotations

import re

from llm_exporter.errors import FetchError

_HEAD_LIMIT = 65536
_CHUNK_LINE_LIMIT = 4096
_STATUS_LINE = re.compile(r"HTTP/1\.[0-9] ([1-5][0-9]{2})(?: |$)")
_LENGTH = re.compile(r"[0-9]{1,15}")
_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,12}")


class ResponseReader:
    """Takes an HTTP/1.1 response apart as it comes: status, headers, then the body without its chunk framing."""

    def __init__(self, body_limit: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self.body_bytes = 0
        self._limit = body_limit
        self._buffer = bytearray()
        self._left: int | None = None  # of the body, or of the chunk; None: until the server closes
        self._chunked = False

    @property
    def has_head(self) -> bool:
        """Status and headers are known."""
        return self.status >= 200

    def feed(self, piece: bytes) -> bytes:
        """Body bytes in this piece.

        Raises:
            FetchError: not_streaming where this is no HTTP; truncated where the body passes the limit.
        """
        self._buffer += piece
        if not self.has_head and not self._take_head():
            return b""
        body = self._take_chunks() if self._chunked else self._take_plain()
        self.body_bytes += len(body)
        if self.body_bytes > self._limit:
            raise FetchError("truncated", f"the answer is longer than {self._limit} bytes; reading stopped")
        return body

    def _take_head(self) -> bool:
        while True:  # interim answers (100, 103) come before the real one
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _HEAD_LIMIT or not b"HTTP/1.".startswith(bytes(self._buffer[:7])):
                    raise FetchError("not_streaming", "the answer is no HTTP/1.1")
                return False
            first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            del self._buffer[: end + 4]
            found = _STATUS_LINE.match(first)
            if found is None:
                raise FetchError("not_streaming", "the answer is no HTTP/1.1")
            self.status = int(found[1])
            if self.status >= 200:
                break
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length", "")
        self._left = int(length) if _LENGTH.fullmatch(length) and not self._chunked else None
        if self.status in (204, 304):
            self._left = 0
        return True

    def _take_plain(self) -> bytes:
        body = bytes(self._buffer if self._left is None else self._buffer[: self._left])
        self._buffer.clear()
        if self._left is not None:
            self._left -= len(body)
            self.complete = self._left == 0
        return body

    def _take_chunks(self) -> bytes:
        body = bytearray()
        while not self.complete:
            if self._left is None:
                end = self._buffer.find(b"\r\n")
                if end < 0:
                    if len(self._buffer) > _CHUNK_LINE_LIMIT:
                        raise FetchError("truncated", "broken chunk framing")
                    break
                size = bytes(self._buffer[:end]).partition(b";")[0].strip()
                if not _CHUNK_SIZE.fullmatch(size):
                    raise FetchError("truncated", "broken chunk framing")
                self._left = int(size, 16)
                del self._buffer[: end + 2]
                if self._left == 0:  # trailers would follow; nobody needs them
                    self.complete = True
                    break
            part = self._buffer[: self._left]
            body += part
            del self._buffer[: len(part)]
            self._left -= len(part)
            if self._left or len(self._buffer) < 2:
                break
            del self._buffer[:2]
            self._left = None
        return bytes(body)
