"""What changed: this week against the week before, at matched hour of week and load.

In: a `Service`, its `Load`, the window. Out: `Regressions`. Called by `review.py` and by the study. Hourly values are compared by
Hodges–Lehmann shift and Mann–Whitney test. A change counts when it is at least 10 % for the worse and p is below 0.01 divided by
the number of tests in the whole review; neighbouring hours that resemble each other count for less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from llm_exporter.report.finding import Span
from llm_exporter.report.fleet import Service, add
from llm_exporter.report.grid import Floats, Ints, stamp
from llm_exporter.report.load import Load
from llm_exporter.report.statistics import hodges_lehmann, lag_one, quantiles_by_row, rank_test

MIN_SHIFT_RATIO = 0.10
ALPHA = 0.01
MIN_REQUESTS_PER_HOUR = 20
MIN_PAIRS = 24
LOAD_MATCH = 1.25  # loads within a quarter of each other are one bin
WEEK_SECONDS = 7 * 86_400


@dataclass
class Comparison:
    """One metric, this week against last.

    Attributes:
        metric: its name in the report.
        shift: Hodges–Lehmann, in the metric's unit.
        shift_ratio: shift ÷ median before.
        p_value: two-sided, for neighbours that resemble each other.
        since: unix time of the hour from which the change holds.
        pairs: matched hours.
        worse: the change is for the worse.
    """

    metric: str
    shift: float
    shift_ratio: float
    p_value: float
    since: int
    pairs: int
    worse: bool


@dataclass
class Regressions:
    """All comparisons of a service; `found` are those that count."""

    comparisons: list[Comparison] = field(default_factory=list)
    found: list[Comparison] = field(default_factory=list)
    basis: str = ""

    def document(self) -> list[dict[str, float | str]]:
        """As in the JSON report."""
        return [
            {"metric": one.metric, "shift": one.shift, "shift_ratio": one.shift_ratio, "p_value": one.p_value, "since": stamp(one.since)}
            for one in self.found
        ]


def hourly(values: Floats | None, service: Service, *, mean: bool) -> Floats | None:
    """Five-minute values on the hourly grid: mean or sum of the known ones, NaN where fewer than half are known."""
    if values is None:
        return None
    coarse = service.history.coarse
    per = coarse.step // service.grid.step
    rows = values[values.size - coarse.count * per :].reshape(coarse.count, per)
    known = np.isfinite(rows)
    sums = np.where(known, rows, 0.0).sum(axis=1)
    n = known.sum(axis=1)
    out: Floats = np.where(n >= per / 2, sums / np.maximum(n, 1) if mean else sums, np.nan)
    return out


def histogram_by_hour(service: Service, key: str) -> tuple[Floats, Floats] | None:
    """Edges that all replicas share, and cumulative counts per hour, shape (hours, edges); +inf is the last edge."""
    layouts: dict[str, dict[float, list[Floats]]] = {}
    for trace in service.traces(key):
        edges = layouts.setdefault(trace.label("target"), {})
        edges.setdefault(float(trace.label("le")), []).append(trace.values)
    if not layouts:
        return None
    shared = sorted(set.intersection(*(set(edges) for edges in layouts.values())))
    if len(shared) < 3 or not math.isinf(shared[-1]):
        return None
    columns = [add([row for edges in layouts.values() for row in edges[edge]]) for edge in shared]
    rows = np.array([column for column in columns if column is not None]).T
    return np.array(shared), np.maximum.accumulate(rows, axis=1)


def hourly_metrics(service: Service) -> dict[str, tuple[Floats, bool]]:
    """Hourly values by metric, and whether higher is worse."""
    found: dict[str, tuple[Floats, bool]] = {}
    for name, key in (("time_to_first_token", "ttft_bucket"), ("inter_token_latency", "itl_bucket")):
        histogram = histogram_by_hour(service, key)
        if histogram is not None:
            edges, rows = histogram
            values = quantiles_by_row(0.95, edges, rows)
            found[f"{name}_p95_seconds"] = (np.where(rows[:, -1] >= MIN_REQUESTS_PER_HOUR, values, np.nan), True)
    total, count = service.summed("e2e_sum"), service.summed("e2e_count")
    if total is not None and count is not None:
        enough = np.nan_to_num(count) >= MIN_REQUESTS_PER_HOUR
        found["e2e_request_latency_mean_seconds"] = (np.where(enough, total / np.where(enough, count, 1.0), np.nan), True)
    hit, queried = (hourly(service.summed(key), service, mean=False) for key in ("hit_tokens", "queried_tokens"))
    if hit is not None and queried is not None:
        some = np.nan_to_num(queried) > 0
        found["prefix_cache_hit_ratio"] = (np.where(some, hit / np.where(some, queried, 1.0), np.nan), False)
    return found


def match(hour_of_week: Ints, load: Floats, values: Floats, now: Ints, then: Ints) -> tuple[Ints, Ints]:
    """Pairs of hours (now, then) at the same hour of week, both known, with loads that are alike."""
    fit = np.isfinite(values) & np.isfinite(load)
    before = {int(hour_of_week[index]): int(index) for index in then if fit[index]}
    pairs = []
    for index in now:
        other = before.get(int(hour_of_week[index]), -1)
        if fit[index] and other >= 0 and load[other] > 0 and 1 / LOAD_MATCH <= load[index] / load[other] <= LOAD_MATCH:
            pairs.append((int(index), other))
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def compare(values: Floats, now: Ints, then: Ints, cell: Ints) -> tuple[float, float, float, int] | None:
    """Shift, shift ÷ median before, p, and the position (in `now`) from which the change holds.

    Args:
        values: hourly.
        now: positions of the hours of this week in `values`.
        then: positions of the hours they are matched with.
        cell: hour of day of each pair (week-ends apart). The test compares values divided by the median of their cell in both weeks:
            the daily pattern would else hide what changed.
    """
    if now.size < MIN_PAIRS:
        return None
    before, after = values[then], values[now]
    middle = float(np.median(before))
    if middle == 0:
        return None
    shift = hodges_lehmann(before, after)
    typical = np.empty(now.size)
    for which in np.unique(cell):
        inside = cell == which
        typical[inside] = np.median(np.concatenate([before[inside], after[inside]]))
    usual = np.where(typical != 0, typical, middle)
    first = _step(after - before)
    old, new = before / usual, after / usual
    changed = np.arange(now.size) >= first
    left = new - np.where(changed, np.median(new[changed]), np.median(new[~changed]) if first else 0.0)
    r1 = (lag_one(old) + lag_one(left)) / 2
    return shift, shift / middle, rank_test(old, new, r1), first


def _step(difference: Floats) -> int:
    """Where differences leave 0 for another level: the split that leaves the least squares."""
    n = difference.size
    suffix = np.cumsum(difference[::-1])[::-1]
    sizes = np.arange(n, 0, -1)
    gain = suffix**2 / sizes  # what one mean from here on explains
    return int(np.argmax(gain[: max(1, n - 5)]))


def review_regressions(service: Service, load: Load, span: Span) -> Regressions:
    """Compare every metric; `decide` picks those that count once the number of tests is known."""
    coarse = service.history.coarse
    end = min(span.end, coarse.end)
    now = np.flatnonzero(coarse.within(end - WEEK_SECONDS, end))
    then = np.flatnonzero(coarse.within(end - 2 * WEEK_SECONDS, end - WEEK_SECONDS))
    result = Regressions()
    if load.offered is None or then.size < MIN_PAIRS:
        result.basis = "No week before this one to compare with."
        return result
    with np.errstate(invalid="ignore", divide="ignore"):
        per_replica = hourly(np.where(service.live > 0, load.offered / service.live, np.nan), service, mean=True)
    assert per_replica is not None
    most = 0
    for metric, (values, higher_is_worse) in hourly_metrics(service).items():
        here, there = match(coarse.hour_of_week, per_replica, values, now, then)
        weekend = coarse.weekday[here] >= 5
        outcome = compare(values, here, there, coarse.hour_of_week[here] % 24 + 24 * weekend)
        if outcome is None:
            continue
        shift, ratio, p, first = outcome
        most = max(most, here.size)
        since = int(coarse.times[here[first]]) - coarse.step
        result.comparisons.append(Comparison(metric, shift, ratio, p, since, int(here.size), (shift > 0) == higher_is_worse))
    result.basis = f"{len(result.comparisons)} metrics, up to {most} hours matched by hour of week and load (within a quarter)."
    return result


def decide(all_results: list[Regressions]) -> None:
    """Pick the changes that count, over all tests of the review together."""
    tests = sum(len(result.comparisons) for result in all_results)
    if not tests:
        return
    limit = ALPHA / tests
    for result in all_results:
        result.found = sorted(
            (one for one in result.comparisons if one.worse and abs(one.shift_ratio) >= MIN_SHIFT_RATIO and one.p_value < limit),
            key=lambda one: -abs(one.shift_ratio),
        )
        result.basis += f" Counts from {100 * MIN_SHIFT_RATIO:.0f} % and p < {limit:.2g} ({ALPHA:g} over {tests} tests)."
