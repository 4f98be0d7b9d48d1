"""The host reader: what the processes of each target do on the CPUs of this machine, once a second.

`HostReader.tick` takes the targets' searches and the GPUs' readings (NVML names processes) and gives a `HostTick` with
one reading per target. It never raises for what procfs does not say: the reading says what is missing and why.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from llm_exporter.hardware import (
    GpuReading,
    HostReading,
    HostTick,
    ProcessReading,
    SourceState,
    ThreadReading,
    safe_command,
)
from llm_exporter.sources import procfs
from llm_exporter.sources.cgroups import CgroupTree, Group
from llm_exporter.sources.processes import NO_PERMISSION, OTHER_NAMESPACE, Found, ProcessFinder, ProcessSearch

log = logging.getLogger(__name__)

_SWEEP_SECONDS = 5.0  # all threads are read this often; in between only the busy ones
_BUSY_THREADS = 8  # per process
_HINTS = {
    NO_PERMISSION: "the server's /proc/PID/fd may not be read: run as its user or root, or set process.find or cmdline",
    OTHER_NAMESPACE: "the server's processes are in another PID namespace: start the exporter with pid: host",
    "not_supported": "there is no procfs here",
}


class HostReader:
    """Reads all targets.

    Args:
        proc, cgroup, cpus: where procfs, the cgroup file system and /sys/devices/system/cpu are mounted.
        finder: which processes belong to a target.
    """

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        cgroup: Path = Path("/sys/fs/cgroup"),
        cpus: Path = Path("/sys/devices/system/cpu"),
        finder: ProcessFinder | None = None,
    ) -> None:
        self._proc = proc
        self._cpus = cpus
        self._cgroups = CgroupTree(proc, cgroup)
        self._finder = finder or ProcessFinder(proc)
        self._watched: dict[tuple[int, int], _Process] = {}
        self._logged: dict[str, str] = {}

    def tick(self, now: float, searches: Sequence[ProcessSearch], gpus: Sequence[GpuReading] = ()) -> HostTick:
        """One round. `now`: monotonic seconds."""
        gpu_pids = {p.pid for reading in gpus for p in reading.processes or () if p.resolves is not False}
        found = self._finder.find(searches, gpu_pids, now)
        readings = tuple(self._reading(search.target, found[search.target], now) for search in searches)
        alive = {(p.pid, p.started) for reading in readings for p in reading.processes or ()}
        self._watched = {key: process for key, process in self._watched.items() if key in alive}
        self._log_changes(readings)
        return HostTick(now, readings, {"host": self._state(readings)})

    def _reading(self, target: str, found: Found, now: float) -> HostReading:
        processes = [p for pid, role in found.roles.items() if (p := self._process(pid, role, now)) is not None]
        if len(processes) < len(found.roles):
            self._finder.look_again()
        if not processes:
            return HostReading(at=now, target=target, missing={"processes": found.reason or "process_not_found"})
        chains = {chain for p in processes if (chain := self._watched[p.pid, p.started].chain)}
        groups = {group.path: group for chain in chains for group in chain}
        throttling = [reading for group in groups.values() if (reading := self._cgroups.read(group)) is not None]
        leaf = min((chain[0] for chain in chains), key=str, default=None)
        missing = {}
        if (pressure := self._cgroups.pressure(leaf)) is None:
            missing["cpu_pressure"] = "not_supported"
        if not chains:
            missing["cgroups"] = "not_visible"
        if any(thread.wait_seconds is None for process in processes for thread in process.threads):
            missing["run_delay"] = "not_supported"
        return HostReading(
            at=now,
            target=target,
            processes=tuple(processes),
            cgroups=tuple(throttling),
            cpu_pressure_seconds=pressure,
            cpus_available=self._cpus_available(processes, list(groups.values())),
            missing=missing,
        )

    def _process(self, pid: int, role: str, now: float) -> ProcessReading | None:
        """One process; None when it ended, or when its id is another process's by now."""
        stat = procfs.parse_stat(procfs.read(f"{self._proc}/{pid}/stat"))
        if stat is None or not stat.alive:
            return None
        watched = self._watched.get((pid, stat.started))
        if watched is None:
            if any(known == pid for known, _ in self._watched):
                return None  # the id was given away: whose it is now has to be found out
            watched = self._watched[pid, stat.started] = _Process(self._proc, pid)
        if watched.due(now):
            watched.sweep(now)
            watched.chain = self._cgroups.chain(pid)
        return ProcessReading(
            pid=pid,
            started=stat.started,
            comm=stat.comm,
            command=watched.command,
            role=role,
            cpu_seconds=stat.cpu_seconds,
            threads=watched.threads(now),
            affinity=len(watched.allowed) or None,
        )

    def _cpus_available(self, processes: Sequence[ProcessReading], groups: Sequence[Group]) -> float | None:
        """The least of: CPUs that any of the processes may run on, the tightest quota above them, CPUs online."""
        allowed = frozenset[int]().union(*(self._watched[p.pid, p.started].allowed for p in processes))
        online = procfs.cpu_list(procfs.text(self._cpus / "online") or "")
        limits = [float(len(cpus)) for cpus in (allowed & online if online else allowed, online) if cpus]
        limits += [quota for group in groups if (quota := self._cgroups.quota(group)) is not None]
        return min(limits, default=None)

    def _state(self, readings: Sequence[HostReading]) -> SourceState:
        """Down only where something is in our way; that a server is remote or not running is no fault of this source."""
        if not (self._proc / "self").exists():
            return SourceState(False, "not_supported", _HINTS["not_supported"])
        reasons = [reading.missing.get("processes", "") for reading in readings]
        in_the_way = [reason for reason in reasons if reason in (NO_PERMISSION, OTHER_NAMESPACE)]
        if in_the_way and "" not in reasons:
            return SourceState(False, in_the_way[0], _HINTS[in_the_way[0]])
        return SourceState(True)

    def _log_changes(self, readings: Sequence[HostReading]) -> None:
        for reading in readings:
            reason = reading.missing.get("processes", "")
            if self._logged.get(reading.target, "") != reason:
                level = logging.WARNING if reason in _HINTS else logging.INFO
                said = f"processes cannot be seen: {_HINTS.get(reason, reason)}" if reason else "processes found"
                log.log(level, "%s", said, extra={"source": "host", "target": reading.target, "reason": reason})
            self._logged[reading.target] = reason
        for gone in self._logged.keys() - {reading.target for reading in readings}:
            del self._logged[gone]


class _Process:
    """What is remembered of a process: its fixed facts, and which of its threads are worth a look every second."""

    def __init__(self, proc: Path, pid: int) -> None:
        self._proc = proc
        self._pid = pid
        self._swept_at: float | None = None
        self._demand: dict[int, float] = {}  # thread → seconds on a core or waiting for one, at the last sweep
        self._fresh: tuple[float, tuple[ThreadReading, ...]] | None = None
        self._busy: list[int] = []
        self._comms: dict[int, str] = {}
        self.command = ""
        self.allowed: frozenset[int] = frozenset()
        self.chain: tuple[Group, ...] = ()

    def due(self, now: float) -> bool:
        """Whether all threads should be read."""
        return self._swept_at is None or now - self._swept_at >= _SWEEP_SECONDS

    def sweep(self, now: float) -> None:
        """Read all threads and choose the busy ones."""
        first = self._swept_at is None
        self._swept_at = now
        self.command = safe_command(procfs.arguments(self._proc, self._pid))  # engines set a title once they are loaded
        self.allowed = procfs.allowed_cpus(self._proc, self._pid)
        threads = [thread for tid in procfs.thread_ids(self._proc, self._pid) if (thread := self._thread(tid))]
        demand = {t.tid: (t.run_seconds or t.cpu_seconds) + (t.wait_seconds or 0.0) for t in threads}
        since = {tid: seconds - (0.0 if first else self._demand.get(tid, 0.0)) for tid, seconds in demand.items()}
        self._busy = sorted(since, key=lambda tid: (-since[tid], tid))[:_BUSY_THREADS]
        self._demand = demand
        self._comms = {tid: comm for tid, comm in self._comms.items() if tid in demand}
        self._fresh = now, tuple(threads)

    def threads(self, now: float) -> tuple[ThreadReading, ...]:
        """All threads at a sweep, else the busy ones."""
        if self._fresh is not None and self._fresh[0] == now:
            return self._fresh[1]
        return tuple(thread for tid in self._busy if (thread := self._thread(tid)) is not None)

    def _thread(self, tid: int) -> ThreadReading | None:
        folder = f"{self._proc}/{self._pid}/task/{tid}"
        if (times := procfs.schedstat(f"{folder}/schedstat")) is not None:
            if tid not in self._comms:
                self._comms[tid] = (procfs.text(f"{folder}/comm") or "").strip()
            return ThreadReading(tid, self._comms[tid], times[0], *times)
        stat = procfs.parse_stat(procfs.read(f"{folder}/stat"))
        return None if stat is None else ThreadReading(tid, stat.comm, stat.cpu_seconds)
