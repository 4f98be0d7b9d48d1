"""A rehearsal: one simulated server, played on its own clock through the exporter's whole pipeline, as fast as it goes.

In: a scenario and an engine. Out: what the exporter published, tick by tick, beside the model's truth. No socket, no thread, no sleep: the
clock is passed in. `truth_table.py` and the end-to-end tests of the simulation read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from llm_exporter.config.model import Target
from llm_exporter.daemon.hardware_view import hardware_view
from llm_exporter.daemon.machine import GPU_SOURCES
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared, label_names
from llm_exporter.demo.scenarios import Phase, Scenario
from llm_exporter.demo.simulation import Simulation
from llm_exporter.demo.truth import Truth
from llm_exporter.expose.page import Page
from llm_exporter.hardware import GpuTick, HostTick, SourceState, gpu_reading_from_record, host_reading_from_record
from llm_exporter.metrics import HistogramSample
from llm_exporter.sources.engine import Fetched
from llm_exporter.state.hardware import HardwareState

SCRAPE_SECONDS = 2  # as the demo scrapes
STALL_AFTER = 15.0  # as the demo is configured
_WALL_AT = 1_790_000_000.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_COMMON = frozenset({"target", "engine", "model"})


class Tick(NamedTuple):
    """What stood on the exporter's page after the scrape of model second `at`: gauges and counters as (metric, its own labels…) → value.

    Its own labels are those in the metric's order without target, engine and model; a rehearsal has one of each.
    """

    at: float
    values: Mapping[tuple[str, ...], float]

    def value(self, *series: str) -> float | None:
        """One series; None where it is absent."""
        return self.values.get(series)

    @property
    def verdict(self) -> str:
        """The published cause; "" while there is none."""
        return next((key[1] for key, value in self.values.items() if key[0] == "llm_bottleneck_verdict" and value == 1), "")


class Rehearsal:
    """One simulated server and the exporter's view of it.

    Args:
        scenario: what is played.
        engine: vllm or sglang.
        seed: of all randomness.

    Attributes:
        ticks: what was published, one entry per scrape.
        phases: what the scenario does to this server, and when.
    """

    def __init__(self, scenario: Scenario, engine: str, seed: int = 1) -> None:
        self.simulation = Simulation(engine, scenario, seed=seed, wall_at=_WALL_AT)
        self.phases: tuple[Phase, ...] = scenario.side(engine).phases
        self.ticks: list[Tick] = []
        self._now = 0.0
        target = Target(name="demo", url="http://simulation.invalid")
        self._page = Page(declared(), lambda: self._now)
        self._machine = HardwareState()
        self._machine.configure({target.name: target.gpus})
        self._pipeline = Pipeline(
            target,
            self._page,
            Timing(float(SCRAPE_SECONDS), float(SCRAPE_SECONDS), STALL_AFTER),
            lambda: _WALL_AT + self._now,
            label_names([target]),
            hardware=lambda now, seconds: hardware_view(self._machine, target.name, now, seconds),
        )

    def run(self) -> Rehearsal:
        """Plays the scenario to its end: readers once a second, scrapes every other; returns itself."""
        for second in range(round(self.simulation.scenario.seconds) + 1):
            self._now = float(second)
            self.simulation.advance(self._now)
            self._read_hardware()
            if second % SCRAPE_SECONDS == 0:
                body = self.simulation.metrics_text().encode()
                self._pipeline.take(Fetched(body, _CONTENT_TYPE, 0.01), self._now)
                self.ticks.append(Tick(self._now, self._published()))
        return self

    def truth(self, start: float, end: float) -> Truth:
        """What was true between two seconds."""
        return self.simulation.truth_between(start, end)

    def at(self, second: float) -> Tick:
        """The last tick at or before that second; the first for a time before it."""
        return self.ticks[max(0, min(int(second // SCRAPE_SECONDS), len(self.ticks) - 1))]

    def between(self, start: float, end: float) -> list[Tick]:
        """Ticks from `start` to `end`, both included."""
        return [tick for tick in self.ticks if start <= tick.at <= end]

    def _read_hardware(self) -> None:
        now, up = self._now, SourceState(True)
        gpus = tuple(gpu_reading_from_record(record, at=now) for record in self.simulation.gpu_records())
        self._machine.add_gpus(GpuTick(now, gpus, dict.fromkeys(GPU_SOURCES, up)))
        host = host_reading_from_record(self.simulation.host_record(), target="demo", at=now)
        self._machine.add_hosts(HostTick(now, (host,), {"host": up}))

    def _published(self) -> dict[tuple[str, ...], float]:
        found: dict[tuple[str, ...], float] = {}
        for metric, samples in self._page.families():
            kept = [position for position, name in enumerate(metric.labels) if name not in _COMMON]
            for sample in samples:
                if not isinstance(sample, HistogramSample):
                    found[(metric.name, *(sample.labels[position] for position in kept))] = sample.value
        return found
