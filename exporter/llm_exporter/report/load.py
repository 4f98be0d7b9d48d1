"""How much work was offered, and when in the week.

In: a `Service`, the window. Out: `Load` (work per second in each window, its unit, the profile by hour of week). Called by `review.py`;
the capacity and growth analyses build on it. Work is GPU-seconds where GPU readings explain it (α per computed prompt token, β per output
token, non-negative least squares), else tokens. It is *offered* work: what queued up or was turned away counts when it came, not when it
was done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize

from llm_exporter.report.finding import Finding, Span, percentile, unknown
from llm_exporter.report.fleet import Service
from llm_exporter.report.grid import HOURS_OF_WEEK, Bools, Floats
from llm_exporter.report.statistics import work

GPU_SECONDS, TOKENS = "gpu_seconds_per_second", "tokens_per_second"
PEAK_PERCENTILE = 99  # of five-minute means; the maximum of two thousand of them is an accident
MIN_FIT_WINDOWS = 100
MIN_R2 = 0.8
MAX_CORRELATION = 0.9  # above it, α and β cannot be told apart, though their sum can
DRAIN_SECONDS = 10.0  # a backlog worth more than this that shrinks: its slow requests belong to the past
WEEKEND_LOWER, WEEKEND_HIGHER = 0.8, 1.25


@dataclass
class Cost:
    """What a token costs in GPU-seconds.

    Attributes:
        per_prompt: GPU-seconds per computed prompt token.
        per_generated: GPU-seconds per output token.
        r2: share of the variance of busy GPUs that this explains.
        separable: whether the two can be told apart.
        n: windows.
    """

    per_prompt: float
    per_generated: float
    r2: float
    separable: bool
    n: int


@dataclass
class Load:
    """Work offered to a service.

    Attributes:
        finding: `load` of the report.
        unit: GPU_SECONDS or TOKENS.
        offered: work per second of the whole service per window, NaN where unknown, shape (windows,).
        draining: windows in which a backlog of earlier work was being served.
        cost: of tokens, None where GPU readings do not explain it.
        profile: P50 and P95 by cell, and the number of windows in each, shape (3, cells); None without data.
        cells: 168 (hour of week) or 48 (hour of day, weekday then weekend).
        weekend_ratio: typical load of the weekend against weekdays; None under 14 days.
    """

    finding: Finding
    unit: str
    offered: Floats | None
    draining: Bools
    cost: Cost | None = None
    profile: Floats | None = None
    cells: int = HOURS_OF_WEEK
    weekend_ratio: float | None = None


def token_cost(prompt: Floats, generated: Floats, busy: Floats) -> Cost | None:
    """Fit busy = α · prompt + β · generated.

    Args:
        prompt: computed prompt tokens per second, per window.
        generated: output tokens per second.
        busy: GPU-seconds per second.

    Returns:
        The costs, or None where there are too few windows or the fit explains too little.
    """
    fit = np.isfinite(prompt) & np.isfinite(generated) & np.isfinite(busy) & (prompt + generated > 0)
    if fit.sum() < MIN_FIT_WINDOWS:
        return None
    tokens: Floats = np.column_stack([prompt[fit], generated[fit]])
    scale: Floats = np.asarray(tokens.max(axis=0), dtype=np.float64)
    if (scale <= 0).any():
        return None
    y = busy[fit]
    spread = float(((y - y.mean()) ** 2).sum())
    if spread <= 0:
        return None
    solution, residual = optimize.nnls(np.asarray(tokens / scale), y)
    r2 = 1 - residual**2 / spread
    if r2 < MIN_R2 or not solution.any():
        return None
    correlation = float(np.atleast_2d(np.corrcoef(tokens.T))[0, 1])
    per_prompt, per_generated = (float(value) for value in np.asarray(solution / scale))
    return Cost(per_prompt, per_generated, float(r2), bool(abs(correlation) < MAX_CORRELATION and solution.all()), int(fit.sum()))


def measure_load(service: Service, span: Span) -> Load:
    """Work offered in each window, and its profile."""
    nothing = np.zeros(service.grid.count, dtype=bool)
    keys = ("p50", "p95", "peak", "requests_per_second_peak")
    generated = service.rate("generation_tokens")
    prompt = service.rate("computed_tokens")
    if prompt is None:
        prompt = service.rate("prompt_tokens")
    if generated is None or prompt is None:
        empty = unknown(keys, "no token counters in this span")
        empty.numbers = {"unit": TOKENS, **empty.numbers}
        return Load(empty, TOKENS, None, nothing)
    busy = service.gauge("busy")
    cost = None
    if busy is not None:
        cost = token_cost(prompt, generated, np.where(_undisturbed(service), busy * _mean_share(service), np.nan))
    served = prompt + generated if cost is None else np.asarray(work(prompt, generated, cost.per_prompt, cost.per_generated))
    ratio, draining = _offered_ratio(service)
    load = Load(Finding({}), GPU_SECONDS if cost else TOKENS, served * ratio, draining, cost)
    _describe(service, span, load)
    _profile(service, load)
    return load


def _mean_share(service: Service) -> float:
    return float(np.mean([service.share.get(target, 1.0) for target in service.targets]))


def _undisturbed(service: Service) -> Bools:
    """Windows in which the GPUs were neither starved nor slowed down."""
    fit = np.ones(service.grid.count, dtype=bool)
    for key, limit in (("starved", 0.1), ("throttled", 0.05)):
        for trace in service.traces(key):
            fit &= ~(np.nan_to_num(trace.values) > limit)
    return fit


def _offered_ratio(service: Service) -> tuple[Floats, Bools]:
    """Offered ÷ served requests per window (flow balance), and the windows that serve a backlog."""
    count, step = service.grid.count, service.grid.step
    waiting = service.gauge("waiting")
    growth, before = np.zeros(count), np.zeros(count)
    if waiting is not None:
        growth[1:] = np.nan_to_num(np.diff(waiting)) / step
        before[1:] = np.nan_to_num(waiting[:-1])
    received = service.rate("received")
    started = received - growth if received is not None else service.rate("first_tokens")
    if started is None:
        started = service.rate("finished")
    if started is None:
        return np.ones(count), np.zeros(count, dtype=bool)
    rejected = service.rate("rejected")
    turned_away = np.nan_to_num(rejected) if rejected is not None else np.zeros(count)
    positive = np.nan_to_num(started) > 0
    ratio = np.ones(count)
    ratio[positive] = ((started + growth + turned_away)[positive] / started[positive]).clip(0.2, 5.0)
    draining: Bools = (before > DRAIN_SECONDS * np.nan_to_num(started)) & (growth < 0) & (before > 1)
    return ratio, draining


def _describe(service: Service, span: Span, load: Load) -> None:
    where = service.grid.within(span.start, span.end)
    assert load.offered is not None
    here = load.offered[where]
    requests = service.rate("received")
    if requests is None:
        requests = service.rate("finished")
    numbers = {
        "unit": load.unit,
        "p50": percentile(here, 50),
        "p95": percentile(here, 95),
        "peak": percentile(here, PEAK_PERCENTILE),
        "requests_per_second_peak": percentile(requests[where], PEAK_PERCENTILE) if requests is not None else None,
    }
    reason = "no window in which every replica told its tokens"
    why = {key: reason for key, value in numbers.items() if value is None}
    n = int(np.isfinite(here).sum())
    basis = f"{n:,} five-minute means in {span.hours:.0f} h; peak is their 99th percentile. "
    if load.cost is not None:
        basis += (
            f"Work in GPU-seconds (1 GPU-s/s keeps one GPU busy): {load.cost.per_prompt * 1e6:.3g} µs per computed prompt token, "
            f"{load.cost.per_generated * 1e6:.3g} µs per "
            f"output token (non-negative least squares over {load.cost.n:,} windows, R² {load.cost.r2:.2f}"
            + ("" if load.cost.separable else "; the two cannot be told apart, their sum can")
            + ")."
        )
    else:
        basis += "Work in tokens (computed prompt + output), since GPU readings are missing or do not follow the tokens."
    load.finding = Finding(numbers, why, basis)


def _profile(service: Service, load: Load) -> None:
    assert load.offered is not None
    grid = service.grid
    known = np.isfinite(load.offered)
    days = np.unique(grid.day[known]).size
    if not known.any():
        return
    weekend = grid.weekday >= 5
    if days >= 14:
        cell = grid.hour_of_week
        workdays, weekends = load.offered[known & ~weekend], load.offered[known & weekend]
        if workdays.size and weekends.size and workdays.mean() > 0:
            load.weekend_ratio = float(weekends.mean() / workdays.mean())
    else:
        load.cells = 48
        cell = grid.hour_of_week % 24 + 24 * weekend
    profile = np.full((3, load.cells), np.nan)
    order = np.argsort(cell[known], kind="stable")
    values, cells = load.offered[known][order], cell[known][order]
    edges = np.searchsorted(cells, np.arange(load.cells + 1))
    for index in range(load.cells):
        group = values[edges[index] : edges[index + 1]]
        profile[2, index] = group.size
        if group.size:
            profile[:2, index] = np.percentile(group, (50, 95))
    load.profile = profile
