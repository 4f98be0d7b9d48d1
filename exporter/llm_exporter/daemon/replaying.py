"""Replay: recordings through the same pipeline as the daemon's, on a clock of their own.

In: folders. Out: the exporter's page as it stood at the end. Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.hardware_view import HardwareView, hardware_view
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared, label_names
from llm_exporter.errors import UsageError
from llm_exporter.expose import hardware
from llm_exporter.expose.page import Page
from llm_exporter.expose.targets import TargetStatus
from llm_exporter.hardware import GpuTick, HostTick, SourceState, gpu_reading_from_record, host_reading_from_record
from llm_exporter.recording import Moment, Recording, read_recording
from llm_exporter.state.hardware import HardwareState

# Where a recording does not say when it was made, timestamps on the replayed page count from its start.
EPOCH = 0.0


class Replay:
    """Several recordings side by side, each one target on a machine of its own. `run` plays all of them to their ends."""

    def __init__(self, recordings: Sequence[Recording], config: Config) -> None:
        self.now = 0.0
        names = [recording.name for recording in recordings]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"two folders are named {twice[0]!r}: targets are named after their folders, so rename one")
        settings = {target.name: target for target in config.targets}
        targets = [settings.get(name) or Target(name=name, url="http://recording.invalid") for name in names]
        self.page = Page(declared(), lambda: self.now)
        labels = label_names(targets)
        # one recording's GPUs keep their names; of several machines each gets the folder's name in front
        several = sum(bool(recording.gpu) for recording in recordings) > 1
        self._machines = {
            target.name: _Machine(recording, target, f"{target.name}:" if several else "")
            for recording, target in zip(recordings, targets, strict=True)
        }
        self.pipelines: Mapping[str, Pipeline] = {target.name: self._pipeline(target, config, labels) for target in targets}
        self._moments = sorted(
            ((moment, recording.name) for recording in recordings for moment in recording.moments), key=lambda pair: pair[0].second
        )

    def _pipeline(self, target: Target, config: Config, labels: tuple[str, ...]) -> Pipeline:
        machine = self._machines[target.name]
        began = EPOCH if machine.recording.started_at is None else machine.recording.started_at
        return Pipeline(
            target,
            self.page,
            Timing(1.0, 1.0, config.stall.after),
            lambda: began + self.now,
            labels,
            hardware=lambda now, seconds: hardware_view(machine.state, target.name, now, seconds) if machine.recorded else HardwareView(),
            status=TargetStatus(engine_version=machine.recording.engine_version),
        )

    def step(self, moment: Moment, name: str) -> None:
        """Plays one scrape, and what GPUs and host said up to it."""
        self.now = moment.second
        machine = self._machines[name]
        if machine.recorded:
            machine.advance(self.now)
            self.page.put(f"{name}/hardware", hardware.families(machine.state, self.now))
        self.pipelines[name].take(moment.scraped, self.now)

    def run(self) -> Page:
        """Plays everything; returns the page, on which each recording is seen as it stood at its own end."""
        for moment, name in self._moments:
            self.step(moment, name)
            owner = f"{name}/engine"
            self.page.put(owner, list(self.page.of(owner)))  # without an end: a shorter recording has not gone silent
        return self.page


class _Machine:
    """GPU and host lines of one recording, played by second."""

    def __init__(self, recording: Recording, target: Target, prefix: str) -> None:
        self.state = HardwareState()
        self.state.configure({target.name: target.gpus})
        self.recording = recording
        self.recorded = bool(recording.gpu or recording.host)
        self._target = target.name
        self._prefix = prefix
        self._gpu, self._host = list(recording.gpu), list(recording.host)

    def advance(self, second: float) -> None:
        """Feeds all lines up to `second`; lines of one instant are one round of the readers."""
        while self._gpu and self._gpu[0][0] <= second:
            at = self._gpu[0][0]
            readings = []
            while self._gpu and self._gpu[0][0] == at:
                reading = gpu_reading_from_record(self._gpu.pop(0)[1], at=at)
                readings.append(replace(reading, gpu=self._prefix + reading.gpu))
            up = SourceState(True)
            self.state.add_gpus(GpuTick(at, tuple(readings), {"nvml": up, "gpm": up, "gpu_processes": up}))
        while self._host and self._host[0][0] <= second:
            at, row = self._host.pop(0)
            self.state.add_hosts(HostTick(at, (host_reading_from_record(row, target=self._target, at=at),), {"host": SourceState(True)}))


def replay(folders: Sequence[Path], config: Config) -> Replay:
    """Reads and plays the folders."""
    played = Replay([read_recording(folder) for folder in folders], config)
    played.run()
    return played
