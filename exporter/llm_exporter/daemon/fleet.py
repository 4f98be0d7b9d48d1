"""The running targets: starts, keeps and retires them as configuration and discovery say.

A target whose settings did not change keeps its thread, its connection and its windows, also where the interval is another; every other
one starts anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from llm_exporter.config.model import Target
from llm_exporter.daemon.clients import client_for
from llm_exporter.daemon.loop import Loop, first_offset
from llm_exporter.daemon.machine import Machine
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import label_names
from llm_exporter.expose.page import Page
from llm_exporter.sources.engine import read_version, scrape
from llm_exporter.sources.http import Client

# After a failure to learn the engine's version, ask again this much later: it costs SGLang's scheduler a moment.
VERSION_RETRY_SECONDS = 600.0
VERSION_TIMEOUT_SECONDS = 5.0


@dataclass(slots=True)
class Running:
    """One target that is scraped."""

    pipeline: Pipeline
    client: Client
    loop: Loop
    version_due: float = 0.0


class Fleet:
    """All running targets. `apply` is called by one thread at a time; reading is free.

    Args:
        page: where targets publish.
        count: told (task, outcome, n).
        wall: wall clock.
        machine: GPUs and host; None where targets are watched by their pages alone.
    """

    def __init__(
        self,
        page: Page,
        count: Callable[[str, str, int], None],
        wall: Callable[[], float] = time.time,
        machine: Machine | None = None,
    ) -> None:
        self._page = page
        self._count = count
        self._wall = wall
        self._machine = machine
        self._running: dict[str, Running] = {}
        self._lock = threading.Lock()

    @property
    def running(self) -> Mapping[str, Running]:
        """By name, in the order of the configuration; a snapshot."""
        with self._lock:
            return dict(self._running)

    def apply(self, targets: Iterable[Target], timing: Timing) -> None:
        """Makes the running targets those of `targets`."""
        wanted = {target.name: target for target in targets}
        labels = label_names(wanted.values())
        before = self.running
        kept, started = {}, {}
        for name, target in wanted.items():
            old = before.get(name)
            if old is not None and old.pipeline.target == target:
                old.pipeline.timing, old.pipeline.extra_labels = timing, labels
                old.loop.retime(timing.interval)
                kept[name] = old
            else:
                if old is not None:
                    old.pipeline.retire(replaced=True)
                started[name] = self._make(target, timing, labels)
        for name, old in before.items():
            if name not in kept:
                if name not in wanted:
                    old.pipeline.retire()
                # nobody waits for a scrape in flight: closing ends it, and a retired pipeline publishes nothing
                old.loop.stop()
                old.client.close()
        with self._lock:
            self._running = {name: kept.get(name) or started[name] for name in wanted}
        for fresh in started.values():
            fresh.loop.start()

    def stop(self, timeout: float) -> None:
        """Ends all loops; waits up to `timeout` seconds in all."""
        until = time.monotonic() + timeout
        running = self.running.values()
        for one in running:
            one.loop.stop()
            one.client.close()
        for one in running:
            one.loop.stop(max(0.0, until - time.monotonic()))

    def _make(self, target: Target, timing: Timing, labels: tuple[str, ...]) -> Running:
        pipeline = Pipeline(target, self._page, timing, self._wall, labels)
        machine = self._machine
        if machine is not None:
            pipeline.process_lives = lambda: machine.process_lives(target.name)
            pipeline.hardware = lambda now, seconds: machine.view(target.name, now, seconds)
        client = client_for(target)
        running: Running

        def tick(now: float) -> None:
            scraped = scrape(client, target.metrics_path, timeout=pipeline.timing.timeout, clock=time.monotonic)
            pipeline.take(scraped, now)
            self._learn_version(running, now)

        loop = Loop(
            f"target {target.name}",
            tick,
            timing.interval,
            lambda outcome, n: self._count("scrape", outcome, n),
            offset=first_offset(target.name, min(timing.interval, 5.0)),
            at_end=client.close,
        )
        running = Running(pipeline, client, loop)
        pipeline.publish(time.monotonic(), fresh=False)
        return running

    def _learn_version(self, running: Running, now: float) -> None:
        status = running.pipeline.status
        if not status.up or status.engine == "unknown" or status.engine_version or now < running.version_due:
            return
        running.version_due = now + VERSION_RETRY_SECONDS
        version = read_version(running.client, status.engine, timeout=min(VERSION_TIMEOUT_SECONDS, running.pipeline.timing.timeout))
        if version:
            running.pipeline.status = replace(status, engine_version=version)
            running.version_due = 0.0
