"""The exporter's metrics about itself, through prometheus_client: tasks by outcome, reloads, build, process.

The only place that counts what our own code did. A small object is passed to those who count, so that no room to the left imports this one.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, PlatformCollector, ProcessCollector

from llm_exporter import __version__
from llm_exporter.metrics import Metric
from llm_exporter.readings import Kind, Unit

OUTCOMES = ("ok", "failed", "missed", "overlapped")

BUILD = Metric("llm_exporter_build_info", Kind.GAUGE, Unit.INFO, "Version of the exporter.", ("version", "python_version"), "1")
TASKS = Metric(
    "llm_exporter_tasks_total",
    Kind.COUNTER,
    Unit.COUNT,
    "Runs of the exporter's own tasks; overlapped: not started since the run before was still going; missed: its time had passed.",
    ("task", "outcome"),
    "tasks (7) × outcomes (4)",
)
RELOAD_OK = Metric(
    "llm_exporter_config_last_reload_successful", Kind.GAUGE, Unit.FLAG, "1 if the last load of the configuration succeeded.", (), "1"
)
RELOADED_AT = Metric(
    "llm_exporter_config_last_reload_success_timestamp_seconds",
    Kind.GAUGE,
    Unit.TIMESTAMP,
    "Wall time of the last successful load of the configuration.",
    (),
    "1",
)
# Beside these the registry has prometheus_client's own process_*, python_info and python_gc_*.
METRICS: tuple[Metric, ...] = (BUILD, TASKS, RELOAD_OK, RELOADED_AT)


def _declared(metric: Metric) -> tuple[str, str, tuple[str, ...]]:
    return metric.name, metric.help, metric.labels


class Telemetry:
    """Own metrics in a registry of their own (never the global one: tests run many exporters in one process)."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        Gauge(*_declared(BUILD), registry=self.registry).labels(__version__, platform.python_version()).set(1)
        self._tasks = Counter(*_declared(TASKS), registry=self.registry)
        self._reload_ok = Gauge(*_declared(RELOAD_OK), registry=self.registry)
        self._reloaded_at = Gauge(*_declared(RELOADED_AT), registry=self.registry)

    def declare_task(self, task: str) -> None:
        """Starts all outcomes of a task at 0: `increase()` never sees a series born at 1."""
        for outcome in OUTCOMES:
            self._tasks.labels(task, outcome)

    def count(self, task: str, outcome: str, n: int = 1) -> None:
        """Counts n runs of `task` with one of OUTCOMES."""
        self._tasks.labels(task, outcome).inc(n)

    @contextmanager
    def counted(self, task: str) -> Iterator[None]:
        """Counts the block as ok, or as failed when it raises; the error goes on."""
        try:
            yield
        except BaseException:
            self.count(task, "failed")
            raise
        self.count(task, "ok")

    def reloaded(self, *, ok: bool) -> None:
        """Notes the result of a load of the configuration."""
        self._reload_ok.set(float(ok))
        if ok:
            self._reloaded_at.set(time.time())
