"""How much more can we take: work per second that still meets the SLO.

In: offered work per window, good and counted requests. Out: `Sustainable`. Called by `review.py` and by the coverage study. Windows are put
into bins of equal count by their load per live replica; the slow share of each bin is fitted by a curve that never falls; where that
curve reaches 1 − objective is the capacity. Days are drawn with replacement for the interval. Nothing is extrapolated: an SLO that
never broke gives "at least what was seen".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from llm_exporter.report.finding import Finding, unknown
from llm_exporter.report.fleet import Service
from llm_exporter.report.grid import Bools, Floats, Ints
from llm_exporter.report.load import Load
from llm_exporter.report.slo import counts, latest, names
from llm_exporter.report.statistics import crossing, isotonic

MIN_BINS, MAX_BINS = 8, 200
MIN_WINDOWS, MIN_REQUESTS = 20, 200
DRAWS = 400
DRAWN_SHARE = 0.5  # of the days, in each draw
TAILS = (5.0, 95.0)
SEED = 20_261_129  # the same data gives the same report


@dataclass
class Fit:
    """A capacity curve.

    Attributes:
        value: load per unit of weight at the objective; the highest load seen where censored; None where broken from the start.
        lower, upper: 90 % interval; None where the data have no bound.
        censored: the SLO never broke in the fit.
        n_windows: that were used.
        load, slow, fitted: per bin, for the plot.
        reason: why there is no value.
    """

    value: float | None
    lower: float | None = None
    upper: float | None = None
    censored: bool = False
    n_windows: int = 0
    load: Floats = field(default_factory=lambda: np.zeros(0))
    slow: Floats = field(default_factory=lambda: np.zeros(0))
    fitted: Floats = field(default_factory=lambda: np.zeros(0))
    reason: str = ""


@dataclass
class Sustainable:
    """The answer for a service: the finding for all live replicas, the fit per unit of weight, and the SLO that binds."""

    finding: Finding
    fit: Fit | None = None
    slo: str = ""
    objective: float | None = None
    weight_now: float = 0.0


def fit_capacity(load: Floats, good: Floats, requests: Floats, day: Ints, objective: float, *, draws: int = DRAWS) -> Fit:
    """Fit slow share against load.

    Args:
        load: offered work per second and unit of weight, per window; all finite.
        good: requests that met the SLO, per window.
        requests: that counted, per window, above 0.
        day: local day of each window: what happens on one day hangs together.
        objective: of the SLO.
        draws: of the bootstrap.
    """
    n = load.size
    order = np.argsort(load, kind="stable")
    edges = _bins(requests[order], n)
    if edges is None:
        return Fit(
            None,
            n_windows=n,
            reason=f"needs {MIN_BINS} load bins of {MIN_WINDOWS} windows and {MIN_REQUESTS} requests; there are {n} windows",
        )
    bins = edges.size - 1
    bin_of = np.empty(n, dtype=np.int64)
    bin_of[order] = np.repeat(np.arange(bins), np.diff(edges))
    days, day_index = np.unique(day, return_inverse=True)
    cell = day_index * bins + bin_of

    def table(weights: Floats) -> Floats:
        sums: Floats = np.bincount(cell, weights=weights, minlength=days.size * bins).astype(np.float64)
        return sums.reshape(days.size, bins)

    asked, slow, loads = table(requests), table(requests - good), table(load * requests)
    x, bad, fitted = _curve(asked.sum(0), slow.sum(0), loads.sum(0))
    best = crossing(x, fitted, objective)
    fit = Fit(best.value, censored=best.censored, n_windows=n, load=x, slow=bad, fitted=fitted)
    if best.value is None:
        fit.reason = "the SLO is missed even at the lowest load seen: load is not what breaks it"
        return fit
    # Fewer days than there are: the plain bootstrap is too sure of an isotonic fit (docs/capacity-method.md has the coverage).
    drawn = max(2, round(DRAWN_SHARE * days.size))
    weights = np.random.default_rng(SEED).multinomial(drawn, np.full(days.size, 1 / days.size), size=draws)
    found = np.empty(draws)
    for index in range(draws):
        w = weights[index].astype(np.float64)
        draw = _curve(w @ asked, w @ slow, w @ loads)
        at = crossing(draw[0], draw[2], objective)
        found[index] = np.inf if at.censored and at.value is not None else 0.0 if at.value is None else at.value
    low, high = np.percentile(found, TAILS, method="nearest")
    fit.lower = float(low) if np.isfinite(low) else float(x[-1])
    fit.upper = float(high) if np.isfinite(high) and not best.censored else None
    if best.censored:
        fit.lower = best.value
    return fit


def _bins(requests: Floats, n: int) -> Ints | None:
    """Edges of bins of equal count over windows sorted by load, joined until each has enough requests."""
    wanted = min(MAX_BINS, n // MIN_WINDOWS)
    if wanted < MIN_BINS:
        return None
    edges = np.linspace(0, n, wanted + 1).astype(np.int64)
    running = np.concatenate([[0.0], np.cumsum(requests)])
    kept = [0]
    for edge in edges[1:]:
        if running[edge] - running[kept[-1]] >= MIN_REQUESTS:
            kept.append(int(edge))
    kept[-1] = n
    return np.array(kept) if len(kept) - 1 >= MIN_BINS else None


def _curve(asked: Floats, slow: Floats, loads: Floats) -> tuple[Floats, Floats, Floats]:
    some = asked > 0
    x, bad = loads[some] / asked[some], slow[some] / asked[some]
    return x, bad, isotonic(bad, asked[some])


def review_sustainable(service: Service, load: Load, changed_at: int | None) -> Sustainable:
    """Capacity of the service as it stands now, by the SLO that gives out first.

    Args:
        service: the model.
        load: its offered work.
        changed_at: unix time of the last change of engine or version; older windows are left out. None for no change.
    """
    keys = ("value", "lower", "upper")
    slos = names(service)
    if not slos or load.offered is None:
        reason = "no SLO is configured for these targets" if not slos else "no token counters in this span"
        finding = unknown(keys, reason)
        finding.numbers.update(censored=None, n_windows=0)
        finding.why["censored"] = reason
        return Sustainable(finding)
    usable = _usable(service, load, changed_at)
    candidates: list[Sustainable] = []
    for slo in slos:
        pair, objective = counts(service, slo), latest(service, "slo_objective", slo)
        if pair is None or objective is None:
            continue
        requests, good = pair
        keep = usable & np.isfinite(requests) & (np.nan_to_num(requests) > 0)
        fit = fit_capacity(load.offered[keep] / service.live[keep], good[keep], requests[keep], service.grid.day[keep], objective)
        candidates.append(Sustainable(Finding({}), fit, slo, objective))
    if not candidates:
        finding = unknown(keys, "no SLO has both counters and an objective in this span")
        finding.numbers.update(censored=None, n_windows=0)
        return Sustainable(finding)
    best = min(candidates, key=_order)
    best.weight_now = weight_now(service)
    _describe(service, load, best, changed_at)
    return best


def _order(candidate: Sustainable) -> tuple[int, float]:
    fit = candidate.fit
    assert fit is not None
    return (2, 0.0) if fit.value is None else (int(fit.censored), fit.value)


def _usable(service: Service, load: Load, changed_at: int | None) -> Bools:
    """Windows that tell about the load alone: no restart, no heat, no starvation, no change, no old backlog."""
    assert load.offered is not None
    keep = np.isfinite(load.offered) & (service.live > 0) & ~load.draining
    for key, limit in (("throttled", 0.05), ("starved", 0.2)):
        for trace in service.traces(key):
            keep &= ~(np.nan_to_num(trace.values) > limit)
    for trace in service.history.of("restarts"):
        if trace.label("target") in service.targets:
            hit = np.nan_to_num(trace.values) > 0
            keep &= ~(hit | np.roll(hit, 1) | np.roll(hit, 2))
    if changed_at is not None:
        keep &= service.grid.times - service.grid.step >= changed_at
    return keep


def weight_now(service: Service) -> float:
    """Weight of the replicas that are up: the median of the last day."""
    recent = service.live[-288:]
    known = recent[recent > 0]
    return float(np.median(known)) if known.size else 0.0


def _describe(service: Service, load: Load, best: Sustainable, changed_at: int | None) -> None:
    fit, weight = best.fit, best.weight_now
    assert fit is not None
    numbers = {
        "value": None if fit.value is None else fit.value * weight,
        "lower": None if fit.lower is None else fit.lower * weight,
        "upper": None if fit.upper is None else fit.upper * weight,
        "censored": fit.censored,
        "n_windows": fit.n_windows,
    }
    why = {}
    if fit.value is None:
        why = dict.fromkeys(("value", "lower", "upper"), fit.reason)
    elif fit.censored:
        why["upper"] = "the SLO never broke: capacity is at least the highest load seen"
    elif fit.upper is None:
        why["upper"] = "in more than 5 % of the draws of days the SLO never broke"
    days = np.unique(service.grid.day[np.isfinite(load.offered)]).size if load.offered is not None else 0
    basis = (
        f"SLO {best.slo} at {100 * (best.objective or 0):g} %; {fit.n_windows:,} five-minute windows of {days} days "
        f"in {fit.load.size} load bins, slow share fitted by isotonic regression; 90 % interval from {DRAWS} draws of half as many days. "
        f"Load per live replica, "
        f"times {weight:g} replica{'s' if weight != 1 else ''} now. Windows with restarts, throttling, starvation or a draining "
        "backlog are left out."
    )
    if changed_at is not None:
        basis += " Only windows since the last change of version are used."
    best.finding = Finding(numbers, why, basis)
