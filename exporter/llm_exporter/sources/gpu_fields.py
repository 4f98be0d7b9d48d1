"""TABLE: every number that is read of a GPU, one row each.

`sources/nvml.py` walks it once a second; `state/hardware.py` takes from it which numbers are averaged; `expose/` makes
the metrics of it. Costs were measured on an H200 (driver 580). Rows with the same name and part are alternatives, best
first: a later one is asked only where the earlier ones are not supported by the device.

Constants are NVML's own numbers (they are part of its binary interface), so that an older or smaller binding which
lacks a name is no obstacle.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from llm_exporter.readings import Kind, Unit


class Cost(Enum):
    """How often a call is made. The value is the period in seconds; 0 is every tick, infinity once per initialisation."""

    CHEAP = 0.0  # 2 to 10 µs
    SLOW = 10.0  # 0.7 to 21 ms
    ONCE = float("inf")  # never changes


class Show(Enum):
    """What is published of the last 15 s of readings."""

    MEAN = "mean"
    LAST = "last"


class GpuField(NamedTuple):
    """One number.

    Attributes:
        name: attribute of `GpuReading`.
        part: key, where that attribute is a mapping; it becomes the value of the metric's extra label.
        call: function of the binding; "gpm" for a GPM metric, "field" for an NVML field value.
        arguments: further arguments of the call; the id for "gpm" and "field".
        pick: attribute or index of the call's result; None where the result is the number.
        scale: factor from NVML's unit to ours.
        mig: also asked of MIG devices (most calls are refused there, and belong to the parent).
        metric: published name, empty for evidence only; label: its extra label.
    """

    name: str
    part: str
    call: str
    arguments: tuple[int, ...]
    pick: str | int | None
    scale: float
    unit: Unit
    cost: Cost
    show: Show
    mig: bool
    metric: str
    label: str
    help: str
    kind: Kind = Kind.GAUGE


_KB = 1000.0  # of nvmlDeviceGetPcieThroughput; compared with GPM's MiB/s on an H200
_MIB = 2.0**20
_MEMORY_V2 = 0x02000028  # nvmlMemory_v2: `used` without what the driver reserves
_CHEAP, _SLOW, _ONCE = Cost.CHEAP, Cost.SLOW, Cost.ONCE
_MEAN, _LAST = Show.MEAN, Show.LAST
_R, _B, _W, _HZ, _S = Unit.RATIO, Unit.BYTES, Unit.WATTS, Unit.HERTZ, Unit.SECONDS
_BPS, _C, _N, _J = Unit.BYTES_PER_SECOND, Unit.CELSIUS, Unit.COUNT, Unit.JOULES

_UTIL = "Share of NVML's sample period (1/6 to 1 s) in which any kernel or copy was resident; 1 proves little."
_USED = "Device memory in use, without the driver's reserve where NVML tells them apart; absent on unified memory."
_TEMPERATURE = "Temperature by sensor."
_CLOCK = "Clock now, by domain."
_THROTTLED = "Time with clocks held down, by reason, counted by the driver since it was loaded; absent where it does not count."
_PCIE_RX = "PCIe traffic to the GPU (GPM, else a 20 ms sample every 10 s)."
_PCIE_TX = "PCIe traffic from the GPU (GPM, else a 20 ms sample every 10 s)."
_ECC = "ECC errors since the driver was loaded (volatile), by kind."

# fmt: off
# ruff: noqa: E501  one row is one line: a table is read by its columns
TABLE: tuple[GpuField, ...] = (
    GpuField("utilization_ratio",        "",    "nvmlDeviceGetUtilizationRates", (),            "gpu",    0.01, _R, _CHEAP, _MEAN, False, "llm_gpu_utilization_ratio", "", _UTIL),
    GpuField("memory_utilization_ratio", "",    "nvmlDeviceGetUtilizationRates", (),            "memory", 0.01, _R, _CHEAP, _MEAN, False, "", "", "Share of time in which device memory was accessed; not its bandwidth."),
    GpuField("memory_used_bytes",        "",    "nvmlDeviceGetMemoryInfo",       (_MEMORY_V2,), "used",   1.0,  _B, _CHEAP, _LAST, True,  "llm_gpu_memory_used_bytes", "", _USED),
    GpuField("memory_used_bytes",        "",    "nvmlDeviceGetMemoryInfo",       (),            "used",   1.0,  _B, _CHEAP, _LAST, True,  "llm_gpu_memory_used_bytes", "", _USED),
    GpuField("memory_size_bytes",        "",    "nvmlDeviceGetMemoryInfo",       (_MEMORY_V2,), "total",  1.0,  _B, _CHEAP, _LAST, True,  "llm_gpu_memory_size_bytes", "", "Device memory."),
    GpuField("memory_size_bytes",        "",    "nvmlDeviceGetMemoryInfo",       (),            "total",  1.0,  _B, _CHEAP, _LAST, True,  "llm_gpu_memory_size_bytes", "", "Device memory."),
    GpuField("power_watts",              "",    "nvmlDeviceGetPowerUsage",       (),            None,     1e-3, _W, _CHEAP, _MEAN, False, "llm_gpu_power_watts", "", "Power drawn."),
    GpuField("power_limit_watts",        "",    "nvmlDeviceGetEnforcedPowerLimit", (),          None,     1e-3, _W, _CHEAP, _LAST, False, "llm_gpu_power_limit_watts", "", "Power limit in force."),
    GpuField("energy_joules",            "",    "nvmlDeviceGetTotalEnergyConsumption", (),      None,     1e-3, _J, _SLOW,  _LAST, False, "llm_gpu_energy_joules_total", "", "Energy used since the driver was loaded; read every 10 s.", Kind.COUNTER),
    GpuField("temperature_celsius",      "gpu", "nvmlDeviceGetTemperature",      (0,),          None,     1.0,  _C, _CHEAP, _LAST, False, "llm_gpu_temperature_celsius", "sensor", _TEMPERATURE),
    GpuField("temperature_celsius",   "memory", "field",                         (82,),         None,     1.0,  _C, _CHEAP, _LAST, False, "llm_gpu_temperature_celsius", "sensor", _TEMPERATURE),
    GpuField("clock_hertz",              "sm",  "nvmlDeviceGetClockInfo",        (1,),          None,     1e6,  _HZ, _CHEAP, _LAST, False, "llm_gpu_clock_hertz", "clock", _CLOCK),
    GpuField("clock_hertz",           "memory", "nvmlDeviceGetClockInfo",        (2,),          None,     1e6,  _HZ, _CHEAP, _LAST, False, "llm_gpu_clock_hertz", "clock", _CLOCK),
    GpuField("sm_clock_max_hertz",       "",    "nvmlDeviceGetMaxClockInfo",     (1,),          None,     1e6,  _HZ, _ONCE,  _LAST, False, "", "", "Highest SM clock of the device."),
    GpuField("throttle_reasons",         "",    "nvmlDeviceGetCurrentClocksEventReasons", (),   None,     1.0,  _N, _CHEAP, _LAST, False, "", "", "Bits of the reasons why clocks are held down."),
    GpuField("throttle_reasons",         "",    "nvmlDeviceGetCurrentClocksThrottleReasons", (), None,    1.0,  _N, _CHEAP, _LAST, False, "", "", "The same, by its name before driver 535."),
    # Cumulative nanoseconds. They exist as field values on newer drivers; the older call knows three policies and does not split the thermal one.
    GpuField("throttled_seconds", "sw_power_cap",               "field", (74,),  None, 1e-9, _S, _SLOW, _LAST, False, "llm_gpu_throttled_seconds_total", "reason", _THROTTLED, Kind.COUNTER),
    GpuField("throttled_seconds", "sync_boost",                 "field", (76,),  None, 1e-9, _S, _SLOW, _LAST, False, "llm_gpu_throttled_seconds_total", "reason", _THROTTLED, Kind.COUNTER),
    GpuField("throttled_seconds", "sw_thermal_slowdown",        "field", (269,), None, 1e-9, _S, _SLOW, _LAST, False, "llm_gpu_throttled_seconds_total", "reason", _THROTTLED, Kind.COUNTER),
    GpuField("throttled_seconds", "hw_thermal_slowdown",        "field", (270,), None, 1e-9, _S, _SLOW, _LAST, False, "llm_gpu_throttled_seconds_total", "reason", _THROTTLED, Kind.COUNTER),
    GpuField("throttled_seconds", "hw_power_brake_slowdown",    "field", (271,), None, 1e-9, _S, _SLOW, _LAST, False, "llm_gpu_throttled_seconds_total", "reason", _THROTTLED, Kind.COUNTER),
    GpuField("throttled_seconds", "sw_power_cap", "nvmlDeviceGetViolationStatus", (0,), "violationTime", 1e-9, _S, _SLOW, _LAST, False, "llm_gpu_throttled_seconds_total", "reason", _THROTTLED, Kind.COUNTER),
    GpuField("throttled_seconds", "sync_boost",   "nvmlDeviceGetViolationStatus", (2,), "violationTime", 1e-9, _S, _SLOW, _LAST, False, "llm_gpu_throttled_seconds_total", "reason", _THROTTLED, Kind.COUNTER),
    GpuField("graphics_active_ratio", "", "gpm", (1,),  None, 0.01, _R, _CHEAP, _MEAN, True, "llm_gpu_graphics_active_ratio", "", "Share of time in which any kernel ran; copies not counted (GPM)."),
    GpuField("sm_active_ratio",       "", "gpm", (2,),  None, 0.01, _R, _CHEAP, _MEAN, True, "llm_gpu_sm_active_ratio", "", "Share of SMs with work, mean over time (GPM)."),
    GpuField("sm_occupancy_ratio",    "", "gpm", (3,),  None, 0.01, _R, _CHEAP, _MEAN, True, "llm_gpu_sm_occupancy_ratio", "", "Resident warps of the most possible (GPM); low is normal for tensor kernels."),
    GpuField("tensor_active_ratio",   "", "gpm", (5,),  None, 0.01, _R, _CHEAP, _MEAN, True, "llm_gpu_tensor_active_ratio", "", "Share of time in which tensor pipes were busy (GPM); high in prefill."),
    GpuField("dram_active_ratio",     "", "gpm", (10,), None, 0.01, _R, _CHEAP, _MEAN, True, "llm_gpu_dram_active_ratio", "", "Memory bandwidth used of the most possible (GPM); high in decode."),
    GpuField("pcie_transmit_bytes_per_second",   "", "gpm", (20,), None, _MIB, _BPS, _CHEAP, _MEAN, True, "llm_gpu_pcie_transmit_bytes_per_second", "", _PCIE_TX),
    GpuField("pcie_receive_bytes_per_second",    "", "gpm", (21,), None, _MIB, _BPS, _CHEAP, _MEAN, True, "llm_gpu_pcie_receive_bytes_per_second", "", _PCIE_RX),
    GpuField("nvlink_receive_bytes_per_second",  "", "gpm", (60,), None, _MIB, _BPS, _CHEAP, _MEAN, True, "llm_gpu_nvlink_receive_bytes_per_second", "", "NVLink traffic to the GPU, all links (GPM)."),
    GpuField("nvlink_transmit_bytes_per_second", "", "gpm", (61,), None, _MIB, _BPS, _CHEAP, _MEAN, True, "llm_gpu_nvlink_transmit_bytes_per_second", "", "NVLink traffic from the GPU, all links (GPM)."),
    # 21 ms a call: only where GPM does not give it.
    GpuField("pcie_transmit_bytes_per_second",   "", "nvmlDeviceGetPcieThroughput", (0,), None, _KB, _BPS, _SLOW, _MEAN, False, "llm_gpu_pcie_transmit_bytes_per_second", "", _PCIE_TX),
    GpuField("pcie_receive_bytes_per_second",    "", "nvmlDeviceGetPcieThroughput", (1,), None, _KB, _BPS, _SLOW, _MEAN, False, "llm_gpu_pcie_receive_bytes_per_second", "", _PCIE_RX),
    GpuField("ecc_errors", "corrected",   "nvmlDeviceGetTotalEccErrors", (0, 0), None, 1.0, _N, _SLOW, _LAST, False, "llm_gpu_ecc_errors_total", "kind", _ECC, Kind.COUNTER),
    GpuField("ecc_errors", "uncorrected", "nvmlDeviceGetTotalEccErrors", (1, 0), None, 1.0, _N, _SLOW, _LAST, False, "llm_gpu_ecc_errors_total", "kind", _ECC, Kind.COUNTER),
    GpuField("row_remap_pending", "", "nvmlDeviceGetRemappedRows", (), 2, 1.0, Unit.FLAG, _SLOW, _LAST, False, "llm_gpu_row_remap_pending", "", "1: rows of memory wait for a GPU reset to be remapped."),
    GpuField("row_remap_failed",  "", "nvmlDeviceGetRemappedRows", (), 3, 1.0, Unit.FLAG, _SLOW, _LAST, False, "llm_gpu_row_remap_failed", "", "1: a row could not be remapped; replace the GPU."),
)
# fmt: on

GPM_IDS: Mapping[int, GpuField] = {row.arguments[0]: row for row in TABLE if row.call == "gpm"}
MEANS = tuple(dict.fromkeys(row.name for row in TABLE if row.show is Show.MEAN))
