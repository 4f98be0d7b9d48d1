"""How far is our TTFT from the truth, and how far are others'?

A server in a process of its own holds the first token back for a known time, and tells with each answer how long it really took, from the
request's arrival in its kernel (`reference_server.py`). Bias is the measured TTFT less that. Measured in turn, in one run, while the real
daemon (`llm-exporter serve`) scrapes 50 targets that play pages of a loaded vLLM:
  bare      a bare socket in a process that does nothing else
  ours      our probe, through the child process of that daemon
  inside    our probe in a thread of the daemon's own interpreter: why there is a child process
  openai    the openai client as people time it (needs --peers, a Python with `openai`)
  aiperf    the benchmark tool, concurrency 1, in a run of its own right after (needs --peers with `aiperf`, and --tokenizer)

  python bench/bench_probe_bias.py --requests 200 --delay-ms 50 --peers /tmp/peers/bin/python --tokenizer DIR
Aim: |median bias| of ours at most 0.3 ms, its P99 within 2 ms of the bare socket's. Where the server read the request late, a clock that
starts at that reading would charge the wait to the client; `with server's` is the median with it, for comparison.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench_scrape import ENGINES, PLAYED, continued
from reference_server import ReferenceServer, Truth, child

from llm_exporter.cli import cli
from llm_exporter.probing.calls import CHAT, call_of
from llm_exporter.probing.pool import ProbePool
from llm_exporter.sources.probe import ProbeReading, measure

TARGETS = 50
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


def exporter(config: str, orders: Connection) -> None:
    """The daemon itself. A thread beside it measures on order: ("child" or "inside", call), through its probe process or in this one."""

    def obey() -> None:
        with ProbePool() as pool, contextlib.suppress(EOFError):
            while (order := orders.recv()) is not None:
                where, call = order
                orders.send((pool.measure if where == "child" else measure)(call).time_to_first_token_seconds)

    threading.Thread(target=obey, daemon=True).start()
    cli.main(["serve", "--config.file", config, "--web.listen-address", "127.0.0.1:0", "--log.level", "error"], standalone_mode=False)


def configuration(folder: Path, url: str, interval: float) -> Path:
    targets = [{"name": f"t{number}", "url": f"{url}/t{number}", "engine": "vllm"} for number in range(TARGETS)]
    file = folder / "exporter.json"  # JSON is YAML
    file.write_text(json.dumps({"global": {"scrape_interval": f"{interval:g}s"}, "targets": targets}))
    return file


def bare(port: int, orders: Connection) -> None:
    body = json.dumps({"model": "tiny", "stream": True, "messages": [{"role": "user", "content": "x" * 256}]}).encode()
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nUser-Agent: bare\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    while orders.recv():
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
    answer = pipe.recv()
    return float("nan") if answer is None else float(answer)  # None: read so late that the probe gave no figure


def measure_in_turn(
    clients: Mapping[str, Callable[[], float]], requests: int, server: ReferenceServer
) -> tuple[dict[str, list[float]], dict[str, list[Truth]]]:
    """(measured seconds, the truth of each) by client, in the same order."""
    measured: dict[str, list[float]] = {name: [] for name in clients}
    truths: dict[str, list[Truth]] = {name: [] for name in clients}
    for once in clients.values():  # warm up: imports, connections
        for _ in range(5):
            once()
    time.sleep(0.1)  # the server notes a request after its last byte
    server.truths()
    names = list(clients)
    for number in range(requests):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            measured[name].append(clients[name]())
    time.sleep(0.1)
    for truth in server.truths():
        truths[truth.client].append(truth)
    return measured, truths


def show(name: str, median: float, p99_bias: float, late: float, unseen: float | None, note: str = "") -> None:
    with_server = "" if unseen is None else f"{(median + unseen) * 1e3:.3f}"
    print(f"{name:<8}{median * 1e3:>16.3f}{p99_bias * 1e3:>14.3f}{late * 1e3:>15.3f}{with_server:>15}  {note}".rstrip())


def show_aiperf(found: dict[str, Any] | str, truths: list[Truth], bare_p99: float) -> None:
    if isinstance(found, str) or not truths:
        print(f"aiperf   no figures: {found}")
        return
    held = [truth.held for truth in truths]
    median, p99 = (float(found.get(name, "nan")) / 1e3 for name in ("p50", "p99"))
    late = p99 - quantile(held, 0.99)
    show("aiperf", median - statistics.median(held), late, late - bare_p99, None, "(a run of its own: differences of medians and of P99s)")


def report(measured: dict[str, list[float]], truths: dict[str, list[Truth]]) -> tuple[float, float, float]:
    """Prints a line per client. Returns (our median bias, our P99 bias, the bare socket's P99 bias) in seconds."""
    print(f"{'client':<8}{'median bias ms':>16}{'P99 bias ms':>14}{'P99 − bare ms':>15}{'with server’s':>15}")
    biases = {
        name: [value - truth.held for value, truth in zip(values, truths[name], strict=True) if not math.isnan(value)]
        for name, values in measured.items()
    }
    if min(biases["bare"]) < 0:  # what the client saw encloses what the server did
        print("the clocks of client and server disagree (was the wall clock set?): no figure of this run holds")
    bare_p99 = quantile(biases["bare"], 0.99)
    for name, values in biases.items():
        p99, unseen = quantile(values, 0.99), statistics.median(truth.unseen for truth in truths[name])
        lost = len(measured[name]) - len(values)
        show(name, statistics.median(values), p99, p99 - bare_p99, unseen, f"({lost} without a figure: read late)" if lost else "")
    return statistics.median(biases["ours"]), quantile(biases["ours"], 0.99), bare_p99


def at_once(server: ReferenceServer, count: int) -> None:
    """So many probes at the same moment through one probe process: how many are further off than they say?"""
    readings: dict[str, ProbeReading] = {}

    def one(name: str) -> None:
        call = call_of(server.url, CHAT, model="tiny", prompt="x" * 256, max_tokens=4, headers={"User-Agent": name})
        readings[name] = pool.measure(call)

    with ProbePool() as pool:
        pool.measure(call_of(server.url, CHAT, model="tiny", prompt="x", max_tokens=4))
        server.truths()
        threads = [threading.Thread(target=one, args=(f"p{number}",)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        time.sleep(0.2)
    truths = {truth.client: truth for truth in server.truths()}
    beyond = []
    for name, reading in readings.items():
        if reading.time_to_first_token_seconds is not None and reading.ttft_error_seconds is not None and name in truths:
            off = reading.time_to_first_token_seconds - truths[name].held
            beyond.append(max(-off, off - truths[name].sending) - reading.ttft_error_seconds)
    lost = count - len(beyond)
    far = [seconds for seconds in beyond if seconds > 0.3e-3]
    print(f"{count} at once: {lost} without a figure, {len(far)} off by more than their error and 0.3 ms", end="")
    print(f" (the worst {max(far) * 1e3:.1f} ms more)" if far else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--delay-ms", type=float, default=50.0)
    parser.add_argument("--scrape-interval", type=float, default=5.0)
    parser.add_argument("--at-once", type=int, nargs="*", default=[20, 100], help="also so many probes at the same moment")
    parser.add_argument("--peers", help="a Python that has `openai`, and beside it the command `aiperf`")
    parser.add_argument("--tokenizer", help="directory of a Hugging Face tokenizer, for aiperf")
    arguments = parser.parse_args()
    pages = continued([(ENGINES / name).read_bytes() for name in PLAYED["vLLM 0.32, burst"]], 40)
    # The 50 targets are a server of their own, so that they do not delay the measured one.
    with (
        ReferenceServer(arguments.delay_ms / 1e3) as server,
        ReferenceServer(0.0, pages) as engines,
        tempfile.TemporaryDirectory() as folder,
    ):
        daemon, orders = child(exporter, str(configuration(Path(folder), engines.url, arguments.scrape_interval)))
        alone, bare_pipe = child(bare, server.port)
        peer = OpenAi(arguments.peers, server.url) if arguments.peers else None
        deadline = time.monotonic() + 60
        while engines.pages_played() < 2 * TARGETS:
            if time.monotonic() > deadline or not daemon.is_alive():
                raise SystemExit("the exporter does not scrape: see its messages above")
            time.sleep(0.5)

        def our_call(agent: str) -> Any:
            return call_of(server.url, CHAT, model="tiny", prompt="x" * 256, max_tokens=4, headers={"User-Agent": agent})

        clients: dict[str, Callable[[], float]] = {
            "bare": lambda: ask(bare_pipe, 1),
            "ours": lambda: ask(orders, ("child", our_call("ours"))),
            "inside": lambda: ask(orders, ("inside", our_call("inside"))),
        }
        if peer is not None:
            clients["openai"] = peer.once
        played, started = engines.pages_played(), time.monotonic()
        measured, truths = measure_in_turn(clients, arguments.requests, server)
        rate = (engines.pages_played() - played - 1) / (time.monotonic() - started)
        print(f"{arguments.requests} requests each, first token {arguments.delay_ms:g} ms after the request arrived;", end=" ")
        print(f"meanwhile the exporter scraped {TARGETS} targets every {arguments.scrape_interval:g} s: {rate:.1f} pages per second")
        median, p99, bare_p99 = report(measured, truths)
        if arguments.peers and arguments.tokenizer:
            show_aiperf(run_aiperf(arguments.peers, server.url, arguments.tokenizer, arguments.requests), server.truths(), bare_p99)
        for count in arguments.at_once:
            at_once(server, count)
        for process in (alone, daemon):
            process.terminate()
            process.join()
        if peer is not None:
            peer.process.terminate()
    good = abs(median) <= 0.3e-3 and p99 - bare_p99 <= 2e-3
    print(
        f"aim: |median bias| ≤ 0.3 ms: {abs(median) * 1e3:.3f}; P99 − bare ≤ 2 ms: {(p99 - bare_p99) * 1e3:.3f}: {'met' if good else 'missed'}"
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
