"""What must arrive for which target, with what text, and what else may arrive because it is true as well."""

from __future__ import annotations

from typing import NamedTuple

# Their windows are longer than an hour, which is longer than a play: promtool's cases prove them, here they may come and need not go.
LONG = frozenset({"LLMSLOBudgetBurnMedium", "LLMSLOBudgetBurnSlow"})
# A page mutes the tickets of its target. These targets promise a time to first token, and are paged for it.
PROMISED = (
    "vllm-healthy",
    "sglang-healthy",
    "vllm-queue",
    "vllm-cache-collapse",
    "vllm-starved",
    "vllm-starved-frontend",
    "sglang-starved-frontend",
    "vllm-stalled",
)


class Told(NamedTuple):
    """One alert that must arrive: patterns of its value and of its evidence."""

    name: str
    severity: str
    value: str
    evidence: str


_PERCENT = r"^\d[\d.]*% "
_BURN_VALUE = _PERCENT + r"of the requests in 1h were too slow, at least 14.4 times what the objective allows \(and in the last 5m too\)"
_HIT = Told("LLMPrefixCacheHitRatioLow", "ticket", r"below the day before's by \d[\d.]*%, limit 15 %", "limited by: ")
_STARVED = Told(
    "LLMGPUStarvedByCPU",
    "ticket",
    "had nothing to do although requests were there",
    r"\d%; because: .*cfs_throttling 100%.*limited by: host_starved",
)
_FRONTEND = Told("LLMSLOBudgetBurnFast", "page", _BURN_VALUE, "limited by: frontend; threshold as measured: 1s")
_STALLED = Told("LLMEngineStalled", "page", "no token, no step and no finished request", "limited by: stalled")
_FULL = Told("LLMKVCacheNearlyFull", "ticket", _PERCENT + "in use by running requests, limit 95 %", r"waiting: \d+; limited by: kv_cache")

MUST: dict[str, tuple[Told, ...]] = {
    "vllm-healthy": (),
    "sglang-healthy": (),
    "vllm-queue": (Told("LLMSLOBudgetBurnFast", "page", _BURN_VALUE, r"limited by: queue; .*waiting: \d\d"),),
    "sglang-queue": (
        Told("LLMQueueGrowing", "ticket", r"^\d[\d.]* requests a second over 10 minutes, limit 0.02", r"waiting: \d\d.*limited by: queue"),
        Told("LLMTTFTP99High", "ticket", r"^P99 \d[\d.]*s over 5 minutes, limit 5 s", "limited by: queue"),
    ),
    "vllm-cache-collapse": (_HIT,),
    "sglang-cache-collapse": (_HIT,),
    "vllm-starved": (_STARVED,),
    "sglang-starved": (_STARVED,),
    "vllm-starved-frontend": (_FRONTEND,),
    "sglang-starved-frontend": (_FRONTEND,),
    "vllm-kv-pressure": (
        Told("LLMPreemptionsHigh", "ticket", _PERCENT + "as many preemptions as first tokens in 10 minutes, limit 5 %", "KV cache used: 9"),
        _FULL,
    ),
    "sglang-kv-pressure": (_FULL,),
    "vllm-stalled": (_STALLED,),
    "sglang-stalled": (_STALLED,),
    "vllm-throttled": (Told("LLMGPUThrottled", "ticket", _PERCENT + "of the last 10 minutes, limit 10 %", "hw_thermal_slowdown"),),
    "vllm-foreign": (Told("LLMGPUForeignProcess", "ticket", "^874MiB, limit 512 MiB", "limited by: "),),
    "vllm-refusing": (
        Told("LLMErrorRateHigh", "page", _PERCENT + "of the requests in 5 minutes failed or were refused, limit 5 %", "waiting: "),
    ),
    "vllm-gone": (Told("LLMTargetDown", "page", "could not be read for a minute", "reason: (refused|connection_closed)"),),
}
_QUEUES = {"LLMQueueGrowing", "LLMTTFTP99High", "LLMProbeFailing"}
# True as well: a full queue keeps probes waiting; traffic without shared prefixes hits nothing; after a hang all have waited.
MAY: dict[str, set[str]] = {
    "vllm-queue": {*_QUEUES, *LONG},
    "sglang-queue": _QUEUES,
    "vllm-starved-frontend": {*LONG, "LLMProbeFailing"},
    "sglang-starved-frontend": {*LONG, "LLMProbeFailing"},
    "vllm-kv-pressure": {*_QUEUES, "LLMPrefixCacheHitRatioLow"},
    "sglang-kv-pressure": {*_QUEUES, "LLMPrefixCacheHitRatioLow", "LLMPreemptionsHigh"},
    "vllm-stalled": {*_QUEUES, *LONG, "LLMSLOBudgetBurnFast", "LLMNoFirstTokens"},
    "sglang-stalled": {*_QUEUES, "LLMNoFirstTokens"},
    "vllm-refusing": {"LLMQueueGrowing", "LLMProbeFailing"},
    "vllm-gone": {"LLMProbeFailing"},
}
