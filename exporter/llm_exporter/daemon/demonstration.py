"""The demo as a whole: simulated servers, GPUs and host in front of the real daemon, which scrapes and probes them over real HTTP.

Used by `llm-exporter demo` and by end-to-end tests. Nothing but the readings of GPU and host is short-circuited: those come from the same
model that answers the requests, so that verdicts have causes.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from llm_exporter.daemon.daemon import Daemon
from llm_exporter.daemon.machine import GPU_SOURCES, Machine
from llm_exporter.demo.live import Pacer
from llm_exporter.demo.scenarios import Scenario
from llm_exporter.demo.server import EngineServer
from llm_exporter.demo.simulation import Simulation
from llm_exporter.expose.page import Page
from llm_exporter.hardware import (
    GpuReading,
    GpuTick,
    HostTick,
    SourceState,
    gpu_reading_from_record,
    host_reading_from_record,
)
from llm_exporter.sources.processes import ProcessSearch

ENGINES = ("vllm", "sglang")
FIRST_PID = 4101
PIDS_APART = 100

CONFIG_HEAD = """\
# The configuration of the demo. Real ones look the same; see llm-exporter.example.yml.
global: {scrape_interval: 2s, scrape_timeout: 5s}
stall: {after: 15s}
probe_modules:
  short: {interval: 10s, timeout: 8s, prompt_tokens: 64, max_tokens: 8, cache: cold}
targets:
"""
CONFIG_TARGET = """\
  - name: {name}
    url: {url}
    service: {service}
    probes: [short]
    gpus: [{gpu}]
    gpu_cost_per_hour: 2.5
    slos: [{{name: ttft, metric: time_to_first_token, threshold: 1s, objective: 0.99}}]
"""


class SimulatedReaders:
    """Stands in for NVML and /proc: readings of all simulated servers, from their own models."""

    def __init__(self, servers: Sequence[tuple[str, Simulation]], pacer: Pacer) -> None:
        self._servers = tuple(servers)
        self._pacer = pacer

    def read_gpus(self, now: float) -> GpuTick:
        """All simulated GPUs."""
        with self._pacer.lock:
            self._advance()
            records = [record for _, simulation in self._servers for record in simulation.gpu_records()]
        up = SourceState(True)
        readings = tuple(gpu_reading_from_record(record, at=now) for record in records)
        return GpuTick(now, readings, dict.fromkeys(GPU_SOURCES, up))

    def _advance(self) -> None:
        for _, simulation in self._servers:
            simulation.advance(self._pacer.now())

    def read_hosts(self, now: float) -> HostTick:
        """The simulated processes of all servers."""
        with self._pacer.lock:
            self._advance()
            records = [(name, simulation.host_record()) for name, simulation in self._servers]
        readings = tuple(host_reading_from_record(record, target=name, at=now) for name, record in records)
        return HostTick(now, readings, {"host": SourceState(True)})


class _Gpus:
    def __init__(self, readers: SimulatedReaders) -> None:
        self._readers = readers

    def tick(self, now: float) -> GpuTick:
        return self._readers.read_gpus(now)

    def close(self) -> None:
        """Nothing to let go of."""


class _Hosts:
    def __init__(self, readers: SimulatedReaders) -> None:
        self._readers = readers

    def tick(self, now: float, searches: Sequence[ProcessSearch], gpus: Sequence[GpuReading] = ()) -> HostTick:  # noqa: ARG002 — the reader's interface
        return self._readers.read_hosts(now)


class Demonstration:
    """Simulated servers and the exporter on them.

    Args:
        scenarios: one pair of servers (a vLLM and a SGLang) each.
        engines: which of the pair.
        speed: model seconds per second; 1 is real time.
    """

    def __init__(self, scenarios: Sequence[Scenario], engines: Sequence[str] = ENGINES, speed: float = 1.0) -> None:
        several = len(scenarios) > 1
        pairs = self.pairs(scenarios, engines)
        wall = time.time()
        self.simulations: dict[str, Simulation] = {}
        for number, (scenario, engine) in enumerate(pairs):
            name = f"{engine}-{scenario.name}" if several else f"demo-{engine}"
            pid = FIRST_PID + PIDS_APART * number
            self.simulations[name] = Simulation(engine, scenario, wall_at=wall, gpu_index=number, pid=pid)
        self.pacer = Pacer(tuple(self.simulations.values()), speed=speed)
        self.servers = {name: EngineServer(simulation, self.pacer) for name, simulation in self.simulations.items()}
        self._folder = tempfile.TemporaryDirectory(prefix="llm-exporter-demo-")
        self.config_file = Path(self._folder.name) / "llm-exporter.yml"
        self.config_file.write_text(self.config_text())
        readers = SimulatedReaders(tuple(self.simulations.items()), self.pacer)

        def machine(page: Page, count: Callable[[str, str, int], None]) -> Machine:
            return Machine(page, count, _Gpus(readers), _Hosts(readers))

        self.daemon = Daemon(self.config_file, {}, machine=machine)

    def pairs(self, scenarios: Sequence[Scenario], engines: Sequence[str]) -> list[tuple[Scenario, str]]:
        """Which server plays what, in the order of the GPUs."""
        return [(scenario, engine) for scenario in scenarios for engine in engines]

    def config_text(self) -> str:
        """The configuration that the exporter runs with."""
        targets = [
            CONFIG_TARGET.format(name=name, url=server.url, service=self.simulations[name].scenario.name, gpu=number)
            for number, (name, server) in enumerate(self.servers.items())
        ]
        return CONFIG_HEAD + "".join(targets)

    def start(self) -> None:
        """Starts servers, models and exporter."""
        for server in self.servers.values():
            server.start()
        self.pacer.start()
        self.daemon.start()

    def stop(self) -> None:
        """Ends everything and removes the configuration."""
        self.daemon.stop()
        for server in self.servers.values():
            server.stop()
        self.pacer.stop()
        self._folder.cleanup()
