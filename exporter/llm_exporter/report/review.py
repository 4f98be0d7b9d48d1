"""The whole review: from a history to answers per model.

In: `History`, the window, what the configuration knows. Out: `Review`, read by `document.py`, `html.py` and `markdown.py`. Called by the
command `report`. One model that cannot be judged never disturbs another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import Any

import numpy as np

from llm_exporter.report.advice import Facts, recommend
from llm_exporter.report.cache import review_bottlenecks, review_kv_cache, review_prefix_cache
from llm_exporter.report.events import Event, review_events, version_changes
from llm_exporter.report.finding import Finding, Span
from llm_exporter.report.fleet import Service, TargetFacts, services
from llm_exporter.report.grid import local
from llm_exporter.report.growth import Growth, review_growth, review_headroom
from llm_exporter.report.history import History
from llm_exporter.report.load import WEEKEND_HIGHER, WEEKEND_LOWER, Load, measure_load
from llm_exporter.report.regressions import Regressions, decide, review_regressions
from llm_exporter.report.slo import SloResult, review_slos
from llm_exporter.report.sustainable import Sustainable, review_sustainable
from llm_exporter.report.waste import KINDS, Ledger, review_cost, review_waste

MIN_GROWTH_RATIO = 0.01
MIN_COVERAGE = 0.95
WEEK_HOURS = 168.0


@dataclass
class Headline:
    """Something that stands out: kind (growth, regression, weekend, down, starved, …) and a sentence."""

    kind: str
    text: str


@dataclass
class ModelReview:
    """All answers about one service."""

    service: Service
    slos: list[SloResult]
    load: Load
    sustainable: Sustainable
    headroom: Finding
    growth: Growth
    ledger: Ledger
    cost: Finding
    prefix_cache: Finding
    kv_cache: Finding
    bottlenecks: Finding
    regressions: Regressions
    events: list[Event]
    availability: float | None
    facts: Facts
    recommendations: list[dict[str, Any]] = field(default_factory=list)
    headlines: list[Headline] = field(default_factory=list)


@dataclass
class Review:
    """The review of one window."""

    span: Span
    zone: tzinfo
    zone_name: str
    step: int
    coverage: float | None
    models: list[ModelReview]
    warnings: list[str]


def review(
    history: History,
    span: Span,
    zone: tzinfo,
    zone_name: str,
    *,
    facts: Mapping[str, TargetFacts] | None = None,
    currency: str | None = None,
) -> Review:
    """Answer every question for every model that served anything in the window."""
    found = services(history, facts)
    reviewed = []
    for service in found:
        if not _seen(service, span):
            continue
        try:
            reviewed.append(_review_model(service, span, currency))
        except (ArithmeticError, ValueError, IndexError) as error:
            history.warnings.append(f"{service.model}: cannot be judged ({type(error).__name__}: {error}); please report this.")
    decide([one.regressions for one in reviewed])
    for one in reviewed:
        _conclude(one, zone)
    warnings = list(history.warnings)
    coverage = _coverage(history, span)
    if coverage is not None and coverage < MIN_COVERAGE:
        warnings.append(f"Only {100 * coverage:.1f} % of the window was observed: figures rest on that part.")
    if not reviewed:
        warnings.append("No target served a model in this window.")
    modelless = sorted({trace.label("target") for trace in history.of("up")} - {target for service in found for target in service.targets})
    if modelless:
        warnings.append(f"Never seen serving a model in this history, so not reviewed: {', '.join(modelless)}.")
    warnings += _renamed(reviewed, span, zone)
    for one in reviewed:
        warnings += [f"{one.service.model}: {event.sentence(zone)}" for event in one.events]
    return Review(span, zone, zone_name, history.grid.step, coverage, reviewed, warnings)


def _seen(service: Service, span: Span) -> bool:
    where = service.grid.within(span.start, span.end)
    return bool(
        np.isfinite(service.up[:, where]).any() or any(np.isfinite(t.values[where]).any() for t in service.traces("generation_tokens"))
    )


def _review_model(service: Service, span: Span, currency: str | None) -> ModelReview:
    load = measure_load(service, span)
    changes = version_changes(service)
    changed_at = max((event.end for event in changes), default=None)
    capacity = review_sustainable(service, load, changed_at)
    ledger = review_waste(service, span)
    kv_cache, preemption_rate, preemption_waste = review_kv_cache(service, span)
    where = service.grid.within(span.start, span.end)
    coarse = service.history.coarse.within(span.start, span.end)
    facts = Facts(replicas=max(1, round(float(service.alive[:, -288:].mean(axis=1).round().sum()))), week=WEEK_HOURS / span.hours)
    facts.preemption_rate, facts.preemption_waste = preemption_rate, preemption_waste
    facts.rejected = service.total("rejected", where)
    queue, first = service.total("queue_sum", coarse), service.total("ttft_sum", coarse)
    facts.queue_of_ttft = min(1.0, queue / first) if queue is not None and first else None
    up = service.up[:, where]
    return ModelReview(
        service=service,
        slos=review_slos(service, span),
        load=load,
        sustainable=capacity,
        headroom=review_headroom(service, load, capacity),
        growth=review_growth(service, load, capacity),
        ledger=ledger,
        cost=review_cost(service, span, load, ledger, currency),
        prefix_cache=review_prefix_cache(service, span, load),
        kv_cache=kv_cache,
        bottlenecks=review_bottlenecks(service, span),
        regressions=review_regressions(service, load, span),
        events=review_events(service, span),
        availability=float(np.nanmean(up)) if np.isfinite(up).any() else None,
        facts=facts,
    )


def _conclude(one: ModelReview, zone: tzinfo) -> None:
    """Headlines and recommendations, once it is known which regressions count."""
    one.headlines = list(_headlines(one, zone))
    facts = one.facts
    facts.share = one.bottlenecks.numbers
    facts.hours = {kind: one.ledger.finding[kind] for kind in ("total", *KINDS)} | {"reserve": one.ledger.reserve}
    facts.headroom, facts.headroom_lost = one.headroom["headroom_ratio"], one.headroom["headroom_one_replica_lost_ratio"]
    facts.peak_over_capacity = None if facts.headroom is None else 1 - facts.headroom
    facts.weeks, facts.weeks_lower = one.growth.finding["weeks_to_exhaustion"], one.growth.finding["weeks_lower"]
    if one.slos:
        facts.budget_left, facts.slo = one.slos[0].finding["budget_left_ratio"], one.slos[0].finding["name"]
    facts.hit_ratio, facts.saved_hours = one.prefix_cache["hit_ratio"], one.prefix_cache["saved_gpu_hours"]
    facts.kv_p95 = one.kv_cache["usage_p95_ratio"]
    facts.regressions = tuple(headline.text for headline in one.headlines if headline.kind == "regression")
    facts.changes = tuple(event.sentence(zone) for event in one.events if event.kind in {"version_changed", "restarted"})
    one.recommendations = recommend(facts, one.service.engine)


def _headlines(one: ModelReview, zone: tzinfo) -> list[Headline]:
    found = []
    for slo in one.slos:
        left = slo.finding["budget_left_ratio"]
        if left is not None and left < 0:
            found.append(Headline("slo_missed", f"SLO {slo.finding['name']} was missed: {100 * slo.finding['good_ratio']:.2f} % good."))
    growth = one.growth.finding.numbers
    if growth["lower"] is not None and (growth["lower"] > 0 or growth["upper"] < 0) and abs(growth["per_week_ratio"]) >= MIN_GROWTH_RATIO:
        word = "grows" if growth["lower"] > 0 else "shrinks"
        bounds = f"{100 * growth['lower']:.1f} to {100 * growth['upper']:.1f} %"
        found.append(Headline("growth", f"Load {word} by {100 * abs(growth['per_week_ratio']):.1f} % a week ({bounds})."))
    ratio = one.load.weekend_ratio
    if ratio is not None and not WEEKEND_LOWER <= ratio <= WEEKEND_HIGHER:
        found.append(Headline("weekend", f"Week-ends carry {100 * ratio:.0f} % of the load of weekdays."))
    found += [
        Headline(
            "regression",
            f"{change.metric} is {100 * abs(change.shift_ratio):.0f} % worse than the week before (shift {change.shift:+.3g}, "
            f"p {change.p_value:.1g}, {change.pairs} matched hours), since about {local(change.since, zone)}.",
        )
        for change in one.regressions.found
    ]
    return found + [Headline(event.kind, event.sentence(zone)) for event in one.events]


def _coverage(history: History, span: Span) -> float | None:
    """Share of the window's steps in which the targets that existed then were asked."""
    where = history.grid.within(span.start, span.end)
    if not where.any():
        return None
    rows: dict[str, np.ndarray] = {}
    for trace in history.of("up"):
        known = np.isfinite(trace.values)
        target = trace.label("target")
        rows[target] = rows[target] | known if target in rows else known
    asked = expected = 0
    for known in rows.values():
        at = np.flatnonzero(known)
        if not at.size:
            continue
        exists = np.zeros(known.size, dtype=bool)
        # A target that was there at any time is expected until the end; before it was first seen it is not.
        exists[at[0] :] = True
        asked += int((known & where).sum())
        expected += int((exists & where).sum())
    # Nothing seen before the window's middle because history is short: the missing part counts as not observed.
    first = min((int(np.flatnonzero(known)[0]) for known in rows.values() if known.any()), default=history.grid.count)
    missing = int(where[:first].sum())
    expected += missing * max(1, len(rows)) if missing else 0
    return asked / expected if expected else 0.0


def _renamed(reviewed: list[ModelReview], span: Span, zone: tzinfo) -> list[str]:
    """Say when one target ends about when another of the same model begins."""
    found = []
    for one in reviewed:
        exists, names, grid = one.service.exists, one.service.targets, one.service.grid
        if not exists.any(axis=1).all():
            continue
        last = grid.count - 1 - exists[:, ::-1].argmax(axis=1)
        first = exists.argmax(axis=1)
        for old in range(len(names)):
            for new in range(len(names)):
                ended, began = int(last[old]), int(first[new])
                if old != new and began > 0 and ended < grid.count - 1 and abs(began - ended) <= 12 and grid.times[ended] > span.start:
                    at = local(int(grid.times[ended]), zone)
                    found.append(
                        f"{one.service.model}: target {names[old]} ended and {names[new]} began at {at}: taken as renamed, not as lost."
                    )
    return found
