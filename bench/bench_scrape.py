"""CPU of one scrape, all in: HTTP request, parse, read, windows, signals, lines, and the rendered page. Run: python bench/bench_scrape.py.

The engine is a process of its own that plays captured pages of a server under load and goes on as they do (each round adds what the
counters gained in the one before, so they never fall), so the figures are the exporter's CPU alone.
"library parse" is prometheus_client's parser on the same bytes and nothing else, measured in turn with ours, so that a busy machine slows
both. Aim: 3 ms all in. `--profile` prints where the time goes.
"""

from __future__ import annotations

import cProfile
import multiprocessing
import pstats
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from llm_exporter.config.model import Slo, Target
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.expose.page import Page
from llm_exporter.sources.engine import Fetched, scrape
from llm_exporter.sources.http import Client

ENGINES = Path(__file__).parents[1] / "tests" / "fixtures" / "engines"
PLAYED = {
    "vLLM 0.32, burst": [f"vllm/vllm-0.32.0-03-during-burst-0{n}.metrics.txt" for n in range(1, 7)],
    "vLLM on an H200": ["vllm/h200-mid-decode_heavy/t004.prom", "vllm/h200-mid-decode_heavy/t006.prom"],
    "SGLang 0.5.23, load": [f"sglang/0.5.23/real_cpu_retraction_2_load_{n}s.prom" for n in (4, 8, 12, 16)],
}
WARM_UP, ROUNDS, CALLS = 64, 15, 12  # warm: the ring of 5 minutes is full
INTERVAL = 5.0
ROUNDED_UP = 1 + 1e-9  # so that no sum falls by the last bit of a float


def continued(bodies: Sequence[bytes], rounds: int) -> list[bytes]:
    """The pages over and over; in each round counters and histograms stand higher by what they gained from first to last page."""
    lines = [body.split(b"\n") for body in bodies]
    first, last = (
        {head: float(value) for head, _, value in (line.rpartition(b" ") for line in page if line[:1] not in (b"", b"#"))}
        for page in (lines[0], lines[-1])
    )
    gains = {
        head: value - first.get(head, 0.0)
        for head, value in last.items()
        if head.partition(b"{")[0].endswith((b"_total", b"_bucket", b"_sum", b"_count"))
    }

    def moved(line: bytes, turn: int) -> bytes:
        head, _, value = line.rpartition(b" ")
        gain = gains.get(head)
        if not gain:
            return line
        more = turn * gain * ROUNDED_UP
        if not head.partition(b"{")[0].endswith(b"_sum"):
            more = round(more)  # what counts stays whole: half an observation would be impossible input
        return head + b" " + repr(float(value) + more).encode()

    return [b"\n".join([moved(line, turn) for line in page]) for turn in range(rounds) for page in lines]


def serve(bodies: Sequence[bytes], tell: Connection) -> None:
    """Answers each request on one kept-alive connection with the next page."""
    listener = socket.create_server(("127.0.0.1", 0))
    tell.send(listener.getsockname()[1])
    sock, _ = listener.accept()
    turn = 0
    while data := sock.recv(65536):
        if data.endswith(b"\r\n\r\n"):
            body = bodies[min(turn, len(bodies) - 1)]
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n" % len(body)
            sock.sendall(head + body)
            turn += 1


class Scraper:
    """One target on a clock of its own: each call is a whole tick, and a scrape of the exporter's page."""

    def __init__(self, client: Client) -> None:
        self.now = 0.0
        self.client = client
        self.page = Page(declared(), lambda: self.now)
        slos = (Slo(name="ttft", metric="time_to_first_token", threshold=1.0, objective=0.99),)
        self.pipeline = Pipeline(Target(name="t", url="http://127.0.0.1", slos=slos), self.page, Timing(INTERVAL, 10.0), time.time)

    def fetch(self) -> Fetched:
        """The next page."""
        scraped = scrape(self.client, "/metrics", timeout=10.0, clock=time.monotonic)
        assert isinstance(scraped, Fetched)
        return scraped

    def tick(self) -> bytes:
        """A scrape all the way, and the exporter's page."""
        self.now += INTERVAL
        self.pipeline.take(self.fetch(), self.now)
        return self.page.render()[0]


def milliseconds(call: Callable[[], object], calls: int) -> float:
    """CPU of this thread per call."""
    began = time.thread_time()
    for _ in range(calls):
        call()
    return (time.thread_time() - began) / calls * 1e3


def measure(names: Sequence[str], *, profile: bool) -> dict[str, float]:
    captured = [(ENGINES / name).read_bytes() for name in names]
    bodies = continued(captured, (WARM_UP + ROUNDS * CALLS * 2) // len(captured) + 60)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(bodies, there))
    server.start()
    try:
        client = Client(f"http://127.0.0.1:{here.recv()}")
        scraper = Scraper(client)
        for _ in range(WARM_UP):
            scraper.tick()
        times: dict[str, list[float]] = {"library parse": [], "all in": [], "fetch": [], "render": []}
        for _ in range(ROUNDS):
            times["library parse"].append(milliseconds(lambda: list(text_string_to_metric_families(bodies[0].decode())), 1))
            times["all in"].append(milliseconds(scraper.tick, CALLS))
            times["fetch"].append(milliseconds(scraper.fetch, CALLS))
            times["render"].append(milliseconds(scraper.page.render, CALLS))
        if profile:
            profiler = cProfile.Profile()
            profiler.runcall(lambda: [scraper.tick() for _ in range(100)])
            pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
        client.close()
    finally:
        server.kill()
        server.join()
    found = {name: statistics.median(values) for name, values in times.items()}
    return found | {"kB in": len(bodies[0]) / 1e3, "kB out": len(scraper.page.render()[0]) / 1e3}


def main() -> None:
    columns = ("kB in", "kB out", "library parse", "fetch", "render", "all in")
    print(f"{'medians, ms CPU':22}" + "".join(f"{name:>15}" for name in columns) + f"{'library ÷ all in':>18}")
    for title, names in PLAYED.items():
        found = measure(names, profile="--profile" in sys.argv)
        row = "".join(f"{found[column]:15.2f}" for column in columns)
        print(f"{title:22}{row}{found['library parse'] / found['all in']:18.1f}")


if __name__ == "__main__":
    main()
