"""All derived signals, in the order of the page. A new family is a line here; a new signal is a line in its family's module."""

from __future__ import annotations

from llm_exporter.readings import FIELD
from llm_exporter.signals import cache, engine, latency, limits, phases, queue, slo, throughput
from llm_exporter.signals.model import Signal

SIGNALS: tuple[Signal, ...] = (
    *engine.SIGNALS,
    *latency.SIGNALS,
    *phases.SIGNALS,
    *throughput.SIGNALS,
    *cache.SIGNALS,
    *queue.SIGNALS,
    *limits.SIGNALS,
    *slo.SIGNALS,
)


def _check() -> None:
    names = [signal.name for signal in SIGNALS]
    twice = {name for name in names if names.count(name) > 1}
    strange = {field for signal in SIGNALS for field in signal.reads if field not in FIELD}
    if twice or strange:
        raise ValueError(f"signals declared twice: {sorted(twice)}; unknown fields read: {sorted(strange)}")


_check()
