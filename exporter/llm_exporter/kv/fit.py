"""What fits into a GPU beside the weights, and what to change where it does not.

In: a `Cache`, a `Budget`, what was asked for. Out: a `Fit`. Pure arithmetic; called by `cli/kv.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from llm_exporter.kv.memory import Cache, allowed_tensor_parallel, size_text

WORKSPACE = 2**30
"""Bytes kept free on each GPU for activations, graphs and the framework itself: roughly what engines need."""
# vLLM's --max-num-batched-tokens where it is not given (0.32.0, engine/arg_utils.py): by the memory of a GPU, descending.
_CHUNKS = ((160 * 2**30, 16384), (70 * 2**30, 8192), (0, 2048))


@dataclass(frozen=True, slots=True)
class Budget:
    """Memory.

    Args:
        memory_bytes: of one GPU.
        utilization: the share of it that the engine may use.
        weight_bytes: of all weights; they are split evenly.
    """

    memory_bytes: float
    utilization: float
    weight_bytes: float

    def free(self, tensor_parallel: int) -> float:
        """Bytes for the cache on each of so many GPUs; below 0 where the weights do not fit."""
        return self.memory_bytes * self.utilization - self.weight_bytes / tensor_parallel - WORKSPACE


@dataclass(frozen=True, slots=True)
class Demand:
    """What somebody asked for; None where they did not say."""

    context_tokens: int | None = None
    requests: int | None = None

    def bytes_on(self, cache: Cache) -> float:
        """The least cache that meets it: one token where nothing is said."""
        return (self.requests or 1) * cache.bytes_per_request(self.context_tokens or 1)

    def __str__(self) -> str:
        count, tokens = self.requests or 1, self.context_tokens or 1
        return f"{count} request{'s' * (count > 1)} of {tokens} token{'s' * (tokens > 1)}"


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer. Fields are None where they do not apply; all bytes are of one GPU.

    Attributes:
        does_fit: what was asked for fits.
        verdict: where it does not: the reason in words.
        remedies: each alone would make it fit.
        concurrency: requests of the context in question that fit at once.
        longest_context_bound_by: "memory", or "model" where the memory holds more than the model allows.
    """

    memory_bytes: float
    weight_bytes: float
    free_bytes: float
    does_fit: bool
    missing_bytes: float | None
    verdict: str | None
    remedies: tuple[str, ...]
    capacity_tokens: int
    concurrency: int
    longest_context_tokens: int | None
    longest_context_bound_by: str | None
    requests: int | None = None
    longest_context_tokens_of_each: int | None = None
    longest_context_of_each_bound_by: str | None = None


def judge(cache: Cache, budget: Budget, demand: Demand, context_tokens: int) -> Fit:
    """What fits.

    Args:
        cache: on as many GPUs as it says.
        budget: their memory.
        demand: what must fit.
        context_tokens: length for which the concurrency is counted, asked for or not.
    """
    free = budget.free(cache.tensor_parallel)
    missing = demand.bytes_on(cache) - free
    limit = cache.shape.context_tokens
    longest, bound = _capped(cache.longest_context(free) if free > 0 else 0, limit)
    fit = Fit(
        memory_bytes=budget.memory_bytes,
        weight_bytes=budget.weight_bytes / cache.tensor_parallel,
        free_bytes=max(0.0, free),
        does_fit=missing <= 0,
        missing_bytes=missing if missing > 0 else None,
        verdict=_reason(cache, budget, demand) if missing > 0 else None,
        remedies=_remedies(cache, budget, demand) if missing > 0 else (),
        capacity_tokens=max(0, int(free // cache.bytes_per_token)),
        concurrency=max(0, cache.concurrency(free, context_tokens)),
        longest_context_tokens=longest,
        longest_context_bound_by=bound,
    )
    if demand.requests is None:
        return fit
    each, each_bound = _capped(cache.longest_context(free, demand.requests) if free > 0 else 0, limit)
    return replace(fit, requests=demand.requests, longest_context_tokens_of_each=each, longest_context_of_each_bound_by=each_bound)


def _capped(tokens: int | None, limit: int | None) -> tuple[int | None, str | None]:
    """(tokens, what binds: "memory" or "model"); None, None where nothing does.

    Args:
        tokens: what the memory holds; None: any number.
        limit: what the model allows; None: it is not known.
    """
    if limit is not None and (tokens is None or tokens >= limit):
        return limit, "model"
    return tokens, None if tokens is None else "memory"


def _reason(cache: Cache, budget: Budget, demand: Demand) -> str:
    free, needed = budget.free(cache.tensor_parallel), demand.bytes_on(cache)
    if free <= 0:
        each = budget.weight_bytes / cache.tensor_parallel
        return (
            f"does not fit: needs {size_text(needed - free)} more on each GPU; the weights take {size_text(each)} and the workspace "
            f"{size_text(WORKSPACE)} of {size_text(budget.memory_bytes * budget.utilization)}"
        )
    return f"does not fit: {demand} need {size_text(needed)} on each GPU, {size_text(free)} are free beside the weights"


def _remedies(cache: Cache, budget: Budget, demand: Demand) -> tuple[str, ...]:
    """Single changes that make it fit."""
    found = []
    more = [gpus for gpus in allowed_tensor_parallel(cache.shape) if gpus > cache.tensor_parallel]
    enough = next((gpus for gpus in more if demand.bytes_on(replace(cache, tensor_parallel=gpus)) <= budget.free(gpus)), None)
    if enough is not None:
        found.append(f"--tensor-parallel {enough} is the least that fits")
    free = budget.free(cache.tensor_parallel)
    if free > 0:
        shorter = cache.longest_context(free, demand.requests or 1)
        if demand.context_tokens is not None and shorter:
            found.append(f"--context {shorter} at most")
        fewer = cache.concurrency(free, demand.context_tokens or 1)
        if demand.requests is not None and 0 < fewer < demand.requests:
            found.append(f"--concurrency {fewer} at most")
        if cache.element_bytes > 1 and demand.bytes_on(replace(cache, element_bytes=1.0)) <= free:
            found.append("--kv-dtype fp8")
    return tuple(found) or ("GPUs with more memory, or weights of fewer bits: no --tensor-parallel of this model is enough",)


def assumptions(cache: Cache, budget: Budget, context_tokens: int, weights: str) -> list[str]:
    """Sentences on what the figures rest on.

    Args:
        cache: of the model.
        budget: memory of a GPU.
        context_tokens: length of the requests in question.
        weights: where the size of the weights is from.
    """
    each = budget.weight_bytes / cache.tensor_parallel
    found = [
        f"the engine uses {budget.utilization:.0%} of {size_text(budget.memory_bytes)}",
        f"weights take {size_text(each)} on each GPU ({weights})",
        f"{size_text(WORKSPACE)} are kept free for activations and the framework",
        "requests share nothing; a shared prefix lets more fit",
    ]
    windows = [group.window for group in cache.shape.groups if group.window is not None and group.window < context_tokens]
    if windows:
        chunk = next(tokens for least, tokens in _CHUNKS if budget.memory_bytes >= least)
        more = size_text(cache.bytes_per_token_in_windows * min(chunk, context_tokens - max(windows)))
        found.append(
            f"layers with a window hold {max(windows)} tokens of a request and no more; during its prefill they hold the chunk too: up to "
            f"{more} more of each such request at chunks of {chunk} tokens (vLLM's --max-num-batched-tokens)"
        )
        whole = size_text(cache.bytes_per_token * context_tokens)
        found.append(
            f"the engine frees what has left the window; one that keeps all tokens needs {whole} for a request of {context_tokens} tokens"
        )
    return found
