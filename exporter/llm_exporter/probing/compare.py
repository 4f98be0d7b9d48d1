"""Is one server faster than another? Differences with intervals, and a sentence for people.

In: two ladders that were measured interleaved. Out: one `Difference` per length and cache state. A difference is called real only where
the bootstrap interval leaves out 0 and the ranks of the samples agree (Mann-Whitney, 5 %).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llm_exporter.probing.ladder import Ladder
from llm_exporter.probing.statistics import median, rank_p_value, shift, shift_interval
from llm_exporter.wording import plain_seconds, three_figures

_FEWEST = 4  # with three against three no test can reach 5 %
_SIGNIFICANCE = 0.05


@dataclass(frozen=True, slots=True)
class Difference:
    """How much later the first token comes on the second server. Seconds; negative where it comes earlier.

    Attributes:
        lower, upper: 95 % interval of the shift; None with too few samples.
        ratio: second ÷ first, of the medians.
        real: not explained by chance.
    """

    prompt_tokens: int
    cache: str
    ttft_shift_seconds: float
    lower: float | None
    upper: float | None
    ratio: float
    p_value: float | None
    real: bool

    def as_json(self) -> dict[str, Any]:
        """One line of `differences` (CONTRACT 3)."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "cache": self.cache,
            "ttft_shift_seconds": self.ttft_shift_seconds,
            "lower": self.lower,
            "upper": self.upper,
            "ratio": self.ratio,
            "p_value": self.p_value,
            "real": self.real,
        }


def difference(prompt_tokens: int, cache: str, first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """The difference of two sets of samples in seconds; None where one is empty."""
    if not first or not second:
        return None
    lower = upper = p_value = None
    if min(len(first), len(second)) >= _FEWEST:
        lower, upper = shift_interval(first, second)
        p_value = rank_p_value(first, second)
    real = p_value is not None and p_value < _SIGNIFICANCE and lower is not None and upper is not None and (lower > 0 or upper < 0)
    return Difference(
        prompt_tokens=prompt_tokens,
        cache=cache,
        ttft_shift_seconds=shift(first, second),
        lower=lower,
        upper=upper,
        ratio=median(second) / median(first),
        p_value=p_value,
        real=real,
    )


def differences(first: Ladder, second: Ladder) -> list[Difference]:
    """One per length and cache state that both have."""
    found = []
    for cell in first.cells:
        other = second.cell(cell.prompt_tokens, cell.cache)
        row = difference(cell.prompt_tokens, cell.cache, cell.ttft_seconds, other.ttft_seconds if other else [])
        if row is not None:
            found.append(row)
    return found


def sentence(name_a: str, name_b: str, rows: Sequence[Difference]) -> str:
    """What the differences say, in plain words."""
    if not rows:
        return "Nothing can be compared: no length was measured on both servers."
    real = [row for row in rows if row.real]
    if not real:
        if any(row.p_value is None for row in rows):
            return f"Too few samples to tell {name_a} and {name_b} apart: use --repeat {_FEWEST} or more."
        return f"No real difference between {name_a} and {name_b}: chance explains what was seen at all {len(rows)} points."
    faster = [row for row in real if row.ttft_shift_seconds < 0]
    parts = []
    for rows_of, verb in ((faster, "sooner"), ([row for row in real if row.ttft_shift_seconds >= 0], "later")):
        if rows_of:
            shifts = sorted(abs(row.ttft_shift_seconds) for row in rows_of)
            shares = sorted(abs(row.ratio - 1) * 100 for row in rows_of)
            where = ", ".join(f"{row.prompt_tokens} {row.cache}" for row in rows_of)
            parts.append(f"its first token comes {_span(shifts, plain_seconds)} ({_span(shares, _percent)}) {verb} at {where}")
    rest = len(rows) - len(real)
    tail = f" At the other {rest} of {len(rows)} points chance explains the difference." if rest else ""
    return f"{name_b} differs from {name_a}: " + "; ".join(parts) + "." + tail


def _span(values: Sequence[float], show: Callable[[float], str]) -> str:
    low, high = show(values[0]), show(values[-1])
    return low if low == high else f"{low} to {high}"


def _percent(value: float) -> str:
    return f"{three_figures(value)} %"
