"""What the simulated GPU and host say, read as the exporter reads it, against the figures of a real H200."""

from __future__ import annotations

import pytest

from llm_exporter.demo.scenarios import SCENARIOS
from llm_exporter.demo.simulation import Simulation
from llm_exporter.demo.traffic import Load
from llm_exporter.hardware import GpuReading, HostReading, gpu_reading_from_record, host_reading_from_record


def played(kind: str, scenario: str, until: float) -> tuple[Simulation, GpuReading, HostReading, HostReading]:
    """The simulation at `until`, the GPU over the last 10 s, the host before and after them."""
    simulation = Simulation(kind, SCENARIOS[scenario], wall_at=1.8e9)
    simulation.advance(until - 10.0)
    simulation.gpu_records()
    before = host_reading_from_record(simulation.host_record())
    simulation.advance(until)
    gpu = gpu_reading_from_record(simulation.gpu_records()[0])
    return simulation, gpu, before, host_reading_from_record(simulation.host_record())


def share(before: HostReading, after: HostReading, role: str) -> tuple[float, float]:
    """Run and wait share of the busiest thread of that role."""
    assert before.processes is not None
    assert after.processes is not None
    passed = after.at - before.at
    first = next(process for process in before.processes if process.role == role).threads[0]
    last = next(process for process in after.processes if process.role == role).threads[0]
    assert None not in (first.run_seconds, last.run_seconds, first.wait_seconds, last.wait_seconds)
    return (last.run_seconds - first.run_seconds) / passed, (last.wait_seconds - first.wait_seconds) / passed  # type: ignore[operator]


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_healthy_decode_looks_like_decode(kind: str) -> None:
    _, gpu, before, after = played(kind, "healthy", 60.0)
    assert gpu.graphics_active_ratio == pytest.approx(0.97, abs=0.03)
    assert gpu.dram_active_ratio == pytest.approx(0.58, abs=0.08)
    assert gpu.tensor_active_ratio == pytest.approx(0.2, abs=0.1)
    assert gpu.power_watts == pytest.approx(520, abs=40)
    assert gpu.throttle_reasons == frozenset()
    run, wait = share(before, after, "engine_core" if kind == "vllm" else "scheduler")
    assert run == pytest.approx(1.0, abs=0.02)
    assert wait == 0.0
    assert after.cpus_available == 16.0


def test_prefill_looks_like_prefill() -> None:
    simulation = Simulation("vllm", SCENARIOS["healthy"])
    simulation.traffic.change(Load(rate=15.0, prompt_tokens=3000, prefix_tokens=0, conversations=0.0, output_tokens=20), 0.0)
    simulation.advance(20.0)
    simulation.gpu_records()
    simulation.advance(40.0)
    gpu = gpu_reading_from_record(simulation.gpu_records()[0])
    assert gpu.tensor_active_ratio == pytest.approx(0.82, abs=0.06)
    assert gpu.dram_active_ratio == pytest.approx(0.21, abs=0.06)
    assert gpu.power_watts == pytest.approx(690, abs=20)
    assert gpu.throttle_reasons == {"sw_power_cap"}
    assert gpu.clock_hertz["sm"] < 1.9e9


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_quota_shows_as_throttling_and_as_gaps(kind: str) -> None:
    simulation, gpu, before, after = played(kind, "starved", 120.0)
    true = simulation.truth_between(110.0, 120.0)
    assert gpu.graphics_active_ratio == pytest.approx(true.gpu_ratio, abs=0.02)
    assert true.gap_ratio > 0.4
    first, last = before.cgroups[0], after.cgroups[0]
    assert (last.throttled_periods - first.throttled_periods) / (last.periods - first.periods) > 0.95
    assert last.throttled_seconds > first.throttled_seconds
    assert after.cpus_available == 0.5
    assert before.cpu_pressure_seconds is not None
    assert after.cpu_pressure_seconds is not None
    assert after.cpu_pressure_seconds - before.cpu_pressure_seconds > 3.0


def test_a_noisy_neighbour_shows_as_run_delay() -> None:
    simulation = Simulation("vllm", SCENARIOS["healthy"])
    simulation.engine.conditions.run_delay = 0.5
    simulation.advance(20.0)
    before = host_reading_from_record(simulation.host_record())
    simulation.advance(30.0)
    run, wait = share(before, host_reading_from_record(simulation.host_record()), "engine_core")
    assert run == pytest.approx(0.5, abs=0.02)
    assert wait == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("kind", "role"), [("vllm", "api_server"), ("sglang", "api_server")])
def test_a_slow_front_end_shows_as_a_busy_thread(kind: str, role: str) -> None:
    _, gpu, before, after = played(kind, "starved-frontend", 170.0)
    assert share(before, after, role)[0] > 0.75
    assert gpu.graphics_active_ratio is not None


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_hung_engine_leaves_gpu_and_thread_idle(kind: str) -> None:
    _, gpu, before, after = played(kind, "stalled", 120.0)
    assert gpu.graphics_active_ratio == 0.0
    assert gpu.power_watts == pytest.approx(115, abs=30)
    assert share(before, after, "engine_core" if kind == "vllm" else "scheduler")[0] < 0.05


def test_a_foreign_process_takes_half_of_the_gpu() -> None:
    simulation = Simulation("vllm", SCENARIOS["healthy"])
    simulation.advance(30.0)
    alone = simulation.truth_between(15.0, 30.0)
    simulation.engine.conditions.foreign_share = 0.5
    simulation.advance(45.0)
    simulation.gpu_records()
    simulation.advance(60.0)
    gpu = gpu_reading_from_record(simulation.gpu_records()[0])
    assert gpu.processes is not None
    assert len(gpu.processes) == 2
    assert gpu.graphics_active_ratio is not None
    assert gpu.graphics_active_ratio > 0.97
    assert gpu.tensor_active_ratio == pytest.approx(0.44, abs=0.08)
    shared = simulation.truth_between(45.0, 60.0)
    assert shared.decode_time is not None
    assert alone.decode_time is not None
    assert shared.decode_time > 1.7 * alone.decode_time


def test_throttled_clocks_slow_the_arithmetic_and_name_the_reason() -> None:
    simulation = Simulation("vllm", SCENARIOS["healthy"])
    simulation.engine.conditions.clock_ratio = 0.6
    simulation.engine.conditions.throttle_reason = 0x40
    simulation.advance(20.0)
    gpu = gpu_reading_from_record(simulation.gpu_records()[0])
    assert gpu.throttle_reasons == {"hw_thermal_slowdown"}
    assert gpu.clock_hertz["sm"] < 0.65 * 1.98e9
    assert gpu.throttled_seconds["hw_thermal_slowdown"] == pytest.approx(20.0)


def test_energy_is_power_over_time() -> None:
    simulation = Simulation("vllm", SCENARIOS["healthy"])
    simulation.advance(10.0)
    first = gpu_reading_from_record(simulation.gpu_records()[0])
    simulation.advance(20.0)
    last = gpu_reading_from_record(simulation.gpu_records()[0])
    assert first.energy_joules is not None
    assert last.energy_joules is not None
    assert last.power_watts is not None
    assert last.energy_joules - first.energy_joules == pytest.approx(10.0 * last.power_watts, rel=1e-3)


@pytest.mark.parametrize("scenario", ["healthy", "queue", "starved", "stalled", "kv-pressure"])
def test_graphics_active_is_the_true_duty_cycle(scenario: str) -> None:
    simulation, gpu, _, _ = played("sglang", scenario, 120.0)
    assert gpu.graphics_active_ratio == pytest.approx(simulation.truth_between(110.0, 120.0).gpu_ratio, abs=0.02)


def test_a_server_on_cpu_has_no_gpu() -> None:
    from dataclasses import replace

    scenario = SCENARIOS["healthy"]
    tiny = replace(scenario, vllm=replace(scenario.vllm, hardware="cpu-tiny-vllm", load=Load(rate=0.5, prompt_tokens=100)))
    simulation = Simulation("vllm", tiny)
    simulation.advance(5.0)
    assert simulation.gpu_records() == []
