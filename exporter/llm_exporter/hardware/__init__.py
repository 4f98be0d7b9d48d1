"""The vocabulary of the machine below an engine: readings of GPUs and of a target's processes, and their recorded form.

Everybody imports from here: `from llm_exporter.hardware import GpuReading, HostReading, gpu_reading_from_record`.
"""

from llm_exporter.hardware.readings import (
    ROLES,
    THROTTLE_BITS,
    THROTTLE_REASONS,
    CgroupReading,
    GpuProcess,
    GpuReading,
    GpuTick,
    HostReading,
    HostTick,
    ProcessReading,
    SourceState,
    ThreadReading,
    role_of,
    safe_command,
    throttle_reasons,
)
from llm_exporter.hardware.records import (
    cgroup_reading,
    gpu_reading_from_record,
    gpu_record,
    host_reading_from_record,
    host_record,
    pressure_seconds,
)

__all__ = [
    "ROLES",
    "THROTTLE_BITS",
    "THROTTLE_REASONS",
    "CgroupReading",
    "GpuProcess",
    "GpuReading",
    "GpuTick",
    "HostReading",
    "HostTick",
    "ProcessReading",
    "SourceState",
    "ThreadReading",
    "cgroup_reading",
    "gpu_reading_from_record",
    "gpu_record",
    "host_reading_from_record",
    "host_record",
    "pressure_seconds",
    "role_of",
    "safe_command",
    "throttle_reasons",
]
