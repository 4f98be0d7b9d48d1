"""Service level objectives as counters: requests counted, and requests within the threshold, from the engine's own buckets.

An objective can only be measured at a bucket's edge. The highest edge not above the threshold is used, and said, so that "good" is never too
kind. Rates and burn are for recording rules, which read these counters.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_exporter.config.model import Slo
from llm_exporter.readings import Kind, Unit
from llm_exporter.signals.model import NOTHING, ModelDerivation, ModelView, Outcome, Signal, Status
from llm_exporter.state.table import HistogramColumns

# Edges are floats that went through text; thresholds come from the user's "1s".
EDGE_TOLERANCE = 1e-9


def effective_edge(columns: HistogramColumns, threshold: float) -> int | None:
    """Position among the bounds of the highest edge ≤ threshold; None where even the lowest is above."""
    found = [i for i, bound in enumerate(columns.bounds[:-1]) if bound <= threshold * (1 + EDGE_TOLERANCE)]
    return found[-1] if found else None


def is_edge(columns: HistogramColumns, threshold: float) -> bool:
    """Whether the threshold itself is a bucket's edge."""
    at = effective_edge(columns, threshold)
    return at is not None and abs(columns.bounds[at] - threshold) <= threshold * EDGE_TOLERANCE


def _per_slo(pick: Callable[[ModelView, Slo, HistogramColumns], float | None], *, by_edge: bool = True) -> ModelDerivation:
    """`by_edge`: whether the value depends on where the buckets' edges are."""

    def derive(view: ModelView) -> Outcome:
        slos = view.target.config.slos
        if not slos:
            return NOTHING
        values: dict[tuple[str, ...], float] = {}
        status: Status | None = None
        for slo in slos:
            columns = view.columns(slo.metric)
            if columns is None:
                absence = view.absence(slo.metric)
                status = Status(absence.value) if absence is not None else Status.NOT_EXPOSED
                continue
            if by_edge and not is_edge(columns, slo.threshold):
                status = status or Status.THRESHOLD_NOT_AN_EDGE
            picked = pick(view, slo, columns)
            if picked is not None:
                values[(slo.name,)] = picked
        return Outcome(values, status)

    return derive


def _requests(view: ModelView, _: Slo, columns: HistogramColumns) -> float:
    return view.merged.published[columns.count_at]


def _good(view: ModelView, slo: Slo, columns: HistogramColumns) -> float | None:
    at = effective_edge(columns, slo.threshold)
    return None if at is None else view.merged.published[columns.first + at]


def _effective(_: ModelView, slo: Slo, columns: HistogramColumns) -> float | None:
    at = effective_edge(columns, slo.threshold)
    return None if at is None else columns.bounds[at]


_U = ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
_B = "SLOs of the target, per model"

# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_slo_requests_total", Unit.REQUESTS, "Requests that the objective's histogram has counted.", of_model=_per_slo(_requests, by_edge=False), labels=("slo",), uses=_U, kind=Kind.COUNTER, bound=_B),
    Signal("llm_slo_good_requests_total", Unit.REQUESTS, "Of those, requests within the effective threshold.", of_model=_per_slo(_good), labels=("slo",), uses=_U, kind=Kind.COUNTER, bound=_B),
    Signal("llm_slo_threshold_seconds", Unit.SECONDS, "Threshold as configured.", of_model=_per_slo(lambda _view, slo, _columns: slo.threshold, by_edge=False), labels=("slo",), uses=_U, bound=_B),
    Signal("llm_slo_effective_threshold_seconds", Unit.SECONDS, "Threshold as measured: the highest bucket edge not above the configured one.", of_model=_per_slo(_effective), labels=("slo",), uses=_U, bound=_B),
    Signal("llm_slo_objective_ratio", Unit.RATIO, "Share of requests that must be good.", of_model=_per_slo(lambda _view, slo, _columns: slo.objective, by_edge=False), labels=("slo",), uses=_U, bound=_B),
)
