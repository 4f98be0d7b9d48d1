"""Words for the table of remedies: how strong a symptom is, and how its numbers read. None in, None (or 0) out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llm_exporter.signals.ramps import RAMPS
from llm_exporter.signals.remedies_model import Symptoms

# What every verdict means, in one sentence for people.
MEANINGS: Mapping[str, str] = {
    "none": "Nothing stands out: there is work, and no resource is at its limit.",
    "idle": "The server has next to nothing to do.",
    "queue": "Requests wait for a place in the batch although the KV cache has room.",
    "kv_cache": "The KV cache is full: requests wait for room, or are thrown back and computed again.",
    "prefill_compute": "The GPU is busy computing prompts. That is its own limit, not a fault.",
    "decode_memory": "The GPU is busy reading weights and KV cache for decoding. That is its own limit, not a fault.",
    "host_starved": "The GPU waits for the CPU: the engine has work, and nothing is running on the GPU.",
    "launch_bound": "The GPU is given such small pieces of work that starting them takes most of the time.",
    "frontend": "Requests spend their time in the API server (tokenising, templates, event loop) before the engine sees them.",
    "communication": "The GPUs of this server wait for each other.",
    "throttled": "The GPU runs slower than it could: heat, power brake or a limit.",
    "foreign_process": "Another process uses the GPU that serves this model.",
    "stalled": "The engine has requests, and nothing has moved for too long.",
    "unknown": "What can be read does not suffice for a verdict.",
}

# Names of pieces of evidence (the label `evidence`), as people say them.
EVIDENCE_WORDS: Mapping[str, str] = {
    "no_work": "no requests to work on",
    "gpu_inactive": "GPU inactive",
    "gap": "GPU idle while the engine had work",
    "host": "signs of a short host",
    "power_low": "GPU draws little power",
    "run_delay": "engine's thread waits for a CPU core",
    "cfs_throttling": "CPU quota spent",
    "cpu_pressure": "processes wait for CPUs",
    "hot_thread": "a thread of the server is at 100 % (proves nothing alone)",
    "frontend_share": "API server's share of the time to first token",
    "frontend_time": "API server's time per request",
    "scheduler_stages": "scheduler runs while the GPU is idle",
    "sm_low": "few SMs have work",
    "dram_low": "little memory traffic",
    "dram_high": "high memory traffic",
    "tensor_idle": "tensor cores mostly idle",
    "tensor_high": "tensor cores busy",
    "tensor_low": "tensor cores idle",
    "power_high": "GPU draws much power",
    "links": "traffic between GPUs, or uneven GPUs",
    "throttled": "clocks held down",
    "clock_low": "clock below its highest",
    "kv_usage": "KV cache nearly full",
    "waiting": "requests waiting",
    "preemptions": "requests thrown back",
    "queue_share": "queue's share of the time to first token",
    "api_busy": "API server's busiest thread",
    "gpu_free": "GPU has time left",
    "foreign_memory": "GPU memory held by a stranger",
    "stillness": "nothing moves",
    "gpu_works": "the GPU works",
}


def up(name: str, value: float | None) -> float:
    """Membership of the ramp `name`; 0 for what is not known."""
    return RAMPS[name].of(value) or 0.0


def verdict(*causes: str, strength: float = 1.0) -> Callable[[Symptoms], float]:
    """Holds while the verdict is one of these."""
    return lambda s: strength if s.cause in causes else 0.0


def share(words: str, value: float | None) -> str | None:
    """`words 37 %`."""
    return None if value is None else f"{words} {100 * value:.0f} %"


def seconds(words: str, value: float | None) -> str | None:
    """`words 0.42 s`, in ms below a tenth."""
    if value is None:
        return None
    shown = f"{1000 * value:.0f} ms" if value < 0.1 else f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
    return f"{words} {shown}"


def count(words: str, value: float | None) -> str | None:
    """`words 12`."""
    return None if value is None else f"{words} {value:.0f}"


def of(words: str, part: float | None, whole: float | None) -> str | None:
    """`words 250 of 256`."""
    if part is None:
        return None
    return f"{words} {part:.0f}" if whole is None else f"{words} {part:.0f} of {whole:.0f}"


def known(value: float | None) -> float:
    """0 for what is not known: only for comparisons that 0 fails."""
    return 0.0 if value is None else value


def contended(s: Symptoms) -> float:
    """How much the engine's threads are kept from a core, without a quota being the reason."""
    waiting = max(up("run_delay", s.evidence.run_delay), 0.8 * up("psi", s.evidence.psi))
    return waiting if up("cfs", s.evidence.cfs) < 0.2 else 0.0


def batch_full(s: Symptoms) -> bool | None:
    """Whether the batch is at its cap; None where the cap is not known."""
    if s.running is None or s.running_limit is None:
        return None
    return s.running >= 0.95 * s.running_limit


def queue_matters(s: Symptoms) -> bool:
    """More than half of the time to first token is queue."""
    return s.cause == "queue" or known(s.evidence.queue_share) > 0.5 or (known(s.queue) > 0.5 * (s.ttft or float("inf")))
