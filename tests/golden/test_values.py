"""Every value of the golden page, worked out a second time from the raw pages.

`oracle.py` reads the raw pages with prometheus_client and plain rules; the formulas below are those of PromQL and of SIGNALS, written again.
A sample of an engine's metric that is not worked out here, and is not in ELSEWHERE, fails the test; so does one that is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from statistics import median
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from golden.recordings import SGLANG, VLLM, Pages
from golden.test_page import CONFIG
from llm_exporter.config.load import load_config
from llm_exporter.readings import FIELD
from unit.engines import oracle

# verdict and evidence have worked examples of their own (tests/unit/signals); the target's own metrics and statuses have tests beside them
ELSEWHERE = ("llm_bottleneck_", "llm_gpu_", "llm_target_", "llm_signal_status")
WINDOWS = {"1m": 60.0, "5m": 300.0}
QUANTILES = (0.5, 0.9, 0.95, 0.99)
BY_LABEL = {"requests_finished": "outcome", "requests_rejected": "reason", "http_responses": "code"}
NOT_PUBLISHED = {"engine", "model", "target"}

Key = tuple[str, tuple[tuple[str, str], ...]]
Expected = dict[Key, float]


def key(name: str, **labels: object) -> Key:
    return name, tuple(sorted((label, str(float(str(value)) if label == "le" else value)) for label, value in labels.items()))


def canonical(right: Mapping[str, Any]) -> Expected:
    """The cumulative half of the page: the last raw page."""
    found: Expected = {}
    for field, value in right.items():
        metric = FIELD[field].metric
        if not metric or value is None:
            continue
        if field in BY_LABEL:
            found |= {key(metric, **{BY_LABEL[field]: label}): count for label, count in value.items()}
        elif isinstance(value, dict):
            buckets = value["buckets"]
            found |= {key(f"{metric}_bucket", le=le): count for le, count in buckets.items()}
            found |= {key(f"{metric}_count"): buckets[float("inf")], key(f"{metric}_sum"): value["sum"]}
        else:
            found[key(metric)] = value
    return found


class Increase:
    """What happened between the first and the last page of a window."""

    def __init__(self, pages: list[tuple[int, dict[str, Any]]], seconds: float) -> None:
        self.inside = [(at, right) for at, right in pages if at >= pages[-1][0] - seconds]
        self.first, self.last = self.inside[0][1], self.inside[-1][1]
        self.seconds = float(self.inside[-1][0] - self.inside[0][0])

    def counter(self, field: str) -> float:
        return float(self.last[field] - (self.first[field] or 0.0))

    def histogram(self, field: str) -> tuple[dict[float, float], float] | None:
        if self.last.get(field) is None:
            return None
        before = self.first.get(field) or {"buckets": {}, "sum": 0.0}
        buckets = {le: count - before["buckets"].get(le, 0.0) for le, count in self.last[field]["buckets"].items()}
        return buckets, self.last[field]["sum"] - before["sum"]

    def count(self, field: str) -> float:
        gained = self.histogram(field)
        assert gained is not None
        return gained[0][float("inf")]

    def mean(self, field: str) -> float:
        gained = self.histogram(field)
        assert gained is not None
        return gained[1] / gained[0][float("inf")]


def promql_quantile(q: float, buckets: dict[float, float]) -> tuple[float, bool, float]:
    """(value, saturated, width of the bucket) as histogram_quantile has them."""
    bounds = sorted(buckets)
    rank = q * buckets[bounds[-1]]
    below, low = 0.0, 0.0
    for bound in bounds[:-1]:
        if buckets[bound] >= rank:
            return low + (bound - low) * (rank - below) / (buckets[bound] - below), False, bound - low
        below, low = buckets[bound], bound
    return low, True, 0.0


def windowed(window: str, gained: Increase) -> Expected:
    """The derived half that has the label window."""
    found: Expected = {}

    def add(name: str, value: float, **labels: object) -> None:
        found[key(f"llm_{name}", window=window, **labels)] = value

    for field in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        histogram = gained.histogram(field)
        assert histogram is not None
        add(f"{field}_mean_seconds", gained.mean(field))
        for q in QUANTILES:
            value, saturated, width = promql_quantile(q, histogram[0])
            add(f"{field}_quantile_seconds", value, q=q)
            if field == "time_to_first_token":
                add(f"{field}_quantile_saturated", float(saturated), q=q)
                if not saturated:
                    add(f"{field}_quantile_error_seconds", width, q=q)
    add("first_tokens_in_window", gained.count("time_to_first_token"))
    add("inter_token_gaps_in_window", gained.count("inter_token_latency"))
    add("requests_finished_in_window", gained.count("e2e_request_latency"))
    for name, field in (("prefill", "prompt_tokens_computed"), ("prompt", "prompt_tokens"), ("generation", "generation_tokens")):
        add(f"{name}_tokens_per_second", gained.counter(field) / gained.seconds)
    add("prefix_cache_hit_ratio", gained.counter("prefix_cache_hit_tokens") / gained.counter("prefix_cache_queried_tokens"))
    waiting = [(at, right["requests_waiting"]) for at, right in gained.inside]
    add("offered_requests_per_second", (gained.counter("first_tokens") + waiting[-1][1] - waiting[0][1]) / gained.seconds)
    add("queue_growth_requests_per_second", median((b - a) / (s - r) for (r, a), (s, b) in combinations(waiting, 2)))
    phases = {phase: f"request_{phase}_time" for phase in ("queue", "prefill", "decode") if gained.last.get(f"request_{phase}_time")}
    for phase, field in phases.items():
        add("request_phase_mean_seconds", gained.mean(field), phase=phase)
    # the frontend's part would subtract means of different requests here: more than a tenth of them differ
    counts = [gained.count("time_to_first_token"), gained.count("request_queue_time"), gained.count("request_prefill_time")]
    assert min(counts) < 0.9 * max(counts)
    if "decode" in phases:
        prefill, decode = (gained.mean(field) * gained.count(field) for field in ("request_prefill_time", "request_decode_time"))
        add("prefill_time_share_ratio", prefill / (prefill + decode), method="request_time")
    elif window == "1m":  # SGLang: streams' whole latency less time to first token; over five minutes the queue changes too much for that
        rest = gained.mean("streamed_request_latency") - gained.mean("time_to_first_token")
        add("request_phase_mean_seconds", rest, phase="decode")
        prefill, decode = gained.mean("request_prefill_time") * counts[2], rest * gained.count("e2e_request_latency")
        add("prefill_time_share_ratio", prefill / (prefill + decode), method="request_time")
    return found


def of_now(pages: list[tuple[int, dict[str, Any]]], limit: float | None) -> Expected:
    """The derived rest."""
    minute, last = Increase(pages, 60.0), pages[-1][1]
    waits = [right["requests_waiting_capacity"] > 0 for _, right in minute.inside]
    found = {
        key("llm_queue_wait_estimate_seconds"): last["requests_waiting_capacity"] * minute.seconds / minute.counter("first_tokens"),
        key("llm_saturation_ratio", limit="kv_cache"): last["kv_cache_usage"],
        key("llm_saturation_ratio", limit="queue"): sum(waits) / len(waits),
        key("llm_engine_restarts_total"): 0.0,
        key("llm_input_anomalies_total"): 0.0,
        key("llm_engine_stalled"): 0.0,
    }
    if limit is not None:
        found[key("llm_saturation_ratio", limit="batch")] = last["requests_running"] / limit
    if last.get("prefix_cache_enabled") is not None:
        found[key("llm_prefix_cache_enabled")] = last["prefix_cache_enabled"]
    return found | {key("llm_engine_state", state=state): float(state == "ready") for state in ("loading", "ready", "sleeping", "unknown")}


def slo(name: str, threshold: float, objective: float, histogram: Mapping[str, Any]) -> Expected:
    edge = max(le for le in histogram["buckets"] if le <= threshold)
    values = {
        "threshold_seconds": threshold,
        "effective_threshold_seconds": edge,
        "objective_ratio": objective,
        "good_requests_total": histogram["buckets"][edge],
        "requests_total": histogram["buckets"][float("inf")],
    }
    return {key(f"llm_slo_{what}", slo=name): value for what, value in values.items()}


@pytest.mark.parametrize(("target", "raw", "read"), [("chat", VLLM, oracle.vllm), ("code", SGLANG, oracle.sglang)], ids=["vllm", "sglang"])
def test_every_value_is_the_raw_pages(target: str, raw: Pages, read: Callable[[oracle.RawPage], dict[str, Any]]) -> None:
    pages = [(second, read(oracle.RawPage(path.read_text()))) for second, path in raw]
    config = next(t for t in load_config(CONFIG, {}).targets if t.name == target)
    expected = canonical(pages[-1][1]) | of_now(pages, config.limits.running)
    for window, seconds in WINDOWS.items():
        expected |= windowed(window, Increase(pages, seconds))
    for one in config.slos:
        expected |= slo(one.name, one.threshold, one.objective, pages[-1][1][one.metric])

    text = (CONFIG.parent / "metrics.prom").read_text()
    published = {
        key(sample.name, **{label: value for label, value in sample.labels.items() if label not in NOT_PUBLISHED}): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels["target"] == target and not sample.name.startswith(ELSEWHERE)
    }
    assert sorted(published.keys() ^ expected.keys()) == []
    wrong = {
        name: (value, expected[name]) for name, value in published.items() if value != pytest.approx(expected[name], rel=1e-9, abs=1e-12)
    }
    assert not wrong
