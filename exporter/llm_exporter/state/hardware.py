"""Remembers what the GPU and host readers said, for a minute, and answers for pages and for the verdict.

In: `GpuTick` and `HostTick` once a second (or recorded readings). Out: GPUs as they are published, evidence over a
window, which GPU serves which target, and the state of the sources. Safe to use from several threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from llm_exporter.hardware import GpuReading, GpuTick, HostReading, HostTick, SourceState
from llm_exporter.sources.gpu_fields import MEANS
from llm_exporter.state.evidence import GpuEvidence, HostEvidence, Weighted, gpu_evidence, host_evidence, mean, weighted

SHOWN_SECONDS = 15.0  # what is published is the mean of this time
_KEPT_SECONDS = 65.0
_LATE_SECONDS = 5.0  # without a tick for so long, a call hangs: nothing older is published
_GPU_SOURCES = ("nvml", "gpm", "gpu_processes")
_IN_USE_RATIO = 0.1  # a GPU with less memory in use holds no model

GpuChoice = str | Sequence[int | str]  # CONTRACT 4 `gpus`: "auto", "none", indices or UUIDs
_MAPPINGS = tuple(f.name for f in fields(GpuReading) if f.name in ("temperature_celsius", "clock_hertz", "throttled_seconds", "ecc_errors"))
_LASTS = tuple(f.name for f in fields(GpuReading) if f.name not in MEANS and f.name not in _MAPPINGS and str(f.type) == "float | None")


class HardwareState:
    """The last minute of one machine.

    Args:
        interval: seconds between ticks.
    """

    def __init__(self, *, interval: float = 1.0) -> None:
        self._late = max(_LATE_SECONDS, 3 * interval)
        self._lock = threading.Lock()
        self._choices: dict[str, GpuChoice] = {}
        self._gpus: dict[str, deque[GpuReading]] = {}
        self._hosts: dict[str, deque[HostReading]] = {}
        self._gpu_at: float | None = None
        self._host_at: float | None = None
        self._sources: dict[str, SourceState] = {}
        self._top_clock: dict[str, float] = {}
        self._served: dict[tuple[str, str], float] = {}  # (gpu, target) → when a process last showed it

    # ---- in ----

    def configure(self, choices: Mapping[str, GpuChoice]) -> None:
        """Set `gpus` of all targets; what is known of targets that are gone is forgotten."""
        with self._lock:
            self._choices = dict(choices)
            self._hosts = {target: ring for target, ring in self._hosts.items() if target in choices}
            self._served = {key: at for key, at in self._served.items() if key[1] in choices}

    def disable(self, *sources: str) -> None:
        """Say that these sources are switched off."""
        with self._lock:
            self._sources |= dict.fromkeys(sources, SourceState(False, "disabled"))

    def add_gpus(self, tick: GpuTick) -> None:
        """Take a round of the GPU reader. A GPU that is gone from it is forgotten, a lost one keeps its last word."""
        with self._lock:
            self._gpu_at = tick.at
            self._sources |= tick.sources
            present = {reading.gpu for reading in tick.readings}
            self._gpus = {gpu: ring for gpu, ring in self._gpus.items() if gpu in present}
            for reading in tick.readings:
                ring = self._gpus.setdefault(reading.gpu, deque())
                if not reading.up or (ring and (not ring[-1].up or ring[-1].uuid != reading.uuid)):
                    ring.clear()
                _append(ring, reading, tick.at)
                clock = reading.sm_clock_max_hertz or reading.clock_hertz.get("sm", 0.0)
                self._top_clock[reading.gpu] = max(self._top_clock.get(reading.gpu, 0.0), clock)
            self._note_served(tick.at)

    def add_hosts(self, tick: HostTick) -> None:
        """Take a round of the host reader."""
        with self._lock:
            self._host_at = tick.at
            self._sources |= tick.sources
            present = {reading.target for reading in tick.readings}
            self._hosts = {target: ring for target, ring in self._hosts.items() if target in present}
            for reading in tick.readings:
                _append(self._hosts.setdefault(reading.target, deque()), reading, tick.at)
            self._note_served(tick.at)

    # ---- sources ----

    def sources(self, now: float) -> dict[str, SourceState]:
        """State of every source that has said something; a reader that hangs is down for that."""
        with self._lock:
            late: dict[str, SourceState] = {}
            if self._gpu_at is not None and now - self._gpu_at > self._late:
                late |= dict.fromkeys(_GPU_SOURCES, SourceState(False, "timeout", "a call into the GPU driver hangs"))
            if self._host_at is not None and now - self._host_at > self._late:
                late["host"] = SourceState(False, "timeout", "reading procfs hangs")
            return self._sources | late

    # ---- GPUs ----

    def gpus(self, now: float) -> tuple[GpuReading, ...]:
        """Every GPU as it is published: means and throttle reasons of the last 15 s, the last value of the rest."""
        with self._lock:
            if self._gpu_at is None or now - self._gpu_at > self._late:
                return ()
            rings = [list(ring) for ring in self._gpus.values()]
        return tuple(_published(ring, now) for ring in rings if ring)

    def gpu_window(self, gpus: Sequence[str], seconds: float, now: float) -> GpuEvidence:
        """Evidence of these GPUs over the last `seconds`; a reading stands for the time since the one before it."""
        with self._lock:
            rings = {gpu: list(self._gpus[gpu]) for gpu in gpus if gpu in self._gpus}
            memory = self._memory_by_owner()
            top_clock = dict(self._top_clock)
        owners: dict[str, float] = {}
        for (gpu, target), used in memory.items():
            if gpu in gpus:
                owners[target] = owners.get(target, 0.0) + used
        windows: dict[str, Sequence[Weighted]] = {
            gpu: weighted(ring, now - seconds, now) for gpu, ring in rings.items() if ring and ring[-1].up
        }
        down = [gpu for gpu, ring in rings.items() if ring and not ring[-1].up]
        return gpu_evidence(windows, top_clock_hertz=top_clock, down=down, memory_by_owner=owners)

    # ---- processes and targets ----

    def host_window(self, target: str, seconds: float, now: float) -> HostEvidence:
        """Evidence of a target's processes over the last `seconds`; a reading exactly that old still counts."""
        with self._lock:
            ring = [r for r in self._hosts.get(target, ()) if now - seconds <= r.at <= now]
            late = self._host_at is None or now - self._host_at > self._late
        if late:
            return HostEvidence(missing={"processes": "no_readings" if self._host_at is None else "timeout"})
        return host_evidence(ring)

    def targets(self) -> tuple[str, ...]:
        """Targets with host readings."""
        with self._lock:
            return tuple(self._hosts)

    def process_alive(self, target: str, now: float) -> bool | None:
        """Whether the target's processes are there now; None where that cannot be known."""
        with self._lock:
            ring = self._hosts.get(target)
            if not ring or now - ring[-1].at > self._late:
                return None
            if ring[-1].processes is not None:
                return True
            return False if ring[-1].missing.get("processes") == "process_not_found" else None

    def gpus_of(self, target: str) -> tuple[str, ...]:
        """Labels of the GPUs that serve the target: by configuration, else by process (see `_by_elimination`)."""
        return tuple(gpu for gpu, served in self.placements() if served == target)

    def placements(self) -> tuple[tuple[str, str], ...]:
        """All (gpu, target): what `llm_gpu_target` says."""
        with self._lock:
            latest = [ring[-1] for ring in self._gpus.values() if ring]
            found = set()
            for target, choice in self._choices.items():
                if choice == "auto":
                    found |= {key for key in self._served if key[1] == target}
                elif not isinstance(choice, str):
                    wanted = {str(entry) for entry in choice}
                    found |= {(r.gpu, target) for r in latest if r.gpu in wanted or r.uuid in wanted}
            found |= self._by_elimination(latest, found)
            return tuple(sorted(found))

    def memory_by_owner(self) -> dict[tuple[str, str], float]:
        """Bytes by (gpu, target); target "" for processes that we can see and that belong to no target."""
        with self._lock:
            return self._memory_by_owner()

    # ---- inside the lock ----

    def _owners(self) -> dict[int, str]:
        """Target by process id, of all targets."""
        return {process.pid: target for target, ring in self._hosts.items() if ring for process in ring[-1].processes or ()}

    def _memory_by_owner(self) -> dict[tuple[str, str], float]:
        owners = self._owners()
        hidden = {ring[-1].missing.get("processes") for ring in self._hosts.values() if ring}
        # A process is foreign only if it could not belong to a target whose processes we cannot see.
        undecidable = bool(hidden & {"no_permission", "other_pid_namespace"}) or not self._hosts
        found: dict[tuple[str, str], float] = {}
        for ring in self._gpus.values():
            processes = ring[-1].processes or () if ring else ()
            # A recording does not say whose namespace its ids are of; one that is a target's shows that it is ours.
            shared = any(process.pid in owners for process in processes)
            for process in processes:
                resolves = shared if process.resolves is None else process.resolves
                owner = owners.get(process.pid, None if undecidable or not resolves else "")
                if owner is not None and process.memory_bytes is not None:
                    key = (ring[-1].gpu, owner)
                    found[key] = found.get(key, 0.0) + process.memory_bytes
        return found

    def _note_served(self, now: float) -> None:
        """Remember which target has a process on which GPU, for as long as what is published."""
        owners = self._owners()
        for gpu, ring in self._gpus.items():
            for process in (ring[-1].processes or ()) if ring else ():
                if process.pid in owners:
                    self._served[gpu, owners[process.pid]] = now
        self._served = {key: at for key, at in self._served.items() if now - at <= SHOWN_SECONDS and key[0] in self._gpus}

    def _by_elimination(self, latest: Sequence[GpuReading], found: set[tuple[str, str]]) -> set[tuple[str, str]]:
        """Where NVML lists no process at all (containers), the only target of this machine has the GPUs in use.

        Only if one single target runs here, is set to auto, and no GPU is spoken for.
        """
        local = [t for t, ring in self._hosts.items() if ring and ring[-1].missing.get("processes") != "remote"]
        if found or len(local) != 1 or self._choices.get(local[0]) != "auto":
            return set()
        if any(reading.processes for reading in latest) or self._hosts[local[0]][-1].processes is None:
            return set()
        return {(r.gpu, local[0]) for r in latest if r.up and _in_use(r)}


def _in_use(reading: GpuReading) -> bool:
    used, size = reading.memory_used_bytes, reading.memory_size_bytes
    return used is None or not size or used / size >= _IN_USE_RATIO


def _append(ring: deque[Any], reading: GpuReading | HostReading, now: float) -> None:
    ring.append(reading)
    while now - ring[0].at > _KEPT_SECONDS:
        ring.popleft()


def _published(ring: Sequence[GpuReading], now: float) -> GpuReading:
    """One reading that stands for the last 15 s."""
    last = ring[-1]
    if not last.up:
        return last
    window = weighted(ring, now - SHOWN_SECONDS, now)
    recent = [entry.reading for entry in window]
    values: dict[str, Any] = {
        name: mean(window, lambda reading, name=name: getattr(reading, name))  # type: ignore[misc]
        for name in MEANS
    }
    for name in _LASTS:
        values[name] = next((v for r in reversed(recent) if (v := getattr(r, name)) is not None), None)
    for name in _MAPPINGS:
        values[name] = {part: value for reading in recent for part, value in getattr(reading, name).items()}
    told = [reading.throttle_reasons for reading in recent if reading.throttle_reasons is not None]
    values["throttle_reasons"] = frozenset().union(*told) if told else None
    return replace(last, **values)
