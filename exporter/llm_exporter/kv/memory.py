"""Bytes of KV cache per token and per request, and what fits into a GPU.

In: a `Shape`, a KV dtype, the number of GPUs that share the heads. Out: bytes on one GPU, the longest context, the concurrency.
Pure arithmetic; formulas and worked examples from the engines' own layouts (both keep a replicated copy of MLA's vector on each rank).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from llm_exporter.errors import UsageError
from llm_exporter.kv.layers import Kind
from llm_exporter.kv.shape import Shape

SMALLEST_SIZE = 2**20
"""No GPU and no model is smaller: a lesser size is a number whose unit was forgotten."""
MOST_BYTES = 2.0**60
"""No GPU and no model is larger."""
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache of one model on one GPU.

    Args:
        element_bytes: bytes per number.
        tensor_parallel: GPUs among which the heads are split; where there are fewer heads than GPUs each holds one copy.
    """

    shape: Shape
    element_bytes: float
    tensor_parallel: int = 1

    def _per_token(self, kinds: tuple[Kind, ...]) -> float:
        total = 0.0
        for group in self.shape.groups:
            if group.kind in kinds:
                heads = group.kv_heads if group.kind is Kind.LATENT else max(1, math.ceil(group.kv_heads / self.tensor_parallel))
                total += group.layers * heads * group.elements_per_head * self.element_bytes
        return total

    @property
    def bytes_per_token(self) -> float:
        """Of a token while every layer still keeps it."""
        return self._per_token((Kind.FULL, Kind.LATENT, Kind.SLIDING))

    @property
    def bytes_per_token_beyond_windows(self) -> float:
        """What one more token costs in a long context: sliding layers forget another for it."""
        return self._per_token((Kind.FULL, Kind.LATENT))

    @property
    def bytes_per_token_in_windows(self) -> float:
        """Of the sliding layers alone."""
        return self._per_token((Kind.SLIDING,))

    def bytes_per_request(self, context_tokens: int) -> float:
        """Of a request with so many tokens, prompt and answer together."""
        total = self.bytes_per_token_beyond_windows * context_tokens
        for group in self.shape.groups:
            if group.kind is Kind.SLIDING:
                heads = max(1, math.ceil(group.kv_heads / self.tensor_parallel))
                kept = context_tokens if group.window is None else min(group.window, context_tokens)
                total += group.layers * heads * group.elements_per_head * self.element_bytes * kept
        return total

    def longest_context(self, free_bytes: float, requests: int = 1) -> int | None:
        """Tokens that each of so many requests may have. None: there is no limit (every layer has a window that fits)."""
        share = free_bytes / requests
        low, high = 0, 1
        while self.bytes_per_request(high) <= share:
            low, high = high, high * 2
            if high > 2**40:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.bytes_per_request(middle) <= share else (low, middle)
        return low

    def concurrency(self, free_bytes: float, context_tokens: int) -> int:
        """Requests of so many tokens that fit at once."""
        return int(free_bytes // self.bytes_per_request(context_tokens))


def allowed_tensor_parallel(shape: Shape) -> list[int]:
    """Numbers of GPUs among which vLLM and SGLang split these heads, ascending.

    Both refuse others: the heads that ask are split evenly; so are those with keys and values, or each is copied equally often
    (vLLM, config/model.py `verify_with_parallel_config` and the models' attention layers; SGLang, the same assertions there).
    """
    kept = [group.kv_heads for group in shape.groups if group.kind in (Kind.FULL, Kind.SLIDING)]
    return [
        gpus
        for gpus in range(1, shape.heads + 1)
        if shape.heads % gpus == 0 and all(heads % gpus == 0 or gpus % heads == 0 for heads in kept)
    ]


def parse_bytes(text: str, flag: str = "") -> float:
    """`80GiB`, `80G`, `80000000000`; `flag` is named where it is none of these.

    Raises:
        UsageError: no size, one larger than any, or one so small that its unit was forgotten (`80` is 80 bytes).
    """
    place = f"{flag}: " if flag else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtKMGT]?i?)[bB]?\s*", text)
    if match is None or match[2].lower() not in _UNITS:
        raise UsageError(f"{place}{text!r} is no size; write for example 80GiB or 80GB")
    size = float(match[1]) * _UNITS[match[2].lower()]
    if size > MOST_BYTES:
        raise UsageError(f"{place}{text.strip()[:40]!r} is more than any GPU or model has; allowed: 1MiB to {size_text(MOST_BYTES)}")
    if size < SMALLEST_SIZE:
        raise UsageError(
            f"{place}{text.strip()!r} is {size:.0f} bytes, less than any GPU or model has; write the unit, for example {match[1]}GiB"
        )
    return size


def size_text(count: float) -> str:
    """Four figures and a binary unit."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count:.0f} B"


def capacity_tokens(blocks: int, block_tokens: int) -> int:
    """Tokens in so many blocks."""
    return blocks * block_tokens


def concurrency_limit(capacity: float, prompt_tokens: float, generation_tokens: float, block_tokens: float) -> float:
    """Requests that run at once on average: a running request holds its prompt, half its answer and half a block of waste."""
    return capacity / (prompt_tokens + generation_tokens / 2 + block_tokens / 2)


def measured_bytes_per_token(gibibytes: float, tokens: float) -> float:
    """From a server's own two figures."""
    return gibibytes * 2**30 / tokens
