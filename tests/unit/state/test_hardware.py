"""What is remembered of GPUs and processes, and the evidence made of it."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_exporter.hardware import (
    CgroupReading,
    GpuProcess,
    GpuReading,
    GpuTick,
    HostReading,
    HostTick,
    ProcessReading,
    SourceState,
    ThreadReading,
    gpu_reading_from_record,
    host_reading_from_record,
)
from llm_exporter.state.hardware import HardwareState

RECORDINGS = Path(__file__).parents[2] / "fixtures/hardware"
UP = {"nvml": SourceState(True), "gpm": SourceState(True), "gpu_processes": SourceState(True)}


def gpu_tick(at: float, *readings: GpuReading) -> GpuTick:
    return GpuTick(at, readings, UP)


def host_tick(at: float, *readings: HostReading) -> HostTick:
    return HostTick(at, readings, {"host": SourceState(True)})


def gpu(at: float, number: str = "0", **values: Any) -> GpuReading:
    return GpuReading(at=at, gpu=number, uuid=f"GPU-{number}", **values)


def process(pid: int, role: str = "engine_core", run: float = 0.0, wait: float | None = 0.0, **more: Any) -> ProcessReading:
    thread = ThreadReading(pid, role, run, run, wait)
    return ProcessReading(pid=pid, started=1, role=role, cpu_seconds=run, threads=(thread,), **more)


def host(at: float, *processes: ProcessReading, target: str = "chat", **more: Any) -> HostReading:
    return HostReading(at=at, target=target, processes=processes, **more)


def hidden(at: float, reason: str, target: str = "chat") -> HostReading:
    return HostReading(at=at, target=target, missing={"processes": reason})


@pytest.fixture
def state() -> HardwareState:
    state = HardwareState()
    state.configure({"chat": "auto"})
    return state


# ---- published GPUs ----


def test_utilisation_is_the_mean_of_the_last_fifteen_seconds(state: HardwareState) -> None:
    for second in range(60):
        state.add_gpus(gpu_tick(second, gpu(second, utilization_ratio=float(second % 2 == 0))))
        if second >= 15:
            (reading,) = state.gpus(second + 0.5)
            assert reading.utilization_ratio == pytest.approx(0.5, abs=0.04)


def test_a_reading_counts_for_the_time_since_the_one_before_it(state: HardwareState) -> None:
    for at, watts in ((0, 100.0), (1, 100.0), (4, 500.0), (5, 100.0)):
        state.add_gpus(gpu_tick(at, gpu(at, power_watts=watts)))
    assert state.gpus(5.0)[0].power_watts == pytest.approx((100 + 100 + 3 * 500 + 100) / 6)


def test_memory_and_clocks_are_the_last_reading_and_slow_values_stay_until_the_next(state: HardwareState) -> None:
    state.add_gpus(gpu_tick(0, gpu(0, memory_used_bytes=1.0, clock_hertz={"sm": 1.0}, energy_joules=7.0, ecc_errors={"corrected": 1.0})))
    for second in range(1, 10):
        state.add_gpus(gpu_tick(second, gpu(second, memory_used_bytes=float(second), clock_hertz={"sm": 2.0})))
    (reading,) = state.gpus(9.0)
    assert (reading.memory_used_bytes, reading.clock_hertz, reading.energy_joules) == (9.0, {"sm": 2.0}, 7.0)
    assert reading.ecc_errors == {"corrected": 1.0}
    for second in range(10, 20):
        state.add_gpus(gpu_tick(second, gpu(second)))
    assert state.gpus(19.0)[0].energy_joules is None, "an old value is no value"


def test_throttling_shows_for_fifteen_seconds_and_is_unknown_where_nobody_says(state: HardwareState) -> None:
    for second in range(40):
        reasons = frozenset({"hw_slowdown"}) if second == 10 else frozenset[str]()
        state.add_gpus(gpu_tick(second, gpu(second, throttle_reasons=reasons), gpu(second, "1")))
        first, other = state.gpus(second)
        assert first.throttle_reasons == (frozenset({"hw_slowdown"}) if 10 <= second < 25 else frozenset())
        assert other.throttle_reasons is None


def test_a_lost_gpu_keeps_its_identity_only(state: HardwareState) -> None:
    state.add_gpus(gpu_tick(0, gpu(0, utilization_ratio=1.0, memory_used_bytes=5.0)))
    state.add_gpus(gpu_tick(1, gpu(1, up=False, down_reason="gpu_lost")))
    (reading,) = state.gpus(1.0)
    assert (reading.up, reading.uuid, reading.utilization_ratio, reading.memory_used_bytes) == (False, "GPU-0", None, None)
    state.add_gpus(gpu_tick(2, gpu(2, utilization_ratio=0.2)))
    assert state.gpus(2.0)[0].utilization_ratio == 0.2, "nothing from before"


def test_gpus_that_the_reader_does_not_name_are_gone_at_once(state: HardwareState) -> None:
    state.add_gpus(gpu_tick(0, gpu(0)))
    state.add_gpus(GpuTick(1, (), dict.fromkeys(UP, SourceState(False, "unknown"))))
    assert state.gpus(1.0) == ()
    assert state.sources(1.0)["nvml"].reason == "unknown"


def test_a_reader_that_hangs_is_a_timeout_and_its_values_go(state: HardwareState) -> None:
    state.add_gpus(gpu_tick(0, gpu(0, utilization_ratio=1.0)))
    state.add_hosts(host_tick(0, host(0, process(1))))
    assert state.gpus(4.0)
    assert state.gpus(6.0) == ()
    assert {source: found.reason for source, found in state.sources(6.0).items()} == {
        "nvml": "timeout",
        "gpm": "timeout",
        "gpu_processes": "timeout",
        "host": "timeout",
    }
    assert state.host_window("chat", 30, 6.0).missing == {"processes": "timeout"}


def test_a_source_that_is_switched_off_says_so(state: HardwareState) -> None:
    state.disable("nvml", "gpm", "gpu_processes")
    assert state.sources(0.0)["nvml"] == SourceState(False, "disabled")


# ---- evidence ----


def recording(name: str) -> tuple[HardwareState, float]:
    """A state that has seen a recording, and the second it ended."""
    state = HardwareState()
    state.configure({"chat": "auto"})
    now = 0.0
    for line, hosts in zip(_lines(name, "gpu.jsonl"), _lines(name, "host.jsonl"), strict=True):
        now = line["t"]
        state.add_hosts(host_tick(hosts["t"], host_reading_from_record(hosts, target="chat")))
        state.add_gpus(gpu_tick(now, gpu_reading_from_record(line)))
    return state, now + 0.1


def _lines(name: str, file: str) -> Iterator[dict[str, Any]]:
    for line in (RECORDINGS / name / file).read_text().splitlines():
        yield json.loads(line)


def test_a_healthy_decode_of_a_real_server(state: HardwareState) -> None:
    state, now = recording("mid-decode_heavy")
    assert state.gpus_of("chat") == ("0",)
    found = state.gpu_window(["0"], 20, now)
    assert found.samples == 20
    assert found.span_seconds == pytest.approx(20, abs=1.0)
    assert found.graphics == pytest.approx(0.98, abs=0.01)
    assert found.sm == pytest.approx(0.72, abs=0.01)
    assert found.tensor == pytest.approx(0.19, abs=0.015)
    assert found.dram == pytest.approx(0.58, abs=0.015)
    assert found.clock_ratio == pytest.approx(1.0, abs=0.02)
    hosts = state.host_window("chat", 20, now)
    assert hosts.hot["api_server"].run == pytest.approx(0.68, abs=0.03)
    assert hosts.hot["engine_core"].run == pytest.approx(0.98, abs=0.02)
    assert hosts.run_delay == pytest.approx(0.0, abs=0.01)
    assert hosts.cfs_throttled == 0.0
    assert hosts.cpus_available == 16


def test_a_server_on_one_core_shows_its_run_delay() -> None:
    state, now = recording("mid_starved-mid_one_core")
    hosts = state.host_window("chat", 20, now)
    assert hosts.hot["api_server"].run == pytest.approx(0.45, abs=0.03)
    assert hosts.hot["api_server"].wait == pytest.approx(0.14, abs=0.02)
    assert hosts.hot["engine_core"].run == pytest.approx(0.50, abs=0.03)
    assert hosts.run_delay == pytest.approx(0.49, abs=0.03)
    assert hosts.cpu_pressure is not None
    assert hosts.cpu_pressure > 0.4
    assert hosts.cpus_available == 1


def test_a_quota_shows_as_throttled_periods() -> None:
    state, now = recording("extra-cgroup_quota")
    assert state.host_window("chat", 20, now).cfs_throttled == pytest.approx(257 / 263, abs=0.03)


def test_a_foreign_process_is_visible_by_its_memory() -> None:
    state, now = recording("extra-foreign_gpu_process")
    assert state.memory_by_owner() == {("0", "chat"): 130_069_561_344, ("0", ""): 916_455_424}
    assert state.gpu_window(["0"], 20, now).memory_by_owner[""] == 916_455_424


def test_evidence_of_several_gpus_is_their_mean_and_shows_their_spread(state: HardwareState) -> None:
    for second in range(10):
        state.add_gpus(
            gpu_tick(
                second,
                gpu(second, "0", sm_active_ratio=0.9, power_watts=700.0, power_limit_watts=700.0),
                gpu(second, "1", sm_active_ratio=0.5, power_watts=350.0, power_limit_watts=700.0),
                gpu(second, "2", up=False),
            )
        )
    found = state.gpu_window(["0", "1", "2"], 30, 9.0)
    assert (found.gpus, found.down, found.samples) == (("0", "1"), ("2",), 10)
    assert found.sm == pytest.approx(0.7)
    assert found.sm_spread == pytest.approx(0.4)
    assert found.power_ratio == pytest.approx(0.75)
    assert found.graphics is None
    assert found.graphics_spread is None


def test_clocks_are_compared_with_the_device_or_with_the_highest_seen(state: HardwareState) -> None:
    for second, clock in enumerate([2e9, 1e9, 1e9, 1e9]):
        state.add_gpus(
            gpu_tick(second, gpu(second, clock_hertz={"sm": clock}), gpu(second, "1", clock_hertz={"sm": 1e9}, sm_clock_max_hertz=4e9))
        )
    assert state.gpu_window(["0"], 3, 3.0).clock_ratio == pytest.approx(0.5)
    assert state.gpu_window(["1"], 3, 3.0).clock_ratio == pytest.approx(0.25)


def test_without_readings_there_is_no_evidence(state: HardwareState) -> None:
    found = state.gpu_window(["0"], 30, 0.0)
    assert (found.samples, found.utilization, found.throttled, found.throttled_share) == (0, None, None, None)
    assert state.host_window("chat", 30, 0.0).missing == {"processes": "no_readings"}


def test_the_delay_that_counts_is_of_the_thread_that_wants_a_core_most(state: HardwareState) -> None:
    for second in range(11):
        engine = ProcessReading(
            pid=1,
            started=1,
            role="engine_core",
            threads=(
                ThreadReading(1, "loop", second * 0.6, second * 0.6, second * 0.3),
                ThreadReading(2, "pool", second * 0.01, second * 0.01, second * 0.5),
            ),
        )
        other = process(9, "other", run=second * 1.0, wait=second * 0.9)
        state.add_hosts(host_tick(second, host(second, engine, other)))
    found = state.host_window("chat", 10, 10.0)
    assert found.hot["engine_core"].comm == "loop"
    assert found.run_delay == pytest.approx(0.3), "neither the idle pool nor a side process"
    assert found.hottest is not None
    assert found.hottest.run == pytest.approx(1.0)
    assert found.cores == {"engine_core": pytest.approx(0.61), "other": pytest.approx(1.0)}


def test_counters_that_fall_or_vanish_do_not_make_nonsense(state: HardwareState) -> None:
    runs = {0: 100.0, 1: 101.0, 2: 0.5, 3: 1.0}
    for second, run in runs.items():
        readings = [process(1, run=run)] + ([process(2, run=50.0)] if second < 2 else [])
        state.add_hosts(host_tick(second, host(second, *readings, cpu_pressure_seconds=run)))
    found = state.host_window("chat", 30, 3.0)
    assert found.hot["engine_core"].run == pytest.approx((1.0 + 0.5 + 0.5) / 3)
    assert found.cpu_pressure == pytest.approx(2.0 / 3)


def test_two_readings_of_one_instant_are_no_span(state: HardwareState) -> None:
    for _ in range(2):
        state.add_hosts(host_tick(5, host(5, process(1, run=1.0), cpus_available=4.0)))
    found = state.host_window("chat", 30, 5.0)
    assert (found.cores, found.hottest, found.cpus_available) == ({}, None, 4.0)


def test_the_tightest_of_several_cgroups_counts(state: HardwareState) -> None:
    for second in range(3):
        groups = (
            CgroupReading("a", 10.0 * second, 1.0 * second, 0.0),
            CgroupReading("a/b", 10.0 * second, 8.0 * second, 0.0),
            CgroupReading("c", 0.0, 0.0, 0.0),
        )
        state.add_hosts(host_tick(second, host(second, process(1), cgroups=groups)))
    assert state.host_window("chat", 30, 2.0).cfs_throttled == pytest.approx(0.8)


def test_what_is_not_visible_stays_unknown(state: HardwareState) -> None:
    missing = {"cgroups": "not_visible", "run_delay": "not_supported"}
    for second in range(3):
        state.add_hosts(host_tick(second, host(second, process(1, run=second * 0.5, wait=None), missing=missing)))
    found = state.host_window("chat", 30, 2.0)
    assert (found.cfs_throttled, found.run_delay, found.cpu_pressure) == (None, None, None)
    assert found.hot["engine_core"].run == pytest.approx(0.5)


# ---- which GPU serves which target ----


def test_a_gpu_serves_the_target_whose_process_is_on_it(state: HardwareState) -> None:
    state.configure({"chat": "auto", "code": "auto"})
    state.add_hosts(host_tick(0, host(0, process(1)), host(0, process(2), target="code")))
    on = {"0": (1,), "1": (1, 2), "2": ()}
    readings = [gpu(0, number, processes=tuple(GpuProcess(pid, 1.0, True) for pid in pids)) for number, pids in on.items()]
    state.add_gpus(gpu_tick(0, *readings))
    assert state.placements() == (("0", "chat"), ("1", "chat"), ("1", "code"))


def test_the_configuration_places_by_index_uuid_or_not_at_all(state: HardwareState) -> None:
    state.configure({"chat": [1], "code": ["GPU-0"], "mig": ["0.1"], "none": "none"})
    state.add_hosts(host_tick(0, host(0, process(1), target="none")))
    state.add_gpus(gpu_tick(0, gpu(0, "0", processes=(GpuProcess(1, 1.0, True),)), gpu(0, "0.1"), gpu(0, "1", up=False)))
    assert state.placements() == (("0", "code"), ("0.1", "mig"), ("1", "chat"))
    assert state.gpus_of("none") == ()


def test_a_placement_by_process_outlives_a_missed_list_but_not_the_process(state: HardwareState) -> None:
    state.add_hosts(host_tick(0, host(0, process(1))))
    state.add_gpus(gpu_tick(0, gpu(0, processes=(GpuProcess(1, 1.0, True),))))
    for second in range(1, 40):
        state.add_hosts(host_tick(second, hidden(second, "process_not_found")))
        state.add_gpus(gpu_tick(second, gpu(second, processes=())))
        assert state.gpus_of("chat") == (("0",) if second <= 15 else ())


def test_the_only_local_target_has_the_gpus_in_use_where_no_process_is_listed(state: HardwareState) -> None:
    state.configure({"chat": "auto", "far": "auto"})
    state.add_hosts(host_tick(0, host(0, process(1)), hidden(0, "remote", "far")))
    used = {"memory_size_bytes": 100.0}
    state.add_gpus(gpu_tick(0, gpu(0, "0", memory_used_bytes=80.0, **used), gpu(0, "1", memory_used_bytes=1.0, **used)))
    assert state.placements() == (("0", "chat"),)


@pytest.mark.parametrize("other", ["second local target", "a listed process", "unknown processes"])
def test_elimination_does_not_guess(state: HardwareState, other: str) -> None:
    state.configure({"chat": "auto", "code": "auto"})
    hosts = [host(0, process(1))]
    listed: tuple[GpuProcess, ...] = ()
    if other == "second local target":
        hosts.append(host(0, process(2), target="code"))
    elif other == "a listed process":
        listed = (GpuProcess(4_194_001, 1.0, False),)
    else:
        hosts = [hidden(0, "no_permission")]
    state.add_hosts(host_tick(0, *hosts))
    state.add_gpus(gpu_tick(0, gpu(0, memory_used_bytes=80.0, memory_size_bytes=100.0, processes=listed)))
    assert state.placements() == ()


@pytest.mark.parametrize(
    ("resolves", "readings", "owner"),
    [
        (True, [host(0, process(1))], ""),
        (False, [host(0, process(1))], None),
        (None, [host(0, process(1))], None),
        (True, [host(0, process(7))], "chat"),
        (True, [hidden(0, "no_permission")], None),
        (True, [hidden(0, "other_pid_namespace")], None),
        (True, [hidden(0, "process_not_found")], ""),
        (True, [hidden(0, "remote")], ""),
        (True, [], None),
    ],
)
def test_a_process_is_foreign_only_if_it_is_visible_and_can_be_no_targets(
    state: HardwareState, resolves: bool | None, readings: list[HostReading], owner: str | None
) -> None:
    state.add_hosts(host_tick(0, *readings))
    state.add_gpus(gpu_tick(0, gpu(0, processes=(GpuProcess(7, 5.0, resolves),))))
    assert state.memory_by_owner() == ({} if owner is None else {("0", owner): 5.0})


def test_whether_a_targets_process_lives(state: HardwareState) -> None:
    assert state.process_alive("chat", 0.0) is None
    state.add_hosts(host_tick(0, host(0, process(1)), hidden(0, "process_not_found", "b"), hidden(0, "remote", "c")))
    assert [state.process_alive(target, 0.0) for target in ("chat", "b", "c")] == [True, False, None]
    assert state.process_alive("chat", 60.0) is None


# ---- life ----


def test_memory_is_flat_over_hours_of_ticks() -> None:
    state = HardwareState()
    state.configure({"chat": "auto"})

    def run(start: int, seconds: int) -> None:
        for second in range(start, start + seconds):
            state.add_gpus(gpu_tick(second, *(gpu(second, str(n), utilization_ratio=0.5) for n in range(2))))
            state.add_hosts(host_tick(second, host(second, process(second, run=float(second)))))

    run(0, 300)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    run(300, 3600)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(state._gpus["0"]) <= 66
    assert len(state._hosts["chat"]) <= 66
    assert grown < 200_000, "one minute of readings is replaced, nothing is added"


def test_readers_and_writers_on_several_threads_do_not_disturb_each_other(state: HardwareState) -> None:
    failures: list[Exception] = []

    def write() -> None:
        for second in range(300):
            state.add_gpus(gpu_tick(second, gpu(second, str(second % 3), utilization_ratio=0.5)))
            state.add_hosts(host_tick(second, host(second, process(second % 5), target=f"t{second % 4}")))

    def read() -> None:
        try:
            for second in range(300):
                state.gpus(second)
                state.gpu_window(["0", "1"], 30, second)
                state.host_window("t1", 30, second)
                state.placements()
                state.memory_by_owner()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
