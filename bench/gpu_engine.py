"""A toy engine that does real work on a GPU and tells about it as vLLM does: for watching the exporter beside a real GPU load.

    python bench/gpu_engine.py --port 8000 --mode decode|prefill|starved|idle

Needs PyTorch with CUDA. `decode` streams weights (a CUDA graph of thin matrix products), `prefill` multiplies big matrices, `starved` puts
Python between decode steps, `idle` does nothing. Listens on loopback.
"""

from __future__ import annotations

import argparse
import time

import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

LAYERS, WIDTH, BATCH, CHUNK = 24, 8192, 8, 8192
LABELS = {"engine": "0", "model_name": "toy"}
LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Told:
    """The page."""

    def __init__(self, registry: CollectorRegistry) -> None:
        names = list(LABELS)

        def gauge(name: str) -> Gauge:
            return Gauge(f"vllm:{name}", name, names, registry=registry).labels(**LABELS)

        def counter(name: str) -> Counter:
            return Counter(f"vllm:{name}", name, names, registry=registry).labels(**LABELS)

        def histogram(name: str, buckets: tuple[float, ...] = LATENCY) -> Histogram:
            return Histogram(f"vllm:{name}", name, names, buckets=buckets, registry=registry).labels(**LABELS)

        self.running, self.waiting, self.usage = gauge("num_requests_running"), gauge("num_requests_waiting"), gauge("kv_cache_usage_perc")
        self.generated, self.prompts, self.preemptions = counter("generation_tokens"), counter("prompt_tokens"), counter("num_preemptions")
        self.steps = histogram("iteration_tokens_total", (1, 8, 64, 512, 4096, 16384))
        self.itl, self.ttft = histogram("inter_token_latency_seconds"), histogram("time_to_first_token_seconds")
        self.queue, self.prefill = histogram("request_queue_time_seconds"), histogram("request_prefill_time_seconds")
        self.decode, self.e2e = histogram("request_decode_time_seconds"), histogram("e2e_request_latency_seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--mode", choices=["decode", "prefill", "starved", "idle"], required=True)
    args = parser.parse_args()
    registry = CollectorRegistry()
    told = Told(registry)
    start_http_server(args.port, "127.0.0.1", registry)
    weights = [torch.randn(WIDTH, WIDTH, dtype=torch.bfloat16, device="cuda") * 0.01 for _ in range(LAYERS)]
    rows = CHUNK if args.mode == "prefill" else BATCH
    x = torch.randn(rows, WIDTH, dtype=torch.bfloat16, device="cuda")

    def forward() -> torch.Tensor:
        y = x
        for weight in weights:
            y = y @ weight
        return y

    forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    if args.mode == "idle":
        while True:
            time.sleep(1)
    told.running.set(rows if args.mode != "prefill" else 1)
    since_finish = 0.0
    while True:
        began = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        if args.mode == "starved":
            until = time.perf_counter() + 0.004
            while time.perf_counter() < until:
                pass
        step = time.perf_counter() - began
        if args.mode == "prefill":
            told.prompts.inc(CHUNK)
            told.generated.inc(1)
            told.steps.observe(CHUNK)
            told.itl.observe(step)
            told.ttft.observe(step)
            told.queue.observe(0.0)
            told.prefill.observe(step)
        else:
            told.generated.inc(BATCH)
            told.steps.observe(BATCH)
            for _ in range(BATCH):
                told.itl.observe(step)
            since_finish += step
            if since_finish > 1.0:
                since_finish = 0.0
                told.decode.observe(1.0)
                told.e2e.observe(1.02)
                told.ttft.observe(0.02)
                told.queue.observe(0.0)
                told.prefill.observe(0.015)


if __name__ == "__main__":
    main()
