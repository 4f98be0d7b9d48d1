"""How far is our TTFT from the truth, and how far are others'?

A server in a process of its own holds the first token back for a known time, and tells with each answer how long it really held it.
Bias is the measured TTFT less that. Measured in turn, in one run, while another process scrapes 50 targets:
  bare      a bare socket in a process that does nothing else
  ours      our probe, through its child process, as the daemon uses it
  inside    our probe called inside the scraping process: why there is a child process
  openai    the openai client as people time it (needs --peers, a Python with `openai`)
  aiperf    the benchmark tool, concurrency 1, in a run of its own right after (needs --peers with `aiperf`, and --tokenizer)

  python bench/bench_probe_bias.py --requests 200 --delay-ms 50 --peers /tmp/peers/bin/python --tokenizer DIR
Aim: |median bias| of ours at most 0.3 ms, its P99 within 2 ms of the bare socket's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from llm_exporter.probing.calls import CHAT, call_of
from llm_exporter.probing.pool import ProbePool
from llm_exporter.sources.probe import measure

TARGETS = 50
PAGE = Path(__file__).parents[1] / "tests" / "fixtures" / "engines" / "vllm"
CHUNK: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}


def event(delta: dict[str, str], finish: str | None = None) -> bytes:
    return b"data: " + json.dumps({**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode() + b"\n\n"


USAGE = {**CHUNK, "choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": 4, "total_tokens": 68}}
FIRST, TOKEN = event({"role": "assistant", "content": ""}), event({"content": "tok "})
END = event({}, "length") + b"data: " + json.dumps(USAGE).encode() + b"\n\ndata: [DONE]\n\n"
OPENAI = """
import sys, time, json, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
def once():
    started = time.perf_counter()
    first = None
    stream = client.chat.completions.create(model="tiny", max_tokens=4, stream=True, messages=[{"role": "user", "content": "x" * 256}],
                                            extra_headers={"User-Agent": "openai"})
    for chunk in stream:
        if first is None and chunk.choices and chunk.choices[0].delta.content:
            first = time.perf_counter()
    return first - started
for line in sys.stdin:
    print(once(), flush=True)
"""


def serve(pipe: Connection, delay: float, page: bytes) -> None:
    """The server's process: one thread per connection; sends the list of (client, true hold time) when asked."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    pipe.send(listener.getsockname()[1])
    truths: list[tuple[str, float]] = []

    def handle(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with connection:
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    data += piece
                head, _, data = data.partition(b"\r\n\r\n")
                headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
                length = int(headers.get(b"content-length", b"0"))
                while len(data) < length:
                    data += connection.recv(65536)
                read_at = time.monotonic()
                data = data[length:]
                if head.startswith(b"GET"):
                    body = page if b"/metrics" in head[:60] else b'{"object":"list","data":[{"id":"tiny","object":"model"}]}'
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                    continue
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(FIRST)
                )
                time.sleep(max(0.0, read_at + delay - time.monotonic()))
                held = time.monotonic() - read_at
                connection.sendall(chunk(TOKEN))
                for _ in range(3):
                    time.sleep(0.003)
                    connection.sendall(chunk(TOKEN))
                connection.sendall(chunk(END) + b"0\r\n\r\n")
                truths.append((headers.get(b"user-agent", b"").decode(), held))

    def guarded(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # a client that hangs up early is its own affair
            handle(connection)

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=guarded, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    while pipe.recv() == "truths":
        pipe.send(list(truths))
        truths.clear()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def scrape(port: int, interval: float, orders: Connection) -> None:
    """The exporter's stand-in: fetches and parses a page of 50 targets each interval, with the library's parser (slower than ours).

    On order it also measures, in a thread of the same interpreter: what a probe without a process of its own would see.
    """
    from prometheus_client.parser import text_string_to_metric_families

    def one() -> None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
            data = b""
            while b"\r\n\r\n" not in data or len(data.partition(b"\r\n\r\n")[2]) < int(
                data.partition(b"Length: ")[2].partition(b"\r\n")[0]
            ):
                data += connection.recv(262144)
        list(text_string_to_metric_families(data.partition(b"\r\n\r\n")[2].decode()))

    def forever() -> None:
        while True:
            started = time.monotonic()
            for number in range(TARGETS):
                one()
                time.sleep(max(0.0, started + (number + 1) * interval / TARGETS - time.monotonic()))

    threading.Thread(target=forever, daemon=True).start()
    while (order := orders.recv()) is not None:
        orders.send(measure(order).time_to_first_token_seconds)


def bare(port: int, orders: Connection) -> None:
    body = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x" * 256}]}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nUser-Agent: bare\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    while orders.recv() is not None:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            started = time.monotonic()
            connection.sendall(request)
            data = b""
            while b"tok" not in data:
                data += connection.recv(65536)
            first = time.monotonic()
            while b"[DONE]" not in data:
                data += connection.recv(65536)
        orders.send(first - started)


def quantile(values: list[float], q: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(q * len(ranked)))]


def child(target: Callable[..., None], *arguments: Any) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    return process, ours


def _serve(delay: float, page: bytes, pipe: Connection) -> None:
    serve(pipe, delay, page)


def run_aiperf(python: str, url: str, tokenizer: str, requests: int) -> dict[str, Any] | str:
    """Its own statistics of TTFT in ms, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(python).parent / "aiperf"), "profile", "-m", "tiny", "--url", url, "--endpoint-type", "chat", "--streaming",
            "--request-count", str(requests), "--concurrency", "1", "--tokenizer", tokenizer, "--isl", "64", "--osl", "4",
            "--output-artifact-dir", folder, "--ui", "none",
        ]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{type(error).__name__}"
        for file in Path(folder).rglob("*.json"):
            content = json.loads(file.read_text())
            if isinstance(content, dict) and "time_to_first_token" in json.dumps(content)[:200000]:
                found = content.get("time_to_first_token") or content.get("records", {}).get("ttft") or content.get("ttft")
                if isinstance(found, dict):
                    return found
        return (done.stderr or done.stdout).strip()[-300:]


class OpenAi:
    """The openai client in a process of its own."""

    def __init__(self, python: str, url: str) -> None:
        self.process = subprocess.Popen([python, "-c", OPENAI, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def once(self) -> float:
        """TTFT of one request, in seconds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def ask(pipe: Connection, order: Any) -> float:
    pipe.send(order)
    return float(pipe.recv())


def measure_in_turn(
    clients: dict[str, Callable[[], float]], requests: int, truths: Connection
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """(measured, truly held) by client, in seconds, in the same order."""
    measured: dict[str, list[float]] = {name: [] for name in clients}
    held: dict[str, list[float]] = {name: [] for name in clients}
    for once in clients.values():  # warm up: imports, connections
        for _ in range(5):
            once()
    ask_truths(truths)
    names = list(clients)
    for number in range(requests):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            measured[name].append(clients[name]())
    for agent, seconds in ask_truths(truths):
        held[agent].append(seconds)
    return measured, held


def show(name: str, median: float, p99_bias: float, p99: float, late: float, note: str = "") -> None:
    print(f"{name:<8}{median * 1e3:>16.3f}{p99_bias * 1e3:>14.3f}{p99 * 1e3:>14.3f}{late * 1e3:>16.3f}  {note}".rstrip())


def show_aiperf(found: dict[str, Any] | str, truth: list[float], bare_p99: float) -> None:
    if isinstance(found, str) or not truth:
        print(f"aiperf   no figures: {found}")
        return
    median, p99 = (float(found.get(name, "nan")) / 1e3 for name in ("p50", "p99"))
    note = "(a run of its own: difference of medians and of P99s)"
    late = p99 - quantile(truth, 0.99)
    show("aiperf", median - statistics.median(truth), late, p99, late - bare_p99, note)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    parser.add_argument("--scrape-interval", type=float, default=5.0)
    parser.add_argument("--peers", help="a Python that has `openai`, and beside it the command `aiperf`")
    parser.add_argument("--tokenizer", help="directory of a Hugging Face tokenizer, for aiperf")
    arguments = parser.parse_args()
    page = max((file.read_bytes() for file in PAGE.rglob("*.*")), key=len, default=b"x 1\n")
    server, truths = child(_serve, arguments.delay_ms / 1000, page)
    port = truths.recv()
    url = f"http://127.0.0.1:{port}"
    pages, pages_pipe = child(_serve, 0.0, page)  # the 50 targets: a server of their own, so that they do not delay the measured one
    scraper, inside = child(scrape, pages_pipe.recv(), arguments.scrape_interval)
    alone, bare_pipe = child(bare, port)
    peer = OpenAi(arguments.peers, url) if arguments.peers else None
    with ProbePool() as pool:

        def our_call(agent: str) -> Any:
            return call_of(url, CHAT, model="tiny", prompt="x" * 256, max_tokens=4, headers={"User-Agent": agent})

        clients: dict[str, Callable[[], float]] = {
            "bare": lambda: ask(bare_pipe, 1),
            "ours": lambda: pool.measure(our_call("ours")).time_to_first_token_seconds or float("nan"),
            "inside": lambda: ask(inside, our_call("inside")),
        }
        if peer is not None:
            clients["openai"] = peer.once
        measured, held = measure_in_turn(clients, arguments.requests, truths)
    biases = {name: [value - truth for value, truth in zip(values, held[name], strict=True)] for name, values in measured.items()}
    every = f"{TARGETS} targets scraped every {arguments.scrape_interval:g} s"
    print(f"{arguments.requests} requests each, first token held back for {arguments.delay_ms:g} ms, {every}")
    print(f"{'client':<8}{'median bias ms':>16}{'P99 bias ms':>14}{'P99 TTFT ms':>14}{'P99 − bare ms':>16}   (the last: of the biases)")
    bare_p99 = quantile(biases["bare"], 0.99)
    for name, values in biases.items():
        p99 = quantile(values, 0.99)
        show(name, statistics.median(values), p99, quantile(measured[name], 0.99), p99 - bare_p99)
    if arguments.peers and arguments.tokenizer:
        found = run_aiperf(arguments.peers, url, arguments.tokenizer, arguments.requests)
        show_aiperf(found, [seconds for _, seconds in ask_truths(truths)], bare_p99)
    for process in (server, pages, scraper, alone):
        process.terminate()
    if peer is not None:
        peer.process.terminate()
    median, late = abs(statistics.median(biases["ours"])) * 1e3, (quantile(biases["ours"], 0.99) - bare_p99) * 1e3
    good = median <= 0.3 and late <= 2.0
    print(f"aim: |median bias| ≤ 0.3 ms: {median:.3f}; P99 − bare ≤ 2 ms: {late:.3f}: {'met' if good else 'missed'}")
    return 0 if good else 1


def ask_truths(pipe: Connection) -> list[tuple[str, float]]:
    pipe.send("truths")
    return list(pipe.recv())


if __name__ == "__main__":
    sys.exit(main())
