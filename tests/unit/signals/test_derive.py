"""The frame around all signals, over every captured page: a value or a reason, never both, and nothing impossible."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

import pytest

from llm_exporter.config.model import Slo, Target
from llm_exporter.engines.normalise import Normaliser
from llm_exporter.metrics import Family, HistogramSample, Sample
from llm_exporter.readings import Kind, Unit
from llm_exporter.signals.derive import METRICS, PERSISTENT, RANK, derive
from llm_exporter.signals.model import Status, TargetView
from llm_exporter.sources.exposition import PageParser
from llm_exporter.state.store import EngineStore

ENGINES = Path(__file__).parents[2] / "fixtures" / "engines"
PAGES = sorted(path for path in ENGINES.rglob("*") if path.suffix in (".prom", ".txt") and "disable-log-stats" not in path.name)
WINDOWS = ("1m", "5m")

# Said about values that are published all the same.
DOUBTS = {Status.LOW_N, Status.SKEWED, Status.THRESHOLD_NOT_AN_EDGE, Status.NEEDS_GPU}
# Where absence says nothing more than the configuration, the number of ranks or the verdict beside it says already.
SILENT = {metric.name for metric in RANK.values()} | {
    "llm_bottleneck_score_ratio",
    "llm_bottleneck_evidence_ratio",
    "llm_bottleneck_confidence_ratio",
    "llm_bottleneck_verdict",
    "llm_gpu_starved",
    "llm_gpu_starved_ratio",
}
FLAGS = ("_enabled", "_saturated", "_stalled", "_starved", "_state", "_status", "_verdict")
SLO = Slo(name="s", metric="time_to_first_token", threshold=0.3, objective=0.9)


def derived(path: Path, *, scrapes: int, fresh: bool = True) -> list[Family]:
    store, normaliser, parser = EngineStore(), Normaliser(), PageParser()
    for n in range(scrapes):
        reading = normaliser.read(parser.parse(path.read_bytes()))
        assert reading is not None
        store.add(reading, 5.0 * n)
    target = Target(name="t", url="http://t.invalid", slos=(SLO,))
    return derive(TargetView(target, 5.0 * (scrapes - 1), store, fresh, "ready" if fresh else "unknown"))


def statuses(families: list[Family]) -> dict[tuple[str, str], Status]:
    found: dict[tuple[str, str], Status] = {}
    for metric, samples in families:
        if metric.name == "llm_signal_status":
            for sample in samples:
                _, signal, window, status = sample.labels
                assert (signal, window) not in found, "one status each"
                found["llm_" + signal, window] = Status(status)
    return found


def shown(families: list[Family]) -> dict[tuple[str, str], set[str]]:
    """(metric, window) → models with a value."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for metric, samples in families:
        for sample in samples:
            labels = dict(zip(metric.labels, sample.labels, strict=True))
            found[metric.name, labels.get("window", "")].add(labels.get("model", ""))
    return found


@pytest.mark.parametrize("scrapes", [1, 2])
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name.replace(".metrics.txt", ""))
def test_every_signal_has_a_value_or_a_reason(path: Path, scrapes: int) -> None:
    families = derived(path, scrapes=scrapes)
    told, values = statuses(families), shown(families)
    both = {key: status for key, status in told.items() if key in values and status not in DOUBTS}
    assert not both, "a value and a reason for its absence"
    expected = {
        (metric.name, window)
        for metric in METRICS
        if metric.name not in PERSISTENT | SILENT
        for window in (WINDOWS if "window" in metric.labels else ("",))
    }
    silent = {key for key in expected if key not in told and key not in values}
    # a quantile in the last bucket has no error width; the flag beside it says so
    silent -= {("llm_time_to_first_token_quantile_error_seconds", window) for window in WINDOWS}
    assert not silent, "neither a value nor a reason"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name.replace(".metrics.txt", ""))
def test_no_value_is_impossible(path: Path) -> None:
    for metric, samples in derived(path, scrapes=2):
        assert len({sample.labels for sample in samples}) == len(samples), f"{metric.name}: a series twice"
        for sample in samples:
            if isinstance(sample, HistogramSample):
                assert metric.kind is Kind.HISTOGRAM
                assert list(sample.bounds) == sorted(set(sample.bounds))
                assert sample.bounds[-1] == math.inf
                assert list(sample.cumulative) == sorted(sample.cumulative)
                assert sample.cumulative[0] >= 0
                continue
            assert isinstance(sample, Sample)
            assert math.isfinite(sample.value), metric.name
            assert sample.value >= 0 or metric.name == "llm_queue_growth_requests_per_second"
            if metric.unit is Unit.RATIO:
                assert sample.value <= 1, metric.name
            if metric.name.endswith(FLAGS):
                assert sample.value in (0, 1), metric.name


@pytest.mark.parametrize("path", PAGES[::7], ids=lambda path: path.name.replace(".metrics.txt", ""))
def test_without_a_fresh_page_everything_of_the_engine_is_stale(path: Path) -> None:
    families = derived(path, scrapes=2, fresh=False)
    told = statuses(families)
    assert {family.metric.name for family in families if family.samples} <= PERSISTENT
    assert set(told.values()) == {Status.STALE}
    assert set(told) == {
        (metric.name, window)
        for metric in METRICS
        if metric.name not in PERSISTENT
        for window in (WINDOWS if "window" in metric.labels else ("",))
    }


def test_a_target_that_never_answered_has_a_state_and_no_counters() -> None:
    families = derive(TargetView(Target(name="t", url="http://t.invalid"), 0.0, EngineStore(), fresh=False, state="unknown"))
    assert {family.metric.name for family in families if family.samples} == {"llm_engine_state"}
