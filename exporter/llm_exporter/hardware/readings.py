"""What NVML said about one GPU, and what /proc said about the processes of one target, at one moment.

`sources/nvml.py` and `sources/host.py` make these readings once a second, `state/hardware.py` remembers them,
`hardware/records.py` turns them into lines of a recording and back. Base units everywhere; counters as the source
gave them. None, an empty mapping or a missing key means "not known", never zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# Why a GPU's clocks are below what was asked for, by NVML's bit. Bit 0x1 (idle) is not throttling and has no name here.
THROTTLE_BITS: Mapping[int, str] = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
THROTTLE_REASONS = tuple(THROTTLE_BITS.values())

# Work that a process of a server does. Closed set: it is a label.
ROLES = ("api_server", "engine_core", "scheduler", "worker", "tokenizer", "detokenizer", "other")

# First match wins. vLLM ("VLLM::") and SGLang ("sglang::") set process titles; the kernel cuts `comm` after 15 bytes.
_ROLE_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), role)
    for pattern, role in (
        (r"^vllm::engine_?cor", "engine_core"),
        (r"^vllm::(dp|data_?parallel)?_?coord", "other"),
        (r"^vllm::worker|^rayworkerwrap|^ray::.*worker", "worker"),
        (r"^vllm::(api_?server|router|render)", "api_server"),
        (r"^sglang::schedul", "scheduler"),
        (r"^sglang::detoken", "detokenizer"),
        (r"^sglang::(tokenizer|multi_tokenizer)", "tokenizer"),
        (r"^sglang::(http|api|server)", "api_server"),
        (r"multiprocessing\.(resource_tracker|forkserver)", "other"),
        (r"vllm\.entrypoints\.\S*api_server|(^|[/ ])vllm serve\b|vllm\.entrypoints\.cli\S* serve\b", "api_server"),
        (r"sglang\.launch_server|(^|[/ ])sglang serve\b", "api_server"),
    )
)
_COMMAND_LENGTH = 120  # as in the captured recordings


class GpuProcess(NamedTuple):
    """One process that holds memory on a GPU.

    `resolves`: True where the pid is a process of our own PID namespace, False where it is not, None where nobody
    looked.
    """

    pid: int
    memory_bytes: float | None
    resolves: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What NVML and GPM said about one GPU (or one MIG device) at one moment.

    Attributes:
        at: monotonic seconds of whoever drives the reader.
        gpu: NVML's index when the device was first seen, kept with the UUID; "0.1" is MIG device 1 of GPU 0.
        parent: UUID of the physical GPU of a MIG device, else empty.
        up: False for a device that fell off the bus; everything below is then unknown, `down_reason` says why.
        utilization_ratio: share of NVML's sample period (1/6 to 1 s) with any kernel resident; counts copies too.
        memory_utilization_ratio: share of time in which memory was accessed; not bandwidth.
        energy_joules: counter since the driver was loaded; read every 10 s.
        temperature_celsius: by sensor (gpu, memory). clock_hertz: by clock (sm, memory).
        throttle_reasons: names of THROTTLE_BITS that are set; None where NVML does not say.
        throttled_seconds: counters by reason.
        graphics_active_ratio … dram_active_ratio: GPM, mean since the reading before.
        ecc_errors: volatile counters by kind (corrected, uncorrected).
        xid_errors: XID events since this program started, by number; xid_last_at: unix time of the last one.
        processes: None where NVML does not say.
    """

    at: float
    gpu: str
    uuid: str = ""
    name: str = ""
    driver: str = ""
    parent: str = ""
    up: bool = True
    down_reason: str = ""
    utilization_ratio: float | None = None
    memory_utilization_ratio: float | None = None
    memory_used_bytes: float | None = None
    memory_size_bytes: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: Mapping[str, float] = field(default_factory=dict)
    clock_hertz: Mapping[str, float] = field(default_factory=dict)
    sm_clock_max_hertz: float | None = None
    throttle_reasons: frozenset[str] | None = None
    throttled_seconds: Mapping[str, float] = field(default_factory=dict)
    pcie_receive_bytes_per_second: float | None = None
    pcie_transmit_bytes_per_second: float | None = None
    nvlink_receive_bytes_per_second: float | None = None
    nvlink_transmit_bytes_per_second: float | None = None
    graphics_active_ratio: float | None = None
    sm_active_ratio: float | None = None
    sm_occupancy_ratio: float | None = None
    tensor_active_ratio: float | None = None
    dram_active_ratio: float | None = None
    ecc_errors: Mapping[str, float] = field(default_factory=dict)
    row_remap_pending: float | None = None
    row_remap_failed: float | None = None
    xid_errors: Mapping[int, int] = field(default_factory=dict)
    xid_last_at: Mapping[int, float] = field(default_factory=dict)
    processes: tuple[GpuProcess, ...] | None = None


class ThreadReading(NamedTuple):
    """Counters of one thread: user + system time; from schedstat, time on a core and time runnable without one."""

    tid: int
    comm: str
    cpu_seconds: float
    run_seconds: float | None = None
    wait_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReading:
    """One process of a target.

    Attributes:
        started: start time in clock ticks since boot; with the pid it names a process for good (0: not known).
        command: command line up to its first option, at most 120 characters: API keys stand in options.
        cpu_seconds: counter of the whole process, ended threads included; None where only threads are known.
        threads: all threads, or the busiest ones in a recording.
    """

    pid: int
    started: int = 0
    comm: str = ""
    command: str = ""
    role: str = "other"
    cpu_seconds: float | None = None
    threads: tuple[ThreadReading, ...] = ()
    affinity: int | None = None


class CgroupReading(NamedTuple):
    """CPU bandwidth control of one cgroup (v1 or v2), counters. A cgroup without a quota has no periods."""

    path: str
    periods: float
    throttled_periods: float
    throttled_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """What /proc and the cgroup tree said about the processes of one target at one moment.

    Attributes:
        at: monotonic seconds of whoever drives the reader.
        processes: the target's processes; None where they could not be found or read, `missing["processes"]` says why.
        cgroups: the target's cgroups and their ancestors that have bandwidth control.
        cpu_pressure_seconds: counter, time in which a runnable task waited for a CPU (PSI `some`), of the cgroup or
            else of the machine.
        cpus_available: smallest of affinity, quota and CPUs online.
        missing: field → reason (remote, process_not_found, no_permission, other_pid_namespace, not_supported, …).
    """

    at: float
    target: str = ""
    processes: tuple[ProcessReading, ...] | None = None
    cgroups: tuple[CgroupReading, ...] = ()
    cpu_pressure_seconds: float | None = None
    cpus_available: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


class SourceState(NamedTuple):
    """Whether a source gives anything (`llm_exporter_source_up`), and why not; `hint` is the remedy, for people."""

    up: bool
    reason: str = ""
    hint: str = ""


class GpuTick(NamedTuple):
    """One round of the GPU reader. `sources` has nvml, gpm and gpu_processes."""

    at: float
    readings: tuple[GpuReading, ...]
    sources: Mapping[str, SourceState]


class HostTick(NamedTuple):
    """One round of the host reader: one reading per target, and the source `host`."""

    at: float
    readings: tuple[HostReading, ...]
    sources: Mapping[str, SourceState]


def role_of(comm: str, command: str) -> str:
    """The work of a process, by its title or command line (setproctitle of vLLM and SGLang)."""
    for text in (command.strip(), comm):
        for pattern, role in _ROLE_PATTERNS:
            if pattern.search(text):
                return role
    return "other"


def safe_command(arguments: Iterable[str]) -> str:
    """Command line up to its first long option: what a program is, without what it was told."""
    words: list[str] = []
    for word in arguments:
        if word.startswith("--"):
            break
        words.append(word)
    return " ".join(words).strip()[:_COMMAND_LENGTH].rstrip()


def throttle_reasons(bits: int) -> frozenset[str]:
    """Names of the set bits of NVML's clocks-event mask; unknown bits and the idle bit have none."""
    return frozenset(name for bit, name in THROTTLE_BITS.items() if bits & bit)
