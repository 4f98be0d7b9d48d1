"""Small servers on loopback that behave, or misbehave, on purpose.

`FakeServer(handler)` listens on a kernel-chosen port and gives each request to `handler(talk, request)`. Handlers for the usual
misfortunes are below: `with FakeServer(gzip_bomb()) as server: Client(server.url).get("/metrics", timeout=1)`.
Servers that hang wait on an event which `close()` sets, so tests end at once. Nothing here sleeps.
"""

from __future__ import annotations

import gzip
import itertools
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

PAGE = b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 2.0\n'
TEXT = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Request:
    """What a client asked for; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Talk:
    """One connection, seen from the server."""

    server: FakeServer
    sock: socket.socket
    _buffer: bytes = field(default=b"")

    def read_request(self) -> Request | None:
        """The next request; None when the client has closed."""
        while b"\r\n\r\n" not in self._buffer:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._buffer += data
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        while len(rest) < length:
            data = self.sock.recv(65536)
            if not data:
                return None
            rest += data
        self._buffer = rest[length:]
        return Request(method, path, headers, rest[:length])

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, status: int = 200, **headers: object) -> None:
        """Status line and headers; `content_length=5` becomes `content-length: 5`."""
        lines = [f"HTTP/1.1 {status} Status"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def answer(self, body: bytes, status: int = 200, **headers: object) -> None:
        """A whole, well-formed answer in one piece."""
        headers = {"content_type": TEXT, "content_length": len(body), **headers}
        lines = [f"HTTP/1.1 {status} Status", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def hang(self) -> None:
        """Stays silent until the server is closed or released."""
        self.server.released.wait()

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def reset(self) -> None:
        """Ends the connection with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


Handler = Callable[[Talk, Request], None]


class FakeServer:
    """A threaded server on loopback.

    Args:
        handler: called per request; one that returns keeps the connection open, one that closes it ends the conversation.
        tls: server context, for https.
        greet: False for a server that accepts connections and does nothing more (no handshake, no reading).
        host: 127.0.0.1 or ::1.

    Attributes:
        requests: all of them, in order.
        connections: how many were accepted.
        max_open: most requests that were being answered at one moment.
        released: set it to wake handlers that hang; `close` does so too.
    """

    def __init__(
        self, handler: Handler | None = None, *, tls: ssl.SSLContext | None = None, greet: bool = True, host: str = "127.0.0.1"
    ) -> None:
        self.handler = handler or page()
        self.requests: list[Request] = []
        self.connections = 0
        self.max_open = 0
        self.released = threading.Event()
        self._open = 0
        self._tls = tls
        self._greet = greet
        self._lock = threading.Lock()
        self._talks: list[Talk] = []
        self._listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self.released.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            talks = list(self._talks)
        for talk in talks:
            talk.close()
        self._thread.join(5)

    def drop_idle(self) -> None:
        """Closes every connection, as a server does whose keep-alive time is over."""
        with self._lock:
            talks, self._talks = self._talks, []
        for talk in talks:
            talk.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            talk = Talk(self, sock)
            with self._lock:
                self.connections += 1
                self._talks.append(talk)
            if self._greet:
                threading.Thread(target=self._converse, args=(talk,), daemon=True).start()

    def _converse(self, talk: Talk) -> None:
        with suppress(OSError, ValueError):
            talk.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                talk.sock = self._tls.wrap_socket(talk.sock, server_side=True)
            while (request := talk.read_request()) is not None:
                with self._lock:
                    self.requests.append(request)
                    self._open += 1
                    self.max_open = max(self.max_open, self._open)
                try:
                    self.handler(talk, request)
                finally:
                    with self._lock:
                        self._open -= 1
        talk.close()


# ---- handlers that behave ------------------------------------------------------------------------------------------------


def page(body: bytes = PAGE, status: int = 200, **headers: object) -> Handler:
    """Answers everything with one page and keeps the connection."""
    return lambda talk, _: talk.answer(body, status, **headers)


def routes(table: dict[str, Handler]) -> Handler:
    """Chooses a handler by path; 404 elsewhere."""
    return lambda talk, request: table.get(request.path, page(b"not found", 404))(talk, request)


def in_turn(*handlers: Handler) -> Handler:
    """One handler per request, round and round: several servers behind one address."""
    turns = itertools.cycle(handlers)
    return lambda talk, request: next(turns)(talk, request)


def then(first: Handler, *rest: Handler) -> Handler:
    """One handler per request; the last one stays."""
    left = [first, *rest]
    return lambda talk, request: (left.pop(0) if len(left) > 1 else left[0])(talk, request)


def needs_header(name: str, value: str, inner: Handler | None = None) -> Handler:
    """401 without the header."""
    good = inner or page()
    return lambda talk, request: (
        good(talk, request) if request.headers.get(name) == value else talk.answer(b"no", 401, content_type="text/html")
    )


def gzipped(body: bytes = PAGE) -> Handler:
    return page(gzip.compress(body), content_encoding="gzip")


def chunked(pieces: Iterable[bytes] = (PAGE,)) -> Handler:
    """A chunked answer, one chunk per piece."""
    whole = list(pieces)

    def handle(talk: Talk, _: Request) -> None:
        talk.head(200, content_type=TEXT, transfer_encoding="chunked")
        for piece in whole:
            talk.chunk(piece)
        talk.send(b"0\r\n\r\n")

    return handle


def until_close(body: bytes = PAGE) -> Handler:
    """Neither length nor chunks: the body ends with the connection."""

    def handle(talk: Talk, _: Request) -> None:
        talk.head(200, content_type=TEXT, connection="close")
        talk.send(body)
        talk.close()

    return handle


# ---- handlers that misbehave ---------------------------------------------------------------------------------------------


def silent() -> Handler:
    """Takes the request and never answers (until released)."""
    return lambda talk, _: talk.hang()


def late(inner: Handler | None = None) -> Handler:
    """Answers only once the server is released."""
    good = inner or page()

    def handle(talk: Talk, request: Request) -> None:
        talk.hang()
        good(talk, request)

    return handle


def drip(body: bytes = PAGE, every_seconds: float = 0.01, framing: str = "length") -> Handler:
    """Sends the body byte by byte. framing: length, chunked or close."""

    def handle(talk: Talk, _: Request) -> None:
        if framing == "length":
            talk.head(200, content_type=TEXT, content_length=len(body))
        elif framing == "chunked":
            talk.head(200, content_type=TEXT, transfer_encoding="chunked")
        else:
            talk.head(200, content_type=TEXT, connection="close")
        for byte in body:
            (talk.chunk if framing == "chunked" else talk.send)(bytes([byte]))
            if talk.server.released.wait(every_seconds):
                return

    return handle


def drip_head(every_seconds: float = 0.01) -> Handler:
    """Sends an endless head, byte by byte."""

    def handle(talk: Talk, _: Request) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nx: ")
        while not talk.server.released.wait(every_seconds):
            talk.send(b"y")

    return handle


def huge(size_bytes: int = 100 * 2**20, framing: str = "length") -> Handler:
    """A page of many comment lines. framing: length (announced), chunked or close (found out while reading)."""
    line = b"# " + b"x" * 1021 + b"\n"

    def handle(talk: Talk, _request: Request) -> None:
        if framing == "length":
            talk.head(200, content_type=TEXT, content_length=size_bytes)
        elif framing == "chunked":
            talk.head(200, content_type=TEXT, transfer_encoding="chunked")
        else:
            talk.head(200, content_type=TEXT, connection="close")
        piece = line * 64
        for _ in range(size_bytes // len(piece)):
            (talk.chunk if framing == "chunked" else talk.send)(piece)
        talk.close()

    return handle


def gzip_bomb(size_bytes: int = 256 * 2**20) -> Handler:
    """A small gzip body that unpacks to `size_bytes` of newlines."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = b"\n" * 2**20
    body = b"".join([*(packer.compress(piece) for _ in range(size_bytes // len(piece))), packer.flush()])
    return page(body, content_encoding="gzip")


def html_login() -> Handler:
    """An authenticating proxy's page, with status 200."""
    return page(b"<!DOCTYPE html><html><head><title>Sign in</title></head><body></body></html>", content_type="text/html; charset=utf-8")


def redirect(location: str, status: int = 307) -> Handler:
    """Sends everybody elsewhere."""
    return page(b"", status, location=location)


def truncated(body: bytes = PAGE, missing_bytes: int = 7) -> Handler:
    """Promises more than it sends."""

    def handle(talk: Talk, _: Request) -> None:
        talk.head(200, content_type=TEXT, content_length=len(body))
        talk.send(body[:-missing_bytes])
        talk.close()

    return handle


def truncated_chunks(body: bytes = PAGE) -> Handler:
    """A chunked body without its last chunk."""

    def handle(talk: Talk, _: Request) -> None:
        talk.head(200, content_type=TEXT, transfer_encoding="chunked")
        talk.chunk(body)
        talk.close()

    return handle


def too_short_length(body: bytes = PAGE, missing_bytes: int = 7) -> Handler:
    """Says fewer bytes than it sends, so that the last number is cut."""

    def handle(talk: Talk, _: Request) -> None:
        talk.answer(body, content_length=len(body) - missing_bytes)

    return handle


def closes(after_bytes: bytes = b"") -> Handler:
    """Closes instead of answering, or after so many bytes of an answer."""

    def handle(talk: Talk, _: Request) -> None:
        if after_bytes:
            talk.send(after_bytes)
        talk.close()

    return handle


def resets() -> Handler:
    """Ends the connection with RST."""
    return lambda talk, _: talk.reset()


def answers_then_closes(body: bytes = PAGE) -> Handler:
    """Closes after each answer without having said so."""

    def handle(talk: Talk, _: Request) -> None:
        talk.answer(body)
        talk.close()

    return handle


def garbage(data: bytes = b"\x15\x03\x01\x00\x02\x02\x50\r\n\r\n") -> Handler:
    """Bytes that are not HTTP (by default a TLS alert)."""

    def handle(talk: Talk, _: Request) -> None:
        talk.send(data)
        talk.close()

    return handle


# ---- pages ---------------------------------------------------------------------------------------------------------------


def duplicate_series() -> bytes:
    """The same series twice, with different values."""
    return PAGE + b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'


def many_series(count: int = 50_000) -> bytes:
    """A page of so many series of one family beside the usual ones."""
    return PAGE + b"# TYPE vllm:eplb_tokens_total counter\n" + b"".join(_many(count))


def _many(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield b'vllm:eplb_tokens_total{engine="0",layer="%d",model_name="m",rank="%d"} %d.0\n' % (number // 1000, number % 1000, number)


def names_not_utf8() -> bytes:
    """Label values and names with bytes that are no UTF-8."""
    return PAGE + b'vllm:num_requests_waiting{engine="0",model_name="caf\xe9"} 1.0\n\xff\xfe_total 1\n'
