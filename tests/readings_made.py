"""Readings made by hand, for tests of memory and signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_exporter.readings import EngineReading, Layout, Slot

INF = float("inf")


def scalar(field: str, *, rank: str = "0", label: str = "", model: str = "m") -> Slot:
    return Slot(field, model, rank, label)


def histogram(field: str, bounds: Sequence[float], *, rank: str = "0", model: str = "m") -> list[Slot]:
    """Slots of one histogram: buckets (the last bound is +inf), then the sum."""
    return [*(Slot(field, model, rank, "", "bucket", b) for b in bounds), Slot(field, model, rank, "", "sum")]


def layout(slots: Sequence[Slot]) -> Layout:
    return Layout(slots, {}, {})


def reading(shape: Layout, values: Sequence[float], *, engine: str = "vllm", anomalies: Mapping[str, int] | None = None) -> EngineReading:
    return EngineReading(engine, shape, list(values), anomalies or {})


def of(values: Mapping[Slot, float]) -> EngineReading:
    """A reading with a layout of its own."""
    return reading(layout(list(values)), list(values.values()))
