"""Prefix cache and KV cache: what they saved, what preemption threw away, and what limited the targets.

In: a `Service`, the window, its `Load`. Out: findings `prefix_cache`, `kv_cache` and the bottleneck shares. Called by `review.py`.
"""

from __future__ import annotations

import numpy as np

from llm_exporter.report.finding import Finding, Span, percentile, unknown
from llm_exporter.report.fleet import Service, highest
from llm_exporter.report.load import Load
from llm_exporter.report.statistics import wasted_by_preemption

MIN_REQUESTS = 20
MIN_SHARE = 0.0005


def review_prefix_cache(service: Service, span: Span, load: Load) -> Finding:
    """Hit ratio over tokens, and the GPU-hours that the hits saved."""
    where = service.grid.within(span.start, span.end)
    queried, hit = service.total("queried_tokens", where), service.total("hit_tokens", where)
    if not queried or hit is None:
        return unknown(("hit_ratio", "saved_gpu_hours"), "nothing was looked up in a prefix cache, or it is off")
    finding = Finding({"hit_ratio": min(1.0, hit / queried), "saved_gpu_hours": None})
    finding.basis = f"{queried / 1e6:,.1f} M prompt tokens looked up; weighted by tokens, so a few long hits outweigh many short misses."
    if load.cost is not None and load.cost.separable:
        finding.numbers["saved_gpu_hours"] = hit * load.cost.per_prompt / 3600
        finding.basis += " Saved hours are work avoided at the fitted cost of a prompt token; while GPUs idle they save latency, not money."
    else:
        finding.why["saved_gpu_hours"] = "the GPU time of a prompt token cannot be told apart from that of an output token here"
    return finding


def review_kv_cache(service: Service, span: Span) -> tuple[Finding, float | None, float | None]:
    """Usage and preemptions; also preemptions per finished request, and the share of prefill work that was done again."""
    where = service.grid.within(span.start, span.end)
    usage = highest([trace.values for trace in service.traces("kv_usage")])
    preemptions = service.total("preemptions", where)
    finding = Finding({"usage_p95_ratio": percentile(None if usage is None else usage[where], 95), "preemptions": preemptions})
    finding.why = {key: "not on the pages of these engines in this span" for key, value in finding.numbers.items() if value is None}
    finding.basis = "Usage of the fullest replica, 95th percentile of five-minute means; high usage alone is good use of memory."
    finished = service.total("finished", where)
    prompt, generated = service.total("prompt_tokens", where), service.total("generation_tokens", where)
    rate = wasted = None
    if preemptions is not None and finished and finished >= MIN_REQUESTS:
        rate = preemptions / finished
        if prompt and generated is not None:
            wasted = wasted_by_preemption(preemptions, (prompt + generated / 2) / finished, prompt)
    return finding, rate, wasted


def review_bottlenecks(service: Service, span: Span) -> Finding:
    """Share of time by verdict, targets weighing alike."""
    coarse = service.history.coarse
    where = coarse.within(span.start, span.end)
    sums: dict[str, float] = {}
    for trace in service.history.of("verdict"):
        if trace.label("target") in service.targets:
            cause = trace.label("cause")
            sums[cause] = sums.get(cause, 0.0) + float(np.nansum(trace.values[where]))
    whole = sum(sums.values())
    if whole <= 0:
        return Finding({}, {}, "No verdict was published in this window.")
    shares = {cause: value / whole for cause, value in sorted(sums.items(), key=lambda item: -item[1]) if value / whole >= MIN_SHARE}
    return Finding(dict(shares), {}, f"{whole:,.0f} target-hours with a verdict.")
