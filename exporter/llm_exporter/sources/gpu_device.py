"""One GPU or MIG device: walks the rows of `gpu_fields.TABLE` and makes a `GpuReading`.

Made by `sources/nvml.py` at each initialisation of NVML; forgets everything when NVML is initialised anew. Remembers
what the device does not support, so that it is asked once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from llm_exporter.hardware import GpuProcess, GpuReading, throttle_reasons
from llm_exporter.sources.gpm import GpmSampler
from llm_exporter.sources.gpu_fields import TABLE, Cost, GpuField
from llm_exporter.sources.nvml_errors import NvmlError, Scope, classified

log = logging.getLogger(__name__)

_NOT_AVAILABLE = 2**64 - 1  # NVML's "no value" for 64-bit numbers
_TICK_TOLERANCE = 0.5  # a slow call is due this much early, so that jitter does not make it a tick late
_UTILIZATION = "nvmlDeviceGetUtilizationRates"
_FIELD_VALUES = "nvmlDeviceGetFieldValues"
_VALUE_BY_TYPE = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
_PROCESS_CALLS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


class Identity(NamedTuple):
    """Who a device is; kept over initialisations under its UUID."""

    gpu: str
    uuid: str
    name: str
    driver: str
    parent: str = ""


class GpuDevice:
    """Reads one device.

    Args:
        library: the NVML binding.
        handle: the device's handle (a MIG device's own).
        identity: labels.
        mig_enabled: the device is divided: its processes are listed by its MIG devices.
        parent_handle, gpu_instance: of a MIG device, for GPM.
    """

    def __init__(
        self,
        library: Any,
        handle: Any,
        identity: Identity,
        *,
        mig_enabled: bool = False,
        parent_handle: Any = None,
        gpu_instance: int | None = None,
    ) -> None:
        self.identity = identity
        self.handle = handle
        self.mig_enabled = mig_enabled
        self.gpm_reason = ""
        self.process_reason = ""
        self.library = library
        self._is_mig = parent_handle is not None
        self.rows = tuple(row for row in TABLE if row.mig or not self._is_mig)
        self.unsupported: set[tuple[str, tuple[int, ...]]] = set()
        self.constants: dict[tuple[str, str], float] = {}
        self._slow_at: float | None = None
        self.gpm: GpmSampler | None = None
        self._short = tuple(row for row in self.rows if row.call == _UTILIZATION)
        self._glances: dict[str, list[float]] = {}
        try:
            self.gpm = _gpm_sampler(library, parent_handle if self._is_mig else handle, gpu_instance)
        except Exception as error:  # noqa: BLE001  the binding may raise anything; GPM is optional
            self.gpm_reason = classified(error).reason

    def read(self, now: float) -> GpuReading:
        """One reading.

        Raises:
            NvmlError: scope DEVICE or SESSION, when the device gives nothing any more.
        """
        slow = self._slow_at is None or now - self._slow_at >= Cost.SLOW.value - _TICK_TOLERANCE
        if slow:
            self._slow_at = now
        round_ = _Round(self, now, slow)
        values = round_.walk(self.rows)
        for name, seen in self._glances.items():
            if name in values:
                values[name] = (sum(seen) + values[name]) / (len(seen) + 1)
        self._glances.clear()
        processes = None if self.mig_enabled else round_.processes()
        if not round_.answered and round_.failures:
            reason = Counter(error.reason for error in round_.failures).most_common(1)[0][0]
            raise NvmlError(reason, Scope.DEVICE, f"every call on GPU {self.identity.gpu} fails")
        return GpuReading(at=now, **self.identity._asdict(), processes=processes, **values)

    def glance(self) -> None:
        """Look at utilisation once more between two readings, which then give the mean.

        NVML's own sample may be a sixth of a second: a GPU that works every other second reads 100 % or 0 % by luck at one look a second.
        """
        try:
            values = _Round(self, self._slow_at or 0.0, slow=False).walk(self._short)
        except NvmlError:
            return  # the next reading meets it too, and says so
        for name, value in values.items():
            self._glances.setdefault(name, []).append(value)

    def close(self) -> None:
        """Free what NVML holds for us."""
        if self.gpm is not None:
            self.gpm.close()
            self.gpm = None


class _Round:
    """The calls of one tick on one device, each made at most once."""

    def __init__(self, device: GpuDevice, now: float, slow: bool) -> None:
        self._device = device
        self._now = now
        self._slow = slow
        self._answers: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._gpm_values: Mapping[str, float] | None = None
        self._fields: Mapping[int, Any] | None = None
        self.answered = 0
        self.failures: list[NvmlError] = []

    def walk(self, rows: tuple[GpuField, ...]) -> dict[str, Any]:
        device = self._device
        values: dict[str, Any] = {}
        settled: set[tuple[str, str]] = set()
        for row in rows:
            key, call = (row.name, row.part), _call_key(row)
            if key in settled or call in device.unsupported:
                continue
            settled.add(key)
            if row.cost is Cost.ONCE and key in device.constants:
                value: float | None = device.constants[key]
            elif row.cost is Cost.SLOW and not self._slow:
                continue
            else:
                try:
                    value = self._ask(row)
                except NvmlError as error:
                    if error.scope in (Scope.DEVICE, Scope.SESSION):
                        raise
                    if error.scope is Scope.FIELD:
                        device.unsupported.add(call)
                        settled.discard(key)
                        log.debug("source=nvml gpu=%s call=%s reason=%s", device.identity.gpu, call, error)
                    else:
                        self.failures.append(error)
                    continue
                if row.cost is Cost.ONCE and value is not None:
                    device.constants[key] = value
            if value is None:
                continue
            if row.name == "throttle_reasons":
                values[row.name] = throttle_reasons(int(value))
            elif row.part:
                values.setdefault(row.name, {})[row.part] = value
            else:
                values[row.name] = value
        return values

    def processes(self) -> tuple[GpuProcess, ...] | None:
        """Compute, graphics and MPS processes by pid; None where none of the lists can be had."""
        device, found, lists, reason = self._device, dict[int, float | None](), 0, "not_supported"
        for name in _PROCESS_CALLS:
            if (name, ()) in device.unsupported:
                continue
            try:
                rows = self._call(name, ())
            except NvmlError as error:
                if error.scope in (Scope.DEVICE, Scope.SESSION):
                    raise
                reason = error.reason
                if error.scope is Scope.FIELD:
                    device.unsupported.add((name, ()))
                else:
                    self.failures.append(error)
                continue
            lists += 1
            for row in rows:
                used = row.usedGpuMemory
                known = used is not None and used != _NOT_AVAILABLE
                found[int(row.pid)] = max(found.get(int(row.pid)) or 0.0, float(used)) if known else found.get(int(row.pid))
        device.process_reason = "" if lists else device.process_reason or reason
        return tuple(GpuProcess(pid, memory) for pid, memory in sorted(found.items())) if lists else None

    def _ask(self, row: GpuField) -> float | None:
        if row.call == "gpm":
            return self._ask_gpm().get(row.name)
        if row.call == "field":
            return self._ask_field(row)
        answer = self._call(row.call, row.arguments)
        raw = answer if row.pick is None else answer[row.pick] if isinstance(row.pick, int) else getattr(answer, row.pick)
        return None if raw is None or raw == _NOT_AVAILABLE else float(raw) * row.scale

    def _ask_gpm(self) -> Mapping[str, float]:
        """Names and values are already in our units."""
        device = self._device
        if device.gpm is None:
            raise NvmlError("not_supported", Scope.FIELD)
        if self._gpm_values is None:
            self._gpm_values = {}
            try:
                self._gpm_values = device.gpm.read(self._now)
                self.answered += 1
            except Exception as error:  # the binding may raise anything
                meaning = classified(error)
                if meaning.scope is Scope.FIELD:
                    device.gpm_reason = meaning.reason
                    device.close()
                raise meaning from error
        return self._gpm_values

    def _ask_field(self, row: GpuField) -> float | None:
        """One batched call for all field values that are due."""
        if self._fields is None:
            self._fields = {}
            due = [
                other.arguments[0]
                for other in self._device.rows
                if other.call == "field" and (self._slow or other.cost is Cost.CHEAP) and _call_key(other) not in self._device.unsupported
            ]
            try:
                self._fields = {int(value.fieldId): value for value in self._call(_FIELD_VALUES, (), due)}
            except NvmlError as error:
                if error.scope is Scope.FIELD:
                    self._device.unsupported.update(("field", (number,)) for number in due)
                raise
        value = self._fields.get(row.arguments[0])
        if value is None:
            return None
        if value.nvmlReturn:
            raise classified(_Code(value.nvmlReturn))
        return float(getattr(value.value, _VALUE_BY_TYPE[value.valueType])) * row.scale

    def _call(self, name: str, arguments: tuple[int, ...], *extra: Any) -> Any:
        """Result of a binding's function on this device; the error is classified and remembered for this tick."""
        key = (name, arguments)
        if key not in self._answers:
            try:
                self._answers[key] = getattr(self._device.library, name)(self._device.handle, *arguments, *extra)
                self.answered += 1
            except Exception as error:  # noqa: BLE001  the binding may raise anything; `classified` tells what it means
                self._answers[key] = classified(error)
        answer = self._answers[key]
        if isinstance(answer, NvmlError):
            raise answer
        return answer


def _gpm_sampler(library: Any, handle: Any, gpu_instance: int | None) -> GpmSampler:
    if not library.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
        raise NvmlError("not_supported", Scope.FIELD)
    return GpmSampler(library, handle, gpu_instance)


class _Code(Exception):
    """An NVML return code that came as a value."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


def _call_key(row: GpuField) -> tuple[str, tuple[int, ...]]:
    """What is (not) supported as one: a function with its arguments, a field value, GPM as a whole."""
    return (row.call, ()) if row.call == "gpm" else (row.call, row.arguments)
