"""The JSON of `probe` and `compare` (CONTRACT 3), and the conditions without which a figure misleads.

In: a `Ladder`. Out: plain dicts; None where nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llm_exporter.probing.fit import Fit, fit_ttft
from llm_exporter.probing.ladder import Cell, Ladder
from llm_exporter.probing.prefix_cache import cache_rows
from llm_exporter.probing.statistics import median, relative_mad, trimmed_mean

# In the order in which they are printed. What the server does not say is null, never guessed.
_CONDITIONS = (
    "gpu", "device", "precision", "quantization", "kv_cache_dtype", "prefix_cache", "kv_cache_block_tokens", "tensor_parallel",
    "data_parallel", "chunked_prefill_tokens", "attention_backend", "speculative_decoding",
)  # fmt: skip


def summary(values: Sequence[float], independent: Sequence[float] | None = None) -> dict[str, Any]:
    """Median, trimmed mean and bounds of all values in seconds; the spread is of those that are independent of each other."""
    if not values:
        return {"median": None, "trimmed_mean": None, "min": None, "max": None, "spread_ratio": None, "samples": []}
    return {
        "median": median(values),
        "trimmed_mean": trimmed_mean(values),
        "min": min(values),
        "max": max(values),
        "spread_ratio": relative_mad(independent or values),
        "samples": list(values),
    }


def conditions(ladder: Ladder, stated: Mapping[str, str]) -> dict[str, Any]:
    """What a reader must know before comparing the figures with others; `stated` fills what the server does not say."""
    plan, facts = ladder.plan, ladder.server.facts
    told: dict[str, Any] = {name: facts.conditions.get(name, stated.get(name)) for name in _CONDITIONS}
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
    cached = [reading.cached_tokens for reading in cell.good if reading.cached_tokens is not None]
    overheads = [reading.network_overhead_seconds for reading in cell.good if reading.network_overhead_seconds is not None]
    return {
        "prompt_tokens": cell.prompt_tokens,
        "prompt_tokens_measured": None if cell.counted_tokens is None else round(cell.counted_tokens),
        "cache": cell.cache,
        "n": len(cell.ttft_seconds),
        "n_samples": len(cell.sample_ttft_seconds),
        "without_ttft": cell.without_ttft,
        "ttft_seconds": {**summary(cell.ttft_seconds, cell.sample_ttft_seconds), "sample_medians": cell.sample_ttft_seconds},
        "itl_seconds": summary(cell.inter_token_seconds),
        "cached_tokens": round(median(cached)) if cached else None,
        "network_overhead_seconds": median(overheads) if overheads else None,
        "stream_buffered": any(known) if (known := [r.buffered for r in cell.good if r.buffered is not None]) else None,
        "results": cell.results,
    }


def fit_of(ladder: Ladder) -> Fit | None:
    """The fit of the cold samples, over the lengths that the server counted."""
    cold = [cell for cell in ladder.cells if cell.cache == "cold"]
    return fit_ttft([(cell.counted_tokens or cell.prompt_tokens, cell.sample_ttft_seconds) for cell in cold])


def probe_document(ladder: Ladder, stated: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`probe --json` of one server, but for `ended_early`."""
    fit, server = fit_of(ladder), ladder.server
    return {
        "url": server.url,
        "engine": server.facts.engine or None,
        "engine_version": server.facts.engine_version or None,
        "model": server.model,
        "conditions": conditions(ladder, stated or {}),
        "runs": [run_row(cell) for cell in ladder.cells],
        "fit": fit.as_json() if fit else None,
        "prefix_cache": [row.as_json() for row in cache_rows(ladder, fit)],
    }
