"""The GPU reader: NVML once a second, for all devices; the only module that imports pynvml.

`NvmlReader.tick(now)` gives a `GpuTick` and never raises: what fails is a state with a named reason. One thread calls
it. A lost GPU, a missing library, an updated driver or a container without its devices heal without a restart: NVML is
shut down and initialised again, with back-off.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from llm_exporter.hardware import GpuProcess, GpuReading, GpuTick, SourceState
from llm_exporter.sources.gpu_device import GpuDevice, Identity
from llm_exporter.sources.nvml_errors import HINTS, NvmlError, Scope, classified
from llm_exporter.sources.xid import XidLog, text_of

log = logging.getLogger(__name__)

SOURCES = ("nvml", "gpm", "gpu_processes")
_RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0)  # NVML as a whole; the last one stays
_REOPEN_SECONDS = (10.0, 20.0, 40.0, 80.0, 160.0, 300.0)  # to look for a lost GPU while others work
_ENUMERATE_SECONDS = 10.0  # MIG devices come and go
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


def load_library() -> Any:
    """The NVML binding. Imported late, so that a machine without GPU pays nothing."""
    import pynvml

    return pynvml


class NvmlReader:
    """Reads all GPUs.

    Args:
        load: gives the binding.
        wall: unix time, for the timestamp of XID events.
        proc: mount point of procfs, to tell which processes are ours to see.
    """

    def __init__(
        self,
        *,
        load: Callable[[], Any] = load_library,
        wall: Callable[[], float] = time.time,
        proc: Path = Path("/proc"),
    ) -> None:
        self._load = load
        self._proc = proc
        self._library: Any = None  # set while NVML is initialised
        self._devices: dict[str, GpuDevice] = {}  # by UUID, in NVML's order
        self._known: dict[str, Identity] = {}  # survives initialisations: labels, lost devices
        self._lost: dict[str, str] = {}  # UUID → reason
        self._xids = XidLog(wall)
        self._attempts = 0
        self._retry_at = float("-inf")
        self._reopens = 0
        self._reopen_at = float("inf")
        self._enumerate_at = float("inf")
        self._failure = ""
        self._logged: dict[str, SourceState] = {}

    def tick(self, now: float) -> GpuTick:
        """One round. `now`: monotonic seconds."""
        try:
            readings = self._read(now)
        except Exception as error:  # noqa: BLE001  whatever the binding raises is a state, never a crash
            self._fail(now, classified(error))
            readings = ()
        sources = self._states(readings)
        self._log_changes(sources)
        return GpuTick(now, readings, sources)

    def glance(self) -> None:
        """Look at utilisation once more, between two ticks."""
        for device in self._devices.values():
            device.glance()

    def close(self) -> None:
        """Free samples and events, shut NVML down; safe to call twice."""
        library, self._library = self._library, None
        for device in self._devices.values():
            device.close()
        self._devices.clear()
        if library is None:
            return
        self._xids.close()
        with contextlib.suppress(Exception):
            library.nvmlShutdown()

    # ---- one round ----

    def _read(self, now: float) -> tuple[GpuReading, ...]:
        if self._library is not None and now >= self._reopen_at:
            self.close()  # a lost GPU comes back only to a new initialisation
            self._reopens += 1
        if self._library is None:
            if now < self._retry_at:
                return ()
            self._open(now)
        elif now >= self._enumerate_at:
            self._enumerate(now)
        self._xids.collect()
        readings: dict[str, GpuReading] = {}
        failed: dict[str, NvmlError] = {}
        for uuid, device in self._devices.items():
            try:
                readings[uuid] = device.read(now)
            except NvmlError as error:
                if error.scope is Scope.SESSION:
                    raise
                failed[uuid] = error
        physical = [uuid for uuid, device in self._devices.items() if not device.identity.parent]
        if physical and all(uuid in failed and failed[uuid].reason != "gpu_lost" for uuid in physical):
            raise failed[physical[0]]  # not one GPU answers, and none is said to be lost: NVML itself is broken
        self._note_lost(now, readings, failed)
        down = {
            uuid: GpuReading(at=now, **self._known[uuid]._asdict(), up=False, down_reason=reason) for uuid, reason in self._lost.items()
        }
        everything = self._with_resolved(readings.values()) + tuple(down.values())
        return tuple(
            replace(reading, xid_errors=self._xids.counts(reading.uuid), xid_last_at=self._xids.last_at(reading.uuid))
            for reading in sorted(everything, key=lambda reading: _label_order(reading.gpu))
        )

    def _note_lost(self, now: float, readings: dict[str, GpuReading], failed: dict[str, NvmlError]) -> None:
        for uuid, error in failed.items():
            self._lost.setdefault(uuid, error.reason)
        for uuid in readings:
            self._lost.pop(uuid, None)
        if not self._lost:
            self._reopens, self._reopen_at = 0, float("inf")
        elif self._reopen_at == float("inf") or now >= self._reopen_at:
            self._reopen_at = now + _REOPEN_SECONDS[min(self._reopens, len(_REOPEN_SECONDS) - 1)]

    def _with_resolved(self, readings: Iterable[GpuReading]) -> tuple[GpuReading, ...]:
        """Say of each process whether its id means a process that we can see.

        In a container NVML may name processes of the host. If one id is unknown to our /proc, the ids are of another
        PID namespace, and one that happens to exist here is somebody else: unknown, not blamed.
        """
        readings = tuple(readings)
        pids = {process.pid for reading in readings for process in reading.processes or ()}
        seen = {pid for pid in pids if (self._proc / str(pid)).exists()}
        foreign_namespace = seen != pids and not self._in_initial_namespace()
        resolved = {pid: (None if foreign_namespace else True) if pid in seen else False for pid in pids}
        return tuple(
            reading
            if not reading.processes
            else replace(reading, processes=tuple(GpuProcess(p.pid, p.memory_bytes, resolved[p.pid]) for p in reading.processes))
            for reading in readings
        )

    def _in_initial_namespace(self) -> bool:
        try:
            return str((self._proc / "self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
        except OSError:
            return False

    # ---- sessions and devices ----

    def _open(self, now: float) -> None:
        """Initialise NVML and find the devices.

        Raises:
            NvmlError: reason no_devices; or whatever the binding raises.
        """
        try:
            library = self._load()
        except Exception as error:
            raise NvmlError("library_not_found", Scope.SESSION, f"the NVML binding cannot be loaded: {error}") from error
        library.nvmlInit()
        self._library = library
        self._enumerate(now)
        if not self._devices and set(self._lost.values()) != {"gpu_lost"}:
            raise NvmlError(next(iter(self._lost.values()), "no_devices"), Scope.SESSION)
        self._attempts = 0
        self._reopen_at = float("inf")
        self._failure = ""
        self._xids.watch(library, {uuid: d.handle for uuid, d in self._devices.items() if not d.identity.parent})

    def _enumerate(self, now: float) -> None:
        """Bring `_devices` up to date; a known GPU that is not found any more is lost, a MIG device is gone."""
        library = self._library
        self._enumerate_at = now + _ENUMERATE_SECONDS
        driver = _text_or_empty(library, "nvmlSystemGetDriverVersion")
        found: set[str] = set()
        unnamed: list[tuple[int, str]] = []
        for index in range(library.nvmlDeviceGetCount()):
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                uuid = text_of(library.nvmlDeviceGetUUID(handle))
            except Exception as error:  # one bad device must not hide the others
                meaning = classified(error)
                if meaning.scope is Scope.SESSION:
                    raise meaning from error
                unnamed.append((index, meaning.reason))
                continue
            found |= self._add(uuid, handle, index, driver)
        for uuid in [uuid for uuid in self._devices if uuid not in found]:
            self._devices.pop(uuid).close()
        missing = [uuid for uuid, known in self._known.items() if not known.parent and uuid not in found]
        for uuid in missing:
            self._lost.setdefault(uuid, unnamed[0][1] if unnamed else "gpu_lost")
        for index, reason in unnamed[len(missing) :]:  # broken since before we started: has no UUID yet
            identity = Identity(self._free_label(str(index)), "", "", driver)
            self._known[f"index {index}"] = identity
            self._lost[f"index {index}"] = reason
        if not unnamed:
            for key in [key for key in self._known if key.startswith("index ") and key not in found]:
                del self._known[key]
                self._lost.pop(key, None)
        for uuid in [uuid for uuid, known in self._known.items() if known.parent and uuid not in found]:
            del self._known[uuid]
            self._lost.pop(uuid, None)

    def _add(self, uuid: str, handle: Any, index: int, driver: str) -> set[str]:
        """Make the device and its MIG devices known; UUIDs of all of them."""
        library = self._library
        known = self._known.get(uuid)
        label = known.gpu if known else self._free_label(str(index))
        identity = Identity(label, uuid, _text_or_empty(library, "nvmlDeviceGetName", handle), driver)
        self._known[uuid] = identity
        children = list(self._mig_children(handle, identity))
        if uuid not in self._devices or self._devices[uuid].mig_enabled != bool(children):
            if uuid in self._devices:
                self._devices[uuid].close()
            self._devices[uuid] = GpuDevice(library, handle, identity, mig_enabled=bool(children))
        for child_handle, child, gpu_instance in children:
            self._known[child.uuid] = child
            if child.uuid not in self._devices:
                self._devices[child.uuid] = GpuDevice(library, child_handle, child, parent_handle=handle, gpu_instance=gpu_instance)
        return {uuid} | {child.uuid for _, child, _ in children}

    def _mig_children(self, handle: Any, parent: Identity) -> Iterable[tuple[Any, Identity, int | None]]:
        library = self._library
        try:
            enabled = library.nvmlDeviceGetMigMode(handle)[0] == 1
            count = library.nvmlDeviceGetMaxMigDeviceCount(handle) if enabled else 0
        except Exception:  # noqa: BLE001  no MIG on this device or in this binding
            return
        for index in range(count):
            try:
                child = library.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
                uuid = text_of(library.nvmlDeviceGetUUID(child))
            except Exception:  # noqa: BLE001, S112  an empty slot
                continue
            gpu_instance: int | None = None
            with contextlib.suppress(Exception):
                gpu_instance = library.nvmlDeviceGetGpuInstanceId(child)
            known = self._known.get(uuid)
            label = known.gpu if known else self._free_label(f"{parent.gpu}.{index}")
            name = _text_or_empty(library, "nvmlDeviceGetName", child) or parent.name
            yield child, Identity(label, uuid, name, parent.driver, parent.uuid), gpu_instance

    def _free_label(self, wanted: str) -> str:
        """`wanted`, or the next number when another device (a lost one, after renumbering) holds it."""
        taken = {identity.gpu for identity in self._known.values()}
        stem, dot, number = wanted.rpartition(".")
        count = int(number)
        while f"{stem}{dot}{count}" in taken:
            count += 1
        return f"{stem}{dot}{count}"

    def _fail(self, now: float, error: NvmlError) -> None:
        """NVML as a whole gives nothing: shut it down and set the time of the next attempt."""
        library = self._library
        self.close()
        self._failure = error.reason
        self._lost.clear()
        self._retry_at = now + _RETRY_SECONDS[min(self._attempts, len(_RETRY_SECONDS) - 1)]
        self._attempts += 1
        if error.reason == "lib_rm_version_mismatch":
            with contextlib.suppress(Exception):
                _unload(library if library is not None else self._load())

    # ---- states ----

    def _states(self, readings: tuple[GpuReading, ...]) -> dict[str, SourceState]:
        if self._library is None:
            return dict.fromkeys(SOURCES, _down(self._failure))
        alive = [reading for reading in readings if reading.up]
        if not alive:
            return dict.fromkeys(SOURCES, _down(next(iter(self._lost.values()), "unknown")))
        devices = list(self._devices.values())
        gpm_reasons = [device.gpm_reason for device in devices]
        listed = [process for reading in alive for process in reading.processes or ()]
        if all(reading.processes is None for reading in alive):
            processes = _down(next((device.process_reason for device in devices if device.process_reason), "unknown"))
        elif listed and not any(process.resolves for process in listed):
            processes = _down("other_pid_namespace")
        else:
            processes = SourceState(True)
        return {
            "nvml": SourceState(True),
            "gpm": SourceState(True) if "" in gpm_reasons else _down(gpm_reasons[0]),
            "gpu_processes": processes,
        }

    def _log_changes(self, sources: dict[str, SourceState]) -> None:
        """One line per change, none per tick; the two dependent sources are silent while NVML is down."""
        for source, state in sources.items():
            before = self._logged.get(source)
            if before == state or (source != "nvml" and not sources["nvml"].up):
                continue
            self._logged[source] = state
            if state.up:
                log.info("source is up", extra={"source": source})
            elif before is not None or source == "nvml":
                log.warning("source is down: %s", state.hint or state.reason, extra={"source": source, "reason": state.reason})
            else:
                log.info("source is not there", extra={"source": source, "reason": state.reason})


def _down(reason: str) -> SourceState:
    return SourceState(False, reason, HINTS.get(reason, ""))


def _text_or_empty(library: Any, function: str, *arguments: Any) -> str:
    try:
        return text_of(getattr(library, function)(*arguments))
    except Exception:  # noqa: BLE001  a name is decoration
        return ""


def _label_order(label: str) -> tuple[int, ...]:
    return tuple(int(part) for part in label.split("."))


def _unload(library: Any) -> None:
    """Close the shared library, so that the next initialisation loads the file of the updated driver.

    The binding keeps the library that it loaded first; after an update that one can never talk to the kernel again.
    """
    shared = getattr(library, "nvmlLib", None)
    if shared is None:
        return
    library.nvmlLib = None
    library._nvmlGetFunctionPointer_cache.clear()  # noqa: SLF001  the binding has no call for it
    close = ctypes.CDLL(None).dlclose
    close.argtypes = (ctypes.c_void_p,)
    close(shared._handle)  # noqa: SLF001
