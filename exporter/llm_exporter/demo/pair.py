"""The pair of servers that `llm-exporter demo` shows: simulations, their HTTP servers, one pacer, GPUs and hosts.

The command line starts it, gives the URLs to the exporter as targets, and hands the readings to it in place of NVML and
/proc.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from llm_exporter.demo.live import Pacer
from llm_exporter.demo.scenarios import Phase, Scenario
from llm_exporter.demo.server import EngineServer
from llm_exporter.demo.simulation import Simulation
from llm_exporter.demo.truth import Truth
from llm_exporter.hardware import GpuReading, HostReading, gpu_reading_from_record, host_reading_from_record

NAMES = {"vllm": "chat", "sglang": "search"}


class Member(NamedTuple):
    """One server of the pair: `name` is the target's name, `gpus` are indexes of its cards."""

    name: str
    engine: str
    url: str
    gpus: tuple[str, ...]
    simulation: Simulation


class Pair:
    """One simulated vLLM ("chat") and one simulated SGLang ("search") on loopback ports.

    Args:
        scenario: what is played.
        ports: of the two servers; 0 for ones that the kernel chooses.
        releases: versions to speak as, newest by default.
        seed: of all randomness.
        speed: model seconds per second.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        ports: Sequence[int] = (0, 0),
        releases: Sequence[str] = ("", ""),
        seed: int = 1,
        speed: float = 1.0,
    ) -> None:
        self.scenario = scenario
        wall_at = time.time()
        simulations = [
            Simulation(kind, scenario, release=release, seed=seed, wall_at=wall_at, gpu_index=index, pid=4101 + 100 * index)
            for index, (kind, release) in enumerate(zip(NAMES, releases, strict=True))
        ]
        self.pacer = Pacer(simulations, speed=speed)
        self._servers = [EngineServer(simulation, self.pacer, port=port) for simulation, port in zip(simulations, ports, strict=True)]
        self.members = tuple(
            Member(NAMES[simulation.kind], simulation.kind, server.url, (str(index),), simulation)
            for index, (simulation, server) in enumerate(zip(simulations, self._servers, strict=True))
        )
        self._reading = threading.Lock()  # activity is the mean since the reading before: one reader at a time

    def start(self) -> None:
        """Begin to play and to answer."""
        self.pacer.start()
        for server in self._servers:
            server.start()

    def stop(self) -> None:
        """Close the ports and end the threads."""
        for server in self._servers:
            server.stop()
        self.pacer.stop()

    def gpu_readings(self, at: float) -> list[GpuReading]:
        """What NVML would say about all cards, activity since the call before; call it once a second.

        Args:
            at: the moment on the reader's own clock, monotonic seconds.
        """
        readings = []
        with self._reading, self.pacer.lock:
            for member in self.members:
                member.simulation.advance(self.pacer.now())
                readings += [gpu_reading_from_record(record, at=at) for record in member.simulation.gpu_records()]
        return readings

    def host_reading(self, name: str, at: float) -> HostReading:
        """What /proc would say about the processes of that target.

        Raises:
            KeyError: for a name that is not in the pair.
        """
        member = {member.name: member for member in self.members}[name]
        with self.pacer.lock:
            member.simulation.advance(self.pacer.now())
            return host_reading_from_record(member.simulation.host_record(), target=name, at=at)

    def phase(self, name: str) -> Phase | None:
        """What the scenario is doing to that target now; None between phases and after the last."""
        member = {member.name: member for member in self.members}[name]
        now = self.pacer.now()
        phases = self.scenario.side(member.engine).phases
        return next((phase for phase in phases if phase.start <= now < phase.end), None)

    def truth(self, name: str, seconds: float) -> Truth:
        """What was true in the last seconds, for that target."""
        member = {member.name: member for member in self.members}[name]
        with self.pacer.lock:
            now = self.pacer.now()
            member.simulation.advance(now)
            return member.simulation.truth_between(max(0.0, now - seconds), now)
