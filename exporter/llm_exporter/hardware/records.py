"""Lines of gpu.jsonl and host.jsonl as readings, and readings as such lines, for `replay` and `record`.

The format is that of recordings made on a real H200 (NVML's own units, GPM in %, PCIe in MiB/s, CPU time in ticks of
10 ms). `t` is unix time. Several GPUs are several lines with the same `t`; a line without `gpu` is GPU "0".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from llm_exporter.hardware.readings import (
    THROTTLE_BITS,
    CgroupReading,
    GpuProcess,
    GpuReading,
    HostReading,
    ProcessReading,
    ThreadReading,
    role_of,
    safe_command,
    throttle_reasons,
)

_MIB = 2.0**20

_GPM_KEYS = (
    # key of the record, field of the reading, factor to the base unit
    ("graphics", "graphics_active_ratio", 0.01),
    ("sm", "sm_active_ratio", 0.01),
    ("occupancy", "sm_occupancy_ratio", 0.01),
    ("any_tensor", "tensor_active_ratio", 0.01),
    ("dram_bw", "dram_active_ratio", 0.01),
    ("pcie_tx_mib", "pcie_transmit_bytes_per_second", _MIB),
    ("pcie_rx_mib", "pcie_receive_bytes_per_second", _MIB),
    ("nvlink_tx_mib", "nvlink_transmit_bytes_per_second", _MIB),
    ("nvlink_rx_mib", "nvlink_receive_bytes_per_second", _MIB),
)
_PLAIN_KEYS = (
    ("util", "utilization_ratio", 0.01),
    ("mem_util", "memory_utilization_ratio", 0.01),
    ("used", "memory_used_bytes", 1.0),
    ("total", "memory_size_bytes", 1.0),
    ("power_mw", "power_watts", 1e-3),
    ("limit_mw", "power_limit_watts", 1e-3),
    ("energy_mj", "energy_joules", 1e-3),
    ("sm_max_mhz", "sm_clock_max_hertz", 1e6),
    ("row_remap_pending", "row_remap_pending", 1.0),
    ("row_remap_failed", "row_remap_failed", 1.0),
)


def gpu_reading_from_record(record: Mapping[str, Any], *, at: float | None = None) -> GpuReading:
    """One line of gpu.jsonl as a reading; `at` defaults to the record's own `t`.

    Two GPM samples of the same instant give zeros and a NaN: such a line has no GPM values.
    """
    values: dict[str, Any] = {}
    for key, name, factor in _PLAIN_KEYS:
        if (value := _number(record.get(key))) is not None:
            values[name] = _rounded(value * factor)
    gpm: Mapping[str, Any] = record.get("gpm") or {}
    known = {key: number for key, value in gpm.items() if (number := _number(value)) is not None}
    if len(known) == len(gpm) or any(known.values()):
        values.update({name: _rounded(known[key] * factor) for key, name, factor in _GPM_KEYS if key in known})
    for key, name, part, factor in (
        ("temp", "temperature_celsius", "gpu", 1.0),
        ("temp_mem", "temperature_celsius", "memory", 1.0),
        ("sm_mhz", "clock_hertz", "sm", 1e6),
        ("mem_mhz", "clock_hertz", "memory", 1e6),
    ):
        if (value := _number(record.get(key))) is not None:
            values.setdefault(name, {})[part] = _rounded(value * factor)
    if (bits := _number(record.get("throttle"))) is not None:
        values["throttle_reasons"] = throttle_reasons(int(bits))
    for key in ("throttled_seconds", "ecc_errors"):
        if record.get(key):
            values[key] = {str(part): float(value) for part, value in record[key].items()}
    if record.get("xid_errors"):
        values["xid_errors"] = {int(xid): int(count) for xid, count in record["xid_errors"].items()}
        values["xid_last_at"] = {int(xid): float(last) for xid, last in (record.get("xid_last_at") or {}).items()}
    if record.get("procs") is not None:
        values["processes"] = tuple(GpuProcess(int(row["pid"]), _number(row.get("mem")), row.get("resolves")) for row in record["procs"])
    texts: dict[str, Any] = {key: str(record[key]) for key in ("uuid", "name", "driver", "parent", "down_reason") if key in record}
    return GpuReading(
        at=float(record["t"]) if at is None else at,
        gpu=str(record.get("gpu", "0")),
        up=bool(record.get("up", True)),
        **texts,
        **values,
    )


def gpu_record(reading: GpuReading, *, wall: float) -> dict[str, Any]:
    """The inverse: one line of gpu.jsonl, `wall` being unix time. What is not known has no key."""
    record: dict[str, Any] = {"t": wall, "gpu": reading.gpu, "up": reading.up}
    for key in ("uuid", "name", "driver", "parent", "down_reason"):
        if text := getattr(reading, key):
            record[key] = text
    for key, name, factor in _PLAIN_KEYS:
        if (value := getattr(reading, name)) is not None:
            record[key] = _rounded(value / factor)
    gpm = {key: _rounded(getattr(reading, name) / factor) for key, name, factor in _GPM_KEYS if getattr(reading, name) is not None}
    if gpm:
        record["gpm"] = gpm
    for key, mapping, part, factor in (
        ("temp", reading.temperature_celsius, "gpu", 1.0),
        ("temp_mem", reading.temperature_celsius, "memory", 1.0),
        ("sm_mhz", reading.clock_hertz, "sm", 1e6),
        ("mem_mhz", reading.clock_hertz, "memory", 1e6),
    ):
        if part in mapping:
            record[key] = _rounded(mapping[part] / factor)
    if reading.throttle_reasons is not None:
        record["throttle"] = sum(bit for bit, name in THROTTLE_BITS.items() if name in reading.throttle_reasons)
    for key in ("throttled_seconds", "ecc_errors", "xid_errors", "xid_last_at"):
        if mapping := getattr(reading, key):
            record[key] = {str(part): value for part, value in mapping.items()}
    if reading.processes is not None:
        record["procs"] = [
            {"pid": pid, "mem": memory} | ({} if resolves is None else {"resolves": resolves})
            for pid, memory, resolves in reading.processes
        ]
    return record


def host_reading_from_record(record: Mapping[str, Any], *, target: str = "", at: float | None = None) -> HostReading:
    """One line of host.jsonl as a reading; `at` defaults to the record's own `t`.

    `cpus_available` is the recorded `cpus`, else the widest affinity; but not where a quota was at work that was not
    recorded.
    """
    rows = record.get("procs")
    processes = None if rows is None else tuple(_process_from_record(row) for row in rows)
    cgroups: dict[str, CgroupReading] = {}
    for row in rows or ():
        if text := row.get("cgroup_cpu_stat"):
            path = str(row.get("cgroup", ""))
            cgroups[path] = cgroup_reading(path, text)
    for path, text in (record.get("cgroups") or {}).items():
        cgroups[str(path)] = cgroup_reading(str(path), text)
    if not cgroups and "cgroups" not in record and record.get("cpu_stat"):
        cgroups[""] = cgroup_reading("", record["cpu_stat"])
    cpus = _number(record.get("cpus"))
    if cpus is None and not any(group.periods for group in cgroups.values()):
        cpus = max((float(row["affinity"]) for row in rows or () if row.get("affinity")), default=None)
    missing = {str(name): str(reason) for name, reason in (record.get("missing") or {}).items()}
    if not cgroups and "cgroups" not in record:
        missing.setdefault("cgroups", "not_recorded")
    if processes == () and "processes" not in missing:
        processes, missing = None, missing | {"processes": "process_not_found"}
    return HostReading(
        at=float(record["t"]) if at is None else at,
        target=target,
        processes=processes,
        cgroups=tuple(cgroups.values()),
        cpu_pressure_seconds=pressure_seconds(record.get("pressure_cpu") or ""),
        cpus_available=cpus,
        missing=missing,
    )


def host_record(reading: HostReading, *, wall: float) -> dict[str, Any]:
    """The inverse: one line of host.jsonl, `wall` being unix time."""
    record: dict[str, Any] = {"t": wall}
    if reading.processes is not None:
        record["procs"] = [_process_record(process) for process in reading.processes]
    if reading.cgroups or "cgroups" not in reading.missing:
        record["cgroups"] = {
            group.path: f"nr_periods {group.periods:.0f}\nnr_throttled {group.throttled_periods:.0f}\n"
            f"throttled_usec {group.throttled_seconds * 1e6:.0f}\n"
            for group in reading.cgroups
        }
    if reading.cpu_pressure_seconds is not None:
        record["pressure_cpu"] = f"some total={reading.cpu_pressure_seconds * 1e6:.0f}\n"
    if reading.cpus_available is not None:
        record["cpus"] = reading.cpus_available
    if reading.missing:
        record["missing"] = dict(reading.missing)
    return record


def cgroup_reading(path: str, cpu_stat: str) -> CgroupReading:
    """A cgroup's `cpu.stat` as a reading (v2: throttled_usec; v1: throttled_time in ns); no periods means no quota."""
    values = dict(line.split(None, 1) for line in cpu_stat.splitlines() if " " in line)
    seconds = float(values["throttled_usec"]) / 1e6 if "throttled_usec" in values else float(values.get("throttled_time", 0)) / 1e9
    return CgroupReading(path, float(values.get("nr_periods", 0)), float(values.get("nr_throttled", 0)), seconds)


def pressure_seconds(text: str) -> float | None:
    """Total of the line `some` of a PSI file, in seconds; None where there is none."""
    match = re.search(r"^some\b.*\btotal=(\d+)", text, re.MULTILINE)
    return int(match[1]) / 1e6 if match else None


def _process_from_record(row: Mapping[str, Any]) -> ProcessReading:
    comm, command = str(row.get("comm", "")), safe_command(str(row.get("cmd", "")).split())
    cpu = _number(row.get("cpu_ticks"))
    return ProcessReading(
        pid=int(row["pid"]),
        started=int(row.get("started", 0)),
        comm=comm,
        command=command,
        role=str(row.get("role") or role_of(comm, command)),
        cpu_seconds=None if cpu is None else cpu / 100,
        affinity=row.get("affinity"),
        threads=tuple(
            ThreadReading(
                int(thread["tid"]),
                str(thread.get("comm", "")),
                (thread["utime"] + thread["stime"]) / 100,
                None if thread.get("run_ns") is None else thread["run_ns"] / 1e9,
                None if thread.get("wait_ns") is None else thread["wait_ns"] / 1e9,
            )
            for thread in row.get("threads", ())
        ),
    )


def _process_record(process: ProcessReading) -> dict[str, Any]:
    row: dict[str, Any] = {
        "pid": process.pid,
        "started": process.started,
        "comm": process.comm,
        "cmd": process.command,
        "role": process.role,
    }
    if process.cpu_seconds is not None:
        row["cpu_ticks"] = round(process.cpu_seconds * 100)
    if process.affinity is not None:
        row["affinity"] = process.affinity
    row["threads"] = [
        {"tid": thread.tid, "comm": thread.comm, "utime": round(thread.cpu_seconds * 100), "stime": 0}
        | ({} if thread.run_seconds is None else {"run_ns": round(thread.run_seconds * 1e9)})
        | ({} if thread.wait_seconds is None else {"wait_ns": round(thread.wait_seconds * 1e9)})
        for thread in process.threads
    ]
    return row


def _number(value: object) -> float | None:
    """A finite number, else None: recordings hold NaN where a value was not available."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None


def _rounded(value: float) -> float:
    """Undo the noise of unit conversion (69.99999999999999 → 70.0)."""
    return float(f"{value:.12g}")
