"""Coverage study: do the intervals of the review hold what they promise, on histories whose truth is known?

Run: `python -m llm_exporter.report.study [RUNS] [SEED]`. Out: the Markdown tables of docs/capacity-method.md. Nothing else calls this.
Histories are made by models that are not those of the estimators: days that hang together, weekdays, a knee that moves from day to day.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import optimize, special
from scipy.signal import lfilter

from llm_exporter.report.grid import Floats
from llm_exporter.report.growth import fit_trend
from llm_exporter.report.regressions import ALPHA, MIN_SHIFT_RATIO, compare
from llm_exporter.report.sustainable import fit_capacity

WEEKDAYS = np.array([1.0, 1.05, 1.08, 1.04, 0.98, 0.55, 0.5])
OBJECTIVE = 0.99
FLOOR, TOP, WIDTH = 0.002, 0.3, 0.04  # of the curve of slow requests, in parts of the knee
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(21)


class Coverage(NamedTuple):
    """One line of a table: share of runs whose interval held the truth, bias and width of the estimate, share without an interval."""

    held: float
    bias: float
    width: float
    none: float


def red_noise(random: np.random.Generator, n: int, r: float, sigma: float) -> Floats:
    """Gaussian noise with this autocorrelation between neighbours and this standard deviation."""
    shocks = random.normal(0, sigma * np.sqrt(1 - r * r), n)
    shocks[0] = random.normal(0, sigma)
    return np.asarray(lfilter([1.0], [1.0, -r], shocks), dtype=np.float64)


def trend_coverage(random: np.random.Generator, runs: int, days: int, r: float, per_week: float, sigma: float = 0.06) -> Coverage:
    """Interval of the growth per week, in parts of the level on the last day, against the truth."""
    day = 738_000 + np.arange(days)
    truth = per_week / (1 + per_week * (days - 1) / 7)
    held, errors, widths, none = 0, [], [], 0
    for _ in range(runs):
        level = 1 + per_week * np.arange(days) / 7
        trend = fit_trend(day, level * WEEKDAYS[day % 7] * np.exp(red_noise(random, days, r, sigma)))
        if trend is None:
            none += 1
            continue
        slope, low, high = (7 * value / trend.level for value in (trend.slope, trend.lower, trend.upper))
        held += low <= truth <= high
        errors.append(slope - truth)
        widths.append(high - low)
    judged = max(1, runs - none)
    return Coverage(held / judged, float(np.mean(errors)), float(np.median(widths)), none / runs)


def slow_share(load: Floats, knee: Floats | float) -> Floats:
    """Share of slow requests at a load, both in parts of the typical knee."""
    return np.asarray(FLOOR + TOP * special.expit((load / knee - 1) / WIDTH - 3), dtype=np.float64)


def true_capacity(day_sigma: float) -> float:
    """Load at which the slow share, averaged over the days' knees, is 1 − objective."""

    def excess(load: float) -> float:
        shares = slow_share(np.array(load), np.exp(day_sigma * NODES))
        return float(shares @ WEIGHTS / WEIGHTS.sum()) - (1 - OBJECTIVE)

    return float(optimize.brentq(excess, 0.3, 2.0))


def capacity_coverage(random: np.random.Generator, runs: int, days: int, day_sigma: float, peak: float, per_window: int) -> Coverage:
    """Interval of the sustainable load against the truth, in parts of the truth.

    Args:
        random: source of randomness.
        runs: histories.
        days: of each history.
        day_sigma: how much the knee moves from day to day.
        peak: typical daily peak, in parts of the knee.
        per_window: requests in a five-minute window at the knee.
    """
    truth = true_capacity(day_sigma)
    hour = np.tile(np.arange(288) / 12, days)
    day = np.repeat(738_000 + np.arange(days), 288)
    held, errors, widths, none, judged = 0, [], [], 0, 0
    for _ in range(runs):
        shape = 0.55 + 0.45 * np.sin((hour - 9) / 24 * 2 * np.pi)
        heights = np.repeat(np.exp(random.normal(0, 0.08, days)) * WEEKDAYS[np.arange(days) % 7], 288)
        load = peak * shape * heights * np.exp(red_noise(random, hour.size, 0.9, 0.05))
        knee = np.repeat(np.exp(random.normal(0, day_sigma, days)), 288)
        requests = random.poisson(per_window * load)
        some = requests > 0
        slow = random.binomial(requests, slow_share(load, knee))
        fit = fit_capacity(load[some], (requests - slow)[some].astype(float), requests[some].astype(float), day[some], OBJECTIVE, draws=200)
        if fit.value is None or fit.censored:
            none += 1
            continue
        judged += 1
        upper = np.inf if fit.upper is None else fit.upper
        held += (fit.lower or 0.0) <= truth <= upper
        errors.append(fit.value / truth - 1)
        if np.isfinite(upper):
            widths.append((upper - (fit.lower or 0.0)) / truth)
    return Coverage(
        held / max(1, judged), float(np.mean(errors)) if errors else np.nan, float(np.median(widths)) if widths else np.nan, none / runs
    )


def regression_rate(random: np.random.Generator, runs: int, r: float, shift: float, tests: int = 12) -> float:
    """Share of runs in which a change of `shift` is called a regression, noise of 12 % around a daily pattern, 168 matched hours."""
    hours = np.arange(336)
    then, now = hours[:168], hours[168:]
    called = 0
    for _ in range(runs):
        values = (0.5 + 0.2 * np.sin(hours / 24 * 2 * np.pi)) * np.exp(red_noise(random, 336, r, 0.12))
        values[168:] *= 1 + shift
        outcome = compare(values, now, then, now % 24)
        assert outcome is not None
        called += outcome[1] >= MIN_SHIFT_RATIO and outcome[2] < ALPHA / tests
    return called / runs


def tables(runs: int, seed: int) -> Iterator[str]:
    """Lines of all tables."""
    random = np.random.default_rng(seed)
    yield f"Growth: 90 % interval, {runs} histories a line, daily noise of 6 %, weekday pattern.\n"
    yield "| days | autocorrelation | true growth a week | interval holds it | bias | median width |"
    yield "|---|---|---|---|---|---|"
    for days in (14, 21, 28, 35):
        for r in (0.0, 0.3, 0.6):
            for per_week in (0.0, 0.05) if days == 28 else (0.03,):
                found = trend_coverage(random, runs, days, r, per_week)
                yield (
                    f"| {days} | {r:g} | {100 * per_week:g} % | {100 * found.held:.0f} % | "
                    f"{100 * found.bias:+.2f} points | {100 * found.width:.1f} points |"
                )
    few = max(20, runs // 4)
    yield f"\nSustainable load: 90 % interval, {few} histories a line, SLO of 99 %, the knee moves from day to day.\n"
    yield "| days | knee moves by | peak ÷ knee | requests a window | interval holds it | bias | median width | censored or broken |"
    yield "|---|---|---|---|---|---|---|---|"
    for days, sigma, peak, per_window in (
        (7, 0.02, 1.05, 600),
        (14, 0.02, 1.05, 600),
        (28, 0.02, 1.05, 600),
        (28, 0.0, 1.05, 600),
        (28, 0.05, 1.05, 600),
        (28, 0.02, 0.95, 600),
        (28, 0.02, 0.85, 600),
        (28, 0.02, 1.05, 60),
    ):
        found = capacity_coverage(random, few, days, sigma, peak, per_window)
        yield (
            f"| {days} | {100 * sigma:g} % | {peak:g} | {per_window} | {100 * found.held:.0f} % | {100 * found.bias:+.1f} % | "
            f"{100 * found.width:.1f} % | {100 * found.none:.0f} % |"
        )
    yield f"\nRegressions: share of {runs} weeks in which one was called, noise of 12 % an hour.\n"
    yield "| autocorrelation of hours | no change | +8 % | +15 % | +25 % |"
    yield "|---|---|---|---|---|"
    for r in (0.0, 0.5, 0.8):
        rates = [regression_rate(random, runs, r, shift) for shift in (0.0, 0.08, 0.15, 0.25)]
        yield f"| {r:g} | " + " | ".join(f"{100 * rate:.1f} %" for rate in rates) + " |"


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:]]
    for line in tables(arguments[0] if arguments else 400, arguments[1] if len(arguments) > 1 else 7):
        print(line, flush=True)  # noqa: T201  # this is its output
