"""State of the engine itself: loading, ready, sleeping; restarts and impossible inputs that the store has seen."""

from __future__ import annotations

from llm_exporter.readings import Kind, Unit
from llm_exporter.signals.model import Outcome, Signal, TargetView, known

STATES = ("loading", "ready", "sleeping", "unknown")


def _state(view: TargetView) -> Outcome:
    return Outcome({(state,): float(state == view.state) for state in STATES})


def _restarts(view: TargetView) -> Outcome:
    return known(float(view.store.counted.restarts)) if view.store.latest is not None else Outcome({})


def _anomalies(view: TargetView) -> Outcome:
    return known(float(view.store.counted.anomalies)) if view.store.latest is not None else Outcome({})


# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_engine_state", Unit.FLAG, "1 for the state that the engine is in: loading, ready, sleeping or unknown.", of_target=_state, labels=("state",), bound="state (4)", uses=("awake",)),
    Signal("llm_engine_restarts_total", Unit.COUNT, "Restarts of the engine seen since the exporter started.", of_target=_restarts, kind=Kind.COUNTER, bound="1"),
    Signal("llm_input_anomalies_total", Unit.COUNT, "Impossible inputs seen: values that are negative, no number or beyond 1e30, buckets that fall or hold fractions, more hits than lookups, more models, ranks or label values than are kept.", of_target=_anomalies, kind=Kind.COUNTER, bound="1"),
)
