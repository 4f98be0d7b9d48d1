"""The JSON of `probe` and `compare` (CONTRACT 3), and the conditions without which a figure misleads.

In: a `Ladder`. Out: plain dicts; None where nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llm_exporter.probing.fit import Fit, cache_effectiveness, fit_ttft
from llm_exporter.probing.ladder import Cell, Ladder
from llm_exporter.probing.statistics import median, relative_mad, trimmed_mean

# In the order in which they are printed. What the server does not say is null, never guessed.
_CONDITIONS = (
    "gpu", "device", "precision", "quantization", "kv_cache_dtype", "prefix_cache", "kv_cache_block_tokens", "tensor_parallel",
    "data_parallel", "chunked_prefill_tokens", "attention_backend", "speculative_decoding",
)  # fmt: skip

_LEAST_PREFILL_SHARE = 0.25


def summary(values: Sequence[float]) -> dict[str, Any]:
    """Median, trimmed mean and spread of samples in seconds."""
    if not values:
        return {"median": None, "trimmed_mean": None, "min": None, "max": None, "spread_ratio": None, "samples": []}
    return {
        "median": median(values),
        "trimmed_mean": trimmed_mean(values),
        "min": min(values),
        "max": max(values),
        "spread_ratio": relative_mad(values),
        "samples": list(values),
    }


def conditions(ladder: Ladder, gpu: str | None) -> dict[str, Any]:
    """What a reader must know before comparing the figures with others."""
    plan, facts = ladder.plan, ladder.server.facts
    told: dict[str, Any] = {name: facts.conditions.get(name) for name in _CONDITIONS}
    told["gpu"] = gpu
    return {
        **told,
        "context_tokens": facts.context_tokens,
        "concurrency": plan.concurrency,
        "cache": list(plan.cache),
        "max_tokens": plan.max_tokens,
        "temperature": plan.temperature,
        "endpoint": plan.endpoint,
        "language": plan.language,
    }


def run_row(cell: Cell) -> dict[str, Any]:
    """One line of `runs`."""
    counts = [reading.prompt_tokens for reading in cell.good if reading.prompt_tokens is not None]
    cached = [reading.cached_tokens for reading in cell.good if reading.cached_tokens is not None]
    overheads = [reading.network_overhead_seconds for reading in cell.good if reading.network_overhead_seconds is not None]
    return {
        "prompt_tokens": cell.prompt_tokens,
        "prompt_tokens_measured": round(median(counts)) if counts else None,
        "cache": cell.cache,
        "n": len(cell.ttft_seconds),
        "ttft_seconds": summary(cell.ttft_seconds),
        "itl_seconds": summary(cell.inter_token_seconds),
        "cached_tokens": round(median(cached)) if cached else None,
        "network_overhead_seconds": median(overheads) if overheads else None,
        "stream_buffered": any(known) if (known := [r.buffered for r in cell.good if r.buffered is not None]) else None,
        "results": cell.results,
    }


def fit_of(ladder: Ladder) -> Fit | None:
    """The fit of the cold samples, over the lengths that the server counted."""
    rows = []
    for cell in ladder.cells:
        counts = [reading.prompt_tokens or cell.prompt_tokens for reading in cell.good]
        if cell.cache == "cold" and counts:
            rows.append((median(counts), cell.ttft_seconds))
    return fit_ttft(rows)


def warm_rows(ladder: Ladder, fit: Fit | None) -> list[dict[str, Any]]:
    """Per length: warm ÷ cold, and the share of the prefill that the cache saved."""
    rows = []
    for cell in ladder.cells:
        warm = ladder.cell(cell.prompt_tokens, "warm")
        if cell.cache != "cold" or warm is None or not cell.ttft_seconds or not warm.ttft_seconds:
            continue
        cold_seconds, warm_seconds = median(cell.ttft_seconds), median(warm.ttft_seconds)
        # a short prompt costs little beyond the fixed part, and the quotient of two small differences says nothing
        worth_it = fit is not None and cold_seconds - fit.fixed_seconds > _LEAST_PREFILL_SHARE * cold_seconds
        saved = cache_effectiveness(cold_seconds, warm_seconds, fit.fixed_seconds) if fit is not None and worth_it else None
        rows.append(
            {
                "prompt_tokens": cell.prompt_tokens,
                "warm_to_cold_ratio": warm_seconds / cold_seconds,
                "effectiveness_ratio": None if saved is None else min(1.0, max(0.0, saved)),
            }
        )
    return rows


def probe_document(ladder: Ladder, gpu: str | None = None) -> dict[str, Any]:
    """`probe --json` of one server."""
    fit, server = fit_of(ladder), ladder.server
    return {
        "url": server.url,
        "engine": server.facts.engine or None,
        "engine_version": server.facts.engine_version or None,
        "model": server.model,
        "conditions": conditions(ladder, gpu),
        "runs": [run_row(cell) for cell in ladder.cells],
        "fit": fit.as_json() if fit else None,
        "prefix_cache": warm_rows(ladder, fit),
    }
