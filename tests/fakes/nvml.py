"""An NVML binding driven by a field case's nvml.json and a clock that the test owns.

Top level of the file: `init` ("OK" or an error's name), `devices`, `all_calls` (an error for every call), `alternate`
(utilisation that changes), `phases` (from second `from_s` on, other top-level keys). A device's value may be
`{"error": NAME}`. Beyond the field cases a device may have `gpm` ({metric id: value or "nan"}), `fields` ({field id:
value}), `energy_mj`, `throttle`, `clock_mhz`, `pcie_kb`, `ecc`, `remapped`; the top level `xids` ([{at_s, uuid, xid}]).
What a device does not have is not supported; GPM and events are missing from the binding unless the file has them.
"""

# ruff: noqa: N802  names are those of the binding
from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CODES = {
    "NVML_ERROR_UNINITIALIZED": 1,
    "NVML_ERROR_INVALID_ARGUMENT": 2,
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_NOT_FOUND": 6,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_TIMEOUT": 10,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18,
    "NVML_ERROR_UNKNOWN": 999,
}


class NVMLError(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.value = CODES[name]


class FakeNvml:
    """Stands for the module pynvml. `calls` counts every call by name; `alive` counts samples and event sets not freed."""

    NVMLError = NVMLError

    def __init__(self, document: dict[str, Any] | Path, clock: Callable[[], float]) -> None:
        self.document = document if isinstance(document, dict) else json.loads(document.read_text())
        self.clock = clock
        self.calls: Counter[str] = Counter()
        self.alive = 0
        self._initialised = 0
        self._handles: dict[str, SimpleNamespace] = {}
        self._delivered = 0
        if any("gpm" in device for device in self.document["devices"]):
            self.c_nvmlGpmMetricsGet_t = _GpmRequest
            self.nvmlGpmQueryDeviceSupport = self._gpm_support
            self.nvmlGpmSampleAlloc = self._gpm_alloc
            self.nvmlGpmSampleFree = self._free
            self.nvmlGpmSampleGet = self._gpm_get
            self.nvmlGpmMigSampleGet = self._gpm_mig_get
            self.nvmlGpmMetricsGet = self._gpm_metrics
        if "xids" in self.document:
            self.nvmlEventSetCreate = self._event_set
            self.nvmlEventSetFree = self._free
            self.nvmlEventSetWait_v2 = self._event_wait
            self.nvmlDeviceRegisterEvents = lambda handle, types, events: self._device("register", handle) and None

    # ---- what every call does first ----

    def state(self) -> dict[str, Any]:
        state = dict(self.document)
        for phase in self.document.get("phases", ()):
            if self.clock() >= phase["from_s"]:
                state |= phase
        return state

    def _call(self, name: str) -> dict[str, Any]:
        self.calls[name] += 1
        state = self.state()
        if not self._initialised:
            raise NVMLError("NVML_ERROR_UNINITIALIZED")
        if state.get("all_calls"):
            raise NVMLError(state["all_calls"])
        return state

    def _device(self, name: str, handle: SimpleNamespace) -> dict[str, Any]:
        for device in self._call(name)["devices"]:
            if device["uuid"] == handle.uuid:
                if "handle" in device:
                    raise NVMLError(device["handle"])
                if handle.mig:
                    return next(child for child in device["mig"] if child["uuid"] == handle.mig)
                return dict(device)
        raise NVMLError("NVML_ERROR_GPU_IS_LOST")

    def _value(self, name: str, handle: SimpleNamespace, key: str) -> Any:
        value = self._device(name, handle).get(key, {"error": "NVML_ERROR_NOT_SUPPORTED"})
        if isinstance(value, dict) and "error" in value:
            raise NVMLError(value["error"])
        return value

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDevice"):
            raise AttributeError(name)

        def unsupported(*_: Any) -> None:
            self._call(name)
            raise NVMLError("NVML_ERROR_NOT_SUPPORTED")

        return unsupported

    # ---- session and handles ----

    def nvmlInit(self) -> None:
        self.calls["nvmlInit"] += 1
        state = self.state()
        if state["init"] != "OK" or state.get("all_calls"):
            raise NVMLError(state["all_calls"] if state["init"] == "OK" else state["init"])
        self._initialised += 1

    def nvmlShutdown(self) -> None:
        self.calls["nvmlShutdown"] += 1
        assert self._initialised, "shutdown without init"
        self._initialised -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        self._call("nvmlSystemGetDriverVersion")
        return b"580.00"

    def nvmlDeviceGetCount(self) -> int:
        return len(self._call("nvmlDeviceGetCount")["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        device = self._call("nvmlDeviceGetHandleByIndex")["devices"][index]
        if "handle" in device:
            raise NVMLError(device["handle"])
        return self._handle(device["uuid"], None)

    def _handle(self, uuid: str, mig: str | None) -> SimpleNamespace:
        return self._handles.setdefault(mig or uuid, SimpleNamespace(uuid=uuid, mig=mig))

    def nvmlDeviceGetUUID(self, handle: SimpleNamespace) -> str:
        return str(self._device("nvmlDeviceGetUUID", handle)["uuid"])

    def nvmlDeviceGetName(self, handle: SimpleNamespace) -> str:
        return str(self._device("nvmlDeviceGetName", handle).get("name", "NVIDIA MIG"))

    def nvmlDeviceGetMigMode(self, handle: SimpleNamespace) -> list[int]:
        mode = self._value("nvmlDeviceGetMigMode", handle, "mig_mode")
        return [mode, mode]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: SimpleNamespace) -> int:
        return 7 if self._device("nvmlDeviceGetMaxMigDeviceCount", handle).get("mig") else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: SimpleNamespace, index: int) -> SimpleNamespace:
        children = self._device("nvmlDeviceGetMigDeviceHandleByIndex", handle)["mig"]
        if index >= len(children):
            raise NVMLError("NVML_ERROR_NOT_FOUND")
        return self._handle(handle.uuid, children[index]["uuid"])

    def nvmlDeviceGetGpuInstanceId(self, handle: SimpleNamespace) -> int:
        return int(self._device("nvmlDeviceGetGpuInstanceId", handle)["gi"])

    # ---- values ----

    def nvmlDeviceGetUtilizationRates(self, handle: SimpleNamespace) -> SimpleNamespace:
        value = self._value("nvmlDeviceGetUtilizationRates", handle, "utilization")
        if alternate := self.state().get("alternate"):
            value = alternate["values"][int(self.clock() / alternate["period_s"]) % len(alternate["values"])]
        return SimpleNamespace(**value)

    def nvmlDeviceGetMemoryInfo(self, handle: SimpleNamespace, version: int | None = None) -> SimpleNamespace:
        name = "nvmlDeviceGetMemoryInfo" + ("_v2" if version else "")
        if version and self.document.get("no_memory_v2"):
            raise AttributeError(name)
        return SimpleNamespace(**self._value(name, handle, "memory"))

    def nvmlDeviceGetPowerUsage(self, handle: SimpleNamespace) -> int:
        return int(self._value("nvmlDeviceGetPowerUsage", handle, "power_mw"))

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: SimpleNamespace) -> int:
        return int(self._value("nvmlDeviceGetEnforcedPowerLimit", handle, "power_limit_mw"))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: SimpleNamespace) -> int:
        return int(self._value("nvmlDeviceGetTotalEnergyConsumption", handle, "energy_mj"))

    def nvmlDeviceGetTemperature(self, handle: SimpleNamespace, _sensor: int) -> int:
        return int(self._value("nvmlDeviceGetTemperature", handle, "temperature_c"))

    def nvmlDeviceGetClockInfo(self, handle: SimpleNamespace, clock: int) -> int:
        return int(self._value("nvmlDeviceGetClockInfo", handle, "clock_mhz")[clock - 1])

    def nvmlDeviceGetMaxClockInfo(self, handle: SimpleNamespace, _clock: int) -> int:
        return int(self._value("nvmlDeviceGetMaxClockInfo", handle, "clock_max_mhz"))

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: SimpleNamespace) -> int:
        return int(self._value("nvmlDeviceGetCurrentClocksThrottleReasons", handle, "throttle"))

    def nvmlDeviceGetViolationStatus(self, handle: SimpleNamespace, policy: int) -> SimpleNamespace:
        values = self._value("nvmlDeviceGetViolationStatus", handle, "violation_ns")
        if str(policy) not in values:
            raise NVMLError("NVML_ERROR_NOT_SUPPORTED")
        return SimpleNamespace(violationTime=values[str(policy)], referenceTime=0)

    def nvmlDeviceGetPcieThroughput(self, handle: SimpleNamespace, counter: int) -> int:
        return int(self._value("nvmlDeviceGetPcieThroughput", handle, "pcie_kb")[counter])

    def nvmlDeviceGetTotalEccErrors(self, handle: SimpleNamespace, kind: int, _scope: int) -> int:
        return int(self._value("nvmlDeviceGetTotalEccErrors", handle, "ecc")[kind])

    def nvmlDeviceGetRemappedRows(self, handle: SimpleNamespace) -> tuple[int, ...]:
        return tuple(self._value("nvmlDeviceGetRemappedRows", handle, "remapped"))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: SimpleNamespace) -> list[SimpleNamespace]:
        rows = self._value("nvmlDeviceGetComputeRunningProcesses", handle, "processes")
        return [SimpleNamespace(pid=row["pid"], usedGpuMemory=row["used"]) for row in rows]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: SimpleNamespace) -> list[SimpleNamespace]:
        self._device("nvmlDeviceGetGraphicsRunningProcesses", handle)
        return []

    def nvmlDeviceGetFieldValues(self, handle: SimpleNamespace, ids: list[int]) -> list[SimpleNamespace]:
        known = self._value("nvmlDeviceGetFieldValues", handle, "fields")
        return [
            SimpleNamespace(
                fieldId=number,
                valueType=3,
                nvmlReturn=0 if str(number) in known else 3,
                value=SimpleNamespace(ullVal=known.get(str(number), 0)),
            )
            for number in ids
        ]

    # ---- GPM and events ----

    def _gpm_support(self, handle: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(isSupportedDevice=int("gpm" in self._device("nvmlGpmQueryDeviceSupport", handle)))

    def _gpm_alloc(self) -> SimpleNamespace:
        self.alive += 1
        return SimpleNamespace(at=None, values=None)

    def _free(self, _thing: Any) -> None:
        self.alive -= 1

    def _gpm_get(self, handle: SimpleNamespace, sample: SimpleNamespace) -> None:
        sample.values = self._device("nvmlGpmSampleGet", handle)["gpm"]
        sample.at = self.clock()

    def _gpm_mig_get(self, handle: SimpleNamespace, gpu_instance: int, sample: SimpleNamespace) -> None:
        children = self._device("nvmlGpmMigSampleGet", handle)["mig"]
        sample.values = next(child["gpm"] for child in children if child["gi"] == gpu_instance)
        sample.at = self.clock()

    def _gpm_metrics(self, request: _GpmRequest) -> None:
        self.calls["nvmlGpmMetricsGet"] += 1
        assert request.sample1.at < request.sample2.at, "the older sample goes first"
        for metric in request.metrics[: request.numMetrics]:
            value = request.sample2.values.get(str(metric.metricId))
            metric.nvmlReturn = 3 if value is None else 0
            metric.value = math.nan if value in (None, "nan") else value

    def _event_set(self) -> SimpleNamespace:
        self.alive += 1
        return SimpleNamespace()

    def _event_wait(self, _events: Any, timeout_ms: int) -> SimpleNamespace:
        assert timeout_ms == 0, "the reader must never wait"
        self._call("nvmlEventSetWait_v2")
        due = [event for event in self.document["xids"] if event["at_s"] <= self.clock()]
        if self._delivered >= len(due):
            raise NVMLError("NVML_ERROR_TIMEOUT")
        event = due[self._delivered]
        self._delivered += 1
        return SimpleNamespace(device=self._handle(event["uuid"], None), eventType=8, eventData=event["xid"])


class _GpmRequest:
    def __init__(self) -> None:
        self.version = self.numMetrics = 0
        self.sample1: Any = None
        self.sample2: Any = None
        self.metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(333)]
