"""The GPU reader on a real device: every row is plausible or cleanly not supported, at the cost that is promised.

Run by hand on a machine with an NVIDIA GPU: `pytest -m gpu tests/gpu`. With PyTorch installed a second process puts
the GPU under load (matrix products, half of the time) and listens on a port, as a server would.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from llm_exporter.expose.hardware import families
from llm_exporter.hardware import GpuReading, GpuTick
from llm_exporter.sources.gpu_fields import TABLE
from llm_exporter.sources.host import HostReader
from llm_exporter.sources.nvml import NvmlReader, load_library
from llm_exporter.sources.processes import ProcessSearch
from llm_exporter.state.hardware import HardwareState

LOAD = """
import socket, sys, time, torch
listener = socket.create_server(("127.0.0.1", 0))
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
(a @ a).sum().item()
print(listener.getsockname()[1], flush=True)
end = time.monotonic() + 120
while time.monotonic() < end:
    start = time.monotonic()
    while time.monotonic() - start < 0.05:
        a @ a
        torch.cuda.synchronize()
    time.sleep(0.05)
"""
SECONDS = 32

# Least and most that a row may say, in base units.
PLAUSIBLE = {
    "memory_used_bytes": (0, 2**41),
    "memory_size_bytes": (2**30, 2**41),
    "power_watts": (5, 2000),
    "power_limit_watts": (20, 2000),
    "energy_joules": (0, 1e12),
    "temperature_celsius": (5, 120),
    "clock_hertz": (1e8, 2e10),
    "sm_clock_max_hertz": (5e8, 5e9),
    "throttled_seconds": (0, 1e9),
    "ecc_errors": (0, 1e12),
    "row_remap_pending": (0, 1),
    "row_remap_failed": (0, 1),
    "pcie_receive_bytes_per_second": (0, 3e11),
    "pcie_transmit_bytes_per_second": (0, 3e11),
    "nvlink_receive_bytes_per_second": (0, 4e12),
    "nvlink_transmit_bytes_per_second": (0, 4e12),
}


def usable() -> bool:
    try:
        library = load_library()
        library.nvmlInit()
        library.nvmlShutdown()
    except Exception:  # noqa: BLE001  no usable NVML, whatever it says
        return False
    return True


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not usable(), reason="needs a real NVIDIA GPU"),
]


class Run(NamedTuple):
    """What a run of the readers left."""

    ticks: list[GpuTick]
    costs: list[float]
    state: HardwareState
    port: int | None
    pid: int | None


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    load: subprocess.Popen[str] | None = None
    port = None
    if importlib.util.find_spec("torch"):
        load = subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True)
        assert load.stdout is not None
        port = int(load.stdout.readline())
    nvml, host, state = NvmlReader(), HostReader(), HardwareState()
    searches = [ProcessSearch.of("load", f"http://127.0.0.1:{port or 1}")]
    state.configure({"load": "auto"})
    ticks, costs = [], []
    deadline = time.monotonic()
    try:
        for _ in range(SECONDS):
            now = time.monotonic()
            started = time.perf_counter()
            tick = nvml.tick(now)
            costs.append(time.perf_counter() - started)
            ticks.append(tick)
            state.add_hosts(host.tick(now, searches, tick.readings))
            state.add_gpus(tick)
            deadline += 1.0
            time.sleep(max(0.0, deadline - time.monotonic()))
        yield Run(ticks, costs, state, port, None if load is None else load.pid)
    finally:
        nvml.close()
        if load is not None:
            load.kill()
            load.communicate(timeout=10)


def test_all_sources_work_and_every_gpu_answers(run: Run) -> None:
    for tick in run.ticks:
        assert tick.sources["nvml"].up
        assert all(reading.up and reading.uuid and reading.name for reading in tick.readings)


def test_every_row_is_plausible_or_absent(run: Run) -> None:
    absent = set()
    for row in TABLE:
        seen = [value for tick in run.ticks for reading in tick.readings for value in numbers(reading, row.name, row.part)]
        if not seen:
            absent.add(f"{row.name} {row.part}".strip())
            continue
        least, most = (0.0, 1.0) if row.name.endswith("_ratio") else PLAUSIBLE.get(row.name, (0.0, 1e15))
        assert all(least <= value <= most for value in seen), (row.name, row.part, min(seen), max(seen))
    print("\nabsent on this device:", ", ".join(sorted(absent)) or "nothing")


def numbers(reading: GpuReading, name: str, part: str) -> list[float]:
    value = getattr(reading, name)
    if name == "throttle_reasons":
        return [] if value is None else [float(len(value))]
    if part:
        value = value.get(part)
    return [] if value is None else [float(value)]


def test_counters_never_fall(run: Run) -> None:
    for name in ("energy_joules", "throttled_seconds", "ecc_errors"):
        for part in {row.part for row in TABLE if row.name == name}:
            series = [value for tick in run.ticks for value in numbers(tick.readings[0], name, part)]
            assert series == sorted(series), (name, part)


def test_the_cost_stays_within_five_milliseconds_per_gpu_and_second(run: Run) -> None:
    gpus = len(run.ticks[-1].readings)
    steady = run.costs[2:32]  # three rounds of the slow calls; the first pair of GPM samples costs 25 ms, once
    print(f"\nmean {statistics.mean(steady) / gpus * 1e3:.3f} ms per GPU and second, max {max(steady) * 1e3:.1f} ms")
    print(" ".join(f"{cost * 1e3:.1f}" for cost in run.costs))
    assert statistics.mean(steady) / gpus <= 0.005


def test_energy_agrees_with_power(run: Run) -> None:
    points = [(tick.at, tick.readings[0].energy_joules) for tick in run.ticks if tick.readings[0].energy_joules is not None]
    watts = [r.power_watts for tick in run.ticks for r in tick.readings[:1] if r.power_watts is not None]
    if len(points) < 2 or not watts:
        pytest.skip("no energy counter or no power on this device")
    (first_at, first), (last_at, last) = points[0], points[-1]
    assert first is not None
    assert last is not None
    assert (last - first) / (last_at - first_at) == pytest.approx(statistics.mean(watts), rel=0.25)


def test_the_load_is_seen_where_it_is(run: Run) -> None:
    if run.pid is None:
        pytest.skip("needs PyTorch for a load")
    now = run.ticks[-1].at
    assert run.state.gpus_of("load") != ()
    evidence = run.state.gpu_window(run.state.gpus_of("load"), 15, now)
    print(f"\n{evidence}\n{run.state.host_window('load', 15, now)}")
    assert evidence.utilization is not None
    assert 0.2 < evidence.utilization <= 1.0
    if run.ticks[-1].sources["gpm"].up:
        assert evidence.graphics is not None
        assert evidence.tensor is not None
        assert evidence.graphics == pytest.approx(0.5, abs=0.2), "the duty cycle of the load"
        assert 0.2 < evidence.tensor <= evidence.graphics + 0.05
    process = [p for p in run.ticks[-1].readings[0].processes or () if p.pid == run.pid]
    if process:
        assert process[0].resolves
    host = run.state.host_window("load", 15, now)
    assert host.cores["api_server"] > 0.2, "the owner of the socket"


def test_the_page_has_the_gpu(run: Run) -> None:
    now = run.ticks[-1].at
    found = families(run.state, now)
    for family in found:
        for sample in family.samples:
            print(family.metric.name, dict(zip(family.metric.labels, sample.labels, strict=True)), sample)
    assert {"llm_gpu_info", "llm_gpu_up", "llm_exporter_source_up"} <= {family.metric.name for family in found}


def test_everything_is_given_back() -> None:
    reader = NvmlReader(proc=Path("/proc"))
    for second in range(3):
        reader.tick(float(second))
    reader.close()
    assert reader.tick(10.0).sources["nvml"].up, "may be started again"
    reader.close()
