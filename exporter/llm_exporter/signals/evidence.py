"""Evidence for the verdict: one target's last 30 seconds as plain numbers. None means not known, and no formula takes it for zero.

In: a `TargetView` with its memory of engine, GPUs and host. Out: `Evidence`, which `bottleneck.py` judges. All that the verdict knows is here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from llm_exporter.signals.model import TargetView
from llm_exporter.signals.phases import population_skew
from llm_exporter.signals.queue import starts
from llm_exporter.signals.ramps import BENIGN_REASONS, EVIDENCE_SECONDS, POWER_CAP_CLOCK
from llm_exporter.state.evidence import GpuEvidence, HostEvidence
from llm_exporter.state.window import Frame, Window, frames_within

# Links of an H100/H200: 18 × 25 GB/s each way. Share of it is only a hint, so the newest common figure serves.
NVLINK_BYTES_PER_SECOND = 900e9
# Fewer inter-token gaps than this do not give a step time.
LEAST_GAPS = 20.0
# Half a minute holds fewer requests than a published window, so populations may differ a little more than there (`phases.SKEW_LIMIT`).
SKEW_LIMIT = 0.25
SERVER_ROLES = ("api_server", "tokenizer", "detokenizer")
ENGINE_ROLES = ("engine_core", "scheduler", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of a window.

    Attributes:
        seconds: time that the engine's frames span.
        work: share of time in which the engine had requests to work on.
        busy: share of time in which the GPU had work; busy_from: forward_timer, gpm, nvml or "" (not known).
        sm, tensor, dram: activity by GPM. power: ÷ limit. clock: ÷ highest. throttled: share with a harmful reason.
        nvlink: share of the links. imbalance: spread of activity between GPUs. gpus: GPUs of the target, 0 where not known.
        run_delay, cfs, psi, hot, api_hot: host, as in the ramps' table.
        api_share, api_seconds: frontend's part of the time to first token. stage: exposed scheduler stages (SGLang).
        queue_share: queue's part of the time to first token; waiting_share: share of scrapes with requests waiting for room.
        kv_usage: upper quartile of the use of the fullest rank (it is a sawtooth: each preemption frees some); preemptions: per started request; running: mean batch.
        foreign_memory: bytes of the GPUs' memory held by processes of nobody's.
        still_seconds: no movement though there was work; stood_seconds: the longest such time that ended within the window; beat_seconds: how long the page stands between two movements without any loss; gpu_works: whether the GPU shows real work (None: not known).
        missing: what could not be had, in words for people.
    """

    seconds: float = 0.0
    work: float | None = None
    busy: float | None = None
    busy_from: str = ""
    sm: float | None = None
    tensor: float | None = None
    dram: float | None = None
    power: float | None = None
    clock: float | None = None
    throttled: float | None = None
    nvlink: float | None = None
    imbalance: float | None = None
    gpus: int = 0
    run_delay: float | None = None
    cfs: float | None = None
    psi: float | None = None
    hot: float | None = None
    api_hot: float | None = None
    api_share: float | None = None
    api_seconds: float | None = None
    stage: float | None = None
    queue_share: float | None = None
    waiting_share: float | None = None
    kv_usage: float | None = None
    preemptions: float | None = None
    running: float | None = None
    foreign_memory: float | None = None
    still_seconds: float = 0.0
    stood_seconds: float = 0.0
    beat_seconds: float = 0.0
    stall_after: float = 30.0
    gpu_works: bool | None = None
    missing: tuple[str, ...] = field(default=())

    @property
    def gap(self) -> float | None:
        """Share of time in which the engine had work and the GPU nothing."""
        return None if self.work is None or self.busy is None else max(0.0, self.work - self.busy)

    @property
    def hush_seconds(self) -> float:
        """Stillness beyond the page's own beat: a page that is renewed every 15 s says nothing new for 15 s, whatever the engine does."""
        return max(0.0, self.still_seconds - self.beat_seconds)


def gather(view: TargetView) -> Evidence:
    """Evidence of the last 30 seconds of a fresh view."""
    frames = list(frames_within(view.store.frames, EVIDENCE_SECONDS))
    windows = [Window(frames, model) for model in frames[-1].table.models]
    gpu, host = view.gpu, view.host
    seconds = frames[-1].at - frames[0].at
    busy, busy_from = _busy(windows, seconds, gpu)
    parts = _parts(windows)
    missing = list(view.missing)
    return Evidence(
        seconds=seconds,
        work=_work(frames, windows, seconds, busy),
        busy=busy,
        busy_from=busy_from,
        sm=gpu.sm if gpu else None,
        tensor=gpu.tensor if gpu else None,
        dram=gpu.dram if gpu else None,
        power=gpu.power_ratio if gpu else None,
        clock=gpu.clock_ratio if gpu else None,
        throttled=_throttled(gpu),
        nvlink=gpu.nvlink_bytes_per_second / NVLINK_BYTES_PER_SECOND if gpu and gpu.nvlink_bytes_per_second is not None else None,
        imbalance=(gpu.sm_spread if gpu.sm_spread is not None else gpu.utilization_spread) if gpu else None,
        gpus=len(gpu.gpus) if gpu else 0,
        run_delay=host.run_delay if host else None,
        cfs=host.cfs_throttled if host else None,
        psi=host.cpu_pressure if host else None,
        hot=_hot(host, ENGINE_ROLES + SERVER_ROLES, windows, ("scheduler_cpu_seconds", "frontend_cpu_seconds")),
        api_hot=_api_hot(host, windows),
        stage=_exposed_stage(windows, seconds),
        running=_mean_gauge(windows, "requests_running"),
        waiting_share=_waiting_share(windows),
        kv_usage=_upper_quartile(windows, "kv_cache_usage"),
        preemptions=_per_start(windows, "preemptions"),
        foreign_memory=view.foreign_memory,
        still_seconds=view.store.progress.still_seconds(view.at),
        stood_seconds=view.store.progress.stood_seconds(frames[0].at),
        beat_seconds=view.store.progress.beat_seconds(frames[0].at),
        stall_after=view.stall_after,
        gpu_works=view.gpu_works,
        missing=tuple(missing),
        **parts,
    )


def _work(frames: list[Frame], windows: list[Window], seconds: float, busy: float | None) -> float | None:
    """Share of time in which the engine had requests to work on.

    A batch gauge read now and then misses thousands of tokens, so movement counts too; but movement between two scrapes calls one request a
    second "always at work". Where the step time is known, steps × step time bounds it, never below what the GPU was seen to do: steps of a
    long prefill have no output and are not counted.
    """
    if len(frames) < 2 or seconds <= 0:
        return None
    moving = 0.0
    for before, now in pairwise(frames):
        step = [Window((before, now), window.model) for window in windows]
        moved = any((w.increase(f) or 0.0) > 0 for w in step for f in ("generation_tokens", "first_tokens", "steps"))
        held = any(
            max((v for _, v in w.gauge(f)), default=0.0) > 0 for w in step for f in ("requests_running", "requests_waiting_capacity")
        )
        moving += (now.at - before.at) if moved or held else 0.0
    bounds = [moving / seconds]
    idle = [gained for w in windows if (gained := w.increase("scheduler_idle_seconds")) is not None]
    if idle:
        ranks = max(len(w.frames[-1].table.ranks.get((w.model, "requests_running"), {})) or 1 for w in windows)
        bounds.append(max(0.0, 1.0 - sum(idle) / ranks / seconds))
    stepping = _stepping(windows, seconds)
    if stepping is not None and busy is not None:
        bounds.append(max(stepping, busy))
    return min(bounds)


def _stepping(windows: list[Window], seconds: float) -> float | None:
    """Steps × mean gap between outputs ÷ time: how much of the time the engine's loop had a batch. None where it cannot be told.

    Every request in the batch gets one output a step, so the mean gap is the mean step.
    """
    total = 0.0
    for window in windows:
        steps, gaps = window.increase("steps"), window.histogram("inter_token_latency")
        if steps is None or gaps is None or gaps.mean is None or gaps.count < LEAST_GAPS:
            return None
        ranks = len(window.frames[-1].table.ranks.get((window.model, "requests_running"), {})) or 1
        total += steps * gaps.mean / ranks
    return min(1.0, total / seconds)


def _busy(windows: list[Window], seconds: float, gpu: GpuEvidence | None) -> tuple[float | None, str]:
    """Share of time with the GPU at work: the engine's own device timer, else GPM, else NVML (which counts copies, and over-reads)."""
    timers = [w.increases("forward_execution_seconds") for w in windows]
    spent = sum(s for timer in timers for category, s in timer.items() if category != "idle")
    if any(timers) and seconds > 0 and spent > 0:
        ranks = max(len(w.frames[-1].table.ranks.get((w.model, "requests_running"), {})) or 1 for w in windows)
        return min(1.0, spent / ranks / seconds), "forward_timer"
    if gpu is not None and gpu.graphics is not None:
        return gpu.graphics, "gpm"
    if gpu is not None and gpu.utilization is not None:
        return gpu.utilization, "nvml"
    return None, ""


def _throttled(gpu: GpuEvidence | None) -> float | None:
    if gpu is None or gpu.throttled is None:
        return None
    harmful = [share for reason, share in gpu.throttled.items() if reason not in BENIGN_REASONS]
    capped = gpu.throttled.get("sw_power_cap", 0.0)
    if capped and gpu.clock_ratio is not None and gpu.clock_ratio < POWER_CAP_CLOCK:
        harmful.append(capped)
    return max(harmful, default=0.0)


def _hot(host: HostEvidence | None, roles: tuple[str, ...], windows: list[Window], fields: tuple[str, ...]) -> float | None:
    """Share of a core of the busiest thread in these roles; from the engine's page only where the threads cannot be seen.

    The page tells of whole processes: many threads that do little each read as one that does all. So where threads are seen whose role is
    not known, the busiest of them bounds it: llm_host_hottest_thread_ratio and this must not contradict each other.
    """
    seen = [thread.run for role, thread in host.hot.items() if role in roles] if host is not None else []
    if seen:
        return max(seen)
    told, hottest = _cores_by_page(windows, fields), host.hottest if host is not None else None
    return told if told is None or hottest is None else min(told, hottest.run)


def _api_hot(host: HostEvidence | None, windows: list[Window]) -> float | None:
    """The API server's is the higher of both: one interpreter runs it, so its process is its thread, and the ramp was set on that."""
    fields = ("frontend_cpu_seconds",)
    known = [x for x in (_hot(host, SERVER_ROLES, windows, fields), _cores_by_page(windows, fields)) if x is not None]
    return max(known, default=None)


def _cores_by_page(windows: list[Window], fields: tuple[str, ...]) -> float | None:
    """Cores used by the busiest process that the engine's own page tells about, at most 1: for servers whose threads cannot be seen."""
    found = [
        gained / window.seconds
        for window in windows
        if window.seconds > 0
        for field in fields
        for gained in window.increases(field).values()
    ]
    return min(1.0, max(found)) if found else None


def _parts(windows: list[Window]) -> dict[str, float | None]:
    """Queue's and frontend's part of the mean time to first token, over all models; phases are of requests that finished (SIGNALS 0.1)."""

    def total(field: str) -> tuple[float, float]:
        gained = [g for w in windows if (g := w.histogram(field)) is not None and g.sum is not None]
        return sum(g.sum or 0.0 for g in gained), sum(g.count for g in gained)

    def mean(field: str) -> float | None:
        spent, count = total(field)
        return spent / count if count > 0 else None

    ttft, queue, prefill = mean("time_to_first_token"), mean("request_queue_time"), mean("request_prefill_time")
    if ttft is None or queue is None or ttft <= 0:
        return {"queue_share": None, "api_share": None, "api_seconds": None}
    rest = None
    counts = [total(field)[1] for field in ("time_to_first_token", "request_queue_time", "request_prefill_time")]
    if prefill is not None and population_skew(counts) <= SKEW_LIMIT:
        rest = max(0.0, ttft - queue - prefill - (mean("request_process_time") or 0.0))
    return {"queue_share": min(1.0, queue / ttft), "api_share": None if rest is None else rest / ttft, "api_seconds": rest}


def _exposed_stage(windows: list[Window], seconds: float) -> float | None:
    """Share of time in scheduler stages while no forward pass ran; only with SGLang's device timer, without it stages tell nothing."""
    if seconds <= 0 or not any(w.increases("forward_execution_seconds") for w in windows):
        return None
    stages = [w.increases("scheduler_stage_seconds") for w in windows]
    if not any(stages):
        return None
    exposed = sum(s for by_stage in stages for stage, s in by_stage.items() if stage not in ("idle", "run_batch"))
    return min(1.0, exposed / seconds)


def _mean_gauge(windows: list[Window], field: str) -> float | None:
    values = [value for w in windows for _, value in w.gauge(field)]
    return sum(values) / len(values) * len(windows) if values else None


def _upper_quartile(windows: list[Window], field: str) -> float | None:
    found = [sorted(v for _, v in points)[(3 * len(points)) // 4] for w in windows if (points := w.gauge(field))]
    return max(found, default=None)


def _waiting_share(windows: list[Window]) -> float | None:
    shares = [sum(v > 0 for _, v in points) / len(points) for w in windows if (points := w.gauge("requests_waiting_capacity"))]
    return max(shares, default=None)


def _per_start(windows: list[Window], field: str) -> float | None:
    events = [gained for w in windows if (gained := w.increase(field)) is not None]
    started = [gained for w in windows if (gained := starts(w)) is not None]
    if not events or not started:
        return None
    return sum(events) / max(1.0, sum(started))
