"""Does the prefix cache hit? Warm against cold at each length, with an interval, the ceiling that blocks set, and a verdict.

In: a `Ladder` and its fit. Out: one `CacheRow` per length, as JSON and in words. A saving is told only where the difference is real, and
"does not hit" only where a hit would have been seen. Called by `probing/document.py` and `cli/probe.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llm_exporter.probing.compare import FEWEST_SAMPLES, Difference, difference, judged
from llm_exporter.probing.fit import Fit, cache_effectiveness
from llm_exporter.probing.ladder import Cell, Ladder
from llm_exporter.probing.statistics import median, ratio_interval
from llm_exporter.wording import plain_seconds

_LEAST_PREFILL_SHARE = 0.25
_CEILING_OF_A_FINDING = 0.5
_NARROW = 0.1  # bounds of a share closer than this are told as one number


@dataclass(frozen=True, slots=True)
class CacheRow:
    """One length.

    Attributes:
        tokens: prompt length by the server's count, else the length asked for.
        ratio: warm ÷ cold, of the medians; `lower` and `upper` its 95 % interval, None with too few samples.
        real: warm and cold differ; None with too few samples.
        saved: share of the prefill that was saved, at the ends of the interval of the fit's fixed part; None where nothing real was.
        block_tokens: of the server's KV cache, where it says.
        cached_tokens: of the warm prompts, by the server's count.
        visible_seconds: half the width of the interval of the difference.
        expected_seconds: what hits up to the ceiling would save at least, by the upper end of the fit's fixed part; None where not known.
    """

    prompt_tokens: int
    tokens: int
    ratio: float
    lower: float | None
    upper: float | None
    real: bool | None
    saved: tuple[float, float, float] | None
    block_tokens: int | None
    cached_tokens: float | None
    visible_seconds: float | None
    expected_seconds: float | None

    @property
    def ceiling(self) -> float | None:
        """Largest hit ratio of a prompt of this length: the last token is always computed, and only whole blocks hit."""
        if self.block_tokens is None:
            return None
        return (self.tokens - 1) // self.block_tokens * self.block_tokens / self.tokens

    @property
    def verdict(self) -> str:
        """`hits`, `does_not_hit`, `cannot_hit`, or `unknown`."""
        if self.ceiling == 0:
            return "cannot_hit"
        if self.real:
            return "hits" if self.ratio < 1 else "unknown"
        if self.real is None or self.cached_tokens or not self._would_be_seen:
            return "unknown"
        return "does_not_hit"

    @property
    def finding(self) -> bool:
        """Most of the prompt could come out of the cache, and nothing does."""
        return self.verdict == "does_not_hit" and self.ceiling is not None and self.ceiling > _CEILING_OF_A_FINDING

    @property
    def _would_be_seen(self) -> bool:
        # half an interval is just seen in every second measurement, the whole in nearly all
        return self.visible_seconds is not None and self.expected_seconds is not None and self.expected_seconds > 2 * self.visible_seconds

    def as_json(self) -> dict[str, Any]:
        """One line of `prefix_cache`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "warm_to_cold_ratio": self.ratio,
            "lower": self.lower,
            "upper": self.upper,
            "real": self.real,
            "verdict": self.verdict,
            "finding": self.finding,
            "hit_ceiling_ratio": self.ceiling,
            "effectiveness_ratio": None if self.saved is None else self.saved[1],
        }

    def text(self) -> str:
        """For people."""
        measured = f"warm ÷ cold = {self.ratio:.2f}"
        if self.lower is not None and self.upper is not None:
            measured += f" ({self.lower:.2f} to {self.upper:.2f})"
        return f"prefix cache at {self.prompt_tokens} tokens: {self._said(measured)}"

    def _said(self, measured: str) -> str:
        if self.verdict == "cannot_hit":
            length = "as long as" if self.tokens == self.block_tokens else "shorter than"
            text = f"cannot hit: {self.tokens} tokens are {length} one block of {self.block_tokens}"
            return f"{text}; {measured} has another reason" if self.real else text
        if self.verdict == "hits":
            return f"hits: {measured}" + ("" if self.saved is None else f", {_share(self.saved)} of the prefill saved")
        if self.real:
            return f"the first token comes later warm than cold, {measured}: not the cache's doing"
        if self.real is None:
            return f"{measured}: too few samples to say whether it hits, use --repeat {FEWEST_SAMPLES} or more"
        none = f"no real difference between warm and cold, {measured}: "
        if self.verdict == "does_not_hit":
            return none + "the prefix cache does not hit here"
        if self.cached_tokens:
            return f"{none}the server counts {self.cached_tokens:.0f} tokens out of the cache, which saves too little to be seen"
        visible = plain_seconds(2 * (self.visible_seconds or 0.0))
        if self.expected_seconds is not None:
            return f"{none}a hit may save as little as {plain_seconds(self.expected_seconds)}, and less than {visible} cannot be seen here"
        return f"{none}it does not hit, or a hit saves less than {visible}"


def cache_rows(ladder: Ladder, fit: Fit | None) -> list[CacheRow]:
    """Per length that was measured cold and warm; all are judged together."""
    pairs: list[tuple[Cell, Cell]] = []
    found: list[Difference] = []
    for cell in ladder.cells:
        warm = ladder.cell(cell.prompt_tokens, "warm")
        if cell.cache == "cold" and warm is not None:
            row = difference(cell.prompt_tokens, "warm", cell.sample_ttft_seconds, warm.sample_ttft_seconds)
            if row is not None:
                pairs.append((cell, warm))
                found.append(row)
    block = ladder.server.facts.conditions.get("kv_cache_block_tokens", "")
    block_tokens = int(block) if block.isascii() and block.isdigit() and int(block) > 0 else None
    return [_row(cold, warm, row, fit, block_tokens) for (cold, warm), row in zip(pairs, judged(found), strict=True)]


def _row(cold: Cell, warm: Cell, row: Difference, fit: Fit | None, block_tokens: int | None) -> CacheRow:
    lower = upper = None
    if row.p_value is not None:
        lower, upper = ratio_interval(cold.sample_ttft_seconds, warm.sample_ttft_seconds)
    cached = [reading.cached_tokens for reading in warm.good if reading.cached_tokens is not None]
    tokens = round(warm.counted_tokens or warm.prompt_tokens)
    whole = CacheRow(
        prompt_tokens=cold.prompt_tokens,
        tokens=tokens,
        ratio=row.ratio,
        lower=lower,
        upper=upper,
        real=None if row.p_value is None else row.real,
        saved=_saved(row, fit) if row.real and row.ratio < 1 else None,
        block_tokens=block_tokens,
        cached_tokens=median(cached) if cached else None,
        visible_seconds=row.smallest_visible_seconds,
        expected_seconds=None,
    )
    if fit is None:
        return whole
    share = 1.0 if whole.ceiling is None else whole.ceiling
    return replace(whole, expected_seconds=max(0.0, share * (row.seconds[0] - fit.intervals["fixed_seconds"][1])))


def _saved(row: Difference, fit: Fit | None) -> tuple[float, float, float] | None:
    """(lowest, likely, highest) share of the prefill that was saved."""
    cold, warm = row.seconds
    # a short prompt costs little beyond the fixed part, and the quotient of two small differences says nothing
    if fit is None or cold - fit.fixed_seconds <= _LEAST_PREFILL_SHARE * cold:
        return None
    low, high = fit.intervals["fixed_seconds"]
    shares = [cache_effectiveness(cold, warm, fixed) for fixed in (low, fit.fixed_seconds, high)]
    found = [1.0 if share is None else min(1.0, max(0.0, share)) for share in shares]
    return found[0], found[1], found[2]


def _share(saved: tuple[float, float, float]) -> str:
    low, likely, high = saved
    return f"about {likely * 100:.0f} %" if high - low < _NARROW else f"{low * 100:.0f} % to {high * 100:.0f} %"
