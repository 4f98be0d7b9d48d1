"""The formulas of the review, each as small as its worked example.

In: plain numbers and arrays. Out: the same. Called by the analyses; holds no knowledge of metrics. Where scipy has the estimator, scipy
does the work. Formulas with their sources and traps are explained in docs/capacity-method.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from llm_exporter.report.grid import Floats

CONFIDENCE = 0.90


class Interval(NamedTuple):
    """An estimate and its 90 % interval; a bound is None where the data cannot give one."""

    value: float
    lower: float | None
    upper: float | None


class Crossing(NamedTuple):
    """Where a rising curve meets a limit. `censored`: it never did; then `value` is the highest load seen."""

    value: float | None
    censored: bool


def isotonic(y: Floats, weight: Floats | None = None) -> Floats:
    """Best never-falling fit (pool adjacent violators)."""
    if np.asarray(y).size == 0:
        return np.zeros(0)
    fit: Floats = optimize.isotonic_regression(y, weights=weight).x
    return fit


def crossing(load: Floats, bad: Floats, objective: float) -> Crossing:
    """Load at which a never-falling slow share reaches 1 − objective; interpolated, never extrapolated.

    Args:
        load: mean load of each bin, ascending.
        bad: fitted slow share of each bin.
        objective: share of requests that must be good.
    """
    limit = 1 - objective
    if bad[-1] <= limit:
        return Crossing(float(load[-1]), censored=True)
    i = int(np.argmax(bad > limit))
    if i == 0:
        return Crossing(None, censored=True)  # broken at the lowest load seen: load is not what breaks it
    return Crossing(float(load[i - 1] + (load[i] - load[i - 1]) * (limit - bad[i - 1]) / (bad[i] - bad[i - 1])), censored=False)


def theil_sen(x: Floats, y: Floats) -> tuple[float, float, float, float]:
    """Median slope and intercept with a 90 % interval of the slope for independent errors: (slope, intercept, lower, upper).

    The intercept is the median of y − slope × x.
    """
    fit = stats.theilslopes(y, x, alpha=CONFIDENCE)
    return float(fit.slope), float(np.median(y - fit.slope * x)), float(fit.low_slope), float(fit.high_slope)


def lag_one(residuals: Floats) -> float:
    """Autocorrelation of neighbours, corrected for the downward bias of short series; never below 0, at most 0.9."""
    centred = residuals - residuals.mean()
    spread = float((centred**2).sum())
    if residuals.size < 4 or spread == 0.0:
        return 0.0
    r = float((centred[1:] * centred[:-1]).sum() / spread)
    return min(0.9, max(0.0, r + (1 + 4 * r) / residuals.size))


def effective_n(n: float, r1: float) -> float:
    """How many independent values n neighbours with autocorrelation r1 are worth."""
    return n * (1 - r1) / (1 + r1)


def weeks_until(capacity: float, now: float, slope_per_day: float) -> float:
    """Weeks until a straight line from now reaches the capacity; infinite where it does not rise."""
    return math.inf if slope_per_day <= 0 else max(0.0, capacity - now) / slope_per_day / 7


def headroom(peak: float, capacity: float) -> float:
    """Share of the capacity that the peak leaves; negative when it is over."""
    return 1 - peak / capacity


def headroom_after_loss(peak: float, capacity: float, replicas: float, lost: float = 1.0) -> float:
    """The same after `lost` of `replicas` equal parts are gone."""
    return 1 - peak / (capacity * (replicas - lost) / replicas)


def budget_left(bad: float, requests: float, objective: float) -> float:
    """Share of the error budget that is left; negative when overspent."""
    return 1 - (bad / requests) / (1 - objective)


def work(prompt: float | Floats, generated: float | Floats, per_prompt: float, per_generated: float) -> float | Floats:
    """GPU-seconds that these tokens cost."""
    return per_prompt * prompt + per_generated * generated


def cost_per_million(gpus: float, price_per_hour: float, hours: float, tokens: float) -> float:
    """Money per million tokens."""
    return gpus * price_per_hour * hours / (tokens / 1e6)


def split_cost(total: float, prompt_share: float, prompt_tokens: float, generated_tokens: float) -> tuple[float | None, float | None]:
    """Money per million computed prompt tokens and per million output tokens; None where there were none."""
    prompt = cost_per_million(1, total * prompt_share, 1, prompt_tokens) if prompt_tokens > 0 else None
    generated = cost_per_million(1, total * (1 - prompt_share), 1, generated_tokens) if generated_tokens > 0 else None
    return prompt, generated


def useful_hours(total: float, idle: float, starved: float, throttled: float) -> tuple[float, float]:
    """GPU-hours that did work, and the share that did not."""
    lost = idle + starved + throttled
    return total - lost, lost / total


def hodges_lehmann(before: Floats, after: Floats) -> float:
    """Median of all differences after − before."""
    return float(np.median(np.subtract.outer(after, before)))


def rank_test(before: Floats, after: Floats, r1: float = 0.0) -> float:
    """Two-sided Mann–Whitney p-value; neighbours that resemble each other (r1 > 0) count for less."""
    result = stats.mannwhitneyu(after, before, alternative="two-sided", method="asymptotic")
    z = float(stats.norm.isf(min(1.0, float(result.pvalue)) / 2)) / math.sqrt((1 + r1) / (1 - r1))
    return float(2 * stats.norm.sf(z))


def quantile(q: float, bounds: Floats, cumulative: Floats) -> float | None:
    """Quantile of a classic histogram as PromQL takes it: linear in the bucket, the last finite edge when it lies above.

    Args:
        q: 0 to 1.
        bounds: upper edges, ascending, +inf last.
        cumulative: count up to each edge.
    """
    n = float(cumulative[-1])
    if not n > 0:
        return None
    i = int(np.searchsorted(cumulative, q * n, side="left"))
    i = min(i, bounds.size - 1)
    if math.isinf(bounds[i]):
        return float(bounds[i - 1]) if i else None
    low, before = (0.0, 0.0) if i == 0 else (float(bounds[i - 1]), float(cumulative[i - 1]))
    inside = float(cumulative[i]) - before
    return low + (float(bounds[i]) - low) * (q * n - before) / inside if inside > 0 else float(bounds[i])


def quantile_quality(q: float, bounds: Floats, cumulative: Floats) -> str:
    """How far the quantile can be trusted: ok, no_data, low_n, wide_bucket or censored."""
    n = float(cumulative[-1])
    if n <= 0:
        return "no_data"
    i = int(np.searchsorted(cumulative, q * n, side="left"))
    if math.isinf(bounds[i]):
        return "censored"
    if n * (1 - q) < 10:
        return "low_n"
    return "wide_bucket" if i == 0 or bounds[i] / bounds[i - 1] > 2 else "ok"


def quantiles_by_row(q: float, bounds: Floats, rows: Floats) -> Floats:
    """`quantile` of each row of cumulative counts; NaN where a row has none. Shape (n, buckets) to (n,)."""
    out = np.full(rows.shape[0], np.nan)
    for index, row in enumerate(rows):
        if np.isfinite(row).all() and row[-1] > 0:
            value = quantile(q, bounds, row)
            out[index] = np.nan if value is None else value
    return out


def wasted_by_preemption(preemptions: float, mean_context_tokens: float, prefill_tokens: float) -> float:
    """Share of the prefill work that was done again."""
    again = preemptions * mean_context_tokens
    return again / (prefill_tokens + again)


def usl(n: float, rate: float, contention: float, coherence: float) -> float:
    """Universal scalability law: throughput of n parallel requests."""
    return rate * n / (1 + contention * (n - 1) + coherence * n * (n - 1))


def usl_peak(contention: float, coherence: float) -> float:
    """Concurrency at which the throughput of that law is highest."""
    return math.sqrt((1 - contention) / coherence)
