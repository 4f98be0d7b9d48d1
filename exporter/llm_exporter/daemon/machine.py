"""GPUs and host of this machine, read once a second in threads of their own and published as they stand.

A call into the driver that hangs stops the GPU thread only; the publishing thread then says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Protocol

from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.hardware_view import HardwareView, hardware_view
from llm_exporter.daemon.loop import Loop
from llm_exporter.expose import hardware
from llm_exporter.expose.page import Page
from llm_exporter.hardware import GpuReading, GpuTick, HostTick
from llm_exporter.sources.host import HostReader
from llm_exporter.sources.nvml import NvmlReader
from llm_exporter.sources.processes import ProcessSearch
from llm_exporter.state.hardware import HardwareState

log = logging.getLogger("llm_exporter.machine")

# NVML's utilisation is of its last sixth of a second on some GPUs, so it is looked at this often between two readings.
GLANCE_SECONDS = 0.25
GPU_SOURCES = ("nvml", "gpm", "gpu_processes")
OWNER = "machine"


class GpuReader(Protocol):
    """Reads all GPUs once; `sources.nvml.NvmlReader` or a simulation."""

    def tick(self, now: float) -> GpuTick:
        """One round."""

    def close(self) -> None:
        """Lets go of the driver."""


class TargetReader(Protocol):
    """Reads the processes of all targets once; `sources.host.HostReader` or a simulation."""

    def tick(self, now: float, searches: Sequence[ProcessSearch], gpus: Sequence[GpuReading] = ()) -> HostTick:
        """One round."""


class Machine:
    """Reads this machine for all targets.

    Args:
        page: where GPUs and hosts are published.
        count: told (task, outcome, n).
        gpu_reader, host_reader: stand-ins in tests.
    """

    def __init__(
        self,
        page: Page,
        count: Callable[[str, str, int], None],
        gpu_reader: GpuReader | None = None,
        host_reader: TargetReader | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.state = HardwareState()
        self._page = page
        self._count = count
        self._gpu_reader: GpuReader = gpu_reader or NvmlReader(proc=proc)
        self._host_reader: TargetReader = host_reader or HostReader(proc=proc)
        self._searches: tuple[ProcessSearch, ...] = ()
        self._expected: int | None = None
        self._settings: tuple[object, ...] = ()
        self._loops: list[Loop] = []
        self._gpu_on = self._host_on = False
        self._lost: set[str] = set()

    def apply(self, config: Config, targets: Iterable[Target]) -> None:
        """Takes over the configuration; loops start anew only where their settings changed."""
        targets = list(targets)
        self._searches = tuple(ProcessSearch.of(t.name, t.url, t.process.find, t.process.cmdline) for t in targets)
        self._expected = config.gpu.expected_count
        self.state.configure({target.name: target.gpus for target in targets})
        settings = (config.gpu.enabled, config.gpu.interval, config.host.enabled)
        if settings == self._settings:
            return
        self._settings = settings
        self.stop()
        self.state = HardwareState(interval=config.gpu.interval)
        self.state.configure({target.name: target.gpus for target in targets})
        self._gpu_on, self._host_on = config.gpu.enabled is not False, config.host.enabled is not False
        if self._gpu_on:
            glances = max(1, round(config.gpu.interval / GLANCE_SECONDS))
            self._start("gpu", self._beats(glances), config.gpu.interval / glances)
        else:
            self.state.disable(*GPU_SOURCES)
        if self._host_on:
            self._start("host", self.read_hosts, 1.0)
        else:
            self.state.disable("host")
        self._start("publish_hardware", self.publish, 1.0)

    def _start(self, task: str, tick: Callable[[float], None], interval: float) -> None:
        loop = Loop(task, tick, interval, lambda outcome, n: self._count(task, outcome, n))
        self._loops.append(loop)
        loop.start()

    def _beats(self, glances: int) -> Callable[[float], None]:
        """What the GPU's loop calls: one reading, then glances up to the next."""
        beats = cycle(range(glances))
        reader = self._gpu_reader

        def beat(now: float) -> None:
            if next(beats) == 0:
                self.read_gpus(now)
            elif isinstance(reader, NvmlReader):
                reader.glance()

        return beat

    def read_gpus(self, now: float) -> None:
        """One round of the GPU reader."""
        tick = self._gpu_reader.tick(now)
        self.state.add_gpus(tick)
        self._log_lost(
            {reading.gpu: reading.down_reason for reading in tick.readings if not reading.up}, {r.gpu for r in tick.readings if r.up}
        )

    def _log_lost(self, down: dict[str, str], up: set[str]) -> None:
        """One line when a GPU goes and one when it is back; while NVML as a whole is down its own line stands for all."""
        for gpu, reason in down.items():
            if gpu not in self._lost:
                log.warning("GPU %s does not answer; the others are read as before", gpu, extra={"source": "nvml", "reason": reason})
        for gpu in self._lost & up:
            log.info("GPU %s answers again", gpu, extra={"source": "nvml"})
        self._lost = (self._lost - up) | set(down)

    def read_hosts(self, now: float) -> None:
        """One round of the host reader."""
        readings: tuple[GpuReading, ...] = self.state.gpus(now) if self._gpu_on else ()
        self.state.add_hosts(self._host_reader.tick(now, self._searches, readings))

    def publish(self, now: float) -> None:
        """Publishes what stands at `now`."""
        self._page.put(OWNER, hardware.families(self.state, now, expected_count=self._expected))

    def view(self, target: str, now: float, seconds: float) -> HardwareView:
        """What this machine says about one target, of the last `seconds`."""
        return hardware_view(self.state, target, now, seconds)

    def process_lives(self, target: str) -> bool | None:
        """Whether the target's process is known to live."""
        return self.state.process_alive(target, time.monotonic())

    def stop(self) -> None:
        """Ends the loops and lets go of the driver."""
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.stop(2.0)
        hanging = any(loop.alive for loop in self._loops)
        self._loops = []
        if not hanging:  # a call that hangs in the driver must not meet a shutdown of the driver
            self._gpu_reader.close()
