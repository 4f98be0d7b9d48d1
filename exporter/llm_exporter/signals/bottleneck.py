"""What limits a server: scores per cause from `Evidence`, and the cause that stands out. Pure; thresholds are in `ramps.py`.

A score is a weighted mean of memberships times its gates. What is not known leaves the mean; a class that rests on less than half of its
evidence is scaled down. Classes of trouble are preferred to the two healthy limits of a GPU (prefill by compute, decode by memory), since
a full KV cache or a starved loop is what an operator can change (SIGNALS 4.3 for the GPU's classes; the rest is ours, docs/design.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llm_exporter.signals.evidence import Evidence
from llm_exporter.signals.ramps import (
    CAUSE_STRENGTH,
    COVERAGE_LIMIT,
    EVIDENCE_SECONDS,
    FULL_MARGIN,
    LEAST_SECONDS,
    MARGIN_LIMIT,
    RAMPS,
    SCORE_LIMIT,
)

CAUSES = (
    "none",
    "idle",
    "queue",
    "kv_cache",
    "prefill_compute",
    "decode_memory",
    "host_starved",
    "launch_bound",
    "frontend",
    "communication",
    "throttled",
    "foreign_process",
    "stalled",
    "unknown",
)
# What each verdict means to somebody who is woken by it.
CAUSE_WORDS: Mapping[str, str] = {
    "none": "nothing stands out",
    "idle": "no work",
    "queue": "requests wait for a place in the batch",
    "kv_cache": "the KV cache is full",
    "prefill_compute": "long prompts keep the GPU's compute busy",
    "decode_memory": "decode at the GPU's memory bandwidth: how a good server looks",
    "host_starved": "the GPU waits for the CPU",
    "launch_bound": "the GPU runs many tiny kernels",
    "frontend": "the API process is slow: requests wait before the scheduler sees them",
    "communication": "GPUs wait for each other",
    "throttled": "the GPU's clocks are held down",
    "foreign_process": "another process uses the GPU",
    "stalled": "the engine hangs: work is there and nothing moves",
    "unknown": "cannot be told",
}
SCORED = tuple(cause for cause in CAUSES if cause not in ("none", "unknown"))

# Kinds of classes. Trouble beats a healthy limit; of several troubles, the one named first makes the others: a full cache makes a queue, a
# slow frontend leaves the GPU idle, a starved GPU makes a queue.
TROUBLE = ("stalled", "throttled", "foreign_process", "kv_cache", "frontend", "host_starved", "launch_bound", "communication", "queue")
HEALTHY = ("idle", "prefill_compute", "decode_memory")
# Verdicts that the engine's own page can carry; everything else needs the GPU.
ENGINE_ALONE = ("stalled", "idle", "kv_cache", "queue", "frontend")
# Without the GPU a queue or a slow frontend may be the effect of something that cannot be seen.
ENGINE_ALONE_CONFIDENCE = 0.5
NVML_CONFIDENCE = 0.4
NVML_WITH_HOST_CONFIDENCE = 0.7


@dataclass(frozen=True, slots=True)
class Score:
    """Score of one cause: 0 to 1, how much of its evidence was there, and the memberships behind it."""

    value: float
    coverage: float
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        """The score that decides and is published: with less than half of its evidence it counts by the share that was there."""
        return self.value if self.coverage >= COVERAGE_LIMIT else self.value * self.coverage


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of one window, before hysteresis.

    Attributes:
        cause: one of CAUSES.
        confidence: 0 to 1.
        scores: by cause.
        causes: why a gap is believed to be the host's, strongest first.
        hint: where NVML alone says "busy": compute_leaning, memory_leaning or launch_leaning; else "".
        missing: what could not be had.
        gap: share of time with work and an inactive GPU; None where not known.
    """

    cause: str
    confidence: float | None
    scores: Mapping[str, Score]
    causes: tuple[str, ...] = ()
    hint: str = ""
    missing: tuple[str, ...] = ()
    gap: float | None = None


def _member(name: str, value: float | None) -> float | None:
    return RAMPS[name].of(value)


def _moving(x: Evidence) -> float:
    """Gate of everything that presumes a running engine: shut while nothing moves on a GPU that does nothing.

    And for as long as a hang that is over is in the window: its gap was not made by a slow host.
    """
    now = 1.0 if x.gpu_works else _member("not_still", x.hush_seconds) or 0.0
    return min(now, _member("not_still", x.stood_seconds) or 0.0)


def _weighted(parts: Mapping[str, tuple[float, float | None]], *gates: float | None) -> Score:
    """Weighted mean of what is known, times the gates; a gate that is not known shuts nothing but counts as missing evidence."""
    total = sum(weight for weight, _ in parts.values())
    known = {name: (weight, member) for name, (weight, member) in parts.items() if member is not None}
    weight = sum(w for w, _ in known.values())
    if weight == 0:
        return Score(0.0, 0.0)
    value = sum(w * m for w, m in known.values()) / weight
    for gate in gates:
        value *= 1.0 if gate is None else gate
    return Score(value, weight / total, {name: member for name, (_, member) in known.items()})


def host_causes(x: Evidence) -> dict[str, float]:
    """Memberships of what may keep the host from feeding the GPU, weighted by how much each proves."""
    found = {
        "run_delay": _member("run_delay", x.run_delay),
        "cfs_throttling": _member("cfs", x.cfs),
        "cpu_pressure": _member("psi", x.psi),
        "hot_thread": _member("hot", x.hot),
        "frontend_share": _member("api_share", x.api_share),
        "scheduler_stages": _member("stage", x.stage),
    }
    return {name: member * CAUSE_STRENGTH[name] for name, member in found.items() if member is not None}


def _any(memberships: Mapping[str, float]) -> float | None:
    """Alternatives: one is enough (noisy or)."""
    return 1 - math.prod(1 - member for member in memberships.values()) if memberships else None


def _demand(x: Evidence) -> float | None:
    """Gate of a gap that only NVML's utilisation shows: is there enough in the engine to keep a GPU busy?

    One request or two leave a GPU idle for reasons of their own (clients that pause, answers that are short), and a scrape sees them there
    or not by chance. A host that is seen to be short convinces all the same; a hot thread alone may spin.
    """
    if x.busy_from != "nvml":
        return None
    waiting = 1.0 if x.waiting_share else 0.0
    short = [_member("run_delay", x.run_delay), _member("cfs", x.cfs), _member("stage", x.stage)]
    load = _member("demand", x.running)
    return None if load is None else max(load, waiting, *(member or 0.0 for member in short))


def _idle(x: Evidence) -> Score:
    return _weighted({"no_work": (3, _member("work_is_idle", x.work)), "gpu_inactive": (1, _member("busy_is_idle", x.busy))})


def _host_starved(x: Evidence) -> Score:
    work, gap = _member("work", x.work), x.gap
    causes = host_causes(x)
    plain = _weighted(
        {"gap": (0.55, _member("gap", gap)), "host": (0.30, _any(causes)), "power_low": (0.15, _member("power_low", x.power))},
        work,
        _member("gap_gate", gap),
        _demand(x),
        _moving(x),
    )
    if gap is None:
        return Score(0.0, 0.0, causes)  # whether the GPU waits is unknown; that its host is short of CPU is not
    # a small gap counts where the engine's own thread is seen to wait for a core, or its quota to be spent
    strong = max(_member("run_delay_strong", x.run_delay) or 0.0, _member("cfs_strong", x.cfs) or 0.0)
    small = 0.9 * strong * (_member("gap_with_cause", gap) or 0.0) * (work or 0.0) * _moving(x)
    evidence = {**plain.evidence, **causes}
    return Score(max(plain.value, small), plain.coverage, evidence)


def _links(x: Evidence) -> float | None:
    known = [m for m in (_member("nvlink", x.nvlink), _member("imbalance", x.imbalance)) if m is not None]
    return max(known, default=None)


def _launch_bound(x: Evidence) -> Score:
    if x.sm is None and x.dram is None and x.power is None:
        return Score(0.0, 0.0)  # nothing of the GPU is known, and a hot thread alone proves nothing
    links = _links(x)
    return _weighted(
        {
            "sm_low": (0.35, _member("sm_low", x.sm)),
            "dram_low": (0.25, _member("dram_low", x.dram)),
            "power_low": (0.20, _member("launch_power_low", x.power)),
            "hot_thread": (0.20, _member("hot", x.hot)),
        },
        _member("work", x.work),
        _member("busy", x.busy),
        1.0 if x.gpus <= 1 or links is None else 1 - links,
        _moving(x),
    )


def _throttled(x: Evidence) -> Score:
    share = _member("throttled", x.throttled)
    return _weighted({"throttled": (0.4, share), "clock_low": (0.6, _member("clock_low", x.clock))}, share, _member("work", x.work))


def _decode_memory(x: Evidence) -> Score:
    return _weighted(
        {"dram_high": (0.6, _member("dram_high", x.dram)), "tensor_idle": (0.4, _member("tensor_idle", x.tensor))},
        _member("work", x.work),
        _member("busy", x.busy),
    )


def _prefill_compute(x: Evidence) -> Score:
    return _weighted(
        {"tensor_high": (0.7, _member("tensor_high", x.tensor)), "power_high": (0.3, _member("power_high", x.power))},
        _member("work", x.work),
        _member("busy", x.busy),
    )


def _communication(x: Evidence) -> Score:
    if x.gpus <= 1:
        return Score(0.0, 1.0)
    return _weighted(
        {
            "dram_low": (0.35, _member("dram_low", x.dram)),
            "tensor_low": (0.25, _member("tensor_low", x.tensor)),
            "links": (0.40, _links(x)),
        },
        _member("work", x.work),
        _member("busy", x.busy),
    )


def _kv_cache(x: Evidence) -> Score:
    usage = _member("kv_usage", x.kv_usage)
    pressure = {
        name: member
        for name, member in (("waiting", _member("kv_waiting", x.waiting_share)), ("preemptions", _member("preemptions", x.preemptions)))
        if member is not None
    }
    # a full cache without a queue and without preemptions is good use of memory
    limited = max(pressure.values(), default=None)
    if usage is None or limited is None:
        return Score(0.0, 0.0)
    return Score(usage * limited, 1.0, {"kv_usage": usage, **pressure})


def _queue(x: Evidence) -> Score:
    score = _weighted(
        {"queue_share": (0.6, _member("queue_share", x.queue_share)), "waiting": (0.4, _member("waiting_share", x.waiting_share))},
        _member("waiting_share", x.waiting_share),
        _member("queue_no_gap", x.gap),
    )
    full = _member("kv_usage", x.kv_usage)  # behind a full cache the queue is its effect
    return Score(score.value * (1.0 if full is None else 1.0 - 0.5 * full), score.coverage, score.evidence)


def _frontend(x: Evidence) -> Score:
    share, felt = _member("frontend_share", x.api_share), _member("frontend_seconds", x.api_seconds)
    if share is None or felt is None:
        return Score(0.0, 0.0)
    busy, free = _member("api_busy", x.api_hot), _member("gpu_free", None if x.busy is None else 1.0 - x.busy)
    known = {
        name: m for name, m in (("frontend_share", share), ("frontend_time", felt), ("api_busy", busy), ("gpu_free", free)) if m is not None
    }
    # A busy thread of the API server convinces, whatever the GPU does: users wait before the scheduler sees them. Where its processes cannot
    # be seen, a GPU with time to spare must speak for it.
    witness = busy if busy is not None else free if free is not None else 1.0
    return Score(share * felt * witness * _moving(x), len(known) / 4, known)


def _foreign(x: Evidence) -> Score:
    held = _member("foreign_memory", x.foreign_memory)
    if held is None:
        return Score(0.0, 0.0)
    busy = _member("busy", x.busy)
    return Score(0.8 * held * (0.0 if busy is None else busy) * (_member("work", x.work) or 0.0), 1.0, {"foreign_memory": held})


def _stalled(x: Evidence) -> Score:
    """Nothing moves though there is work. A GPU that does nothing convinces within seconds; without that it takes the whole time."""
    if x.gpu_works:
        return Score(0.0, 1.0, {"gpu_works": 1.0})
    patience = x.still_seconds / x.stall_after if x.stall_after > 0 else 0.0
    value = 1.0 if patience >= 1 else 0.0
    if x.gpu_works is False:
        value = max(value, _member("still", x.hush_seconds) or 0.0)
    return Score(value, 1.0, {"stillness": min(1.0, patience)})


FORMULAS: Mapping[str, Callable[[Evidence], Score]] = {
    "idle": _idle,
    "queue": _queue,
    "kv_cache": _kv_cache,
    "prefill_compute": _prefill_compute,
    "decode_memory": _decode_memory,
    "host_starved": _host_starved,
    "launch_bound": _launch_bound,
    "frontend": _frontend,
    "communication": _communication,
    "throttled": _throttled,
    "foreign_process": _foreign,
    "stalled": _stalled,
}


def judge(x: Evidence) -> Judgement:
    """The verdict on one window of evidence."""
    scores = {cause: FORMULAS[cause](x) for cause in SCORED}
    weight = {cause: s.weight for cause, s in scores.items()}
    causes = host_causes(x)
    why = tuple(name for name, member in sorted(causes.items(), key=lambda pair: -pair[1]) if member > 0)
    if x.seconds < LEAST_SECONDS or x.work is None:
        return Judgement("unknown", None, scores, why, missing=(*x.missing, "10 seconds of readings"), gap=x.gap)
    fine = x.busy_from in ("gpm", "forward_timer")
    cause, margin = _outstanding(weight)
    confidence = scores[cause].coverage * min(1.0, max(0.0, margin / FULL_MARGIN)) if cause in scores else 1.0 - max(weight.values())
    hint = ""
    if x.busy is None:
        if cause not in ENGINE_ALONE:
            return Judgement("unknown", None, scores, why, missing=x.missing or ("readings of the GPU",), gap=None)
        if cause not in ("idle", "stalled"):
            confidence = min(confidence, ENGINE_ALONE_CONFIDENCE)
    elif not fine and cause not in ("idle", "throttled", "stalled", "kv_cache"):
        confidence, cause, hint = _by_utilisation_alone(x, cause, confidence, _any(causes))
    confidence *= min(1.0, x.seconds / EVIDENCE_SECONDS)
    return Judgement(cause, min(1.0, max(0.0, confidence)), scores, why, hint, x.missing, x.gap)


def _outstanding(weight: Mapping[str, float]) -> tuple[str, float]:
    """The cause that stands out, and by how much."""
    troubles = [cause for cause in TROUBLE if weight[cause] >= SCORE_LIMIT]
    if troubles == ["queue"] and weight["prefill_compute"] >= SCORE_LIMIT:
        troubles = []  # requests wait because the GPU is full of prefill: the queue is how it shows
    if troubles:
        first = troubles[0]  # of several, the one named first makes the others
        rival = max((weight[cause] for cause in SCORED if cause not in troubles and cause not in HEALTHY), default=0.0)
        return first, max(MARGIN_LIMIT, weight[first] - rival)
    best = max(HEALTHY, key=lambda cause: weight[cause])
    margin = weight[best] - max(weight[cause] for cause in SCORED if cause not in (best, "queue"))
    return (best, margin) if weight[best] >= SCORE_LIMIT and margin >= MARGIN_LIMIT else ("none", 0.0)


def _by_utilisation_alone(x: Evidence, cause: str, confidence: float, host: float | None) -> tuple[float, str, str]:
    """NVML's utilisation over-reads: a gap that it shows is a lower bound, a busy GPU that it shows proves little."""
    if cause == "host_starved":
        return min(confidence, NVML_WITH_HOST_CONFIDENCE if (host or 0.0) >= 0.5 else NVML_CONFIDENCE), cause, ""
    if (
        cause in ("none", "prefill_compute", "decode_memory", "launch_bound", "communication")
        and (x.work or 0.0) >= 0.5
        and (x.busy or 0.0) >= 0.85
    ):
        power = x.power
        hint = "" if power is None else "compute_leaning" if power >= 0.75 else "memory_leaning" if power >= 0.40 else "launch_leaning"
        return min(NVML_CONFIDENCE, max(0.0 if cause == "none" else confidence, 0.2)), "unknown", hint
    return min(confidence, NVML_CONFIDENCE), cause, ""
