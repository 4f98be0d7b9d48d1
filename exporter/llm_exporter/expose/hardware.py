"""What is published of GPUs, of a target's processes, and of our own sources (CONTRACT 6.4 and parts of 6.5).

The metrics of a GPU's numbers are made from the rows of `sources/gpu_fields.TABLE`; the rest is declared here. The
daemon calls `families` for each page.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_exporter.hardware import THROTTLE_REASONS, GpuReading, SourceState
from llm_exporter.metrics import Family, Metric, Sample
from llm_exporter.readings import Kind, Unit
from llm_exporter.sources.gpu_fields import TABLE, GpuField
from llm_exporter.state.hardware import SHOWN_SECONDS, HardwareState

_G, _C = Kind.GAUGE, Kind.COUNTER
_GPU, _TARGET = ("gpu",), ("target",)

# fmt: off
GPU_INFO = Metric("llm_gpu_info", _G, Unit.INFO, "A GPU or MIG device; parent is the UUID of a MIG device's GPU.", ("gpu", "uuid", "name", "driver", "parent"), "1 per GPU")
GPU_UP = Metric("llm_gpu_up", _G, Unit.FLAG, "1 if the GPU answers, 0 if it is lost.", _GPU, "1 per GPU")
GPU_THROTTLE = Metric("llm_gpu_throttle_active", _G, Unit.FLAG, "1 for reasons that held clocks down in the last 15 s; sw_power_cap under full load is normal.", ("gpu", "reason"), "8 reasons per GPU")
GPU_XID = Metric("llm_gpu_xid_errors_total", _C, Unit.COUNT, "XID errors since the exporter was started; each number from its first event on.", ("gpu", "xid"), "XIDs seen per GPU")
GPU_XID_LAST = Metric("llm_gpu_xid_last_timestamp_seconds", _G, Unit.TIMESTAMP, "When the last XID error of this number was seen.", ("gpu", "xid"), "XIDs seen per GPU")
GPU_PROCESS_MEMORY = Metric("llm_gpu_process_memory_bytes", _G, Unit.BYTES, "GPU memory of a target's processes; target is empty for visible processes of no target.", ("gpu", "target"), "targets + 1 per GPU")
GPU_TARGET = Metric("llm_gpu_target", _G, Unit.FLAG, "1 for each GPU that serves a target: by configuration or by process.", ("gpu", "target"), "GPUs of a target")
GPU_EXPECTED = Metric("llm_gpu_expected_devices", _G, Unit.COUNT, "GPUs that should be there, by gpu.expected_count.", (), "1")

HOST_CORES = Metric("llm_host_process_cpu_cores", _G, Unit.CORES, "CPU cores used by the target's processes, by their work.", ("target", "role"), "7 roles")
HOST_HOTTEST = Metric("llm_host_hottest_thread_ratio", _G, Unit.RATIO, "Share of a core that the busiest thread of the server used over the last readings; evidence hot_thread looks at 30 s and at the engine's and API server's threads only. 1 alone proves nothing, engines poll.", _TARGET, "1")
HOST_RUN_DELAY = Metric("llm_host_run_delay_ratio", _G, Unit.RATIO, "Share of time in which the busiest thread of an engine process was runnable and had no core.", _TARGET, "1")
HOST_THROTTLED = Metric("llm_host_cgroup_throttled_ratio", _G, Unit.RATIO, "Share of periods in which a CPU quota stopped the processes; 0 without a quota.", _TARGET, "1")
HOST_PRESSURE = Metric("llm_host_cpu_pressure_ratio", _G, Unit.RATIO, "Share of time in which some task of the cgroup, or else of the machine, waited for a core (PSI).", _TARGET, "1")
HOST_CPUS = Metric("llm_host_cpus_available", _G, Unit.COUNT, "CPUs that the processes can use: the least of affinity, quota and CPUs online.", _TARGET, "1")

SOURCE_UP = Metric("llm_exporter_source_up", _G, Unit.FLAG, "1 if this source of readings works.", ("source",), "sources")
SOURCE_DOWN_REASON = Metric("llm_exporter_source_down_reason", _G, Unit.FLAG, "1 for the reason why a source does not work; absent while it does.", ("source", "reason"), "1 per source")
# fmt: on
# ruff: noqa: E501  one declaration is one line


def _field_metric(row: GpuField) -> Metric:
    return Metric(
        row.metric,
        row.kind,
        row.unit,
        row.help,
        (*_GPU, row.label) if row.label else _GPU,
        f"{len({other.part for other in TABLE if other.metric == row.metric})} per GPU",
    )


FIELD_METRICS: Mapping[str, Metric] = {row.metric: _field_metric(row) for row in reversed(TABLE) if row.metric}
_FIELDS: Mapping[str, str] = {row.metric: row.name for row in TABLE if row.metric}

METRICS: tuple[Metric, ...] = (
    GPU_INFO,
    GPU_UP,
    *(FIELD_METRICS[name] for name in _FIELDS),
    GPU_THROTTLE,
    GPU_XID,
    GPU_XID_LAST,
    GPU_PROCESS_MEMORY,
    GPU_TARGET,
    GPU_EXPECTED,
    HOST_CORES,
    HOST_HOTTEST,
    HOST_RUN_DELAY,
    HOST_THROTTLED,
    HOST_PRESSURE,
    HOST_CPUS,
    SOURCE_UP,
    SOURCE_DOWN_REASON,
)


def families(state: HardwareState, now: float, *, expected_count: int | None = None) -> list[Family]:
    """GPUs, hosts and their sources as they stand at `now` (monotonic seconds).

    Args:
        state: what was read.
        now: monotonic seconds.
        expected_count: `gpu.expected_count`.
    """
    found = [*gpu_families(state, now), *host_families(state, now), *source_families(state.sources(now))]
    if expected_count is not None:
        found.append(Family(GPU_EXPECTED, [Sample((), float(expected_count))]))
    return found


def gpu_families(state: HardwareState, now: float) -> list[Family]:
    """All of 6.4 that has a label `gpu`; nothing while NVML does not answer, but what the configuration says."""
    samples: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
    readings = state.gpus(now)
    for reading in readings:
        labels = (reading.gpu, reading.uuid, reading.name, reading.driver, reading.parent)
        samples[GPU_INFO.name].append(Sample(labels, 1.0))
        samples[GPU_UP.name].append(Sample((reading.gpu,), float(reading.up)))
        if reading.up:
            _add_values(samples, reading)
    if readings:
        for gpu_target, used in sorted(state.memory_by_owner().items()):
            samples[GPU_PROCESS_MEMORY.name].append(Sample(gpu_target, used))
        samples[GPU_TARGET.name] += [Sample(placement, 1.0) for placement in state.placements()]
    return [Family(metric, samples[metric.name]) for metric in METRICS if samples[metric.name]]


def _add_values(samples: Mapping[str, list[Sample]], reading: GpuReading) -> None:
    gpu = reading.gpu
    for metric, name in _FIELDS.items():
        value = getattr(reading, name)
        if isinstance(value, Mapping):
            samples[metric] += [Sample((gpu, part), number) for part, number in sorted(value.items())]
        elif value is not None:
            samples[metric].append(Sample((gpu,), value))
    if reading.throttle_reasons is not None:
        samples[GPU_THROTTLE.name] += [Sample((gpu, reason), float(reason in reading.throttle_reasons)) for reason in THROTTLE_REASONS]
    samples[GPU_XID.name] += [Sample((gpu, str(xid)), float(n)) for xid, n in sorted(reading.xid_errors.items())]
    samples[GPU_XID_LAST.name] += [Sample((gpu, str(xid)), at) for xid, at in sorted(reading.xid_last_at.items())]


def host_families(state: HardwareState, now: float) -> list[Family]:
    """The metrics `llm_host_…` of all targets: means over the last 15 s."""
    samples: dict[str, list[Sample]] = {}
    for target in state.targets():
        evidence = state.host_window(target, SHOWN_SECONDS, now)
        for role, cores in sorted(evidence.cores.items()):
            samples.setdefault(HOST_CORES.name, []).append(Sample((target, role), cores))
        for metric, value in (
            (HOST_HOTTEST, None if evidence.hottest is None else evidence.hottest.run),
            (HOST_RUN_DELAY, evidence.run_delay),
            (HOST_THROTTLED, evidence.cfs_throttled),
            (HOST_PRESSURE, evidence.cpu_pressure),
            (HOST_CPUS, evidence.cpus_available),
        ):
            if value is not None:
                samples.setdefault(metric.name, []).append(Sample((target,), value))
    return [Family(metric, samples[metric.name]) for metric in METRICS if metric.name in samples]


def source_families(states: Mapping[str, SourceState]) -> list[Family]:
    """Up or down, and why, for any of our sources (discovery too)."""
    if not states:
        return []
    found = [Family(SOURCE_UP, [Sample((source,), float(state.up)) for source, state in sorted(states.items())])]
    reasons = [Sample((source, state.reason), 1.0) for source, state in sorted(states.items()) if not state.up]
    if reasons:
        found.append(Family(SOURCE_DOWN_REASON, reasons))
    return found
