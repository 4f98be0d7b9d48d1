"""The review for programs: `report.json`, exactly as the contract has it.

In: `Review`. Out: a dict of plain JSON values; every null has its reason in the `why` beside it. Called by `write.py`.
"""

from __future__ import annotations

from typing import Any

from llm_exporter.report.finding import plain
from llm_exporter.report.grid import stamp
from llm_exporter.report.review import ModelReview, Review


def document(review: Review) -> dict[str, Any]:
    """The whole report."""
    window: dict[str, Any] = {
        "start": stamp(review.span.start),
        "end": stamp(review.span.end),
        "timezone": review.zone_name,
        "step_seconds": review.step,
        "coverage_ratio": plain(review.coverage),
    }
    if review.coverage is None:
        window["why"] = {"coverage_ratio": "the window holds no step"}
    return {"window": window, "models": [_model(one) for one in review.models], "warnings": list(review.warnings)}


def _model(one: ModelReview) -> dict[str, Any]:
    gpus = [one.service.gpus_of(target) for target in one.service.targets]
    known = [count for count in gpus if count is not None]
    whole = len(known) == len(gpus) and bool(gpus)
    why = dict(one.headroom.why)
    if not whole:
        why["gpus"] = "the number of GPUs is not known: neither gpu_count nor GPU readings"
    body: dict[str, Any] = {
        "model": one.service.model,
        "targets": list(one.service.targets),
        "gpus": plain(_whole_number(sum(known))) if whole else None,
        "slo": [slo.finding.document() for slo in one.slos],
        "load": one.load.finding.document(),
        "sustainable": one.sustainable.finding.document(),
        **{key: plain(value) for key, value in one.headroom.numbers.items()},
        "growth": one.growth.finding.document(),
        "gpu_hours": one.ledger.finding.document(),
        "cost": one.cost.document(),
        "prefix_cache": one.prefix_cache.document(),
        "kv_cache": one.kv_cache.document(),
        "bottleneck_share": plain(one.bottlenecks.numbers),
        "regressions": plain(one.regressions.document()),
        "recommendations": one.recommendations,
    }
    if why:
        body["why"] = why
    return body


def _whole_number(value: float) -> float | int:
    return int(value) if value == int(value) else value
