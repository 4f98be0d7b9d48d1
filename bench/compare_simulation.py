"""The same load on a real vLLM and on its simulation (preset cpu-tiny-vllm): are the pages of one shape, and how far are the figures apart?

    .venv/bin/python bench/compare_simulation.py http://127.0.0.1:8000 tiny [--clients 24] [--rounds 3] [--max-tokens 120]

The real server is one on CPU with a tiny model, --max-model-len 2048 --max-num-seqs 8 --max-num-batched-tokens 512.
Prints a Markdown table; exit code 1 where families, labels or buckets differ. Nothing is sent but to the given URL and
to loopback. Each run has prompts of its own, since a real server still caches those of the run before.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import sys
import threading
import time
import urllib.parse
from dataclasses import replace

from llm_exporter.demo.live import Pacer
from llm_exporter.demo.scenarios import SCENARIOS, Side
from llm_exporter.demo.server import EngineServer
from llm_exporter.demo.simulation import Simulation
from llm_exporter.demo.traffic import Load

WORDS = ["the", "a", "of", "prefix", "cache", "token", "queue", "water", "people", "long", "make", "thing", "day", "sound"]
FIGURES = (
    ("vllm:time_to_first_token_seconds", "TTFT, s"),
    ("vllm:request_queue_time_seconds", "queue, s"),
    ("vllm:request_prefill_time_seconds", "prefill, s"),
    ("vllm:request_decode_time_seconds", "decode, s"),
    ("vllm:inter_token_latency_seconds", "inter-token, s"),
    ("vllm:e2e_request_latency_seconds", "end to end, s"),
    ("vllm:request_prompt_tokens", "prompt, tokens"),
    ("vllm:request_generation_tokens", "output, tokens"),
    ("vllm:iteration_tokens_total", "tokens per step"),
)


def fetch(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=60)
    link.request("GET", "/metrics")
    text = link.getresponse().read().decode()
    link.close()
    return text


def one(url: str, model: str, text: str, max_tokens: int) -> None:
    parts = urllib.parse.urlsplit(url)
    link = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=600)
    body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    link.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = link.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    link.close()


def load(url: str, model: str, args: argparse.Namespace) -> float:
    """The load: per round, `clients` requests at once; the last round shares a prompt. Returns wall seconds."""
    began = time.monotonic()
    rng = random.Random(args.seed)
    shared = " ".join(rng.choice(WORDS) for _ in range(args.words * 3))
    for turn in range(args.rounds):
        texts = [" ".join(rng.choice(WORDS) for _ in range(args.words)) for _ in range(args.clients)]
        if turn == args.rounds - 1:
            texts = [f"{shared} {text[:40]}" for text in texts]
        threads = [threading.Thread(target=one, args=(url, model, text, args.max_tokens)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return time.monotonic() - began


def values(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in text.splitlines():
        if line and not line.startswith("#") and "_bucket" not in line:
            series, _, value = line.rpartition(" ")
            found[series.partition("{")[0]] = found.get(series.partition("{")[0], 0.0) + float(value)
    return found


def shape(text: str) -> set[str]:
    """HELP and TYPE lines, and series with all labels but those that name the server or its sizes."""
    found = set()
    for line in text.splitlines():
        if line.startswith("#"):
            found.add(line)
        elif line:
            series = line.rpartition(" ")[0]
            if "cache_config_info" in series:
                series = re.sub(r'="[^"]*"', "", series)
            found.add(re.sub(r'(model_name|major|minor|patchlevel|version)="[^"]*"', r"\1", series))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("model")
    for name, default in (("clients", 24), ("rounds", 3), ("max-tokens", 120), ("words", 150)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    overrides = {"max_running": 8, "step_tokens": 512, "context_tokens": 2048}
    side = Side("cpu-tiny-vllm", Load(rate=0.0), overrides=overrides)
    simulation = Simulation("vllm", replace(SCENARIOS["healthy"], vllm=side), wall_at=time.time())
    pacer = Pacer([simulation])
    server = EngineServer(simulation, pacer)
    pacer.start()
    server.start()
    warm = argparse.Namespace(clients=2, rounds=1, max_tokens=4, words=10, seed=1)  # a real server is slow at first
    pages, walls = [], []
    for url, model in ((args.url, args.model), (server.url, simulation.model_name)):
        load(url, model, warm)
        before = values(fetch(url))
        walls.append(load(url, model, args))
        time.sleep(1.0)
        text = fetch(url)
        pages.append((text, {name: value - before.get(name, 0.0) for name, value in values(text).items()}))
    server.stop()
    pacer.stop()
    (real_text, real), (mine_text, mine) = pages
    print("| mean of | real | simulated | ratio |\n|---|---|---|---|")
    print(f"| wall, s | {walls[0]:.1f} | {walls[1]:.1f} | {walls[1] / walls[0]:.2f} |")
    for name, label in FIGURES:
        pair = [page.get(f"{name}_sum", 0.0) / max(1.0, page.get(f"{name}_count", 0.0)) for page in (real, mine)]
        print(f"| {label} | {pair[0]:.4g} | {pair[1]:.4g} | {pair[1] / pair[0] if pair[0] else float('nan'):.2f} |")
    for name in ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:generation_tokens_total"):
        print(f"| {name} | {real.get(name, 0):.0f} | {mine.get(name, 0):.0f} | {mine.get(name, 0) / max(1.0, real.get(name, 0)):.2f} |")
    different = shape(real_text) ^ shape(mine_text)
    print(f"\n{len(shape(real_text))} lines of shape, {len(different)} differ")
    for line in sorted(different):
        print(f"  {'real' if line in shape(real_text) else 'simulated'} only: {line[:160]}")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
