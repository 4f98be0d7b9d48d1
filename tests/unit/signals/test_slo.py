"""Objectives are measured at bucket edges, and say so."""

from __future__ import annotations

import pytest

from llm_exporter.config.model import Slo, Target
from llm_exporter.metrics import Sample
from llm_exporter.signals.derive import derive
from llm_exporter.signals.model import TargetView
from llm_exporter.state.store import EngineStore
from readings_made import INF, histogram, layout, reading


def published(threshold: float, bounds: list[float], counts: list[float]) -> dict[tuple[str, ...], float]:
    """(metric, last labels) → value, and the statuses."""
    target = Target(name="t", url="http://x:1", slos=(Slo(name="ttft", metric="time_to_first_token", threshold=threshold, objective=0.99),))
    store = EngineStore()
    store.add(reading(layout(histogram("time_to_first_token", bounds)), [*counts, 1.0]), 0)
    view = TargetView(target, 0, store, fresh=True, state="ready")
    return {
        (family.metric.name, *sample.labels): sample.value
        for family in derive(view)
        if family.metric.name.startswith("llm_slo") or family.metric.name == "llm_signal_status"
        for sample in family.samples
        if isinstance(sample, Sample)
    }


MODEL = ("t", "vllm", "m", "ttft")


@pytest.mark.parametrize(("threshold", "edge", "good"), [(1.0, 1.0, 90), (2.0, 1.0, 90), (2.5, 2.5, 99), (400.0, 2.5, 99)])
def test_the_highest_edge_not_above_the_threshold_counts(threshold: float, edge: float, good: float) -> None:
    got = published(threshold, [0.1, 1.0, 2.5, INF], [10, 90, 99, 100])
    assert got["llm_slo_effective_threshold_seconds", *MODEL] == edge
    assert got["llm_slo_threshold_seconds", *MODEL] == threshold
    assert got["llm_slo_good_requests_total", *MODEL] == good
    assert got["llm_slo_requests_total", *MODEL] == 100
    assert got["llm_slo_objective_ratio", *MODEL] == 0.99
    status = ("llm_signal_status", "t", "slo_good_requests_total", "", "threshold_not_an_edge")
    assert (status in got) == (threshold != edge)


def test_a_threshold_below_every_edge_cannot_be_measured() -> None:
    got = published(0.05, [0.1, 1.0, INF], [10, 90, 100])
    assert ("llm_slo_good_requests_total", *MODEL) not in got
    assert ("llm_slo_effective_threshold_seconds", *MODEL) not in got
    assert got["llm_signal_status", "t", "slo_good_requests_total", "", "threshold_not_an_edge"] == 1


def test_an_edge_that_went_through_text_is_still_the_edge() -> None:
    got = published(0.1 + 0.2, [0.3, 1.0, INF], [10, 90, 100])
    assert got["llm_slo_effective_threshold_seconds", *MODEL] == 0.3
    assert ("llm_signal_status", "t", "slo_good_requests_total", "", "threshold_not_an_edge") not in got


def test_an_absent_histogram_says_so() -> None:
    target = Target(name="t", url="http://x:1", slos=(Slo(name="e2e", metric="e2e_request_latency", threshold=1.0, objective=0.9),))
    store = EngineStore()
    store.add(reading(layout(histogram("time_to_first_token", [1.0, INF])), [1, 1, 1.0]), 0)
    statuses = [
        s.labels
        for f in derive(TargetView(target, 0, store, fresh=True, state="ready"))
        for s in f.samples
        if f.metric.name == "llm_signal_status"
    ]
    assert ("t", "slo_requests_total", "", "not_exposed") in statuses
