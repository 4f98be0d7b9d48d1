"""Alerts about load: the queue, the KV cache, preemptions and the prefix cache."""

from __future__ import annotations

from llm_exporter.generate import evidence as say
from llm_exporter.generate.alert import Alert, Cause, Flags, Severity, Subject
from llm_exporter.generate.boards import FLEET, GPU, TARGET
from llm_exporter.generate.fragments import increase, users, with_traffic
from llm_exporter.generate.promql import lines, over
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import (
    HIT_RATIO_DROP,
    HIT_RATIO_REQUESTS,
    KV_USAGE,
    PREEMPTION_RATIO,
    PREEMPTIONS,
    QUEUE_GROWTH,
)
from llm_exporter.signals.recorded import HIT_RATIO_BEFORE, HIT_RATIO_NOW

_M = ("target", "model")

KV_FLAGS = Flags(
    vllm=(
        "--gpu-memory-utilization higher",
        "--kv-cache-dtype fp8",
        "--max-model-len or --max-num-seqs lower",
        "--kv-offloading-size, to keep evicted blocks in host memory",
    ),
    sglang=(
        "--mem-fraction-static higher",
        "--kv-cache-dtype fp8_e4m3",
        "--schedule-conservativeness higher, against retractions",
        "--enable-hierarchical-cache, to keep evicted tokens in host memory",
    ),
)


def _queue_growing(settings: RuleSettings) -> str:
    waiting = "llm_requests_waiting_capacity"
    return lines(
        f"{over('deriv', waiting, settings.window(600))} > {settings.limit(QUEUE_GROWTH)}",
        f"and ({over('min_over_time', waiting, settings.window(300))} > 0)",
    )


QUEUE_GROWING = Alert(
    name="LLMQueueGrowing",
    severity=Severity.TICKET,
    subject=Subject.LATENCY,
    labels=_M,
    summary="The queue of {{ $labels.target }} ({{ $labels.model }}) grows and does not empty.",
    value=f'{{{{ $value | printf "%.3f" }}}} requests a second over 10 minutes, limit {QUEUE_GROWTH.value}',
    evidence=(say.WAITING, say.RUNNING, say.KV_USAGE, say.VERDICT),
    meaning="More arrives than is served: everybody's wait gets longer until load falls or clients give up.",
    confirm=("Open the link: waiting requests rise, and the rate of first tokens does not.",),
    causes=(
        Cause("Load rose above what the server can do.", TARGET, "Offered and served requests"),
        Cause("The batch is at its limit although the KV cache has room.", TARGET, "Running, waiting and limit"),
        Cause("The KV cache is full.", TARGET, "KV cache"),
        Cause("The engine got slower: prefix cache, throttling, a slow host.", TARGET, "Prefix cache hit ratio"),
    ),
    action="Add a replica or route load away; if running stands at its limit with room in the KV cache, raise the limit.",
    flags=Flags(
        vllm=("--max-num-seqs higher, where the KV cache has room", "--max-num-queued-reqs, to refuse early"),
        sglang=("--max-running-requests higher, where the KV cache has room", "--schedule-conservativeness lower", "--max-queued-requests"),
    ),
    board=TARGET,
    hold=300,
    expression=_queue_growing,
    thresholds=(QUEUE_GROWTH,),
    blind="A queue that is long and steady does not grow: the latency alerts see it.",
)

KV_NEARLY_FULL = Alert(
    name="LLMKVCacheNearlyFull",
    severity=Severity.TICKET,
    subject=Subject.CACHE,
    labels=_M,
    summary="The KV cache of {{ $labels.target }} ({{ $labels.model }}) is almost full.",
    value=f"{{{{ $value | humanizePercentage }}}} in use by running requests, limit {KV_USAGE.text}",
    evidence=(say.RUNNING, say.WAITING, say.VERDICT),
    meaning="The next long requests wait, or throw out others that then start again.",
    confirm=("Open the link: usage stays at the top; look for waiting requests and preemptions beside it.",),
    causes=(
        Cause("Longer contexts than the server was sized for.", TARGET, "Prompt length"),
        Cause("More requests at once.", TARGET, "Running, waiting and limit"),
        Cause("Less memory for the cache than there could be.", GPU, "GPU memory"),
    ),
    action="If requests wait: fewer at once, a smaller KV format, or a replica. If nobody waits, it is well used: raise nothing.",
    flags=KV_FLAGS,
    board=TARGET,
    hold=600,
    expression=lambda settings: f"{over('avg_over_time', 'llm_kv_cache_usage_ratio', settings.window(300))} > {settings.limit(KV_USAGE)}",
    thresholds=(KV_USAGE,),
)


def _preemptions(settings: RuleSettings) -> str:
    thrown_back = increase(settings, "llm_preemptions_total", 600)
    served = increase(settings, "llm_time_to_first_token_seconds_count", 600)
    return lines(
        f"{thrown_back} / {served} > {settings.limit(PREEMPTION_RATIO)}",
        f"and (round({thrown_back}) >= {settings.limit(PREEMPTIONS)})",
    )


PREEMPTIONS_HIGH = Alert(
    name="LLMPreemptionsHigh",
    severity=Severity.TICKET,
    subject=Subject.CACHE,
    labels=_M,
    summary="{{ $labels.target }} ({{ $labels.model }}) throws running requests back to the queue.",
    value=f"{{{{ $value | humanizePercentage }}}} as many preemptions as first tokens in 10 minutes, limit {PREEMPTION_RATIO.text}",
    evidence=(say.KV_USAGE, say.RUNNING, say.WAITING),
    meaning="Answers stop in the middle and go on later; the work done for them is done again.",
    confirm=("Open the link: preemptions come with a full KV cache.",),
    causes=(
        Cause("The KV cache is too small for the requests admitted.", TARGET, "KV cache"),
        Cause("The engine admits too boldly: it bets on short answers and gets long ones.", TARGET, "Output length"),
    ),
    action="Admit fewer requests at once, or give the KV cache more room.",
    flags=KV_FLAGS,
    board=TARGET,
    hold=300,
    expression=_preemptions,
    thresholds=(PREEMPTION_RATIO, PREEMPTIONS),
)


def _hit_ratio(settings: RuleSettings) -> str:
    fell = f"{HIT_RATIO_BEFORE} - {HIT_RATIO_NOW} > {settings.limit(HIT_RATIO_DROP)}"
    return with_traffic(settings, fell, users(settings, "llm_requests_finished_total", 1800, "outcome"), HIT_RATIO_REQUESTS)


HIT_RATIO_LOW = Alert(
    name="LLMPrefixCacheHitRatioLow",
    severity=Severity.TICKET,
    subject=Subject.CACHE,
    labels=_M,
    summary="The prefix cache of {{ $labels.target }} ({{ $labels.model }}) hits much less than the day before.",
    value=f"the hit ratio of 30 minutes is below the day before's by {{{{ $value | humanizePercentage }}}}, limit {HIT_RATIO_DROP.text}",
    evidence=(say.KV_USAGE, say.VERDICT, say.VERSION),
    meaning="Prompts that used to be half free are computed in full: first tokens come later, the same load needs more GPU.",
    confirm=(
        "Open the link: hit ratio against computed prompt tokens a second, which must have risen.",
        "Compare a cold with a warm probe: if warm is as slow, the cache is off or is being evicted.",
    ),
    causes=(
        Cause("The prompts changed: a time, an id or reordered tools at their start.", TARGET, "Prefix cache hit ratio"),
        Cause("The router no longer sends the same prefixes to the same replica.", FLEET, "Prefix cache hit ratio"),
        Cause("The cache is evicted: the KV cache is full.", TARGET, "KV cache"),
        Cause("The server was restarted with the cache off, or is still cold.", TARGET, "Engine state"),
    ),
    action="Ask what was deployed when the ratio fell: prompt template, router, server flags.",
    flags=Flags(
        vllm=("--enable-prefix-caching (and not --no-enable-prefix-caching)", "--kv-offloading-size, against eviction"),
        sglang=("remove --disable-radix-cache", "--schedule-policy lpm", "--enable-hierarchical-cache, against eviction"),
    ),
    board=TARGET,
    hold=900,
    expression=_hit_ratio,
    thresholds=(HIT_RATIO_DROP, HIT_RATIO_REQUESTS),
    blind="Compares with the day before, so a ratio that was always low opens nothing. Cold probes lower the ratio a little.",
)

ALERTS: tuple[Alert, ...] = (QUEUE_GROWING, KV_NEARLY_FULL, PREEMPTIONS_HIGH, HIT_RATIO_LOW)
