"""A server whose time to first token is known, for `bench_probe_bias.py`: it tells with each answer how long it really took.

The true time runs from the moment at which the kernel received the last byte of the request (`SO_TIMESTAMPNS`) to the moment just before
the first token is given to the kernel. So the server's own lateness (a core that sleeps, a thread that waits for its turn) is part of
the truth, as it is for an engine, and is not charged to the client that measures it. The same server plays engine pages for scrapes.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Self

from llm_exporter.sources.arrival import SO_TIMESTAMPNS, stamp_of

_CHUNK: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
_USAGE = {**_CHUNK, "choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": 4, "total_tokens": 68}}
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'
_VERSION = b'{"version":"0.32.0"}'


class Truth(NamedTuple):
    """One answered request. Seconds.

    Attributes:
        client: its User-Agent.
        held: from the kernel's receipt of the request to just before the first token was sent.
        unseen: of these, how long the server had not yet read the request.
        sending: how long the call lasted that gave the first token to the kernel; it left within.
    """

    client: str
    held: float
    unseen: float
    sending: float


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(delta: dict[str, str], finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({**_CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


_FIRST, _TOKEN = _chunk(_event({"role": "assistant", "content": ""})), _chunk(_event({"content": "tok "}))
_END = _chunk(_event({}, "length") + b"data: " + json.dumps(_USAGE).encode() + b"\n\ndata: [DONE]\n\n") + b"0\r\n\r\n"


class _Reader:
    """Requests of one connection, each with the wall-clock moment (ns) at which the kernel had its last byte."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._data = connection, b""

    def _more(self) -> int:
        raw, ancillary, _, _ = self._connection.recvmsg(65536, 64)
        if not raw:
            raise ConnectionResetError("the client hung up")
        self._data += raw
        stamp = stamp_of(ancillary)
        if stamp is not None:
            return stamp
        raise RuntimeError("this kernel gives no receive time for TCP (Linux 4.13 does): the truth is not known here")

    def request(self) -> tuple[int, bytes, dict[bytes, bytes]]:
        """(moment, request line, headers)."""
        arrived = time.time_ns()
        while b"\r\n\r\n" not in self._data:
            arrived = self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.split(b"\r\n")
        headers = dict(line.lower().split(b": ", 1) for line in lines)
        length = int(headers.get(b"content-length", b"0"))
        while len(self._data) < length:
            arrived = self._more()
        self._data = self._data[length:]
        return arrived, first, headers


def _serve(delay: float, pages: Sequence[bytes], pipe: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)  # connections inherit it, so that a first packet has its time too
    pipe.send(listener.getsockname()[1])
    truths: list[Truth] = []
    turns = itertools.count()

    def stream(connection: socket.socket, arrived: int, client: str) -> None:
        unseen = (time.time_ns() - arrived) / 1e9
        connection.sendall(_HEAD + _FIRST)
        time.sleep(max(0.0, delay - (time.time_ns() - arrived) / 1e9))
        sent = time.time_ns()
        connection.sendall(_TOKEN)
        given = time.time_ns()
        for _ in range(3):
            time.sleep(0.003)
            connection.sendall(_TOKEN)
        connection.sendall(_END)
        truths.append(Truth(client, (sent - arrived) / 1e9, unseen, (given - sent) / 1e9))

    def handle(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection, contextlib.suppress(OSError):  # a client that hangs up early is its own affair
            reader = _Reader(connection)
            while True:
                arrived, first, headers = reader.request()
                if first.startswith(b"POST"):
                    stream(connection, arrived, headers.get(b"user-agent", b"").decode())
                    continue
                path = first.split(b" ")[1]
                known = {b"metrics": lambda: pages[next(turns) % len(pages)], b"version": lambda: _VERSION}
                body = known.get(path.rpartition(b"/")[2], lambda: _MODELS)()
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    def accept() -> None:
        while True:
            threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    while (order := pipe.recv()) is not None:
        if order == "truths":
            pipe.send(list(truths))
            truths.clear()
        else:
            pipe.send(next(turns))


def child(target: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """A process of its own that gets a pipe as last argument, and our end of the pipe."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours


class ReferenceServer:
    """The server in a process of its own. Use as a context manager.

    Args:
        delay: seconds from the request's arrival to the first token.
        pages: bodies for `/metrics` below any path, in turn.
    """

    def __init__(self, delay: float, pages: Sequence[bytes] = (b"x 1\n",)) -> None:
        self._process, self._pipe = child(_serve, delay, pages)
        self.port: int = self._pipe.recv()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()

    def truths(self) -> list[Truth]:
        """Of the requests since the last call, in their order."""
        self._pipe.send("truths")
        return [Truth(*one) for one in self._pipe.recv()]

    def pages_played(self) -> int:
        """How often `/metrics` was asked for since the start, roughly (each call of this counts as one)."""
        self._pipe.send("turns")
        return int(self._pipe.recv())
