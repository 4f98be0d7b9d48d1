"""Small statistics of the probe commands: robust centres, resampling. Needs numpy and scipy, so the daemon never imports it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import false_discovery_control, mannwhitneyu

Floats = NDArray[np.float64]
RESAMPLES = 2000
_LEVEL = 0.95


def trimmed_mean(values: Sequence[float], cut: float = 0.2) -> float:
    """Mean without the lowest and highest `cut` of the values."""
    ranked = np.sort(np.asarray(values, dtype=np.float64))
    drop = int(len(ranked) * cut)
    return float(ranked[drop : len(ranked) - drop].mean())


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return float(np.median(np.asarray(values, dtype=np.float64)))


def relative_mad(values: Sequence[float]) -> float:
    """Median absolute deviation ÷ median: spread that one outlier cannot make."""
    centre = median(values)
    return median([abs(value - centre) for value in values]) / centre if centre > 0 else 0.0


def interval(draws: Floats) -> tuple[float, float]:
    """The middle 95 % of bootstrap draws."""
    lower, upper = np.quantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(lower), float(upper)


def shift(first: Sequence[float], second: Sequence[float]) -> float:
    """Hodges-Lehmann: the median of all differences second − first. One outlier in each hardly moves it."""
    return float(np.median(np.subtract.outer(np.asarray(second), np.asarray(first))))


def shift_interval(first: Sequence[float], second: Sequence[float], seed: int = 7) -> tuple[float, float]:
    """Bootstrap interval (95 %) of `shift`."""
    chance = np.random.default_rng(seed)
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    draws_a = a[chance.integers(len(a), size=(RESAMPLES, len(a)))]
    draws_b = b[chance.integers(len(b), size=(RESAMPLES, len(b)))]
    differences = (draws_b[:, :, None] - draws_a[:, None, :]).reshape(RESAMPLES, -1)
    return interval(np.median(differences, axis=1))


def rank_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Mann-Whitney, two-sided: the bootstrap alone is too sure of itself with five samples."""
    return float(mannwhitneyu(first, second, alternative="two-sided").pvalue)


def adjusted_p_values(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg: of the points below 5 % by these values, at most 5 % are chance. Looking at many makes each weaker."""
    return [float(value) for value in false_discovery_control(p_values)] if p_values else []


def fewest_samples(points: int, significance: float) -> int:
    """Samples on each side with which one point alone, among so many, can pass: two sides that do not overlap have p = 2 ÷ C(2n, n)."""
    count = 2
    while 2 / math.comb(2 * count, count) * max(1, points) >= significance:
        count += 1
    return count


def ratio_interval(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Bootstrap interval (95 %) of second ÷ first, by the shift of their logarithms. All values above 0."""
    lower, upper = shift_interval([math.log(value) for value in first], [math.log(value) for value in second])
    return math.exp(lower), math.exp(upper)
