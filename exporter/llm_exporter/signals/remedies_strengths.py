"""When a remedy holds, and how strongly: one predicate per row of the table that needs more than the verdict's name.

In: `Symptoms`. Out: 0 (does not hold) to 1. What is not known never makes a row hold.
"""

from __future__ import annotations

from llm_exporter.signals.remedies_model import Symptoms
from llm_exporter.signals.remedies_words import batch_full, contended, known, queue_matters, up

# A tail this many times the mean, and this long, is felt as a stutter; below so many gaps it is chance (N·(1−q) ≥ 10).
STUTTER_RATIO, STUTTER_SECONDS, STUTTER_GAPS = 5.0, 0.1, 1000.0
LOW_HIT_RATIO, LONG_PROMPT_TOKENS = 0.2, 512.0
PROBE_RATIO = 2.0
BUSY, SOME_HITS = 0.85, 0.05
_SHORT_OF_CPU = ("host_starved", "launch_bound", "frontend")


def starved(s: Symptoms) -> bool:
    """The GPU is not fed."""
    return s.cause in ("host_starved", "launch_bound")


def scheduler(s: Symptoms) -> float:
    """Starved, with cores to spare."""
    return 0.8 if s.cause == "host_starved" and contended(s) < 0.3 and up("cfs", s.evidence.cfs) < 0.3 else 0.0


def launch(s: Symptoms) -> float:
    """Kernels are not launched fast enough: by the verdict, by passes without graphs, or by how thin the work is."""
    if s.cause == "launch_bound" or (s.graphless or 0.0) > 0.5:
        return 0.9
    if known(s.graphless) > 0.05:
        return 0.7
    thin = s.cause == "host_starved" and contended(s) < 0.3 and up("cfs", s.evidence.cfs) < 0.3
    # far more time between kernels than in them, with cores to spare: launches, or a model too small for its GPU
    return 0.6 if thin and s.evidence.sm is not None and s.evidence.sm < 0.35 else 0.0


def batch_cap(s: Symptoms) -> float:
    """A queue beside free KV cache, with the batch at its cap (or the cap unknown)."""
    if not queue_matters(s) or s.evidence.kv_usage is None or s.evidence.kv_usage >= 0.7 or starved(s):
        return 0.0
    if s.cause != "queue" and known(s.evidence.busy) >= BUSY:
        return 0.0  # more at once would only share a GPU that is busy already
    return {True: 1.0, False: 0.0, None: 0.6}[batch_full(s)]


def admission(s: Symptoms) -> float:
    """SGLang: a queue beside free KV cache and free places."""
    fits = queue_matters(s) and s.evidence.kv_usage is not None and s.evidence.kv_usage < 0.9
    return 0.8 if s.engine == "sglang" and fits and batch_full(s) is False and not starved(s) else 0.0


def kv_full(s: Symptoms) -> float:
    """The KV cache is the limit."""
    if s.cause == "kv_cache":
        return 1.0
    return 0.6 if known(s.evidence.kv_usage) > 0.9 and known(s.evidence.preemptions) > 0.01 else 0.0


def stutter(s: Symptoms) -> float:
    """A long tail of gaps between tokens while prompts are computed."""
    if s.inter_token_mean is None or s.inter_token_p99 is None or known(s.inter_token_gaps) < STUTTER_GAPS:
        return 0.0
    tail = s.inter_token_p99 >= STUTTER_SECONDS and s.inter_token_p99 > STUTTER_RATIO * s.inter_token_mean
    return 0.5 if tail and known(s.prefill_rate) > 0 and s.cause not in ("stalled", "kv_cache") else 0.0


def slow_prefill(s: Symptoms) -> float:
    """Prefill takes much longer than the probe's alone."""
    if s.prefill is None or s.probe_prefill is None or s.probe_prefill <= 0:
        return 0.0
    return 0.5 if s.prefill > PROBE_RATIO * s.probe_prefill and known(s.running) > 1 else 0.0


def prompts_matter(s: Symptoms) -> bool:
    """Whether prompts cost enough for the prefix cache to matter."""
    return s.cause in ("prefill_compute", "queue", "kv_cache") or known(s.prefill) > 0.5 * (s.ttft or float("inf"))


def prefixes(s: Symptoms) -> float:
    """Long prompts, few hits, and no lack of room."""
    if not prompts_matter(s) or known(s.prompt_tokens_mean) < LONG_PROMPT_TOKENS:
        return 0.0
    if s.cache_on is False:
        return 0.7
    full = known(s.evidence.kv_usage) > 0.9 or known(s.evicted) > 0
    return 0.5 if s.hit_ratio is not None and s.hit_ratio < LOW_HIT_RATIO and not full else 0.0


def cache_small(s: Symptoms) -> float:
    """Long prompts, few hits, and no room."""
    if (
        s.hit_ratio is None
        or not SOME_HITS <= s.hit_ratio < 0.5
        or not prompts_matter(s)
        or known(s.prompt_tokens_mean) < LONG_PROMPT_TOKENS
    ):
        return 0.0
    return 0.5 if known(s.evidence.kv_usage) > 0.9 or known(s.evicted) > 0 else 0.0


def communication(s: Symptoms) -> float:
    """The GPUs wait for each other, or one lags."""
    if s.cause == "communication":
        return 0.9
    return 0.5 if s.evidence.gpus > 1 and known(s.evidence.imbalance) > 0.2 and s.cause != "idle" else 0.0


def deferred(s: Symptoms) -> float:
    """Requests wait for something other than room."""
    if s.engine == "sglang":  # there it is the grammar queue, which has a row of its own
        return 0.7 if known(s.disaggregated) > 0 and known(s.waiting) == 0 and known(s.running) == 0 else 0.0
    return 0.9 if known(s.deferred) > 0 and s.waiting == 0 else 0.0


def grammar(s: Symptoms) -> float:
    """SGLang's grammar queue is not empty."""
    return 0.7 if s.engine == "sglang" and known(s.deferred) > 0 else 0.0


def network(s: Symptoms) -> float:
    """The probe waits much longer than the server says."""
    if s.client_ttft is None or s.ttft is None or s.ttft <= 0:
        return 0.0
    small_rest = s.frontend is None or s.frontend < 0.3 * s.ttft
    return 0.6 if s.client_ttft > PROBE_RATIO * s.ttft and s.client_ttft - s.ttft > 0.1 and small_rest else 0.0


def throttle_lines(s: Symptoms) -> list[str]:
    """Throttle reasons with their share of time."""
    return [f"{reason.replace('_', ' ')} in {100 * held:.0f} % of readings" for reason, held in s.throttle_reasons.items() if held > 0]


def cpu_quota(s: Symptoms) -> float:
    """The quota is spent, and something that needs CPU is the limit."""
    return up("cfs", s.evidence.cfs) if s.cause in _SHORT_OF_CPU else _unseen(s) * up("cfs_strong", s.evidence.cfs)


def cpu_contention(s: Symptoms) -> float:
    """Threads wait for cores, and something that needs CPU is the limit."""
    if s.cause in _SHORT_OF_CPU:
        return contended(s)
    # pressure may be of others: where the GPU cannot be seen, the engine's own thread must be seen to wait
    return _unseen(s) * up("run_delay_strong", s.evidence.run_delay) if contended(s) else 0.0


def _unseen(s: Symptoms) -> float:
    """What a plain shortage of CPU is worth where no GPU can be read: it is there, but whether it is the limit cannot be told."""
    return 0.8 if s.cause == "unknown" and s.evidence.busy is None else 0.0


def frontend(s: Symptoms) -> float:
    """The API server is the limit; or it takes much of the wait, its thread is busy, and nothing else makes it wait.

    Behind a full cache, a queue or a shortage of CPU the frontend's share is an effect.
    """
    if s.cause == "frontend":
        return 1.0
    if s.cause not in ("none", "unknown", "host_starved") or max(contended(s), up("cfs", s.evidence.cfs)) > 0.3:
        return 0.0
    felt = known(s.evidence.api_share) > 0.3 and up("frontend_seconds", s.evidence.api_seconds) > 0
    busy = 0.5 if s.evidence.api_hot is None else up("api_busy", s.evidence.api_hot)
    return 0.6 * busy if felt else 0.0
