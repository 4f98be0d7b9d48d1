"""Is one server faster than another? Differences with intervals, each judged among all points that were looked at.

In: ladders that were measured interleaved. Out: one `Difference` per length and cache state. A difference is called real only where the
bootstrap interval leaves out 0 and the ranks of the samples agree (Mann-Whitney), with a p-value that is adjusted for the number of
points (Benjamini-Hochberg, 5 %). `probing/conclusion.py` puts it into words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from llm_exporter.probing.ladder import Cell, Ladder
from llm_exporter.probing.statistics import adjusted_p_values, median, rank_p_value, relative_mad, shift, shift_interval

FEWEST_SAMPLES = 4  # with three against three no test can reach 5 %
SIGNIFICANCE = 0.05
_LIKE_LENGTHS = 0.03  # counted prompt lengths further apart are not the same question


@dataclass(frozen=True, slots=True)
class Difference:
    """How much later the first token comes on the second server. Seconds; negative where it comes earlier.

    Attributes:
        lower, upper: 95 % interval of the shift; None with too few samples.
        ratio: second ÷ first, of the medians.
        p_value: of this point alone; `p_value_adjusted` among all points that were looked at.
        real: not explained by chance.
        samples: of the side that has fewer.
        spread_ratio: within the side where it is larger.
        seconds: medians of both.
        counted_tokens: prompt lengths by both servers' counts; None where not known.
        reason: why nothing can be said, where the two were not asked the same.
        lost: of both sides, how many of its samples have a time and what became of the others; empty where all have.
    """

    prompt_tokens: int
    cache: str
    ttft_shift_seconds: float
    lower: float | None
    upper: float | None
    ratio: float
    p_value: float | None
    real: bool
    p_value_adjusted: float | None = None
    samples: int = 0
    spread_ratio: float = 0.0
    seconds: tuple[float, float] = (0.0, 0.0)
    counted_tokens: tuple[float, float] | None = None
    reason: str = ""
    lost: tuple[str, str] = ("", "")

    @property
    def by_itself(self) -> bool:
        """Real, if this point had been the only one."""
        return self.significant(self.p_value)

    @property
    def smallest_visible_seconds(self) -> float | None:
        """Half the width of the interval: a smaller shift than about this would not have been seen."""
        return None if self.lower is None or self.upper is None else (self.upper - self.lower) / 2

    def significant(self, p_value: float | None) -> bool:
        """This p-value says so, and so does the interval, and both servers were asked the same."""
        if self.reason or p_value is None or self.lower is None or self.upper is None:
            return False
        return p_value < SIGNIFICANCE and (self.lower > 0 or self.upper < 0)

    def as_json(self) -> dict[str, Any]:
        """One line of `differences` (CONTRACT 3)."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "prompt_tokens_measured": None if self.counted_tokens is None else [round(count) for count in self.counted_tokens],
            "cache": self.cache,
            "ttft_shift_seconds": self.ttft_shift_seconds,
            "lower": self.lower,
            "upper": self.upper,
            "ratio": self.ratio,
            "p_value": self.p_value,
            "p_value_adjusted": self.p_value_adjusted,
            "n_samples": self.samples,
            "spread_ratio": self.spread_ratio,
            "real": self.real,
            "reason": self.reason or None,
        }


def difference(prompt_tokens: int, cache: str, first: Sequence[float], second: Sequence[float]) -> Difference | None:
    """The difference of two sets of independent samples in seconds, as the only point that is looked at; None where one is empty."""
    if not first or not second:
        return None
    lower = upper = p_value = None
    if min(len(first), len(second)) >= FEWEST_SAMPLES:
        lower, upper = shift_interval(first, second)
        p_value = rank_p_value(first, second)
    row = Difference(
        prompt_tokens=prompt_tokens,
        cache=cache,
        ttft_shift_seconds=shift(first, second),
        lower=lower,
        upper=upper,
        ratio=median(second) / median(first),
        p_value=p_value,
        real=False,
        samples=min(len(first), len(second)),
        spread_ratio=max(relative_mad(first), relative_mad(second)),
        seconds=(median(first), median(second)),
    )
    return judged([row])[0]


def judged(rows: Sequence[Difference]) -> list[Difference]:
    """The rows, each judged among all of them. Rows that cannot be tested do not count as looked at."""
    tested = [place for place, row in enumerate(rows) if row.p_value is not None and not row.reason]
    values = adjusted_p_values([rows[place].p_value or 0.0 for place in tested])
    adjusted = dict(zip(tested, values, strict=True))
    return [replace(row, p_value_adjusted=(p := adjusted.get(place)), real=row.significant(p)) for place, row in enumerate(rows)]


def differences(first: Ladder, others: Sequence[Ladder]) -> list[list[Difference]]:
    """For each other ladder one row per length and cache state that both have; all of them are judged together."""
    found: list[Difference] = []
    counts = []
    for other in others:
        rows = [row for cell in first.cells if (row := _of_cells(first, other, cell)) is not None]
        counts.append(len(rows))
        found += rows
    all_rows = iter(judged(found))
    return [[next(all_rows) for _ in range(count)] for count in counts]


def _of_cells(first: Ladder, second: Ladder, cell: Cell) -> Difference | None:
    other = second.cell(cell.prompt_tokens, cell.cache)
    row = difference(cell.prompt_tokens, cell.cache, cell.sample_ttft_seconds, other.sample_ttft_seconds if other else [])
    if row is None or other is None:
        return row
    row = replace(row, lost=(_lost_words(first, cell), _lost_words(second, other)))
    if cell.counted_tokens is None or other.counted_tokens is None:
        return row
    counted = (cell.counted_tokens, other.counted_tokens)
    reason = ""
    if max(counted) > (1 + _LIKE_LENGTHS) * min(counted):
        reason = f"the servers counted prompts of {counted[0]:.0f} and {counted[1]:.0f} tokens"
    return replace(row, counted_tokens=counted, reason=reason)


def _lost_words(ladder: Ladder, cell: Cell) -> str:
    asked = max(ladder.plan.repeat, len(cell.samples))
    lost = cell.lost(asked)
    if not lost:
        return ""
    return f"{len(cell.sample_ttft_seconds)} of {asked} ({', '.join(f'{count} {what}' for what, count in lost.items())})"
