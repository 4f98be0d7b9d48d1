"""CPU of one scrape's HTTP by library, on a kept-alive loopback connection and a captured 48 KB page. Run: python bench/bench_fetch.py.

The server runs in a process of its own, so the figures are the client's CPU alone (user and system). The candidates take turns, so that
a busy machine slows all of them; ratios are to our client, which keeps a total deadline and caps that the others lack.
The last line is what compressing the page would cost the engine, in its own event loop, for each scrape.
"""

from __future__ import annotations

import gzip
import http.client
import multiprocessing
import socket
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import requests
import urllib3

from llm_exporter.sources.http import METRICS_ACCEPT, Client

PAGE = Path(__file__).parents[1] / "tests" / "fixtures" / "engines" / "vllm" / "vllm-0.32.0-01-before-any-request.metrics.txt"
ROUNDS, CALLS = 30, 20


def serve(body: bytes, tell: Connection) -> None:
    """Answers every request on every connection, one connection at a time, with as little work as can be."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nServer: uvicorn\r\nContent-Length: %d\r\n\r\n" % len(body)
    listener = socket.create_server(("127.0.0.1", 0))
    tell.send(listener.getsockname()[1])
    while True:
        sock, _ = listener.accept()
        multiprocessing.get_context("fork").Process(target=answer, args=(sock, head + body), daemon=False).start()
        sock.close()


def answer(sock: socket.socket, reply: bytes) -> None:
    while data := sock.recv(65536):
        if data.endswith(b"\r\n\r\n"):
            sock.sendall(reply)


def cpu_milliseconds(call: Callable[[], int], expected: int) -> float:
    """CPU per call of this thread."""
    began = time.thread_time()
    for _ in range(CALLS):
        assert call() == expected
    return (time.thread_time() - began) / CALLS * 1e3


def candidates(url: str, port: int) -> dict[str, Callable[[], int]]:
    client = Client(url)
    plain = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=1, timeout=10, retries=False)
    session = requests.Session()
    session.trust_env = False
    headers = {"Accept": METRICS_ACCEPT, "User-Agent": "bench"}

    def with_http_client() -> int:
        plain.request("GET", "/metrics", headers=headers)
        return len(plain.getresponse().read())

    return {
        "ours (http.client, deadline, caps)": lambda: len(client.get("/metrics", timeout=10).body),
        "http.client": with_http_client,
        "urllib3": lambda: len(pool.request("GET", "/metrics", headers=headers).data),
        "requests": lambda: len(session.get(f"{url}/metrics", headers=headers, timeout=10).content),
    }


def main() -> None:
    body = PAGE.read_bytes()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(body, there))
    server.start()
    try:
        port = here.recv()
        calls = candidates(f"http://127.0.0.1:{port}", port)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            cpu_milliseconds(call, len(body))  # opens the connection
        for _ in range(ROUNDS):
            for name, call in calls.items():
                times[name].append(cpu_milliseconds(call, len(body)))
    finally:
        server.kill()
        server.join()
    print(f"page of {len(body)} bytes; median of {ROUNDS} × {CALLS} scrapes")
    ours = statistics.median(next(iter(times.values())))
    for name, values in times.items():
        print(f"{name:36} {statistics.median(values):6.3f} ms CPU   × {statistics.median(values) / ours:4.2f}")
    packing = []
    for _ in range(15):
        began = time.thread_time()
        packed = gzip.compress(body)
        packing.append((time.thread_time() - began) * 1e3)
    print(f"{'gzip in the engine (level 9)':36} {statistics.median(packing):6.3f} ms CPU   {len(body)} → {len(packed)} bytes")


if __name__ == "__main__":
    main()
