"""Are we within the SLO, and where did the budget go?

In: a `Service`, the window. Out: one `Finding` per SLO, the binding one first. Called by `review.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llm_exporter.report.finding import Finding, Span
from llm_exporter.report.fleet import Service
from llm_exporter.report.grid import Floats, stamp
from llm_exporter.report.statistics import budget_left


@dataclass
class SloResult:
    """One SLO over the window.

    Attributes:
        finding: numbers as in the report.
        requests: that counted.
        slow: that missed it.
        worst_share: part of the slow requests that fell into the worst five hours.
        by_target: slow share of each replica that served requests.
    """

    finding: Finding
    requests: float
    slow: float
    worst_share: float | None
    by_target: dict[str, float]


def names(service: Service) -> list[str]:
    """SLOs of the service, by name."""
    return sorted({trace.label("slo") for trace in service.traces("slo_requests") if trace.label("slo")})


def latest(service: Service, key: str, slo: str) -> float | None:
    """Last known threshold or objective of an SLO."""
    for trace in service.traces(key, slo=slo):
        known = trace.values[np.isfinite(trace.values)]
        if known.size:
            return float(known[-1])
    return None


def counts(service: Service, slo: str, target: str = "") -> tuple[Floats, Floats] | None:
    """Requests and good requests per five-minute window; both unknown where one is."""
    requests = service.summed("slo_requests", target, slo=slo)
    good = service.summed("slo_good", target, slo=slo)
    if requests is None or good is None:
        return None
    both = np.isfinite(requests) & np.isfinite(good)
    return np.where(both, requests, np.nan), np.where(both, np.minimum(good, requests), np.nan)


def review_slos(service: Service, span: Span) -> list[SloResult]:
    """Judge every SLO of the service over the window; the one with the least budget comes first."""
    where = service.grid.within(span.start, span.end)
    results = [_review(service, slo, span, where) for slo in names(service)]
    return sorted(results, key=lambda result: (result.finding["budget_left_ratio"] is None, result.finding["budget_left_ratio"] or 0.0))


def _review(service: Service, slo: str, span: Span, where: np.ndarray) -> SloResult:
    threshold, objective = latest(service, "slo_threshold", slo), latest(service, "slo_objective", slo)
    finding = Finding(
        {
            "name": slo,
            "threshold_seconds": threshold,
            "objective_ratio": objective,
            "good_ratio": None,
            "budget_left_ratio": None,
            "worst_hour": None,
        }
    )
    requests = service.total("slo_requests", where, slo=slo) or 0.0
    good = service.total("slo_good", where, slo=slo)
    for key, value in (("threshold_seconds", threshold), ("objective_ratio", objective)):
        if value is None:
            finding.why[key] = "the exporter did not publish it in this span"
    if requests <= 0 or good is None:
        finding.why.update(dict.fromkeys(("good_ratio", "budget_left_ratio", "worst_hour"), "no request in this window"))
        return SloResult(finding, 0.0, 0.0, None, {})
    slow = max(0.0, requests - good)
    finding.numbers["good_ratio"] = 1 - slow / requests
    if objective is not None and objective < 1:
        finding.numbers["budget_left_ratio"] = budget_left(slow, requests, objective)
    else:
        finding.why["budget_left_ratio"] = "no objective below 1 is known"
    worst_share = _worst(service, slo, where, finding)
    by_target = {}
    for target in service.targets:
        pair = counts(service, slo, target)
        if pair is not None and np.nansum(pair[0][where]) > 0:
            by_target[target] = 1 - float(np.nansum(pair[1][where]) / np.nansum(pair[0][where]))
    finding.basis = (
        f"{requests:,.0f} requests in {span.hours:.0f} h; {slow:,.0f} too slow. Requests that died before a first token are not in it."
    )
    return SloResult(finding, requests, slow, worst_share, by_target)


def _worst(service: Service, slo: str, where: np.ndarray, finding: Finding) -> float | None:
    pair = counts(service, slo)
    if pair is None:
        return None
    slow = np.where(where, pair[0] - pair[1], np.nan)
    slow = np.where(np.isfinite(slow), slow, 0.0)
    hours = service.grid.times - service.grid.step
    hours = hours // 3600
    keys, inverse = np.unique(hours, return_inverse=True)
    per_hour = np.bincount(inverse, weights=slow)
    whole = float(per_hour.sum())
    if whole <= 0:
        finding.why["worst_hour"] = "no request was too slow"
        return None
    finding.numbers["worst_hour"] = stamp(int(keys[int(per_hour.argmax())]) * 3600)
    return float(np.sort(per_hour)[-5:].sum() / whole)
