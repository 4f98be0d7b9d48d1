"""Phases that engines book at different moments: a growing queue must not look like a slow frontend, nor shorten the decode time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llm_exporter.config.model import Target
from llm_exporter.readings import Slot
from llm_exporter.signals.model import Outcome, Status, TargetView
from llm_exporter.signals.phases import SIGNALS, drift_seconds
from llm_exporter.state.store import EngineStore
from readings_made import INF, histogram, of

PHASES = next(signal for signal in SIGNALS if signal.name == "llm_request_phase_mean_seconds")
FRONTEND, DECODE = 0.010, 2.0
EVERY = 5.0


def page(means: Mapping[str, float], count: float) -> dict[Slot, float]:
    """Histograms of `count` observations each; `means` are of their sums."""
    values: dict[Slot, float] = {}
    for field, total in means.items():
        values.update(zip(histogram(field, [1.0, INF]), (0.0, count, total), strict=True))
    return values


def play(wait: float, growth: float, *, vllm: bool) -> Outcome:
    """A minute in which the queue begins at `wait` seconds and grows by `growth` a second; phases lag by the decode time."""
    store, at = EngineStore(), 0.0
    sums = {"time_to_first_token": 0.0, "request_queue_time": 0.0, "request_prefill_time": 0.0}
    sums["request_decode_time" if vllm else "e2e_request_latency"] = 0.0
    for tick in range(13):
        at = EVERY * tick
        if tick:
            first, finished = wait + growth * at, wait + growth * (at - DECODE)
            sums["time_to_first_token"] += 10 * (first + 0.02 + FRONTEND)
            sums["request_queue_time"] += 10 * (finished if vllm else first)
            sums["request_prefill_time"] += 10 * 0.02
            if vllm:
                sums["request_decode_time"] += 10 * DECODE
            else:
                sums["e2e_request_latency"] += 10 * (finished + 0.02 + FRONTEND + DECODE)
        store.add(of(page(sums, 10.0 * tick)), at)
    view = TargetView(Target(name="t", url="http://x:1"), at, store, fresh=True, state="ready").models[0]
    assert PHASES.of_window is not None
    return PHASES.of_window(view, view.window("1m"))


@pytest.mark.parametrize("wait", [0.005, 10.0])
def test_a_steady_queue_leaves_both_rests(wait: float) -> None:
    vllm, sglang = (play(wait, 0.0, vllm=engine) for engine in (True, False))
    assert vllm.values[("frontend",)] == pytest.approx(FRONTEND)
    assert sglang.values[("decode",)] == pytest.approx(DECODE)
    assert vllm.status is None
    assert sglang.status is None


def test_a_growing_queue_is_no_slow_frontend() -> None:
    """By subtraction the frontend would take 0.21 s; it takes 0.01 s."""
    outcome = play(5.0, 0.1, vllm=True)
    assert ("frontend",) not in outcome.values
    assert outcome.status is Status.SKEWED
    assert outcome.values[("queue",)] == pytest.approx(8.05), "what an engine books itself stays"


def test_a_growing_queue_does_not_shorten_the_decode_time() -> None:
    """By subtraction decoding would take 1.6 s; it takes 2 s."""
    outcome = play(5.0, 0.2, vllm=False)
    assert ("decode",) not in outcome.values
    assert outcome.status is Status.SKEWED


def test_too_few_scrapes_tell_no_drift() -> None:
    store = EngineStore()
    for tick in range(3):
        store.add(of(page({"request_queue_time": float(tick**3)}, float(tick))), EVERY * tick)
    assert drift_seconds(store.window("m", "1m", 60.0), "request_queue_time", 10.0) == 0.0


@pytest.mark.parametrize(("aborts", "told"), [(0, True), (1, True), (30, False)])
def test_requests_given_up_in_a_long_queue_take_the_decode_time_away(aborts: int, told: bool) -> None:
    """They are in SGLang's whole latency and not in its time to first token: one in four, with a wait of ten seconds, would halve the rest."""
    store = EngineStore()
    given_up = Slot("requests_finished", "m", "0", "abort")
    for tick, count in enumerate((0.0, 120.0)):
        sums = {"time_to_first_token": 10.03 * count, "e2e_request_latency": 12.03 * count if tick else 0.0}
        store.add(of({**page(sums, count), given_up: float(aborts * tick)}), 60.0 * tick)
    view = TargetView(Target(name="t", url="http://x:1"), 60.0, store, fresh=True, state="ready").models[0]
    assert PHASES.of_window is not None
    outcome = PHASES.of_window(view, view.window("1m"))
    assert (("decode",) in outcome.values) == told
    assert (outcome.status is Status.SKEWED) != told
