"""A server on real sockets that plays timed streams: what the probe's tests talk to.

`StreamPlayer(script)` answers each POST with the steps that `script(request)` gives: (seconds after the request, bytes | None to hang up),
and each GET from `pages`. TLS and slow handshakes on wish. Kernel-chosen port on loopback; use as a context manager.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}
MODELS = b'{"object":"list","data":[{"id":"acme/chat-8b","object":"model","max_model_len":40960}]}'


class Step(NamedTuple):
    at: float  # seconds after the request was read whole
    data: bytes | None  # None: hang up


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)  # type: ignore[no-any-return]


@dataclass
class Play:
    """One answer."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: dict(EVENT_STREAM))
    chunked: bool = True


class StreamPlayer:
    def __init__(
        self,
        script: Callable[[Request], Play] | Play,
        *,
        pages: Mapping[str, bytes | tuple[int, bytes]] | None = None,
        tls: ssl.SSLContext | None = None,
        handshake_delay: float = 0.0,
    ) -> None:
        self._script = script if callable(script) else lambda _: script
        self._pages = {"/v1/models": MODELS} if pages is None else dict(pages)
        self._tls, self._delay = tls, handshake_delay
        self._closing = threading.Event()
        self.requests: list[Request] = []
        self.open_posts = self.most_open_posts = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # else a blocked accept() takes one more connection
        self._listener.close()

    @property
    def posts(self) -> list[Request]:
        return [request for request in self.requests if request.method == "POST"]

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            if self._tls is not None:
                self._closing.wait(self._delay)
                connection = self._tls.wrap_socket(connection, server_side=True)
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                request = self._read(connection)
                if request is None:
                    return
                started = time.monotonic()
                self.requests.append(request)
                if request.method == "GET":
                    self._answer_get(connection, request)
                    return
                with self._lock:
                    self.open_posts += 1
                    self.most_open_posts = max(self.most_open_posts, self.open_posts)
                try:
                    self._play(connection, self._script(request), started)
                finally:
                    with self._lock:
                        self.open_posts -= 1
        except (OSError, ssl.SSLError):
            connection.close()

    def _read(self, connection: socket.socket) -> Request | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        while len(body) < int(headers.get("content-length", "0")):
            body += connection.recv(65536)
        method, path, _ = first.split(" ")
        return Request(method, path, headers, body)

    def _answer_get(self, connection: socket.socket, request: Request) -> None:
        page = self._pages.get(request.path, (404, b"not found"))
        status, body = page if isinstance(page, tuple) else (200, page)
        connection.sendall(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body)

    def _play(self, connection: socket.socket, play: Play, started: float) -> None:
        head = "".join(f"{name}: {value}\r\n" for name, value in play.headers.items())
        framing = "Transfer-Encoding: chunked\r\n" if play.chunked else "Connection: close\r\n"
        connection.sendall(f"HTTP/1.1 {play.status} X\r\n{head}{framing}\r\n".encode())
        for step in play.steps:
            wait = started + step.at - time.monotonic()
            if wait > 0 and self._closing.wait(wait):
                return
            if step.data is None:
                return
            connection.sendall(b"%x\r\n%s\r\n" % (len(step.data), step.data) if play.chunked else step.data)
        if play.chunked:
            connection.sendall(b"0\r\n\r\n")


def play_of_case(folder: Path, speed: float = 1.0) -> Play:
    """The play of a field case: `stream.jsonl` and `http.json`. Writes of one moment are one write, as in the cases' own player."""
    settings = json.loads((folder / "http.json").read_text()).get("stream", {}) if (folder / "http.json").exists() else {}
    headers = settings.get("headers") or dict(EVENT_STREAM)
    steps: list[Step] = []
    for line in (folder / "stream.jsonl").read_text().splitlines():
        row = json.loads(line)
        at = row["at_ms"] / 1000 / speed
        if row.get("close"):
            steps.append(Step(at, None))
        elif "hold_ms" in row:
            steps += [Step(at + row["hold_ms"] / 1000 / speed, None)]
        else:
            data = bytes.fromhex(row["hex"]) if "hex" in row else row["data"].encode()
            if steps and steps[-1].at == at and steps[-1].data is not None:
                data = steps.pop().data + data  # type: ignore[operator]
            steps.append(Step(at, data))
    if "body" in settings:
        steps = [Step(0.0, settings["body"].encode())]
    return Play(steps, settings.get("status", 200), headers)


def chat_chunk(delta: Mapping[str, Any] | None, finish: str | None = None, **extra: Any) -> bytes:
    """One chat event; no choice where delta is None."""
    choices = [] if delta is None else [{"index": 0, "delta": dict(delta), "finish_reason": finish}]
    return b"data: " + json.dumps({"id": "c1", "object": "chat.completion.chunk", "choices": choices, **extra}).encode() + b"\n\n"


def chat_play(
    ttft: float = 0.02, tokens: int = 4, gap: float = 0.005, prompt_tokens: int = 12, cached_tokens: int | None = None, **last: Any
) -> Play:
    """A healthy chat stream."""
    steps = [Step(ttft / 2, chat_chunk({"role": "assistant", "content": ""}))]
    steps += [Step(ttft + number * gap, chat_chunk({"content": f"w{number} "})) for number in range(tokens)]
    usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    end = chat_chunk({}, "length") + chat_chunk(None, usage=usage, **last) + b"data: [DONE]\n\n"
    return Play([*steps, Step(ttft + (tokens - 1) * gap, end)])
