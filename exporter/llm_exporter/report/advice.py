"""What to do: rows of symptom, evidence and the flags of each engine, ranked by what they would give.

In: `Facts` (one flat set of numbers about a service). Out: recommendations as in the report. Called by `review.py`. The rows are data;
text only, nothing is ever changed by this program. Thresholds are starting values, not measurements. Flags were looked up in vLLM 0.33
and SGLang 0.5.23.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST = 5


@dataclass
class Facts:
    """Numbers that rows look at; None where unknown.

    Attributes:
        share: of time by bottleneck verdict.
        hours: GPU-hours by kind, and "total" and "reserve".
        week: factor that turns hours of the window into hours of a week.
    """

    replicas: int = 1
    share: Mapping[str, float] = field(default_factory=dict)
    hours: Mapping[str, float | None] = field(default_factory=dict)
    week: float = 1.0
    headroom: float | None = None
    headroom_lost: float | None = None
    peak_over_capacity: float | None = None
    weeks: float | None = None
    weeks_lower: float | None = None
    budget_left: float | None = None
    slo: str = ""
    hit_ratio: float | None = None
    saved_hours: float | None = None
    kv_p95: float | None = None
    preemption_rate: float | None = None
    preemption_waste: float | None = None
    queue_of_ttft: float | None = None
    rejected: float | None = None
    regressions: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One rule.

    Attributes:
        key: short name.
        weight: of the facts: above 0 the row holds; the heavier, the higher it ranks.
        because: evidence.
        action: by engine; "" for every other.
        gain: what it would give: a sentence, or one made of the facts.
    """

    key: str
    weight: Callable[[Facts], float]
    because: Callable[[Facts], list[str]]
    action: Mapping[str, str]
    gain: str | Callable[[Facts], str]


def _share(cause: str, least: float) -> Callable[[Facts], float]:
    def weight(facts: Facts) -> float:
        share = facts.share.get(cause, 0.0)
        return share if share >= least else 0.0

    return weight


def _verdict(cause: str) -> Callable[[Facts], list[str]]:
    return lambda facts: [f"{100 * facts.share.get(cause, 0.0):.1f} % of the time the verdict was {cause}"]


def _hours(facts: Facts, kind: str) -> float:
    return facts.hours.get(kind) or 0.0


def _hours_share(facts: Facts, kind: str) -> float:
    total = _hours(facts, "total")
    return _hours(facts, kind) / total if total else 0.0


def _hours_gain(kind: str) -> Callable[[Facts], str]:
    def gain(facts: Facts) -> str:
        hours = _hours(facts, kind) * facts.week
        return f"up to {hours:.0f} GPU-hours a week" if hours >= 1 else "shorter waits"

    return gain


def _share_or_hours(cause: str, kind: str, least_hours: float) -> Callable[[Facts], float]:
    """Twice the larger of two shares: time under a verdict, and GPU-hours lost."""

    def weight(facts: Facts) -> float:
        hours = _hours_share(facts, kind)
        return 2 * max(_share(cause, 0.02)(facts), hours if hours >= least_hours else 0.0)

    return weight


def _beyond(facts: Facts) -> float:
    """Idle GPU-hours beyond the reserve of one replica."""
    return _hours(facts, "idle") - _hours(facts, "reserve")


def _preempting(facts: Facts) -> float:
    rate = facts.preemption_rate or 0.0
    return max(_share("kv_cache", 0.05)(facts), rate if rate > 0.01 else 0.0)


def _too_small(facts: Facts) -> float:
    if facts.headroom is None or facts.headroom >= 0.1:
        return 0.0
    return 1.0 - facts.headroom


def _no_spare(facts: Facts) -> float:
    if facts.headroom_lost is None or facts.headroom_lost >= 0 or (facts.headroom is not None and facts.headroom < 0.1):
        return 0.0
    return 0.6 - facts.headroom_lost


def _soon_full(facts: Facts) -> float:
    soonest = facts.weeks_lower if facts.weeks_lower is not None else facts.weeks
    if soonest is None or soonest > 8 or (facts.headroom is not None and facts.headroom < 0.1):
        return 0.0
    return 0.9 - soonest / 10


def _too_large(facts: Facts) -> float:
    beyond = _beyond(facts)
    total = _hours(facts, "total")
    if facts.replicas < 2 or not total or beyond / total < 0.3 or needed_replicas(facts) >= facts.replicas:
        return 0.0
    return 0.5 * beyond / total


def needed_replicas(facts: Facts) -> int:
    """Replicas that carry the peak, and one more; as many as now where capacity is not known."""
    if facts.peak_over_capacity is None:
        return facts.replicas
    return math.ceil(facts.peak_over_capacity * facts.replicas) + 1


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.0f} %"


# fmt: off
ROWS: tuple[Row, ...] = (
    Row("add_now", _too_small,
        lambda f: [f"headroom at peak is {_percent(f.headroom)}", f"error budget left for {f.slo or 'the SLO'}: {_percent(f.budget_left)}"],
        {"": "Add a replica now, or take load away at peak hours."},
        lambda f: f"headroom from {_percent(f.headroom)} to {_percent(1 - (1 - (f.headroom or 0)) * f.replicas / (f.replicas + 1))}"),
    Row("add_spare", _no_spare,
        lambda f: [f"with one of {f.replicas} replicas lost, headroom at peak is {_percent(f.headroom_lost)}"],
        {"": "Add a replica, or agree that the SLO does not hold while one is lost at peak."},
        "the SLO survives the loss of a replica at peak"),
    Row("plan", _soon_full,
        lambda f: [f"at this growth the peak meets the capacity in {f.weeks:.1f} weeks" if f.weeks is not None else "growth is above 0",
                   f"at the earliest in {f.weeks_lower:.1f} weeks" if f.weeks_lower is not None else "no lower bound"],
        {"": "Order or reserve capacity now."},
        "no shortage when the growth goes on"),
    Row("remove", _too_large,
        lambda f: [f"{_beyond(f):.0f} of {_hours(f, 'total'):.0f} GPU-hours idle beyond the reserve of one replica",
                   f"the peak needs {needed_replicas(f) - 1} of {f.replicas} replicas, and one to spare"],
        {"": "Remove replicas down to the peak's need plus one, or let other work use the quiet hours."},
        lambda f: f"up to {_beyond(f) * f.week:.0f} GPU-hours a week"),
    Row("regression", lambda f: 0.8 if f.regressions else 0.0,
        lambda f: [*f.regressions, *(f"at about that time: {change}" for change in f.changes)],
        {"": "Compare versions, flags and request mix before and after; measure both with `llm-exporter compare`."},
        "the latency of last week"),
    Row("throttled", _share_or_hours("throttled", "throttled", 0.02),
        lambda f: [f"{_hours(f, 'throttled'):.1f} GPU-hours slowed down by heat or a brake"],
        {"": "Check airflow, power limit and neighbours in the rack; no flag of the engine helps."},
        _hours_gain("throttled")),
    Row("host_starved", _share_or_hours("host_starved", "starved", 0.01),
        lambda f: [f"{_hours(f, 'starved'):.1f} GPU-hours spent waiting for the CPU", *_verdict("host_starved")(f)],
        {"vllm": "Give the server more CPU (limit, cores, NUMA: --numa-bind); keep --async-scheduling; raise --stream-interval; "
                 "split the front: --api-server-count.",
         "sglang": "Give the server more CPU (limit, cores, --numa-node); remove --disable-overlap-schedule; raise --stream-interval "
                   "and --num-continuous-decode-steps.",
         "": "Give the server more CPU: limit, cores, NUMA placement."},
        _hours_gain("starved")),
    Row("kv_cache", _preempting,
        lambda f: [f"KV cache at {_percent(f.kv_p95)} (95th percentile)",
                   f"{100 * (f.preemption_rate or 0):.1f} preemptions per 100 requests",
                   f"{_percent(f.preemption_waste)} of prefill work done twice"],
        {"vllm": "--kv-cache-dtype fp8, --gpu-memory-utilization up, --max-num-seqs down, --kv-offloading-size; or more replicas.",
         "sglang": "--kv-cache-dtype fp8_e4m3, --mem-fraction-static up, --schedule-conservativeness up, --enable-hierarchical-cache; "
                   "or more replicas.",
         "": "Give the KV cache more memory, or run fewer requests at once."},
        lambda f: f"prefill work down by {_percent(f.preemption_waste)}"),
    Row("queue", lambda f: _share("queue", 0.05)(f) if (f.kv_p95 is None or f.kv_p95 < 0.7) else 0.0,
        lambda f: [*_verdict("queue")(f), f"KV cache at {_percent(f.kv_p95)}: there is room",
                   f"queue is {_percent(f.queue_of_ttft)} of the time to first token"],
        {"vllm": "Raise --max-num-seqs.",
         "sglang": "Raise --max-running-requests, or lower --schedule-conservativeness.",
         "": "Let more requests run at once."},
        "shorter queue at peak"),
    Row("launch_bound", _share("launch_bound", 0.1), _verdict("launch_bound"),
        {"vllm": "Drop --enforce-eager; raise --max-cudagraph-capture-size.",
         "sglang": "Drop --disable-cuda-graph; raise --cuda-graph-max-bs-decode.",
         "": "Turn CUDA graphs on for the batch sizes in use."},
        "faster decode at the same load"),
    Row("frontend", _share("frontend", 0.05), _verdict("frontend"),
        {"vllm": "--api-server-count N, --renderer-num-workers, more cores.",
         "sglang": "--tokenizer-worker-num N, --enable-dynamic-batch-tokenizer, more cores.",
         "": "Give the API server more cores."},
        "shorter time to first token"),
    Row("prefill_compute", lambda f: 0.5 * _share("prefill_compute", 0.3)(f) if (f.headroom is None or f.headroom < 0.3) else 0.0,
        lambda f: [*_verdict("prefill_compute")(f), f"prefix-cache hit ratio {_percent(f.hit_ratio)}"],
        {"": "Prompts set the limit: put the static part of prompts first so that they share a prefix, route by prefix, or add replicas."},
        "prefill work falls with the hit ratio"),
    Row("communication", _share("communication", 0.1), _verdict("communication"),
        {"vllm": "Fewer tensor-parallel and more data-parallel ranks; check --disable-custom-all-reduce and the links.",
         "sglang": "Lower --tp-size, or use data-parallel attention; check the links.",
         "": "Fewer tensor-parallel ranks; check the links."},
        "less time in collectives"),
    Row("foreign", _share("foreign_process", 0.01), _verdict("foreign_process"),
        {"": "Another process uses these GPUs: move it, or give it its own."}, "the GPU time that it takes"),
    Row("stalled", lambda f: 2 * _share("stalled", 0.001)(f), _verdict("stalled"),
        {"": "The engine stood still with work waiting: read its log of those hours, and update it."}, "no outage of that kind"),
    Row("rejected", lambda f: 0.3 if (f.rejected or 0.0) > 0 else 0.0, lambda f: [f"{f.rejected:,.0f} requests were refused at the door"],
        {"vllm": "Check --max-num-queued-reqs and --max-num-queued-tokens against the SLO.",
         "sglang": "Check --max-queued-requests against the SLO.",
         "": "Check the admission limit against the SLO."}, "fewer refusals"),
)
# fmt: on


def recommend(facts: Facts, engine: str) -> list[dict[str, Any]]:
    """Rows that hold, the heaviest first, at most five."""
    held = [(row.weight(facts), row) for row in ROWS]
    ranked = sorted((pair for pair in held if pair[0] > 0), key=lambda pair: -pair[0])[:MOST]
    return [
        {
            "rank": rank,
            "action": row.action.get(engine, row.action.get("", "")) or next(iter(row.action.values())),
            "because": [text for text in row.because(facts) if "unknown" not in text],
            "gain": row.gain if isinstance(row.gain, str) else row.gain(facts),
        }
        for rank, (_, row) in enumerate(ranked, 1)
    ]
