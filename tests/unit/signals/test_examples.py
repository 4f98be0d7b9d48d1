"""The worked examples of the design that belong to signals from the engine alone: our own functions must give the values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_exporter.config.model import Target
from llm_exporter.signals.cache import SIGNALS as CACHE
from llm_exporter.signals.model import Outcome, TargetView
from llm_exporter.signals.phases import SIGNALS as PHASES
from llm_exporter.signals.phases import population_skew, ttft_residual
from llm_exporter.signals.queue import SIGNALS as QUEUE
from llm_exporter.signals.queue import theil_sen_slope
from llm_exporter.state.store import EngineStore
from llm_exporter.state.window import HistogramIncrease
from readings_made import INF, histogram, layout, of, reading, scalar

EXAMPLES: Mapping[str, dict[str, Any]] = {
    e["id"]: e for e in yaml.safe_load((Path(__file__).parents[2] / "fixtures" / "signals" / "examples.yaml").read_text())["examples"]
}


def increase(d_sum: float, n: float) -> HistogramIncrease:
    return HistogramIncrease((1.0, INF), (0.0, n), d_sum)


def view_of(*pages: tuple[float, dict[Any, float]]) -> TargetView:
    store = EngineStore()
    at = 0.0
    for at, values in pages:
        store.add(of(values), at)
    return TargetView(Target(name="t", url="http://x:1"), at, store, fresh=True, state="ready")


def outcome(signals: Any, name: str, view: TargetView, window: str = "5m") -> Outcome:
    signal = next(s for s in signals if s.name == name)
    model = view.models[0]
    if signal.of_window is not None:
        return signal.of_window(model, model.window(window))  # type: ignore[no-any-return]
    return signal.of_model(model)  # type: ignore[no-any-return]


def hist_mean(d_sum: float, d_count: float) -> float | None:
    return increase(d_sum, d_count).mean


def residual(
    ttft_sum: float, ttft_n: float, q_sum: float, q_n: float, p_sum: float, p_n: float, extra: float | None = None
) -> float | None:
    parts = [increase(q_sum, q_n), increase(p_sum, p_n)]
    if extra is not None:
        parts.append(increase(extra * ttft_n, ttft_n))
    return ttft_residual(increase(ttft_sum, ttft_n), parts)


def hit_ratio(hits: float, queries: float) -> float | None:
    h, q = scalar("prefix_cache_hit_tokens"), scalar("prefix_cache_queried_tokens")
    got = outcome(CACHE, "llm_prefix_cache_hit_ratio", view_of((0, {h: 0, q: 0}), (60, {h: hits, q: queries})))
    return got.values.get(())


def offered_rate(d_first: float, d_waiting: float, w: float) -> float:
    first, waiting = scalar("first_tokens"), scalar("requests_waiting")
    got = outcome(
        QUEUE, "llm_offered_requests_per_second", view_of((0, {first: 0, waiting: 5}), (w, {first: d_first, waiting: 5 + d_waiting}))
    )
    return got.values[()]


def arrival_wait(waiting_now: float, starts_rate: float) -> float:
    first, waiting = scalar("first_tokens"), scalar("requests_waiting_capacity")
    view = view_of((0, {first: 0, waiting: 0}), (60, {first: 60 * starts_rate, waiting: waiting_now}))
    return outcome(QUEUE, "llm_queue_wait_estimate_seconds", view).values[()]


def device_timer_share(extend: float, decode: float) -> float:
    e, d, i = (scalar("forward_execution_seconds", label=c) for c in ("extend", "decode", "idle"))
    view = view_of((0, {e: 0, d: 0, i: 0}), (60, {e: extend, d: decode, i: 9.0}))
    return outcome(PHASES, "llm_prefill_time_share_ratio", view).values[("device_timer",)]


def sglang_decode(ttft: float, queue: float, e2e: float) -> dict[str, float]:
    store = EngineStore()
    fields = {"time_to_first_token": ttft, "request_queue_time": queue, "e2e_request_latency": e2e}
    shape = layout([slot for field in fields for slot in histogram(field, [100.0, INF])])
    store.add(reading(shape, [0.0] * 9, engine="sglang"), 0)
    store.add(reading(shape, [v for mean in fields.values() for v in (10.0, 10.0, 10 * mean)], engine="sglang"), 60)
    view = TargetView(Target(name="t", url="http://x:1"), 60, store, fresh=True, state="ready")
    return {"decode": outcome(PHASES, "llm_request_phase_mean_seconds", view).values[("decode",)]}


def classic_quantile(q: float, bounds: list[float], cum: list[float]) -> float | None:
    got = HistogramIncrease(tuple(bounds), tuple(cum), None).quantile(q)
    return None if got is None else got.value


# The prefill fallback of s1-sglang-fallback is left out on purpose: it holds the frontend's time too, and would look like a measurement.
OURS: Mapping[str, Callable[..., Any]] = {
    "s1-mean-ttft": hist_mean,
    "s1-mean-empty": hist_mean,
    "s1-residual-vllm": residual,
    "s1-residual-sglang": residual,
    "s1-sglang-fallback": sglang_decode,
    "s1-population-skew": lambda n_first, n_finished: population_skew([n_first, n_finished]),
    "s1-device-timer": device_timer_share,
    "s2-hit-ratio": hit_ratio,
    "s2-hit-ratio-empty": hit_ratio,
    "s2-token-weighted": hit_ratio,
    "s3-offered": offered_rate,
    "s3-arrival-wait": arrival_wait,
    "s6-interp": classic_quantile,
    "s6-censored": classic_quantile,
}


@pytest.mark.parametrize("name", OURS)
def test_worked_example(name: str) -> None:
    example = EXAMPLES[name]
    got = OURS[name](**example["args"])
    expected = example["expect"]
    if isinstance(expected, dict):
        expected = {key: expected[key] for key in got}
    assert got == (None if expected is None else pytest.approx(expected, abs=example.get("tol", 0) + 1e-12))


def test_a_negative_rest_is_no_measurement() -> None:
    assert ttft_residual(increase(10.0, 100), [increase(20.0, 100), increase(1.0, 100)]) is None


def test_skewed_populations_are_not_subtracted() -> None:
    store = EngineStore()
    fields = ("time_to_first_token", "request_queue_time", "request_prefill_time", "request_decode_time")
    shape = layout([slot for field in fields for slot in histogram(field, [100.0, INF])])
    store.add(reading(shape, [0.0] * 12), 0)
    store.add(reading(shape, [150, 150, 105.0, *(120, 120, 24.0), *(120, 120, 42.0), *(120, 120, 60.0)]), 60)
    view = TargetView(Target(name="t", url="http://x:1"), 60, store, fresh=True, state="ready")
    got = outcome(PHASES, "llm_request_phase_mean_seconds", view)
    assert ("frontend",) not in got.values
    assert got.values[("queue",)] == pytest.approx(0.2)
    assert got.status == "skewed"


def test_theil_sen_ignores_one_spike() -> None:
    points = [(float(i), 2.0 * i) for i in range(14)]
    points[5] = (5.0, 300.0)
    assert theil_sen_slope(points) == pytest.approx(2.0)


def test_theil_sen_of_many_points_keeps_its_slope() -> None:
    assert theil_sen_slope([(float(i), 3.0 * i) for i in range(1000)]) == pytest.approx(3.0)


def test_no_wait_is_invented_when_nothing_starts() -> None:
    first, waiting = scalar("first_tokens"), scalar("requests_waiting_capacity")
    got = outcome(QUEUE, "llm_queue_wait_estimate_seconds", view_of((0, {first: 5, waiting: 3}), (60, {first: 5, waiting: 3})))
    assert got.values == {}
    assert got.status == "no_traffic"


def test_an_empty_queue_means_no_wait_even_without_traffic() -> None:
    first, waiting = scalar("first_tokens"), scalar("requests_waiting_capacity")
    got = outcome(QUEUE, "llm_queue_wait_estimate_seconds", view_of((0, {first: 5, waiting: 0}), (60, {first: 5, waiting: 0})))
    assert got.values == {(): 0.0}
