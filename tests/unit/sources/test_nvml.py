"""The GPU reader against field cases and devices that break in known ways."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fakes.nvml import FakeNvml
from llm_exporter.hardware import GpuReading, GpuTick
from llm_exporter.sources.nvml import NvmlReader
from llm_exporter.state.hardware import HardwareState

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
GPU = "GPU-00000000-0000-0000-0000-00000000000"


def device(number: int = 0, **values: Any) -> dict[str, Any]:
    return {
        "index": number,
        "uuid": f"{GPU}{number}",
        "name": "NVIDIA H200",
        "utilization": {"gpu": 40, "memory": 20},
        "memory": {"total": 1000, "used": 600, "free": 400},
        "power_mw": 310_000,
        "power_limit_mw": 700_000,
        "temperature_c": 52,
        "mig_mode": 0,
        "processes": [],
    } | values


HOPPER: dict[str, Any] = {
    "gpm": {"1": 99.0, "2": 80.0, "3": 12.0, "5": 90.0, "10": 18.0, "20": 4.0, "21": 8.0, "60": 0.0, "61": 0.0},
    "fields": {"82": 60, "74": 5_000_000_000, "76": 0, "269": 0, "270": 1_500_000_000, "271": 0},
    "energy_mj": 35_084_338,
    "clock_mhz": [1500, 3201],
    "clock_max_mhz": 1980,
    "throttle": 4,
    "ecc": [3, 0],
    "remapped": [0, 0, 1, 0],
    "pcie_kb": [1358, 586],
}


class Bench:
    """A reader on a fake binding, with time in the test's hands."""

    def __init__(self, document: dict[str, Any] | Path, proc: Path = Path("/nowhere")) -> None:
        self.now = 0.0
        self.nvml = FakeNvml(document, lambda: self.now)
        self.reader = NvmlReader(load=lambda: self.nvml, wall=lambda: 1e9 + self.now, proc=proc)

    def ticks(self, until: float) -> Iterator[GpuTick]:
        while self.now <= until:
            yield self.reader.tick(self.now)
            self.now += 1.0

    def at(self, second: float) -> GpuTick:
        return list(self.ticks(second))[-1]


def case(name: str) -> Bench:
    return Bench(CASES / name / "nvml.json")


def only(tick: GpuTick) -> GpuReading:
    assert len(tick.readings) == 1
    return tick.readings[0]


# ---- field cases ----


def test_nvml_01_a_version_mismatch_is_named_logged_once_and_heals(caplog: pytest.LogCaptureFixture) -> None:
    bench = case("NVML-01")
    with caplog.at_level(logging.INFO):
        tick = bench.at(59)
        assert tick.readings == ()
        assert not tick.sources["nvml"].up
        assert tick.sources["nvml"].reason == "lib_rm_version_mismatch"
        assert [(record.getMessage(), vars(record)["reason"]) for record in caplog.records if "down" in record.getMessage()] == [
            (f"source is down: {tick.sources['nvml'].hint}", "lib_rm_version_mismatch")
        ]
        assert bench.nvml.calls["nvmlInit"] < 10, "retried with back-off, not every second"
        healed = bench.at(71)
    assert healed.sources["nvml"].up
    assert only(healed).utilization_ratio == 0.4
    assert any(record.getMessage() == "source is up" and vars(record)["source"] == "nvml" for record in caplog.records)


def test_nvml_02_no_library_is_a_state_with_a_hint() -> None:
    tick = case("NVML-02").at(30)
    assert tick.readings == ()
    assert tick.sources["nvml"].reason == "library_not_found"
    assert "--gpus" in tick.sources["nvml"].hint
    assert tick.sources["gpm"].reason == tick.sources["gpu_processes"].reason == "library_not_found"


def test_a_binding_that_cannot_be_imported_is_a_missing_library() -> None:
    def load() -> Any:
        raise ImportError("no such module")

    tick = NvmlReader(load=load).tick(0.0)
    assert tick.sources["nvml"].reason == "library_not_found"


def test_nvml_03_unified_memory_is_absent_and_the_rest_is_there() -> None:
    reading = only(case("NVML-03").at(2))
    assert reading.utilization_ratio == 0.93
    assert reading.power_watts == 45
    assert reading.temperature_celsius == {"gpu": 61}
    assert reading.memory_used_bytes is None
    assert reading.memory_size_bytes is None
    assert reading.power_limit_watts is None


def test_nvml_04_one_lost_gpu_keeps_its_info_and_the_others_their_values() -> None:
    bench = case("NVML-04")
    assert [reading.up for reading in bench.at(19).readings] == [True] * 4
    for tick in bench.ticks(300):
        assert [reading.up for reading in tick.readings] == [True, True, False, True]
        lost = tick.readings[2]
        assert (lost.gpu, lost.name, lost.down_reason) == ("2", "NVIDIA H100 80GB HBM3", "gpu_lost")
        assert lost.utilization_ratio is None
        assert tick.readings[3].utilization_ratio == 0.4
        assert tick.sources["nvml"].up
    assert 3 <= bench.nvml.calls["nvmlInit"] <= 8, "looked for again, more and more rarely"


def test_nvml_06_mig_devices_have_their_own_memory_and_their_parent_the_power() -> None:
    parent, first, second = case("NVML-06").at(1).readings
    assert parent.utilization_ratio is None
    assert parent.power_watts == 310
    assert (first.gpu, first.memory_used_bytes) == ("0.0", 5234491392)
    assert (second.gpu, second.memory_used_bytes) == ("0.1", 1046898278)
    assert second.uuid == "MIG-000000a1-0000-0000-0000-000000000000"
    assert second.parent == parent.uuid
    assert second.power_watts is None
    assert second.utilization_ratio is None


def test_nvml_08_a_field_that_is_not_supported_takes_nothing_else_along() -> None:
    tick = case("NVML-08").at(1)
    reading = only(tick)
    assert tick.sources["nvml"].up
    assert reading.utilization_ratio == 0.4
    assert reading.temperature_celsius == {"gpu": 52}
    assert reading.power_watts is None


def test_nvml_10_processes_of_another_namespace_are_unknown_and_named_so() -> None:
    tick = case("NVML-10").at(1)
    reading = only(tick)
    assert reading.memory_used_bytes == 42949672960
    assert reading.processes is not None
    assert [process.resolves for process in reading.processes] == [False, False]
    assert tick.sources["nvml"].up
    assert tick.sources["gpu_processes"].reason == "other_pid_namespace"


def test_nvml_11_unknown_error_takes_the_values_away_at_once_and_they_come_back() -> None:
    bench = case("NVML-11")
    assert bench.at(29).sources["nvml"].up
    for tick in bench.ticks(59):
        assert tick.readings == ()
        assert tick.sources["nvml"].reason == "unknown"
    healed = bench.at(71)
    assert healed.sources["nvml"].up
    assert only(healed).utilization_ratio == 0.4
    assert bench.nvml.calls["nvmlShutdown"] == 1


def test_nvml_13_utilisation_is_sampled_every_second() -> None:
    readings = [only(tick).utilization_ratio for tick in case("NVML-13").ticks(9)]
    assert readings == [1.0, 0.0] * 5


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.45, 0.999])
def test_nvml_13_looks_between_the_readings_tell_a_gpu_that_works_every_other_second(phase: float) -> None:
    """Readings that fall where the GPU changes over would be all 100 or all 0 by luck: each comes up to 20 ms early or late."""
    bench, state, chance = case("NVML-13"), HardwareState(), Random(1)
    for beat in range(200):
        bench.now = phase + beat / 4 + chance.uniform(-0.02, 0.02)
        if beat % 4:
            bench.reader.glance()
        else:
            state.add_gpus(bench.reader.tick(bench.now))
            if beat >= 60:
                (gpu,) = state.gpus(bench.now)
                assert gpu.utilization_ratio == pytest.approx(0.5, abs=0.12)


def test_a_glance_at_a_gpu_that_is_lost_is_left_to_the_next_reading() -> None:
    bench = Bench({"init": "OK", "devices": [device()], "phases": [{"from_s": 0.5, "devices": [device(handle="NVML_ERROR_GPU_IS_LOST")]}]})
    assert only(bench.reader.tick(0.0)).utilization_ratio == 0.4
    bench.now = 0.75
    bench.reader.glance()
    bench.now = 1.0
    assert not only(bench.reader.tick(1.0)).up
    bench.reader.close()
    bench.reader.glance()


# ---- the table ----


def test_every_field_of_a_hopper_gpu_arrives_in_base_units() -> None:
    bench = Bench({"init": "OK", "devices": [device(**HOPPER)]})
    first, second = list(bench.ticks(1))
    assert only(first).graphics_active_ratio is None, "one GPM sample is not yet a pair"
    reading = only(second)
    assert reading.graphics_active_ratio == pytest.approx(0.99)
    assert reading.sm_active_ratio == pytest.approx(0.80)
    assert reading.sm_occupancy_ratio == pytest.approx(0.12)
    assert reading.tensor_active_ratio == pytest.approx(0.90)
    assert reading.dram_active_ratio == pytest.approx(0.18)
    assert reading.pcie_transmit_bytes_per_second == 4 * 2**20
    assert reading.pcie_receive_bytes_per_second == 8 * 2**20
    assert reading.nvlink_receive_bytes_per_second == 0
    assert reading.clock_hertz == {"sm": 1.5e9, "memory": 3.201e9}
    assert reading.sm_clock_max_hertz == 1.98e9
    assert reading.temperature_celsius == {"gpu": 52, "memory": 60}
    assert reading.throttle_reasons == {"sw_power_cap"}
    assert only(first).throttled_seconds == {
        "sw_power_cap": pytest.approx(5.0),
        "sync_boost": 0,
        "sw_thermal_slowdown": 0,
        "hw_thermal_slowdown": pytest.approx(1.5),
        "hw_power_brake_slowdown": 0,
    }
    assert only(first).energy_joules == pytest.approx(35_084.338)
    assert only(first).ecc_errors == {"corrected": 3, "uncorrected": 0}
    assert (only(first).row_remap_pending, only(first).row_remap_failed) == (1, 0)


def test_slow_calls_run_every_ten_seconds_and_say_nothing_in_between() -> None:
    bench = Bench({"init": "OK", "devices": [device(**HOPPER)]})
    seconds = [tick.at for tick in bench.ticks(39) if only(tick).energy_joules is not None]
    assert seconds == [0, 10, 20, 30]
    assert bench.nvml.calls["nvmlDeviceGetTotalEnergyConsumption"] == 4
    assert bench.nvml.calls["nvmlDeviceGetMaxClockInfo"] == 1


def test_pcie_throughput_is_never_asked_where_gpm_gives_it() -> None:
    bench = Bench({"init": "OK", "devices": [device(**HOPPER)]})
    bench.at(30)
    assert bench.nvml.calls["nvmlDeviceGetPcieThroughput"] == 0


def test_without_gpm_pcie_comes_from_the_slow_call_and_throttled_time_from_the_policies() -> None:
    older = {key: value for key, value in HOPPER.items() if key not in ("gpm", "fields")}
    bench = Bench({"init": "OK", "devices": [device(**older, violation_ns={"0": 2_000_000_000})]})
    tick = bench.reader.tick(0.0)
    reading = only(tick)
    assert reading.pcie_transmit_bytes_per_second == 1_358_000
    assert reading.pcie_receive_bytes_per_second == 586_000
    assert reading.throttled_seconds == {"sw_power_cap": pytest.approx(2.0)}, "what is not counted is absent, not 0"
    assert tick.sources["gpm"].reason == "not_supported"
    bench.at(9)
    assert bench.nvml.calls["nvmlDeviceGetPcieThroughput"] == 2


def test_what_is_not_supported_is_asked_once_per_initialisation() -> None:
    bench = case("NVML-11")
    bench.at(29)
    calls = bench.nvml.calls
    for name in ("nvmlDeviceGetFieldValues", "nvmlDeviceGetClockInfo", "nvmlDeviceGetTotalEccErrors"):
        assert 1 <= calls[name] <= 2, name
    before = calls["nvmlDeviceGetFieldValues"]
    bench.at(90)
    assert calls["nvmlDeviceGetFieldValues"] == before + 1


def test_memory_falls_back_to_the_older_call() -> None:
    reading = only(Bench({"init": "OK", "no_memory_v2": True, "devices": [device()]}).at(0))
    assert (reading.memory_used_bytes, reading.memory_size_bytes) == (600, 1000)


def test_a_nan_of_gpm_is_absent_and_a_pair_of_nothing_gives_nothing() -> None:
    some = HOPPER | {"gpm": HOPPER["gpm"] | {"10": "nan"}}
    reading = only(Bench({"init": "OK", "devices": [device(**some)]}).at(1))
    assert reading.dram_active_ratio is None
    assert reading.sm_active_ratio == pytest.approx(0.8)
    nothing = HOPPER | {"gpm": dict.fromkeys(HOPPER["gpm"], 0.0) | {"10": "nan"}}
    reading = only(Bench({"init": "OK", "devices": [device(**nothing)]}).at(1))
    assert reading.sm_active_ratio is None


def test_two_ticks_at_nearly_the_same_time_do_not_make_a_gpm_pair() -> None:
    bench = Bench({"init": "OK", "devices": [device(**HOPPER)]})
    bench.reader.tick(0.0)
    bench.now = 0.05
    assert only(bench.reader.tick(0.05)).sm_active_ratio is None
    bench.now = 1.0
    assert only(bench.reader.tick(1.0)).sm_active_ratio == pytest.approx(0.8)


def test_samples_and_events_are_freed_at_the_end_and_at_each_new_initialisation() -> None:
    bench = Bench(
        {
            "init": "OK",
            "xids": [],
            "devices": [device(**HOPPER)],
            "phases": [{"from_s": 5, "all_calls": "NVML_ERROR_UNKNOWN"}, {"from_s": 20, "all_calls": None}],
        }
    )
    bench.at(4)
    assert bench.nvml.alive == 3
    bench.at(10)
    assert bench.nvml.alive == 0
    bench.at(40)
    assert bench.nvml.alive == 3
    bench.reader.close()
    bench.reader.close()
    assert bench.nvml.alive == 0


# ---- devices that come and go ----


def test_a_lost_gpu_that_returns_is_up_again() -> None:
    lost = {"index": 1, "uuid": f"{GPU}1", "handle": "NVML_ERROR_GPU_IS_LOST"}
    bench = Bench(
        {
            "init": "OK",
            "devices": [device(0), device(1)],
            "phases": [{"from_s": 10, "devices": [device(0), lost]}, {"from_s": 50, "devices": [device(0), device(1)]}],
        }
    )
    assert [reading.up for reading in bench.at(49).readings] == [True, False]
    assert [reading.up for reading in bench.at(51).readings] == [True, True], "at the next look, or sooner"


def test_a_gpu_keeps_its_label_when_nvml_renumbers() -> None:
    bench = Bench(
        {
            "init": "OK",
            "devices": [device(0), device(1), device(2)],
            "phases": [{"from_s": 10, "devices": [device(0), device(2)]}],
        }
    )
    bench.at(9)
    by_label = {reading.gpu: reading for reading in bench.at(40).readings}
    assert by_label["1"].up is False
    assert by_label["1"].uuid == f"{GPU}1"
    assert by_label["2"].up is True
    assert by_label["2"].uuid == f"{GPU}2"


def test_a_new_gpu_does_not_take_the_label_of_a_lost_one() -> None:
    bench = Bench(
        {"init": "OK", "devices": [device(0)], "phases": [{"from_s": 5, "devices": [device(7)]}]},
    )
    bench.at(4)
    labels = {reading.uuid: (reading.gpu, reading.up) for reading in bench.at(40).readings}
    assert labels == {f"{GPU}0": ("0", False), f"{GPU}7": ("1", True)}


def test_a_gpu_that_is_lost_before_we_start_is_there_and_down() -> None:
    lost = {"index": 1, "uuid": f"{GPU}1", "handle": "NVML_ERROR_GPU_IS_LOST"}
    bench = Bench(
        {
            "init": "OK",
            "devices": [device(0), lost],
            "phases": [{"from_s": 100, "devices": [device(0), device(1)]}],
        }
    )
    tick = bench.at(20)
    assert [(reading.gpu, reading.up, reading.down_reason) for reading in tick.readings] == [
        ("0", True, ""),
        ("1", False, "gpu_lost"),
    ]
    assert [reading.up for reading in bench.at(400).readings] == [True, True]


def test_when_the_only_gpu_is_lost_the_source_is_down_and_the_gpu_stays_visible() -> None:
    lost = {"index": 0, "uuid": f"{GPU}0", "handle": "NVML_ERROR_GPU_IS_LOST"}
    bench = Bench({"init": "OK", "devices": [device(0)], "phases": [{"from_s": 5, "devices": [lost]}]})
    bench.at(4)
    for tick in bench.ticks(60):
        assert (tick.sources["nvml"].up, tick.sources["nvml"].reason) == (False, "gpu_lost")
        assert (only(tick).gpu, only(tick).up, only(tick).name) == ("0", False, "NVIDIA H200")


def test_no_gpu_at_all_is_named() -> None:
    tick = Bench({"init": "OK", "devices": []}).at(3)
    assert tick.sources["nvml"].reason == "no_devices"


def test_one_bad_call_of_many_costs_one_value_only() -> None:
    bench = Bench({"init": "OK", "devices": [device(0, power_mw={"error": "NVML_ERROR_UNKNOWN"}), device(1)]})
    tick = bench.at(5)
    assert tick.sources["nvml"].up
    assert [reading.up for reading in tick.readings] == [True, True]
    assert [reading.power_watts for reading in tick.readings] == [None, 310]
    assert bench.nvml.calls["nvmlDeviceGetPowerUsage"] == 12, "an error of the moment is asked again"


def test_one_gpu_that_fails_every_call_does_not_disturb_the_other() -> None:
    broken = {"index": 1, "uuid": f"{GPU}1", "handle": "NVML_ERROR_UNKNOWN"}
    bench = Bench({"init": "OK", "devices": [device(0), device(1)], "phases": [{"from_s": 3, "devices": [device(0), broken]}]})
    tick = bench.at(8)
    assert [(reading.up, reading.down_reason) for reading in tick.readings] == [(True, ""), (False, "unknown")]
    assert tick.sources["nvml"].up


# ---- XID and processes ----


def test_xid_events_are_counted_with_the_time_last_seen_and_survive_a_new_initialisation() -> None:
    bench = Bench(
        {
            "init": "OK",
            "devices": [device(0), device(1)],
            "xids": [{"at_s": 3, "uuid": f"{GPU}1", "xid": 31}, {"at_s": 4, "uuid": f"{GPU}1", "xid": 31}],
            "phases": [{"from_s": 20, "all_calls": "NVML_ERROR_UNKNOWN"}, {"from_s": 25, "all_calls": None}],
        }
    )
    other, reading = bench.at(10).readings
    assert other.xid_errors == {}
    assert reading.xid_errors == {31: 2}
    assert reading.xid_last_at == {31: 1e9 + 4}
    assert bench.at(40).readings[1].xid_errors == {31: 2}


def test_an_xid_of_a_gpu_that_is_then_lost_stays_visible() -> None:
    lost = {"index": 0, "uuid": f"{GPU}0", "handle": "NVML_ERROR_GPU_IS_LOST"}
    bench = Bench(
        {
            "init": "OK",
            "devices": [device(0), device(1)],
            "xids": [{"at_s": 3, "uuid": f"{GPU}0", "xid": 79}],
            "phases": [{"from_s": 3, "devices": [lost, device(1)]}],
        }
    )
    reading = bench.at(5).readings[0]
    assert (reading.up, reading.xid_errors) == (False, {79: 1})


def test_a_process_is_ours_only_where_all_ids_are_of_our_namespace(tmp_path: Path) -> None:
    (tmp_path / "100").mkdir()
    (tmp_path / "self" / "ns").mkdir(parents=True)
    processes = [{"pid": 100, "used": 5}, {"pid": 4_194_001, "used": 7}]
    (tmp_path / "self" / "ns" / "pid").symlink_to("pid:[4026532999]")
    bench = Bench({"init": "OK", "devices": [device(processes=processes)]}, proc=tmp_path)
    tick = bench.at(0)
    assert [process.resolves for process in only(tick).processes or ()] == [None, False], "100 may be somebody else"

    bench = Bench({"init": "OK", "devices": [device(processes=processes[:1])]}, proc=tmp_path)
    tick = bench.at(0)
    assert [(process.memory_bytes, process.resolves) for process in only(tick).processes or ()] == [(5, True)]
    assert tick.sources["gpu_processes"].up


def test_process_lists_that_may_not_be_read_are_said(tmp_path: Path) -> None:
    refused = {"error": "NVML_ERROR_NO_PERMISSION"}

    class NoGraphics(FakeNvml):
        def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any) -> list[Any]:  # noqa: N802
            return self._value("graphics", handle, "processes")  # type: ignore[no-any-return]

    bench = Bench({"init": "OK", "devices": []})
    bench.nvml = NoGraphics({"init": "OK", "devices": [device(processes=refused)]}, lambda: bench.now)
    tick = bench.at(0)
    assert only(tick).processes is None
    assert not tick.sources["gpu_processes"].up
    assert tick.sources["nvml"].up


# ---- MIG, and bindings that behave badly ----


def mig(number: int, **values: Any) -> dict[str, Any]:
    memory = {"total": 100, "used": 10 * (number + 1), "free": 0}
    return {"uuid": f"MIG-{number}", "gi": number + 1, "ci": 0, "memory": memory, "processes": []} | values


def test_gpm_of_a_mig_device_is_its_own() -> None:
    children = [mig(0, gpm=HOPPER["gpm"] | {"2": 70.0}), mig(1, gpm=HOPPER["gpm"] | {"2": 10.0})]
    bench = Bench({"init": "OK", "devices": [device(mig_mode=1, mig=children, **HOPPER)]})
    readings = {reading.gpu: reading for reading in bench.at(2).readings}
    assert readings["0.0"].sm_active_ratio == pytest.approx(0.7)
    assert readings["0.1"].sm_active_ratio == pytest.approx(0.1)
    assert readings["0"].processes is None, "they are listed by the MIG devices"
    assert readings["0.0"].processes == ()


def test_mig_devices_that_are_taken_apart_are_gone_and_not_lost() -> None:
    before, after = device(mig_mode=1, mig=[mig(0), mig(1)]), device(mig_mode=1, mig=[mig(0), mig(5)])
    bench = Bench({"init": "OK", "devices": [before], "phases": [{"from_s": 3, "devices": [after]}]})
    assert [reading.gpu for reading in bench.at(2).readings] == ["0", "0.0", "0.1"]
    readings = bench.at(25).readings
    assert [(reading.uuid, reading.up) for reading in readings[1:]] == [("MIG-0", True), ("MIG-5", True)]


def test_after_a_driver_update_the_old_library_is_let_go() -> None:
    bench = case("NVML-01")
    nvml: Any = bench.nvml
    nvml.nvmlLib = ctypes.CDLL("libc.so.6")  # stands for libnvidia-ml
    nvml._nvmlGetFunctionPointer_cache = {"nvmlInit_v2": object()}
    bench.at(0)
    assert nvml.nvmlLib is None
    assert nvml._nvmlGetFunctionPointer_cache == {}


def test_a_session_that_ends_in_the_middle_is_begun_anew() -> None:
    bench = Bench(
        {
            "init": "OK",
            "devices": [device(0), device(1)],
            "phases": [{"from_s": 4, "all_calls": "NVML_ERROR_UNINITIALIZED"}, {"from_s": 6, "all_calls": None}],
        }
    )
    assert bench.at(4).sources["nvml"].reason == "uninitialized"
    assert bench.at(12).sources["nvml"].up


def test_errors_without_a_code_or_with_an_unknown_one_are_survived() -> None:
    class Odd(FakeNvml):
        def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:  # noqa: N802
            raise UnicodeDecodeError("utf-8", b"x", 0, 1, "odd")

        def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:  # noqa: N802
            error = Exception("new in some driver")
            error.value = 4711  # type: ignore[attr-defined]
            raise error

    bench = Bench({"init": "OK", "devices": []})
    bench.nvml = Odd({"init": "OK", "devices": [device()]}, lambda: bench.now)
    reading = only(bench.at(3))
    assert (reading.power_watts, reading.temperature_celsius) == (None, {})
    assert reading.utilization_ratio == 0.4


def test_a_value_that_nvml_marks_as_not_available_is_absent() -> None:
    reading = only(Bench({"init": "OK", "devices": [device(energy_mj=2**64 - 1, processes=[{"pid": 1, "used": 2**64 - 1}])]}).at(0))
    assert reading.energy_joules is None
    assert reading.processes is not None
    assert reading.processes[0].memory_bytes is None
