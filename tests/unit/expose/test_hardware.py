"""GPUs, hosts and sources on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.nvml import FakeNvml
from llm_exporter.expose.hardware import METRICS, families, source_families
from llm_exporter.hardware import (
    CgroupReading,
    GpuReading,
    GpuTick,
    HostReading,
    HostTick,
    ProcessReading,
    SourceState,
    ThreadReading,
)
from llm_exporter.metrics import Family, Sample
from llm_exporter.readings import Kind
from llm_exporter.sources.nvml import NvmlReader
from llm_exporter.state.hardware import HardwareState

CASES = Path(__file__).parents[2] / "fixtures" / "cases"


def values(found: list[Family]) -> dict[str, dict[tuple[str, ...], float]]:
    assert len({family.metric.name for family in found}) == len(found), "one family per metric"
    return {
        family.metric.name: {sample.labels: sample.value for sample in family.samples if isinstance(sample, Sample)} for family in found
    }


def page(case: str, second: int) -> dict[str, dict[tuple[str, ...], float]]:
    """What is published after so many seconds of a field case."""
    now = 0.0
    nvml = FakeNvml(CASES / case / "nvml.json", lambda: now)
    reader, state = NvmlReader(load=lambda: nvml, proc=Path("/nowhere")), HardwareState()
    state.configure({})
    for tick in range(second + 1):
        now = float(tick)
        state.add_gpus(reader.tick(now))
    return values(families(state, now))


def test_nvml_01_and_02_no_gpu_series_but_the_reason() -> None:
    for case, reason in (("NVML-01", "lib_rm_version_mismatch"), ("NVML-02", "library_not_found")):
        found = page(case, 30)
        assert found["llm_exporter_source_up"]["nvml",] == 0
        assert found["llm_exporter_source_down_reason"]["nvml", reason] == 1
        assert not [name for name in found if name.startswith("llm_gpu_")]
    found = page("NVML-01", 75)
    assert found["llm_exporter_source_up"]["nvml",] == 1
    assert ("nvml", "lib_rm_version_mismatch") not in found["llm_exporter_source_down_reason"]
    assert found["llm_gpu_utilization_ratio"] == {("0",): pytest.approx(0.4)}


def test_nvml_03_unified_memory_is_not_published_as_zero() -> None:
    found = page("NVML-03", 5)
    assert found["llm_gpu_utilization_ratio"] == {("0",): pytest.approx(0.93)}
    assert found["llm_gpu_power_watts"] == {("0",): pytest.approx(45)}
    assert found["llm_gpu_temperature_celsius"] == {("0", "gpu"): 61}
    assert "llm_gpu_memory_used_bytes" not in found
    assert "llm_gpu_memory_size_bytes" not in found


def test_nvml_04_a_lost_gpu_keeps_up_and_info_and_loses_the_rest() -> None:
    assert page("NVML-04", 19)["llm_gpu_up"] == {(str(n),): 1 for n in range(4)}
    found = page("NVML-04", 35)
    assert found["llm_gpu_up"] == {("0",): 1, ("1",): 1, ("2",): 0, ("3",): 1}
    assert len(found["llm_gpu_info"]) == 4
    assert set(found["llm_gpu_utilization_ratio"]) == {("0",), ("1",), ("3",)}
    assert all(("2",) not in samples for name, samples in found.items() if name not in ("llm_gpu_up", "llm_gpu_info"))


def test_nvml_06_mig_devices_with_own_uuid_and_parent() -> None:
    found = page("NVML-06", 5)
    assert "llm_gpu_utilization_ratio" not in found
    assert found["llm_gpu_power_watts"] == {("0",): pytest.approx(310)}
    assert found["llm_gpu_memory_used_bytes"]["0.0",] == 5234491392
    assert found["llm_gpu_memory_used_bytes"]["0.1",] == 1046898278
    parents = {labels[1]: labels[4] for labels in found["llm_gpu_info"]}
    assert parents["MIG-000000a1-0000-0000-0000-000000000000"] == "GPU-00000000-0000-0000-0000-000000000000"


def test_nvml_08_power_is_absent_and_the_source_is_up() -> None:
    found = page("NVML-08", 5)
    assert found["llm_exporter_source_up"]["nvml",] == 1
    assert "llm_gpu_power_watts" not in found
    assert found["llm_gpu_temperature_celsius"] == {("0", "gpu"): 52}


def test_nvml_10_no_process_id_is_published_and_nobody_is_blamed() -> None:
    found = page("NVML-10", 5)
    assert "llm_gpu_process_memory_bytes" not in found
    assert found["llm_gpu_memory_used_bytes"] == {("0",): 42949672960}
    assert found["llm_exporter_source_down_reason"]["gpu_processes", "other_pid_namespace"] == 1
    assert all("pid" not in metric.labels for metric in METRICS)


def test_nvml_11_series_go_within_a_tick_and_come_back() -> None:
    assert page("NVML-11", 29)["llm_exporter_source_up"]["nvml",] == 1
    broken = page("NVML-11", 30)
    assert broken["llm_exporter_source_down_reason"]["nvml", "unknown"] == 1
    assert "llm_gpu_utilization_ratio" not in broken
    assert page("NVML-11", 75)["llm_gpu_utilization_ratio"] == {("0",): pytest.approx(0.4)}


def test_nvml_13_the_mean_of_alternating_utilisation_is_a_half() -> None:
    assert page("NVML-13", 30)["llm_gpu_utilization_ratio"]["0",] == pytest.approx(0.5, abs=0.04)


def test_every_throttle_reason_has_a_series() -> None:
    state = HardwareState()
    reading = GpuReading(at=0, gpu="0", throttle_reasons=frozenset({"sw_power_cap"}), xid_errors={79: 2}, xid_last_at={79: 5.0})
    state.add_gpus(GpuTick(0, (reading,), {}))
    found = values(families(state, 0.0, expected_count=8))
    assert len(found["llm_gpu_throttle_active"]) == 8
    assert sum(found["llm_gpu_throttle_active"].values()) == 1
    assert found["llm_gpu_xid_errors_total"] == {("0", "79"): 2}
    assert found["llm_gpu_xid_last_timestamp_seconds"] == {("0", "79"): 5.0}
    assert found["llm_gpu_expected_devices"] == {(): 8}
    assert "llm_exporter_source_down_reason" not in found


def test_a_targets_processes_on_the_page() -> None:
    state = HardwareState()
    state.configure({"chat": "auto"})
    for second in range(5):
        threads = (ThreadReading(1, "loop", second * 0.5, second * 0.5, second * 0.25),)
        process = ProcessReading(pid=1, started=1, role="engine_core", cpu_seconds=second * 0.75, threads=threads)
        reading = HostReading(
            at=second,
            target="chat",
            processes=(process,),
            cgroups=(CgroupReading("a", 10.0 * second, 2.0 * second, 0.0),),
            cpu_pressure_seconds=second * 0.1,
            cpus_available=4.0,
        )
        gone = HostReading(at=second, target="gone", missing={"processes": "no_permission"})
        state.add_hosts(HostTick(second, (reading, gone), {"host": SourceState(True)}))
    assert values(families(state, 4.0)) == {
        "llm_host_process_cpu_cores": {("chat", "engine_core"): pytest.approx(0.75)},
        "llm_host_hottest_thread_ratio": {("chat",): pytest.approx(0.5)},
        "llm_host_run_delay_ratio": {("chat",): pytest.approx(0.25)},
        "llm_host_cgroup_throttled_ratio": {("chat",): pytest.approx(0.2)},
        "llm_host_cpu_pressure_ratio": {("chat",): pytest.approx(0.1)},
        "llm_host_cpus_available": {("chat",): 4.0},
        "llm_exporter_source_up": {("host",): 1.0},
    }


def test_sources_of_other_rooms_can_be_shown_too() -> None:
    found = values(source_families({"discovery": SourceState(False, "refused")}))
    assert found == {
        "llm_exporter_source_up": {("discovery",): 0.0},
        "llm_exporter_source_down_reason": {("discovery", "refused"): 1.0},
    }
    assert source_families({}) == []


def test_declarations_are_sound() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
        assert metric.name.removesuffix("_total").endswith(metric.unit.value), metric.name
        assert metric.help.endswith(".")
        assert not {"pid", "job", "instance", "quantile", "le"} & set(metric.labels)
