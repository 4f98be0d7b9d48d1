"""Holds the figures of `llm-exporter kv` against a running server: which model it runs, and whether its own figures are of this config.

In: a URL, the model, the cache. Out: a `Comparison`: what the server says and a verdict that nobody can miss. Called by `kv.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from llm_exporter.kv.layers import Kind
from llm_exporter.kv.memory import Cache, measured_bytes_per_token
from llm_exporter.kv.modelconfig import ModelConfig
from llm_exporter.probing.servers import Asker, ServerFacts, describe
from llm_exporter.probing.typed_url import base_url
from llm_exporter.sources.probe import TlsSettings

TOLERANCE = 0.05
"""Of bytes per token: SGLang rounds its memory to 0.01 GiB, vLLM's blocks leave a rest."""
_LOOSE = 2.0  # factor, where layers with windows or states share the server's pool and one figure per token does not exist


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the server says beside ours; None where it does not say.

    Attributes:
        model_type: of the config that the server runs (SGLang says it).
        bytes_per_token_measured: its memory divided by its capacity.
        difference_ratio: measured ÷ ours − 1; 0.01 is 1 % more than ours.
        agrees: None where nothing could be compared.
        verdict: a sentence, with the reason and where to look.
    """

    url: str
    engine: str | None
    models: tuple[str, ...]
    model_type: str | None
    context_tokens: int | None
    capacity_tokens: int | None
    kv_cache_bytes: float | None
    kv_dtype: str | None
    tensor_parallel: str | None
    bytes_per_token_measured: float | None
    capacity_bytes_by_our_figure: float | None
    difference_ratio: float | None
    agrees: bool | None
    verdict: str


def compare_with_server(url: str, headers: tuple[str, ...], model: ModelConfig, cache: Cache) -> Comparison:
    """Asks and judges.

    Raises:
        UsageError: the URL, or a header.
        FetchError: nothing answers.
    """
    from llm_exporter.cli.measuring import parse_headers

    clean = base_url(url, "--url")
    asker = Asker(clean, parse_headers(headers, os.environ), TlsSettings())
    facts = describe(asker)
    runs = asker.try_json("/model_info").get("model_type") if facts.engine == "sglang" else None
    tokens, memory = facts.kv_cache_capacity_tokens, facts.kv_cache_bytes
    measured = measured_bytes_per_token(memory / 2**30, tokens) if tokens and memory else None
    ours = cache.bytes_per_token
    agrees, verdict = _judge(facts, runs if isinstance(runs, str) else None, measured, model, cache)
    return Comparison(
        url=clean,
        engine=facts.engine or None,
        models=facts.models,
        model_type=runs if isinstance(runs, str) else None,
        context_tokens=facts.context_tokens,
        capacity_tokens=tokens,
        kv_cache_bytes=memory,
        kv_dtype=facts.conditions.get("kv_cache_dtype"),
        tensor_parallel=facts.conditions.get("tensor_parallel"),
        bytes_per_token_measured=measured,
        capacity_bytes_by_our_figure=tokens * ours if tokens else None,
        difference_ratio=measured / ours - 1 if measured and ours else None,
        agrees=agrees,
        verdict=verdict,
    )


def _judge(facts: ServerFacts, model_type: str | None, measured: float | None, model: ModelConfig, cache: Cache) -> tuple[bool | None, str]:
    """(agrees, sentence)."""
    runs = f"the server runs {', '.join(facts.models)}" if facts.models else "the server names no model"
    names = {model.name, str(model.root.get("model_type") or "").lower()}
    if model_type is not None and model_type.lower() not in names:
        return False, f"ANOTHER MODEL: {runs}, of model_type {model_type}; the config is of {model.root.get('model_type') or model.name}"
    if measured is None:
        why = "it gives no size of its KV cache" if facts.engine else "it is neither vLLM nor SGLang, or hides /metrics"
        return None, f"NOT CHECKED: {runs}; {why}"
    low, high, basis = _expected(facts, cache)
    if low <= measured <= high:
        return True, f"agrees in bytes per token{basis}: {runs}; other models may share the figure{_longer(facts, cache)}"
    dtype = facts.conditions.get("kv_cache_dtype")
    says = f" (the server says {dtype})" if dtype else ""
    return False, (
        f"DISAGREES: {runs}; its {measured:.0f} B per token cannot be this config's {cache.bytes_per_token:.0f} B. "
        f"It runs another model, another KV dtype{says} or another tensor parallelism: see --kv-dtype and --tensor-parallel"
    )


def _longer(facts: ServerFacts, cache: Cache) -> str:
    """A hint where the server takes more than the config allows."""
    ours = cache.shape.context_tokens
    if facts.context_tokens is None or ours is None or facts.context_tokens <= ours:
        return ""
    return f". Its context of {facts.context_tokens} tokens is beyond this config's {ours}: look whether it is the same model"


def _expected(facts: ServerFacts, cache: Cache) -> tuple[float, float, str]:
    """(least, most, how loosely) bytes per token that the server may show for this cache."""
    ours = cache.bytes_per_token
    if all(group.kind in (Kind.FULL, Kind.LATENT, Kind.NOTHING) for group in cache.shape.groups):
        return ours * (1 - TOLERANCE), ours * (1 + TOLERANCE), ""
    tokens = facts.context_tokens or cache.shape.context_tokens or 32768
    least = min(cache.bytes_per_request(tokens) / tokens, ours)
    return least / _LOOSE, ours * _LOOSE, " (roughly: windows or constant states share the server's pool)"
