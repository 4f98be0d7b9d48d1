"""What a load tool counted against what the exporter says, on a real server (docs/verification.md).

    python bench/verify_engine.py --engine-url http://127.0.0.1:8000 --exporter-url http://127.0.0.1:9880 --target chat

Sends a burst, a burst with a shared prefix, and streams that the client aborts; reads the exporter's page before and after each; prints a
Markdown table. Sends to loopback addresses only, a bounded number of requests.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

WORDS = [
    "river",
    "stone",
    "lamp",
    "cloud",
    "paper",
    "wheel",
    "garden",
    "copper",
    "winter",
    "signal",
    "harbour",
    "meadow",
    "candle",
    "bridge",
    "falcon",
]


@dataclass
class Count:
    """What the clients saw."""

    sent: int = 0
    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    ttft: list[float] = field(default_factory=list)
    e2e: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def prompt(words: int, seed: int, shared: str) -> str:
    own = " ".join(WORDS[(seed * 7 + i * (seed % 5 + 1)) % len(WORDS)] for i in range(words))
    return f"{shared}{seed} {own}"


def stream(host: str, port: int, model: str, text: str, tokens: int, count: Count, abort_after: float | None) -> None:
    body = {
        "model": model, "prompt": text, "max_tokens": tokens, "stream": True, "ignore_eos": True, "temperature": 0,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    connection = http.client.HTTPConnection(host, port, timeout=300)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    began = time.monotonic()
    first = None
    answer = connection.getresponse()
    usage = {}
    aborted = False
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        usage = event.get("usage") or usage
        if first is None and event.get("choices"):
            first = time.monotonic() - began
        if abort_after is not None and first is not None and time.monotonic() - began > abort_after:
            aborted = True
            break
    connection.close()
    with count.lock:
        count.sent += 1
        count.aborted += aborted
        if first is not None:
            count.ttft.append(first)
        if not aborted:
            count.finished += 1
            count.prompt_tokens += usage.get("prompt_tokens", 0)
            count.completion_tokens += usage.get("completion_tokens", 0)
            count.e2e.append(time.monotonic() - began)


def burst(
    url: str, model: str, n: int, tokens: int, words: int, *, shared: str = "", abort_after: float | None = None, seed: int = 0
) -> Count:
    parts = urlsplit(url)
    assert parts.hostname in ("127.0.0.1", "localhost", "::1"), "loopback only"
    count = Count()
    threads = [
        threading.Thread(
            target=stream, args=(parts.hostname, parts.port, model, prompt(words, seed + i, shared), tokens, count, abort_after)
        )
        for i in range(n)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count


def page(url: str, target: str) -> dict[str, float]:
    """Sums of the exporter's counters and histograms of one target."""
    text = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("target") == target and "window" not in sample.labels and not sample.name.endswith("_bucket"):
                outcome = sample.labels.get("outcome")
                key = f"{sample.name}{{{outcome}}}" if outcome else sample.name
                found[key] = found.get(key, 0.0) + sample.value
    return found


def settled(url: str, target: str, interval: float) -> dict[str, float]:
    """The page once it stands still: two equal reads, more than a scrape apart."""
    before = page(url, target)
    for _ in range(60):
        time.sleep(2 * interval)
        now = page(url, target)
        same = all(now.get(k) == v for k, v in before.items() if k.endswith(("_total", "_count")))
        if same and now.get("llm_requests_running", 0) == 0:
            return now
        before = now
    return before


def rows(count: Count, d: dict[str, float]) -> list[tuple[str, str, str]]:
    """(what, load tool, exporter)."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    def ratio(a: str, b: str) -> float:
        return d.get(a, 0.0) / d[b] if d.get(b) else 0.0

    finished = sum(v for k, v in d.items() if k.startswith("llm_requests_finished_total") and "abort" not in k)
    return [
        ("requests finished", f"{count.finished}", f"{finished:.0f}"),
        ("aborted by the client", f"{count.aborted}", f"{d.get('llm_requests_finished_total{abort}', 0):.0f}"),
        ("prompt tokens (finished)", f"{count.prompt_tokens}", f"{d.get('llm_prompt_tokens_total', 0):.0f}"),
        ("of them cached", "", f"{d.get('llm_prefix_cache_hit_tokens_total', 0):.0f}"),
        ("output tokens (finished)", f"{count.completion_tokens}", f"{d.get('llm_generation_tokens_total', 0):.0f}"),
        ("first tokens", f"{len(count.ttft)}", f"{d.get('llm_time_to_first_token_seconds_count', 0):.0f}"),
        ("TTFT mean, s", f"{mean(count.ttft):.3f}", f"{ratio('llm_time_to_first_token_seconds_sum', 'llm_time_to_first_token_seconds_count'):.3f}"),
        ("queue mean, s", "", f"{ratio('llm_request_queue_time_seconds_sum', 'llm_request_queue_time_seconds_count'):.3f}"),
        ("prefill mean, s", "", f"{ratio('llm_request_prefill_time_seconds_sum', 'llm_request_prefill_time_seconds_count'):.3f}"),
        ("latency mean, s", f"{mean(count.e2e):.3f}", f"{ratio('llm_e2e_request_latency_seconds_sum', 'llm_e2e_request_latency_seconds_count'):.3f}"),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine-url", required=True)
    parser.add_argument("--exporter-url", default="http://127.0.0.1:9880")
    parser.add_argument("--target", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--interval", type=float, default=2.0, help="scrape interval of the exporter")
    args = parser.parse_args()
    shared = " ".join(WORDS[i % len(WORDS)] for i in range(400)) + " "
    situations = (
        ("burst of 32", {"n": 32, "tokens": 60, "words": 120, "seed": int(time.time()) % 10_000}),
        ("shared prefix, 12", {"n": 12, "tokens": 20, "words": 40, "shared": shared}),
        ("client aborts, 6", {"n": 6, "tokens": 900, "words": 30, "abort_after": 1.0}),
    )
    print("| situation | what | load tool | exporter |\n|---|---|---|---|")
    for name, how in situations:
        before = settled(args.exporter_url, args.target, args.interval)
        count = burst(args.engine_url, args.model, **how)  # type: ignore[arg-type]
        after = settled(args.exporter_url, args.target, args.interval)
        gained = {key: value - before.get(key, 0.0) for key, value in after.items()}
        for what, tool, exporter in rows(count, gained):
            print(f"| {name} | {what} | {tool or '–'} | {exporter} |")


if __name__ == "__main__":
    main()
