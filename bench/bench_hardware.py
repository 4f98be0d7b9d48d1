"""Cost of the GPU and host readers, and memory of what is remembered.

`python bench/bench_hardware.py [--seconds N]`. With a GPU: the real NVML, call by call, beside an nvidia-smi query and,
where it is installed, nvitop-exporter's reading of the same device. Without: a fake binding, so that only our own time
is measured. The target for a real H200: at most 5 ms per GPU and second on average.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "exporter"), str(ROOT / "tests")]

from fakes.nvml import FakeNvml  # noqa: E402  the path is set above
from llm_exporter.hardware import GpuTick, HostTick  # noqa: E402
from llm_exporter.sources.host import HostReader  # noqa: E402
from llm_exporter.sources.nvml import NvmlReader, load_library  # noqa: E402
from llm_exporter.sources.processes import ProcessSearch  # noqa: E402
from llm_exporter.state.hardware import HardwareState  # noqa: E402

QUERY = (
    "utilization.gpu,memory.used,memory.total,power.draw,enforced.power.limit,temperature.gpu,clocks.sm,clocks.mem,"
    "clocks_event_reasons.active,clocks_event_reasons_counters.sw_power_cap,"
    "clocks_event_reasons_counters.hw_thermal_slowdown,ecc.errors.corrected.volatile.total"
)


class Timed:
    """A binding whose calls are timed by name."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.milliseconds: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        if not callable(value) or isinstance(value, type):
            return value

        def call(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return value(*arguments)
            finally:
                self.milliseconds.setdefault(name, []).append((time.perf_counter() - started) * 1e3)

        return call


def timed(work: Callable[[], Any]) -> float:
    """Milliseconds that a call takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def report(label: str, samples: list[float], note: str = "") -> None:
    """One line: mean, median and worst."""
    print(
        f"  {label:<46} mean {statistics.mean(samples):8.3f} ms   median {statistics.median(samples):8.3f} ms   "
        f"max {max(samples):8.3f} ms   n {len(samples)} {note}"
    )


def real_library() -> Any | None:
    """The binding, where there is a GPU."""
    try:
        library = load_library()
        library.nvmlInit()
        library.nvmlShutdown()
    except Exception:  # noqa: BLE001  whatever it is, there is no usable NVML
        return None
    return library


def gpu_reader(library: Any, seconds: int) -> GpuTick:
    """Run the reader at 1 Hz; print what it costs."""
    binding = Timed(library)
    reader = NvmlReader(load=lambda: binding)
    first = timed(lambda: reader.tick(time.monotonic()))
    costs = []
    tick = reader.tick(time.monotonic())
    binding.milliseconds.clear()
    deadline = time.monotonic()
    for _ in range(seconds):
        deadline += 1.0
        time.sleep(max(0.0, deadline - time.monotonic()))
        started = time.perf_counter()
        tick = reader.tick(time.monotonic())
        costs.append((time.perf_counter() - started) * 1e3)
    gpus = max(1, len(tick.readings))
    print(f"GPU reader, {gpus} GPU(s), {seconds} s at 1 Hz; first tick with initialisation {first:.1f} ms")
    report("tick, per GPU", [cost / gpus for cost in costs], f"= {statistics.mean(costs) / gpus:.3f} ms per GPU and second")
    print("  each tick, ms: " + " ".join(f"{cost:.1f}" for cost in costs))
    for name, samples in sorted(binding.milliseconds.items(), key=lambda item: -sum(item[1])):
        report(name, samples, f"= {sum(samples) / seconds / gpus:.3f} ms/s")
    reader.close()
    return tick


def other_readers(repeat: int = 5) -> None:
    """The same device read by nvidia-smi and by nvitop-exporter."""
    print("other readers of the same device, once each time")
    smi = shutil.which("nvidia-smi")
    if smi:
        command = [smi, f"--query-gpu={QUERY}", "--format=csv"]
        report("nvidia-smi query (a process each time)", [timed(lambda: _run(command)) for _ in range(repeat)])
        print(_run(command))
    try:
        nvitop = importlib.import_module("nvitop")
        exporter = importlib.import_module("nvitop_exporter.exporter")
    except ImportError as error:
        print(f"  nvitop-exporter cannot be imported ({error})")
        return
    devices = nvitop.Device.all()
    page = exporter.PrometheusExporter(devices, interval=1.0)
    page.update_device(devices[0])
    report("nvitop-exporter update_device", [timed(lambda: page.update_device(devices[0])) for _ in range(repeat)])


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout


def fake_gpu_reader(gpus: int) -> None:
    """Our own time per tick, on a binding that answers at once."""
    now = [0.0]
    device = {
        "name": "fake", "utilization": {"gpu": 40, "memory": 20}, "memory": {"total": 1000, "used": 600, "free": 400},
        "power_mw": 310_000, "power_limit_mw": 700_000, "temperature_c": 52, "mig_mode": 0, "processes": [{"pid": 1, "used": 5}],
        "clock_mhz": [1500, 3201], "clock_max_mhz": 1980, "throttle": 4, "energy_mj": 5, "ecc": [0, 0], "remapped": [0, 0, 0, 0],
        "fields": {"82": 60, "74": 5}, "gpm": dict.fromkeys(("1", "2", "3", "5", "10", "20", "21", "60", "61"), 50.0),
    }  # fmt: skip
    document = {"init": "OK", "xids": [], "devices": [device | {"index": n, "uuid": f"GPU-{n}"} for n in range(gpus)]}
    reader = NvmlReader(load=lambda: FakeNvml(document, lambda: now[0]))
    costs = []
    for second in range(120):
        now[0] = float(second)
        costs.append(timed(lambda: reader.tick(now[0])))
    report(f"GPU reader on a fake binding, {gpus} GPU(s)", costs[10:])


def host_reader() -> None:
    """The host reader on this machine's procfs, for a process with 150 threads."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()
    threads = [threading.Thread(target=stop.wait, daemon=True) for _ in range(150)]
    for thread in threads:
        thread.start()
    reader = HostReader()
    reader._finder._own_pid = 0  # noqa: SLF001  here we look at ourselves
    search = [ProcessSearch.of("self", f"http://127.0.0.1:{listener.getsockname()[1]}")]
    costs: dict[str, list[float]] = {"second": [], "sweep": [], "scan": []}
    for second in range(60):
        kind = "scan" if second % 10 == 0 else "sweep" if second % 5 == 0 else "second"
        costs[kind].append(timed(lambda at=float(second): reader.tick(at, search)))
    print("host reader, one target with 150 threads")
    report("ordinary second", costs["second"])
    report("every 5 s: all threads", costs["sweep"])
    report("every 10 s: processes and sockets anew", costs["scan"])
    everything = [cost for kind in costs.values() for cost in kind]
    report("all", everything)
    stop.set()
    listener.close()


def memory() -> None:
    """Growth over an hour of ticks, eight GPUs and four targets, with the clock passed in."""
    from llm_exporter.hardware import GpuReading, HostReading, ProcessReading, ThreadReading

    state = HardwareState()
    state.configure({f"t{n}": "auto" for n in range(4)})

    def run(start: int, seconds: int) -> None:
        for second in range(start, start + seconds):
            at = float(second)
            state.add_gpus(GpuTick(at, tuple(GpuReading(at=at, gpu=str(n), utilization_ratio=0.5) for n in range(8)), {}))
            threads = tuple(ThreadReading(n, "t", at, at, at) for n in range(24))
            process = ProcessReading(pid=1, started=1, threads=threads)
            state.add_hosts(HostTick(at, tuple(HostReading(at=at, target=f"t{n}", processes=(process,)) for n in range(4)), {}))

    tracemalloc.start()
    run(0, 240)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    run(240, 3600)
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    print(f"memory: {before / 1e6:.2f} MB for the last minute; {(after - before) / 1e3:+.1f} kB after 3600 more ticks")
    print(f"  evidence over 30 s of 8 GPUs: {timed(lambda: state.gpu_window([str(n) for n in range(8)], 30, 3839.0)):.2f} ms")
    print(f"  evidence over 30 s of a target: {timed(lambda: state.host_window('t0', 30, 3839.0)):.2f} ms")
    print(f"  all GPUs as published: {timed(lambda: state.gpus(3839.0)):.2f} ms")


def main() -> None:
    """Everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=30, help="how long to read a real GPU")
    arguments = parser.parse_args()
    library = real_library()
    if library is None:
        print("no NVIDIA GPU here: the reader is measured on a fake binding")
        fake_gpu_reader(1)
        fake_gpu_reader(8)
    else:
        tick = gpu_reader(library, arguments.seconds)
        for reading in tick.readings:
            print(f"  {reading}")
        other_readers()
    host_reader()
    memory()


if __name__ == "__main__":
    main()
