"""What happened on GPUs and CPUs over a window: pure functions from readings to evidence, for pages and for the verdict.

Ratios are 0 to 1; None (or a missing key) is "not known". Called by `state/hardware.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from llm_exporter.hardware import GpuReading, HostReading, ProcessReading

_FIRST_WEIGHT_SECONDS = 1.0  # the first reading has no reading before it; readers run once a second
_MOST_WEIGHT_SECONDS = 5.0  # one reading does not stand for a longer gap


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """Means over a window and over several GPUs (those of one target).

    Attributes:
        gpus: labels of the GPUs with readings; down: those that are lost.
        samples: readings of the GPU that has fewest; span_seconds: time they stand for.
        power_ratio: of the limit. clock_ratio: SM clock of the highest (the device's, else the highest seen so far).
        throttled: share of readings by reason. sw_power_cap with a clock_ratio near 1 is normal under load.
        *_spread: highest less lowest mean among the GPUs; None for fewer than two.
        memory_by_owner: bytes by target, "" for processes that belong to none.
    """

    gpus: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    samples: int = 0
    span_seconds: float = 0.0
    utilization: float | None = None
    graphics: float | None = None
    sm: float | None = None
    occupancy: float | None = None
    tensor: float | None = None
    dram: float | None = None
    power_watts: float | None = None
    power_ratio: float | None = None
    clock_ratio: float | None = None
    pcie_bytes_per_second: float | None = None
    nvlink_bytes_per_second: float | None = None
    throttled: Mapping[str, float] | None = None
    utilization_spread: float | None = None
    graphics_spread: float | None = None
    sm_spread: float | None = None
    clock_spread: float | None = None
    memory_by_owner: Mapping[str, float] = field(default_factory=dict)

    @property
    def throttled_share(self) -> float | None:
        """Share of readings with the reason that was there most often."""
        return None if self.throttled is None else max(self.throttled.values(), default=0.0)


class HotThread(NamedTuple):
    """A thread over a window: share of time on a core, and runnable without one (None: not known)."""

    role: str
    comm: str
    run: float
    wait: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEvidence:
    """What a target's processes did on the CPUs over a window.

    Attributes:
        cores: CPU cores used, by role.
        hot: busiest thread by role; its `wait` is the run delay of that role. The busiest is the one that wants a core
            most (running and waiting), in the process of that role where this is most.
        hottest: the thread that ran most, of all. A hot thread alone proves nothing: engines poll.
        run_delay: highest `wait` among `hot`, without role `other` (if there is any else): the threads that matter.
        cfs_throttled: highest share of throttled periods of the cgroup and its ancestors; 0 without a quota.
        cpu_pressure: share of time in which a runnable task waited for a CPU.
        missing: field → reason.
    """

    samples: int = 0
    span_seconds: float = 0.0
    cores: Mapping[str, float] = field(default_factory=dict)
    hot: Mapping[str, HotThread] = field(default_factory=dict)
    hottest: HotThread | None = None
    run_delay: float | None = None
    cfs_throttled: float | None = None
    cpu_pressure: float | None = None
    cpus_available: float | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


class Weighted(NamedTuple):
    """A reading with the time that it stands for."""

    reading: GpuReading
    seconds: float


def weighted(readings: Sequence[GpuReading], start: float, end: float) -> list[Weighted]:
    """Readings in (start, end], each with the time since the one before it, as far as that is in the window."""
    found = []
    before: float | None = None
    for reading in readings:
        if start < reading.at <= end:
            since = reading.at - _FIRST_WEIGHT_SECONDS if before is None else before
            found.append(Weighted(reading, min(reading.at - max(since, start), _MOST_WEIGHT_SECONDS)))
        before = reading.at
    return found


def mean(window: Iterable[Weighted], value: Callable[[GpuReading], float | None]) -> float | None:
    """Time-weighted mean of what is known; None where nothing is."""
    total = seconds = 0.0
    for reading, weight in window:
        if (number := value(reading)) is not None:
            total += number * weight
            seconds += weight
    return total / seconds if seconds > 0 else None


def gpu_evidence(
    windows: Mapping[str, Sequence[Weighted]],
    *,
    top_clock_hertz: Mapping[str, float],
    down: Sequence[str] = (),
    memory_by_owner: Mapping[str, float] | None = None,
) -> GpuEvidence:
    """Evidence of several GPUs.

    Args:
        windows: readings by GPU; GPUs without readings are left out.
        top_clock_hertz: by GPU, the clock that counts as full speed.
        down: lost GPUs.
        memory_by_owner: bytes by target on these GPUs.
    """
    windows = {gpu: window for gpu, window in windows.items() if window}

    def means(value: Callable[[GpuReading], float | None]) -> list[float]:
        return [number for window in windows.values() if (number := mean(window, value)) is not None]

    def clock_ratio(reading: GpuReading) -> float | None:
        clock, top = reading.clock_hertz.get("sm"), top_clock_hertz.get(reading.gpu)
        return min(1.0, clock / top) if clock is not None and top else None

    utilization, graphics = means(lambda r: r.utilization_ratio), means(lambda r: r.graphics_active_ratio)
    sm, clocks = means(lambda r: r.sm_active_ratio), means(clock_ratio)
    return GpuEvidence(
        gpus=tuple(windows),
        down=tuple(down),
        samples=min((len(window) for window in windows.values()), default=0),
        span_seconds=min((sum(w.seconds for w in window) for window in windows.values()), default=0.0),
        utilization=_average(utilization),
        graphics=_average(graphics),
        sm=_average(sm),
        occupancy=_average(means(lambda r: r.sm_occupancy_ratio)),
        tensor=_average(means(lambda r: r.tensor_active_ratio)),
        dram=_average(means(lambda r: r.dram_active_ratio)),
        power_watts=_average(means(lambda r: r.power_watts)),
        power_ratio=_average(means(lambda r: _ratio(r.power_watts, r.power_limit_watts))),
        clock_ratio=_average(clocks),
        pcie_bytes_per_second=_average(means(lambda r: _sum(r.pcie_receive_bytes_per_second, r.pcie_transmit_bytes_per_second))),
        nvlink_bytes_per_second=_average(means(lambda r: _sum(r.nvlink_receive_bytes_per_second, r.nvlink_transmit_bytes_per_second))),
        throttled=_throttled_shares([w for window in windows.values() for w in window]),
        utilization_spread=_spread(utilization),
        graphics_spread=_spread(graphics),
        sm_spread=_spread(sm),
        clock_spread=_spread(clocks),
        memory_by_owner=dict(memory_by_owner or {}),
    )


def host_evidence(readings: Sequence[HostReading]) -> HostEvidence:
    """Evidence from readings in order of time; two are needed for anything but the limits."""
    if not readings:
        return HostEvidence()
    last = readings[-1]
    known = [reading for reading in readings if reading.processes is not None]
    if last.processes is None or len(known) < 2:
        return HostEvidence(samples=len(known), cpus_available=last.cpus_available, missing=last.missing)
    span = known[-1].at - known[0].at
    if span <= 0:
        return HostEvidence(samples=len(known), cpus_available=last.cpus_available, missing=last.missing)
    threads = _threads(known, span)
    hot: dict[str, HotThread] = {}
    for thread in threads:
        best = hot.get(thread.role)
        if best is None or thread.run + (thread.wait or 0.0) > best.run + (best.wait or 0.0):
            hot[thread.role] = thread
    engine = [thread for role, thread in hot.items() if role != "other"] or list(hot.values())
    delays = [thread.wait for thread in engine if thread.wait is not None]
    pressure = _increase([reading.cpu_pressure_seconds for reading in known])
    return HostEvidence(
        samples=len(known),
        span_seconds=span,
        cores=_cores(known, span),
        hot=hot,
        hottest=max(threads, key=lambda thread: thread.run, default=None),
        run_delay=max(delays, default=None),
        cfs_throttled=_throttled_periods(known),
        cpu_pressure=None if pressure is None else min(1.0, pressure / span),
        cpus_available=last.cpus_available,
        missing=last.missing,
    )


def _threads(readings: Sequence[HostReading], span: float) -> list[HotThread]:
    """All threads over the window. One seen for less than half of it counts as idle for the rest."""
    seen: dict[tuple[int, int, int], list[tuple[float, float, float | None]]] = {}
    about: dict[tuple[int, int, int], tuple[str, str]] = {}
    for reading in readings:
        for process in reading.processes or ():
            for thread in process.threads:
                key = (process.pid, process.started, thread.tid)
                about[key] = (process.role, thread.comm)
                run = thread.cpu_seconds if thread.run_seconds is None else thread.run_seconds
                seen.setdefault(key, []).append((reading.at, run, thread.wait_seconds))
    found = []
    for key, points in seen.items():
        seconds = max(points[-1][0] - points[0][0], span / 2)
        run_increase = _increase([run for _, run, _ in points])
        wait_increase = _increase([wait for _, _, wait in points])
        if run_increase is not None:
            wait_share = None if wait_increase is None else min(1.0, wait_increase / seconds)
            found.append(HotThread(*about[key], min(1.0, run_increase / seconds), wait_share))
    return found


def _cores(readings: Sequence[HostReading], span: float) -> dict[str, float]:
    series: dict[tuple[int, int], list[float]] = {}
    roles: dict[tuple[int, int], str] = {}
    for reading in readings:
        for process in reading.processes or ():
            key = (process.pid, process.started)
            roles[key] = process.role
            series.setdefault(key, []).append(_cpu_seconds(process))
    cores: dict[str, float] = {}
    for key, values in series.items():
        cores[roles[key]] = cores.get(roles[key], 0.0) + (_increase(values) or 0.0) / span
    return cores


def _cpu_seconds(process: ProcessReading) -> float:
    if process.cpu_seconds is not None:
        return process.cpu_seconds
    return sum(t.cpu_seconds if t.run_seconds is None else t.run_seconds for t in process.threads)


def _throttled_periods(readings: Sequence[HostReading]) -> float | None:
    if "cgroups" in readings[-1].missing:
        return None
    periods: dict[str, list[float]] = {}
    throttled: dict[str, list[float]] = {}
    for reading in readings:
        for group in reading.cgroups:
            periods.setdefault(group.path, []).append(group.periods)
            throttled.setdefault(group.path, []).append(group.throttled_periods)
    return max((_ratio(_increase(throttled[path]), _increase(periods[path])) or 0.0 for path in periods), default=0.0)


def _throttled_shares(window: Sequence[Weighted]) -> dict[str, float] | None:
    told = [(w.reading.throttle_reasons, w.seconds) for w in window if w.reading.throttle_reasons is not None]
    total = sum(seconds for _, seconds in told)
    if total <= 0:
        return None
    shares: dict[str, float] = {}
    for reasons, seconds in told:
        for reason in reasons or ():
            shares[reason] = shares.get(reason, 0.0) + seconds / total
    return shares


def _increase(values: Sequence[float | None]) -> float | None:
    """Growth of a counter over its known values; a fall is a restart from zero. None for fewer than two."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    return sum(after - before if after >= before else after for before, after in pairwise(known))


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _spread(values: Sequence[float]) -> float | None:
    return max(values) - min(values) if len(values) > 1 else None


def _ratio(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def _sum(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
