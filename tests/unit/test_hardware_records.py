"""Recorded lines become readings and readings become recorded lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_exporter.hardware import (
    CgroupReading,
    GpuProcess,
    GpuReading,
    HostReading,
    ProcessReading,
    ThreadReading,
    gpu_reading_from_record,
    gpu_record,
    host_reading_from_record,
    host_record,
    role_of,
    safe_command,
    throttle_reasons,
)

RECORDINGS = sorted(path for path in (Path(__file__).parents[1] / "fixtures/hardware").iterdir() if path.is_dir())


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.name)
def test_captured_recordings_survive_the_way_there_and_back(folder: Path) -> None:
    for record in lines(folder / "gpu.jsonl"):
        gpu = gpu_reading_from_record(record)
        assert gpu_reading_from_record(json.loads(json.dumps(gpu_record(gpu, wall=record["t"])))) == gpu
    for record in lines(folder / "host.jsonl"):
        host = host_reading_from_record(record, target="chat")
        again = json.loads(json.dumps(host_record(host, wall=record["t"])))
        assert host_reading_from_record(again, target="chat") == host


def test_a_recorded_gpu_line_is_read_in_base_units() -> None:
    record = lines(RECORDINGS[0].parent / "mid-decode_heavy" / "gpu.jsonl")[2]
    reading = gpu_reading_from_record(record, at=2.0)
    assert (reading.at, reading.gpu, reading.up) == (2.0, "0", True)
    assert reading.utilization_ratio == 1.0
    assert reading.power_watts == pytest.approx(596.795)
    assert reading.clock_hertz == {"sm": 1.98e9}
    assert reading.dram_active_ratio == pytest.approx(0.60011)
    assert reading.pcie_receive_bytes_per_second == pytest.approx(86.717 * 2**20)
    assert reading.energy_joules == pytest.approx(60_182.554)
    assert reading.processes == (GpuProcess(1009, 128_635_109_376),)
    assert reading.throttle_reasons == frozenset()


def test_the_first_line_whose_gpm_samples_were_of_one_instant_has_no_gpm_values() -> None:
    record = lines(RECORDINGS[0].parent / "mid-decode_heavy" / "gpu.jsonl")[0]
    reading = gpu_reading_from_record(record)
    assert reading.graphics_active_ratio is None
    assert reading.sm_active_ratio is None
    assert reading.utilization_ratio == 1.0


def test_a_single_nan_among_gpm_values_costs_that_value_only() -> None:
    reading = gpu_reading_from_record({"t": 0, "gpm": {"sm": 50.0, "dram_bw": float("nan")}})
    assert reading.sm_active_ratio == 0.5
    assert reading.dram_active_ratio is None


def test_zeros_of_an_idle_gpu_are_zeros() -> None:
    assert gpu_reading_from_record({"t": 0, "gpm": {"sm": 0.0, "graphics": 0.0}}).sm_active_ratio == 0.0


def test_everything_our_reader_knows_can_be_recorded() -> None:
    gpu = GpuReading(
        at=5.0,
        gpu="0.1",
        uuid="MIG-a",
        name="NVIDIA H200",
        driver="580",
        parent="GPU-b",
        memory_used_bytes=5.0,
        temperature_celsius={"gpu": 40.0, "memory": 41.0},
        clock_hertz={"sm": 1.5e9, "memory": 3.2e9},
        sm_clock_max_hertz=1.98e9,
        throttle_reasons=frozenset({"hw_thermal_slowdown", "sw_power_cap"}),
        throttled_seconds={"sw_power_cap": 1.25},
        ecc_errors={"corrected": 3.0, "uncorrected": 0.0},
        row_remap_pending=1.0,
        row_remap_failed=0.0,
        xid_errors={79: 2},
        xid_last_at={79: 1.7e9},
        processes=(GpuProcess(7, None, None), GpuProcess(8, 5.0, False)),
    )
    assert gpu_reading_from_record(json.loads(json.dumps(gpu_record(gpu, wall=1.0))), at=5.0) == gpu
    lost = GpuReading(at=5.0, gpu="2", uuid="GPU-c", up=False, down_reason="gpu_lost")
    assert gpu_reading_from_record(gpu_record(lost, wall=1.0), at=5.0) == lost
    host = HostReading(
        at=5.0,
        target="chat",
        processes=(
            ProcessReading(
                pid=7,
                started=99,
                comm="python3",
                command="python3 serve.py",
                role="api_server",
                cpu_seconds=12.34,
                affinity=4,
                threads=(ThreadReading(7, "python3", 1.25, 1.25, 0.5), ThreadReading(8, "pool", 2.5)),
            ),
        ),
        cgroups=(CgroupReading("pods/a", 10.0, 4.0, 1.5),),
        cpu_pressure_seconds=2.5,
        cpus_available=0.6,
        missing={"run_delay": "not_supported"},
    )
    assert host_reading_from_record(json.loads(json.dumps(host_record(host, wall=1.0))), target="chat", at=5.0) == host
    hidden = HostReading(at=5.0, target="chat", missing={"processes": "no_permission", "cgroups": "not_visible"})
    assert host_reading_from_record(host_record(hidden, wall=1.0), target="chat", at=5.0) == hidden


def test_a_recording_without_a_quota_does_not_pretend_to_know_it() -> None:
    quota = [host_reading_from_record(r) for r in lines(RECORDINGS[0].parent / "extra-cgroup_quota" / "host.jsonl")]
    assert quota[-1].cpus_available is None, "a quota was at work that the recording does not name"
    pinned = lines(RECORDINGS[0].parent / "mid_starved-mid_one_core" / "host.jsonl")
    assert host_reading_from_record(pinned[-1]).cpus_available == 1


def test_a_recorded_line_without_processes_says_so() -> None:
    reading = host_reading_from_record({"t": 0, "procs": []})
    assert reading.processes is None
    assert reading.missing == {"processes": "process_not_found", "cgroups": "not_recorded"}


@pytest.mark.parametrize(
    ("comm", "command", "role"),
    [
        ("python3", "/opt/venv/bin/python3 -m vllm.entrypoints.openai.api_server", "api_server"),
        ("vllm", "/usr/bin/python3 /usr/local/bin/vllm serve meta/llama", "api_server"),
        ("VLLM::APIServer", "VLLM::APIServer_1", "api_server"),
        ("VLLM::EngineCor", "VLLM::EngineCore", "engine_core"),
        ("VLLM::EngineCor", "VLLM::EngineCore_DP3", "engine_core"),
        ("VLLM::EngineCor", "", "engine_core"),
        ("VLLM::Worker_TP", "VLLM::Worker_TP3", "worker"),
        ("VLLM::DPCoordin", "VLLM::DPCoordinator", "other"),
        ("python3", "python3 -m sglang.launch_server", "api_server"),
        ("sglang::schedul", "sglang::scheduler_DP0_TP1", "scheduler"),
        ("sglang::detoken", "sglang::detokenizer", "detokenizer"),
        ("sglang::tokeniz", "sglang::tokenizer_worker:77", "tokenizer"),
        ("sglang::data_pa", "sglang::data_parallel_controller", "other"),
        ("python3", "python3 -B -c from multiprocessing.resource_tracker import main;main(45)", "other"),
        ("bash", "bash -c vllm-not-really", "other"),
    ],
)
def test_roles_by_title_and_command_line(comm: str, command: str, role: str) -> None:
    assert role_of(comm, command) == role


def test_a_command_line_ends_before_its_options() -> None:
    words = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--api-key", "sk-1", "--port", "8000"]
    assert safe_command(words) == "python3 -m vllm.entrypoints.openai.api_server"


def test_the_idle_bit_is_no_throttling() -> None:
    assert throttle_reasons(0x1) == frozenset()
    assert throttle_reasons(0x1 | 0x4 | 0x40 | 1 << 40) == {"sw_power_cap", "hw_thermal_slowdown"}
