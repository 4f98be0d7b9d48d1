"""The HTTP server's end: a request that takes its time must not hold the process when it is told to go."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from llm_exporter.daemon import server as room
from llm_exporter.daemon.server import HttpServer


def test_a_request_that_hangs_does_not_hold_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "STOP_SECONDS", 0.2)
    came, released = threading.Event(), threading.Event()
    workers: list[threading.Thread] = []

    def slow(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        workers.append(threading.current_thread())
        came.set()
        released.wait(20)
        start_response("200 OK", [("Content-Length", "0")])
        return []

    server = HttpServer(slow, "127.0.0.1:0", threads=2)
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert came.wait(5)
            began = time.monotonic()
            server.stop()
            assert time.monotonic() - began < 3.0
            assert workers[0].daemon, "the interpreter waits for all other threads"
    finally:
        released.set()
        workers[0].join(5)
