"""The board that on-call opens first: who promises what and keeps it, what limits each target, latency, queue and caches of all.

It reads recording rules, and rates of counters and histograms; gauges of a window are of one target and stand on its own board.
"""

from __future__ import annotations

from llm_exporter.generate.boards import FLEET, TARGET
from llm_exporter.generate.dashboards_model import (
    RATIO,
    REQUESTS_PER_SECOND,
    SECONDS,
    TOKENS_PER_SECOND,
    Kind,
    Look,
    Needs,
    Panel,
    Query,
    Row,
    Sheet,
)
from llm_exporter.generate.dashboards_parts import (
    DOWN_UP,
    ENGINE_STATES,
    INSTANCE,
    JOB,
    NO_YES,
    TARGETS,
    VERDICTS,
    Selection,
    coded,
    now,
    per,
    quantile,
    quantile_edge,
)
from llm_exporter.generate.promql import equals, pattern
from llm_exporter.generate.thresholds import BURN_FACTOR, ERROR_RATIO, KV_USAGE, PREEMPTION_RATIO, TTFT_P99
from llm_exporter.signals.recorded import ERROR_BUDGET, slow_ratio, ttft_quantile

_S = Selection(("job", "instance", "target"))
_ONE = "{{target}} {{model}} ({{instance}})"
_TARGET = "{{target}} ({{instance}})"
_TTFT = "llm_time_to_first_token_seconds"
_OPEN = (TARGET, ("job", "instance", "target"))


def _burn(window: str) -> str:
    return f"{_S.of(slow_ratio(window))} / {_S.of(ERROR_BUDGET)}"


def _errors() -> str:
    failed = per(("target",), _S.rate("llm_http_responses_total", equals("code", "5xx")))
    return f"{failed} / ({per(('target',), _S.rate('llm_http_responses_total'))} > 0)"


_NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Firing alerts",
            kind=Kind.TABLE,
            queries=(
                Query(
                    f"{_S.of('ALERTS', pattern('alertname', 'LLM.*'), equals('alertstate', 'firing'), pattern('severity', 'page|ticket'))}"
                ),
            ),
            columns=("severity", "alertname", "target", "model", "slo", "gpu", "module", "instance"),
            row_link=_OPEN,
            means="Alerts that fire now. A page is felt by users; a ticket names a cause that can wait for the day.",
            do="Begin with the pages; the runbook of an alert says how to confirm it and what to do first.",
            needs=Needs.NOTHING_WRONG,
            width=10,
        ),
        Panel(
            title="Targets",
            kind=Kind.TABLE,
            queries=(
                now(per(("target",), _S.of("llm_target_up"), "max"), "Up"),
                now(per(("target",), _S.of(ttft_quantile(99)), "max"), "TTFT P99"),
                now(per(("target",), _S.of("target_model:llm_first_tokens:rate5m")), "First tokens"),
                now(per(("target",), _S.of("llm_requests_waiting_capacity")), "Waiting"),
                now(per(("target",), _S.of("llm_kv_cache_usage_ratio"), "max"), "KV cache"),
                now(per(("target",), _S.of("llm_gpu_starved"), "max"), "GPU starved"),
            ),
            columns=("target", "instance", "job"),
            units=(("TTFT P99", SECONDS), ("First tokens", REQUESTS_PER_SECOND), ("KV cache", RATIO)),
            codes=DOWN_UP,
            row_link=_OPEN,
            means="Every target with its most telling numbers. Down means that its page could not be read; its other series are then gone.",
            do="Click on the target that stands out. Several down at once point to the network, a proxy or a changed token.",
            needs=Needs.TARGET,
            alerts=("LLMTargetDown", "LLMTargetsMissing"),
            width=14,
        ),
    ),
)
_PROMISES = Row(
    title="Service level objectives",
    panels=(
        Panel(
            title="Error budget burn rate",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(_burn("1h"), "1 h {{slo}} " + _ONE),
                Query(_burn("6h"), "6 h {{slo}} " + _ONE),
            ),
            thresholds=(BURN_FACTOR["medium"], BURN_FACTOR["fast"]),
            looks=(("6 h", Look.LIMIT, ""),),
            means="How fast each error budget is spent: at 1 it lasts exactly 30 days, at the fast limit 2 % of it go in an hour.",
            do="Above a limit, see what limits the target (Verdict) and its latency by phase on the Target board.",
            needs=Needs.SLO,
            alerts=("LLMSLOBudgetBurnFast", "LLMSLOBudgetBurnMedium"),
            least=0,
            width=12,
        ),
        Panel(
            title="Requests within the objective, 6 hours",
            kind=Kind.BARS,
            queries=(now(f"1 - {_S.of(slow_ratio('6h'))}", "{{slo}} " + _ONE),),
            unit=RATIO,
            most=1,
            means="Share of the last six hours' requests that were fast enough, measured at a bucket's edge not above the threshold.",
            do="Compare with the objective in llm-exporter.yml. A threshold that is no edge is measured below itself: see Signal status.",
            needs=Needs.SLO,
            width=6,
        ),
        Panel(
            title="Burn over 3 days",
            kind=Kind.BARS,
            queries=(now(_burn("3d"), "{{slo}} " + _ONE),),
            thresholds=(BURN_FACTOR["slow"],),
            least=0,
            means="Burn rate over three days: above the limit the 30 days' budget will not last.",
            do="Plan capacity or change the objective: this is no spike. See the Capacity board.",
            needs=Needs.SLO,
            alerts=("LLMSLOBudgetBurnSlow",),
            width=6,
        ),
    ),
)
_LIMITED = Row(
    title="What limits each target",
    panels=(
        Panel(
            title="Verdict",
            kind=Kind.STATES,
            queries=(Query(coded(_S, "llm_bottleneck_verdict", "cause", VERDICTS, "target"), _TARGET),),
            codes=VERDICTS,
            unit="none",
            means="What limits each server, from 30 seconds of evidence. none, idle, prefill_compute and decode_memory are healthy.",
            do="Open the target: Scores and Evidence there say why. unknown mostly means that readings of the GPU are missing.",
            needs=Needs.TARGET,
            alerts=("LLMGPUStarvedByCPU",),
            width=24,
            height=9,
        ),
        Panel(
            title="Engine state",
            kind=Kind.STATES,
            queries=(Query(coded(_S, "llm_engine_state", "state", ENGINE_STATES, "target"), _TARGET),),
            codes=ENGINE_STATES,
            unit="none",
            means="loading answers 503 or refuses while its process lives; sleeping was put to sleep; unknown gives no page.",
            do="A state that flips back to loading is a restart: read the log of the process before.",
            needs=Needs.TARGET,
            alerts=("LLMEngineStarting", "LLMEngineRestarting"),
            width=8,
        ),
        Panel(
            title="Stalled",
            kind=Kind.STATES,
            queries=(Query(per(("target",), _S.of("llm_engine_stalled"), "max"), _TARGET),),
            codes=NO_YES,
            unit="none",
            means="Work is there and nothing has moved for stall.after. Health checks stay green in this state.",
            do="Take the server out of the router, dump the stacks of its processes, restart it.",
            needs=Needs.TARGET,
            alerts=("LLMEngineStalled",),
            width=8,
        ),
        Panel(
            title="GPU starved by the CPU",
            kind=Kind.STATES,
            queries=(Query(per(("target",), _S.of("llm_gpu_starved"), "max"), _TARGET),),
            codes=NO_YES,
            unit="none",
            means="The engine has work and its GPUs stand idle: the host cannot feed them.",
            do="Look at quota, pressure and run delay on the GPU and host board; give the server more or quieter cores.",
            needs=Needs.GPU_OF_TARGET,
            alerts=("LLMGPUStarvedByCPU",),
            width=8,
        ),
    ),
)
_LATENCY = Row(
    title="Latency",
    panels=(
        Panel(
            title="Time to first token, P99",
            kind=Kind.TIME_SERIES,
            queries=(Query(_S.of(ttft_quantile(99)), _ONE),),
            unit=SECONDS,
            thresholds=(TTFT_P99,),
            least=0,
            means="The slowest hundredth waits longer than this for the first token; 5 minutes, interpolated within a bucket.",
            do="If one target stands out, open it: Time to first token by phase tells queue from prefill from frontend.",
            needs=Needs.RULES,
            alerts=("LLMTTFTP99High", "LLMNoFirstTokens"),
        ),
        Panel(
            title="Time to first token, P50",
            kind=Kind.TIME_SERIES,
            queries=(Query(_S.of(ttft_quantile(50)), _ONE),),
            unit=SECONDS,
            least=0,
            means="Half of the requests wait longer than this for the first token.",
            do="A median that rises with the P99 is load or a slower engine; a P99 alone is a few long prompts or a queue in bursts.",
            needs=Needs.RULES,
        ),
        Panel(
            title="Inter-token latency, P95",
            kind=Kind.TIME_SERIES,
            queries=(Query(_S.of("target_model:llm_inter_token_latency_seconds:p95_rate5m"), _ONE),),
            unit=SECONDS,
            least=0,
            means="Gap between two outputs of a running answer; readers notice more than 0.1 s.",
            do="Long prefills between decode steps lengthen it: smaller chunks, or fewer requests per batch.",
            needs=Needs.RULES,
        ),
    ),
)
_QUEUE = Row(
    title="Queue and caches",
    panels=(
        Panel(
            title="Waiting requests",
            kind=Kind.TIME_SERIES,
            queries=(Query(per(("target", "model"), _S.of("llm_requests_waiting_capacity")), _ONE),),
            least=0,
            means="Requests that wait only for room in the batch or the KV cache.",
            do="If it grows and does not empty, add a replica or route load away.",
            needs=Needs.TRAFFIC,
            alerts=("LLMQueueGrowing",),
        ),
        Panel(
            title="Prefix cache hit ratio",
            kind=Kind.TIME_SERIES,
            queries=(Query(_S.of("target_model:llm_prefix_cache_hit:ratio_rate5m"), _ONE),),
            unit=RATIO,
            least=0,
            most=1,
            means="Share of looked-up prompt tokens that the prefix cache held: prefill work that was saved.",
            do="A sudden fall on all targets is a changed prompt template or router; on one target a restart or a full KV cache.",
            needs=Needs.RULES,
            alerts=("LLMPrefixCacheHitRatioLow",),
        ),
        Panel(
            title="KV cache usage",
            kind=Kind.TIME_SERIES,
            queries=(Query(per(("target", "model"), _S.of("llm_kv_cache_usage_ratio"), "max"), _ONE),),
            unit=RATIO,
            thresholds=(KV_USAGE,),
            least=0,
            most=1,
            means="Used share of the KV cache of the fullest rank; at 100 % requests wait or are thrown back.",
            do="More KV memory, fp8, shorter contexts or another replica; `llm-exporter kv` says what fits.",
            needs=Needs.TRAFFIC,
            alerts=("LLMKVCacheNearlyFull",),
        ),
        Panel(
            title="Preemptions per first token",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(f"{_S.of('target_model:llm_preemptions:rate5m')} / ({_S.of('target_model:llm_first_tokens:rate5m')} > 0)", _ONE),
            ),
            unit=RATIO,
            thresholds=(PREEMPTION_RATIO,),
            least=0,
            means="Requests thrown back for want of KV cache, per request served: their prefill is done twice.",
            do="Lower the batch limit or give the KV cache more memory.",
            needs=Needs.RULES,
            alerts=("LLMPreemptionsHigh",),
        ),
        Panel(
            title="Share of failed answers",
            kind=Kind.TIME_SERIES,
            queries=(Query(_errors(), _TARGET),),
            unit=RATIO,
            thresholds=(ERROR_RATIO,),
            least=0,
            means="Answers with status 5xx on the inference routes. A refusal or a crash inside a stream is 2xx: probes cover it.",
            do="Read the server's log; see Requests by outcome on the Target board, and Results on the Probe board.",
            needs=Needs.TRAFFIC,
            alerts=("LLMErrorRateHigh",),
        ),
        Panel(
            title="Output tokens",
            kind=Kind.TIME_SERIES,
            queries=(Query(_S.of("target_model:llm_generation_tokens:rate5m"), _ONE),),
            unit=TOKENS_PER_SECOND,
            least=0,
            means="Output tokens a second.",
            do="Falling while requests wait is the engine's trouble; falling with an empty queue is less load.",
            needs=Needs.RULES,
        ),
    ),
)
_EACH = Row(
    title="Time to first token of $target",
    repeat="target",
    panels=(
        Panel(
            title="Time to first token with error band",
            kind=Kind.TIME_SERIES,
            queries=(
                *(
                    Query(f"max by (target) ({quantile(_S, _TTFT, q, 'target')})", name)
                    for name, q in (("P50", "0.5"), ("P95", "0.95"), ("P99", "0.99"))
                ),
                Query(f"max by (target) ({quantile_edge(_S, _TTFT, '0.99', 'target', upper=True)})", "at most"),
                Query(f"max by (target) ({quantile_edge(_S, _TTFT, '0.99', 'target', upper=False)})", "at least"),
            ),
            unit=SECONDS,
            thresholds=(TTFT_P99,),
            looks=(("at most", Look.BAND, "at least"), ("at least", Look.EDGE, "")),
            least=0,
            means="P50, P95 and P99 of the target's models. A histogram knows the P99 only to its bucket: the true one lies in the band. "
            "No band above the line means that the P99 is beyond the highest edge: the line is then only a lower bound.",
            do="Do not argue about changes smaller than the band; the Probe board measures without buckets.",
            needs=Needs.TRAFFIC,
            alerts=("LLMTTFTP99High",),
            width=24,
        ),
    ),
)

SHEET = Sheet(
    board=FLEET,
    purpose="All targets at a glance: alerts, objectives, what limits each, latency, queue and caches. Start here.",
    variables=(JOB, INSTANCE, TARGETS),
    rows=(_NOW, _PROMISES, _LIMITED, _LATENCY, _QUEUE, _EACH),
)
