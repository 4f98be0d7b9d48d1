"""TTFT as a function of prompt length: a fixed part, a part per token (the linear layers), a part per token squared (attention).

In: (prompt tokens, samples of TTFT in seconds) per length. Out: a `Fit` with bootstrap intervals, which leaves the quadratic part out
where the data cannot tell it from 0. Source: least squares with coefficients not below 0 (Lawson and Hanson), scaled columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from llm_exporter.probing.statistics import Floats, interval, median, relative_mad

_RESAMPLES = 1000
# Above this spread within one length the server was not alone.
CONTENDED_SPREAD = 0.15
_NOTHING = 1e-9  # share of the whole below which a coefficient is 0


@dataclass(frozen=True, slots=True)
class Fit:
    """TTFT(n) = fixed + per_token·n + per_token_squared·n².

    Attributes:
        fixed_seconds: network, frontend and one step.
        per_token_seconds: seconds per prompt token.
        per_token_squared_seconds: None where it cannot be told from 0; `note` says why.
        intervals: 95 % bootstrap interval of each, by name. Without a quadratic part they also hold what a curve that is too small to
            be seen would make of the other two.
        spread_ratio: the largest relative spread within one length.
        points: (prompt tokens, median TTFT) that were fitted.
    """

    fixed_seconds: float
    per_token_seconds: float
    per_token_squared_seconds: float | None
    intervals: dict[str, tuple[float, float]]
    spread_ratio: float
    points: tuple[tuple[float, float], ...]
    note: str = ""

    @property
    def contended(self) -> bool:
        """Other work disturbed the measurement; trust the intervals, not the numbers."""
        return self.spread_ratio > CONTENDED_SPREAD

    def predict(self, tokens: float) -> float:
        """Seconds to the first token of a prompt of so many tokens."""
        return self.fixed_seconds + self.per_token_seconds * tokens + (self.per_token_squared_seconds or 0.0) * tokens**2

    @property
    def unseen(self) -> frozenset[str]:
        """Names of parts that the others explain away in every resample: not 0, but hidden behind them."""
        return frozenset(name for name, (_, upper) in self.intervals.items() if upper <= 0)

    def as_json(self) -> dict[str, Any]:
        """For `probe --json`; a part that cannot be told is null and has no interval."""
        unseen = self.unseen
        return {
            "fixed_seconds": None if "fixed_seconds" in unseen else self.fixed_seconds,
            "per_token_seconds": None if "per_token_seconds" in unseen else self.per_token_seconds,
            "per_token_squared_seconds": self.per_token_squared_seconds,
            "intervals": {name: list(bounds) for name, bounds in self.intervals.items() if name not in unseen},
            "spread_ratio": self.spread_ratio,
            "contended": self.contended,
            "note": self.note,
        }


def coefficients(tokens: Sequence[float], seconds: Sequence[float] | Floats, *, quadratic: bool = True) -> tuple[float, float, float]:
    """(fixed, per token, per token squared), none below 0."""
    n = np.asarray(tokens, dtype=np.float64)
    scale = float(n.max())
    columns = [np.ones_like(n), n / scale, *([(n / scale) ** 2] if quadratic else [])]
    found, _ = nnls(np.column_stack(columns), np.asarray(seconds, dtype=np.float64))
    return float(found[0]), float(found[1] / scale), float(found[2] / scale**2) if quadratic else 0.0


def fit_ttft(samples: Sequence[tuple[float, Sequence[float]]], seed: int = 7) -> Fit | None:
    """Fits the medians of each length; None with fewer than two lengths. Samples are independent of each other.

    Args:
        samples: (prompt tokens by the server's count, TTFT samples in seconds).
        seed: of the resampling, so that one measurement gives one answer.
    """
    rows = sorted((float(tokens), list(values)) for tokens, values in samples if values)
    lengths = [tokens for tokens, _ in rows]
    if len(set(lengths)) < 2:
        return None
    medians = [median(values) for _, values in rows]
    spread = max(relative_mad(values) for _, values in rows)
    quadratic = len(set(lengths)) >= 3
    note = "" if quadratic else "two lengths cannot show one"
    draws = _resample(rows, quadratic=quadratic, seed=seed)
    if quadratic:
        lower, _ = interval(draws[:, 2])
        share = lower * max(lengths) ** 2 / max(medians)
        if share <= _NOTHING:
            quadratic, note = False, "its interval reaches 0, so there may be none"
    fixed, linear, squared = coefficients(lengths, medians, quadratic=quadratic)
    intervals = {"fixed_seconds": interval(draws[:, 0]), "per_token_seconds": interval(draws[:, 1])}
    if not quadratic and len(set(lengths)) >= 3:
        # A curve too small to be seen bends both other parts: an interval that denies it is too narrow.
        straight = _resample(rows, quadratic=False, seed=seed)
        intervals = {name: _hull(bounds, interval(straight[:, place])) for place, (name, bounds) in enumerate(intervals.items())}
    if quadratic:
        intervals["per_token_squared_seconds"] = interval(draws[:, 2])
    return Fit(
        fixed_seconds=fixed,
        per_token_seconds=linear,
        per_token_squared_seconds=squared if quadratic else None,
        intervals=intervals,
        spread_ratio=spread,
        points=tuple(zip(lengths, medians, strict=True)),
        note=note,
    )


def _hull(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    return min(first[0], second[0]), max(first[1], second[1])


def _resample(rows: list[tuple[float, list[float]]], *, quadratic: bool, seed: int) -> Floats:
    """Coefficients of so many fits to samples drawn again within each length. Shape: (draws, 3)."""
    chance = np.random.default_rng(seed)
    lengths = [tokens for tokens, _ in rows]
    medians = np.column_stack(
        [np.median(np.asarray(values)[chance.integers(len(values), size=(_RESAMPLES, len(values)))], axis=1) for _, values in rows]
    )
    return np.array([coefficients(lengths, row, quadratic=quadratic) for row in medians])


def attention_share(tokens: float, per_token: float, per_token_squared: float) -> float:
    """Share of the attention's quadratic part in the compute of a prompt."""
    quadratic = per_token_squared * tokens**2
    return quadratic / (per_token * tokens + quadratic)


def crossover_tokens(per_token: float, per_token_squared: float) -> float:
    """Prompt length at which the quadratic part costs as much as the linear one."""
    return per_token / per_token_squared


def expected_crossover_tokens(parameters: float, layers: int, heads: int, head_dim: int) -> float:
    """The same from the model's shape, by counting operations: 2·P per token against 2·L·H·d per pair of tokens."""
    return 2 * parameters / (2 * layers * heads * head_dim)


def cache_effectiveness(cold: float, warm: float, fixed: float) -> float | None:
    """Share of the prefill that the prefix cache saved: 1 all of it, 0 none. None where cold costs no more than the fixed part."""
    return 1 - (warm - fixed) / (cold - fixed) if cold > fixed else None
