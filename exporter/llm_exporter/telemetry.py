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

OUTCOMES = ("ok", "failed", "missed", "overlapped")


class Telemetry:
    """Own metrics in a registry of their own (never the global one: tests run many exporters in one process)."""

    def __init__(self) -> None:
        prometheus_client.disable_created_metrics()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        build = Gauge("llm_exporter_build_info", "Version of the exporter.", ["version", "python_version"], registry=self.registry)
        build.labels(__version__, platform.python_version()).set(1)
        self._tasks = Counter(
            "llm_exporter_tasks_total",
            "Runs of the exporter's own tasks; overlapped: not started since the run before was still going; missed: its time had passed.",
            ["task", "outcome"],
            registry=self.registry,
        )
        self._reload_ok = Gauge(
            "llm_exporter_config_last_reload_successful", "1 if the last load of the configuration succeeded.", registry=self.registry
        )
        self._reloaded_at = Gauge(
            "llm_exporter_config_last_reload_success_timestamp_seconds",
            "Wall time of the last successful load of the configuration.",
            registry=self.registry,
        )

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
