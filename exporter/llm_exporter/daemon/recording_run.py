"""Recording live servers: every target of a configuration into a folder of its own, in the format that `replay` reads.

In: targets; scrapes, GPU and host rounds, each by its own thread. Out: DIR/NAME/tNNN.prom or .fail, gpu.jsonl, host.jsonl, meta.json.
Pages are written as they came; nothing of the configuration but the target's name goes into a recording, so no credential can.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_exporter import __version__
from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.clients import client_for
from llm_exporter.daemon.loop import Loop
from llm_exporter.daemon.machine import Machine
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.expose.page import Page
from llm_exporter.hardware import GpuReading, GpuTick, HostTick, gpu_record, host_record
from llm_exporter.recording import append_lines, new_folder, write_meta, write_moment
from llm_exporter.sources.engine import Failed, Fetched, read_version, scrape
from llm_exporter.sources.host import HostReader
from llm_exporter.sources.http import Client
from llm_exporter.sources.nvml import NvmlReader

log = logging.getLogger("llm_exporter.record")

# Files carry whole seconds, so two scrapes must not fall into one.
LEAST_INTERVAL_SECONDS = 1.0
VERSION_TIMEOUT_SECONDS = 5.0


class TargetRecording:
    """One target's folder. `take` is called by the target's thread, the hardware's lines by theirs.

    Args:
        target: who is recorded; only its name is written.
        folder: empty.
        started: monotonic seconds of second 0. started_at: the same moment in unix time.
        timing: as the exporter itself would use it.
        version: engine → its version, asked once after the first good page.
    """

    def __init__(
        self,
        target: Target,
        folder: Path,
        *,
        started: float,
        started_at: float,
        timing: Timing,
        version: Callable[[str], str] = lambda _: "",
    ) -> None:
        self.target = target
        self.folder = folder
        self._started, self._started_at = started, started_at
        self._interval = timing.interval
        self._version = version
        self._asked = False
        self._seconds: set[int] = set()
        self._lock = threading.Lock()
        self._counted = {"pages": 0, "failures": 0, "gpu_lines": 0, "host_lines": 0}
        page = Page(declared(), lambda: started)
        self.pipeline = Pipeline(target, page, timing, lambda: started_at)

    @property
    def counted(self) -> Mapping[str, int]:
        """What was written so far: pages, failures, gpu_lines, host_lines."""
        return dict(self._counted)

    def take(self, scraped: Fetched | Failed, now: float) -> None:
        """Writes a scrape of monotonic time `now`; a second one within the same second is left out."""
        second = round(now - self._started)
        if second in self._seconds:
            return
        self._seconds.add(second)
        status = self.pipeline.take(scraped, now)
        # a body that is no exposition (a login page, a proxy's error) is kept as its reason: it may hold what must not be kept
        kept = scraped if status.up or isinstance(scraped, Failed) else Failed(status.reason, "", "", scraped.duration_seconds)
        write_moment(self.folder, second, kept)
        self._counted["pages" if isinstance(kept, Fetched) else "failures"] += 1
        if status.up and not status.reason and not self._asked:
            self._asked = True
            self.pipeline.status = replace(status, engine_version=self._version(status.engine))
            self.write_meta()

    def take_gpus(self, readings: Sequence[GpuReading], now: float) -> None:
        """Writes a round of the GPUs that concern this target."""
        wall = self._wall(now)
        rows = [gpu_record(reading, wall=wall) for reading in readings]
        append_lines(self.folder / "gpu.jsonl", rows)
        self._counted["gpu_lines"] += len(rows)

    def take_host(self, tick: HostTick) -> None:
        """Writes what the round says about this target's processes."""
        for reading in tick.readings:
            if reading.target == self.target.name:
                append_lines(self.folder / "host.jsonl", [host_record(reading, wall=self._wall(tick.at))])
                self._counted["host_lines"] += 1

    def write_meta(self, ended: float | None = None) -> None:
        """Writes meta.json with what is known now."""
        status = self.pipeline.status
        latest = self.pipeline.store.latest
        meta: dict[str, Any] = {
            "target": self.target.name,
            "engine": f"{status.engine} {status.engine_version}".strip(),
            "models": list(latest.table.models) if latest is not None else [],
            "started_at": round(self._started_at, 3),
            "interval_seconds": self._interval,
            "seconds": None if ended is None else round(ended - self._started, 3),
            **self._counted,
            "recorded_by": f"llm-exporter {__version__}",
        }
        with self._lock:
            write_meta(self.folder, meta)

    def _wall(self, now: float) -> float:
        """Unix time by the monotonic clock: a clock that is set back must not fold the recording."""
        return round(self._started_at + (now - self._started), 3)


class _TappedGpus(NvmlReader):
    """The GPU reader, overheard."""

    def __init__(self, told: Callable[[GpuTick], None]) -> None:
        super().__init__()
        self._told = told

    def tick(self, now: float) -> GpuTick:
        tick = super().tick(now)
        self._told(tick)
        return tick


class _TappedHosts(HostReader):
    """The host reader, overheard."""

    def __init__(self, told: Callable[[HostTick], None]) -> None:
        super().__init__()
        self._told = told

    def tick(self, now: float, searches: Any, gpus: Sequence[GpuReading] = ()) -> HostTick:
        tick = super().tick(now, searches, gpus)
        self._told(tick)
        return tick


def concerning(
    readings: Sequence[GpuReading], target: str, placements: Sequence[tuple[str, str]], owners: Mapping[int, str]
) -> list[GpuReading]:
    """The GPUs of a round that belong into a target's recording: its own, or all that serve nobody else while its own are not known.

    Processes of other targets are left out: in a replay of this target alone they would look like strangers.
    """
    own = {gpu for gpu, served in placements if served == target}
    others = {gpu for gpu, served in placements if served != target}
    chosen = [reading for reading in readings if (reading.gpu in own if own else reading.gpu not in others)]
    return [
        reading
        if reading.processes is None
        else replace(reading, processes=tuple(p for p in reading.processes if owners.get(p.pid, target) == target))
        for reading in chosen
    ]


class RecordingRun:
    """Records all targets until stopped.

    Args:
        config: intervals, timeouts, and whether GPUs and host are read.
        targets: configured and discovered.
        out: parent folder.

    Raises:
        UsageError: a folder is there already and not empty.
    """

    def __init__(self, config: Config, targets: Sequence[Target], out: Path) -> None:
        self._config = config
        self._interval = max(LEAST_INTERVAL_SECONDS, config.global_.scrape_interval)
        started, started_at = time.monotonic(), time.time()
        self._started = started
        timing = Timing(self._interval, config.global_.scrape_timeout, config.stall.after)
        folders = [new_folder(out, target.name) for target in targets]
        self._clients: list[Client] = []
        self.recordings: list[TargetRecording] = []
        self._loops: list[Loop] = []
        for target, folder in zip(targets, folders, strict=True):
            client = client_for(target)
            self._clients.append(client)
            recording = TargetRecording(
                target,
                folder,
                started=started,
                started_at=started_at,
                timing=timing,
                version=lambda engine, client=client: read_version(client, engine, timeout=VERSION_TIMEOUT_SECONDS),  # type: ignore[misc]
            )
            self.recordings.append(recording)
            self._loops.append(Loop(f"record {target.name}", self._tick(recording, client), self._interval, lambda *_: None))
        self._owners: dict[int, str] = {}
        self._machine = Machine(
            Page(declared(), time.monotonic), lambda *_: None, _TappedGpus(self._take_gpus), _TappedHosts(self._take_hosts)
        )

    def start(self) -> None:
        """Starts scraping and reading."""
        for recording in self.recordings:
            recording.write_meta()
        self._machine.apply(self._config, [recording.target for recording in self.recordings])
        for loop in self._loops:
            loop.start()

    def stop(self) -> None:
        """Ends everything and writes the last meta.json; a scrape in flight has its timeout to end."""
        self._machine.stop()
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.stop(self._config.global_.scrape_timeout + 1.0)
        for client in self._clients:
            client.close()
        ended = time.monotonic()
        for recording in self.recordings:
            recording.write_meta(ended)

    def _tick(self, recording: TargetRecording, client: Client) -> Callable[[float], None]:
        timeout, path = self._config.global_.scrape_timeout, recording.target.metrics_path

        def tick(now: float) -> None:
            recording.take(scrape(client, path, timeout=timeout, clock=time.monotonic), now)

        return tick

    def _take_gpus(self, tick: GpuTick) -> None:
        placements = self._machine.state.placements()
        for recording in self.recordings:
            recording.take_gpus(concerning(tick.readings, recording.target.name, placements, self._owners), tick.at)

    def _take_hosts(self, tick: HostTick) -> None:
        self._owners = {process.pid: reading.target for reading in tick.readings for process in reading.processes or ()}
        for recording in self.recordings:
            recording.take_host(tick)
