"""Second half of the target's board: other latency, the work it does, its queue and its caches."""

from __future__ import annotations

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
)
from llm_exporter.generate.dashboards_parts import Selection, mean_of, now, per, quantile
from llm_exporter.generate.promql import equals
from llm_exporter.generate.thresholds import ERROR_RATIO, KV_USAGE, QUEUE_GROWTH

WHERE = Selection(("job", "instance", "target", "model"), single=("target",))
LAST_MINUTE = equals("window", "1m")
MODEL = ("target", "model")
TTFT = "llm_time_to_first_token_seconds"


def quantiles(metric: str, *qs: str) -> tuple[Query, ...]:
    """Quantiles of a histogram, one query each."""
    return tuple(Query(quantile(WHERE, metric, q, *MODEL), f"P{float(q) * 100:g} {{{{model}}}}") for q in qs)


OTHER = Row(
    title="Other latency",
    panels=(
        Panel(
            title="Inter-token latency",
            kind=Kind.TIME_SERIES,
            queries=quantiles("llm_inter_token_latency_seconds", "0.5", "0.95", "0.99"),
            unit=SECONDS,
            least=0,
            means="Gap between two outputs of one answer, as it happens.",
            do="A P99 far above the median is prefill between decode steps: smaller chunks.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Request latency",
            kind=Kind.TIME_SERIES,
            queries=quantiles("llm_e2e_request_latency_seconds", "0.5", "0.95", "0.99"),
            unit=SECONDS,
            least=0,
            means="From receipt to last token; known only when a request finishes.",
            do="It grows with output length: compare with Output length before blaming the server.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Time per output token",
            kind=Kind.TIME_SERIES,
            queries=quantiles("llm_time_per_output_token_seconds", "0.5", "0.95"),
            unit=SECONDS,
            least=0,
            means="Decode time of a finished request per token after the first.",
            do="Use Inter-token latency where this is empty.",
            needs=Needs.ENGINE_SPECIFIC,
        ),
    ),
)
WORK = Row(
    title="Work",
    panels=(
        Panel(
            title="Prompt and output tokens",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(per(MODEL, WHERE.rate("llm_prompt_tokens_total")), "prompt {{model}}"),
                Query(per(MODEL, WHERE.rate("llm_prompt_tokens_computed_total")), "prompt, computed {{model}}"),
                Query(per(MODEL, WHERE.rate("llm_generation_tokens_total")), "output {{model}}"),
            ),
            unit=TOKENS_PER_SECOND,
            least=0,
            means="Tokens a second: prompts as sent, prompts as computed (without cache hits), output.",
            do="Prompt far above computed is the prefix cache at work.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Prefill against decode",
            kind=Kind.TIME_SERIES,
            queries=(Query(WHERE.of("llm_prefill_time_share_ratio", LAST_MINUTE), "{{method}} {{model}}"),),
            unit=RATIO,
            least=0,
            most=1,
            means="Share of prefill: of requests' time (request_time), or of GPU time where the engine has a device timer (device_timer).",
            do="High: computing prompts limits; low: memory bandwidth limits. They want opposite remedies.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Offered and served requests",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(WHERE.of("llm_offered_requests_per_second", LAST_MINUTE), "offered {{model}}"),
                Query(per(MODEL, WHERE.rate(TTFT + "_count")), "first tokens {{model}}"),
                Query(per(MODEL, WHERE.rate("llm_requests_received_total")), "received {{model}}"),
            ),
            unit=REQUESTS_PER_SECOND,
            least=0,
            means="What came in, by flow balance, and what was begun.",
            do="Offered above served makes the queue grow.",
            needs=Needs.TRAFFIC,
            alerts=("LLMQueueGrowing", "LLMNoFirstTokens"),
        ),
        Panel(
            title="Requests by outcome",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(per((*MODEL, "outcome"), WHERE.rate("llm_requests_finished_total")), "{{outcome}} {{model}}"),
                Query(per((*MODEL, "reason"), WHERE.rate("llm_requests_rejected_total")), "rejected: {{reason}} {{model}}"),
            ),
            unit=REQUESTS_PER_SECOND,
            stacked=True,
            least=0,
            means="How requests ended. length: cut off by max_tokens; abort: the client left.",
            do="Many aborts are clients that lose patience: look at the time to first token.",
            needs=Needs.TRAFFIC,
            alerts=("LLMErrorRateHigh",),
        ),
        Panel(
            title="Answers by status",
            kind=Kind.TIME_SERIES,
            queries=(Query(per(("target", "code"), WHERE.rate("llm_http_responses_total")), "{{code}}"),),
            unit=REQUESTS_PER_SECOND,
            stacked=True,
            least=0,
            means="Answers of the inference routes by class of status. A refusal or a crash inside a stream is 2xx.",
            do="5xx: the server's log. 4xx: a client with a wrong model name or a too long prompt.",
            needs=Needs.TRAFFIC,
            alerts=("LLMErrorRateHigh",),
        ),
        Panel(
            title="Share of failed answers",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(
                    f"{per(('target',), WHERE.rate('llm_http_responses_total', equals('code', '5xx')))}"
                    f" / ({per(('target',), WHERE.rate('llm_http_responses_total'))} > 0)",
                    "5xx ({{instance}})",
                ),
            ),
            unit=RATIO,
            thresholds=(ERROR_RATIO,),
            least=0,
            means="Share of answers with status 5xx.",
            do="Above the limit: read the server's log and the outcome of requests.",
            needs=Needs.TRAFFIC,
            alerts=("LLMErrorRateHigh",),
        ),
        Panel(
            title="Prompt length",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(mean_of(WHERE, "llm_request_prompt_tokens", *MODEL), "mean {{model}}"),
                *quantiles("llm_request_prompt_tokens", "0.95"),
            ),
            unit="short",
            least=0,
            means="Prompt tokens of finished requests, cached ones included.",
            do="Longer prompts explain a longer time to first token; no flag of the server does.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Output length",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(mean_of(WHERE, "llm_request_generation_tokens", *MODEL), "mean {{model}}"),
                *quantiles("llm_request_generation_tokens", "0.95"),
            ),
            unit="short",
            least=0,
            means="Output tokens of finished requests.",
            do="Longer answers hold the KV cache longer and fill the batch.",
            needs=Needs.TRAFFIC,
        ),
    ),
)
QUEUE = Row(
    title="Queue and caches",
    panels=(
        Panel(
            title="Running, waiting and limit",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(WHERE.of("llm_requests_running"), "running {{model}}"),
                Query(WHERE.of("llm_requests_waiting"), "waiting {{model}}"),
                Query(WHERE.of("llm_requests_deferred"), "deferred {{model}}"),
                Query(WHERE.of("llm_requests_running_limit"), "limit {{model}}", needs=Needs.ENGINE_SPECIFIC),
            ),
            looks=(("limit", Look.LIMIT, ""),),
            least=0,
            means="Requests in the batch and in the queue, and most that the batch may hold.",
            do="Running at the limit with room in the KV cache: raise the limit.",
            needs=Needs.TRAFFIC,
            alerts=("LLMQueueGrowing",),
        ),
        Panel(
            title="Queue",
            kind=Kind.TIME_SERIES,
            queries=(Query(WHERE.of("llm_queue_growth_requests_per_second", equals("window", "5m")), "growth {{model}}"),),
            unit=REQUESTS_PER_SECOND,
            thresholds=(QUEUE_GROWTH,),
            means="Slope of the queue over 5 minutes: above 0 it grows.",
            do="If it stays above the limit, load must go elsewhere.",
            needs=Needs.TRAFFIC,
            alerts=("LLMQueueGrowing",),
        ),
        Panel(
            title="Wait of a request that arrives now",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(WHERE.of("llm_queue_wait_estimate_seconds"), "estimate {{model}}"),
                Query(mean_of(WHERE, "llm_request_queue_time_seconds", *MODEL), "measured mean {{model}}"),
            ),
            unit=SECONDS,
            least=0,
            means="Little's law: waiting requests ÷ first tokens a second; beside it the measured mean of requests that got through.",
            do="The estimate looks ahead, the measured mean back: trust the higher one.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="KV cache",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(WHERE.of("llm_kv_cache_usage_ratio"), "fullest rank {{model}}"),
                Query(WHERE.of("llm_kv_cache_usage_mean_ratio"), "mean of ranks {{model}}"),
            ),
            unit=RATIO,
            thresholds=(KV_USAGE,),
            least=0,
            most=1,
            means="Used share of the KV cache; cached blocks that nobody references count as free.",
            do="At the limit: more KV memory, fp8, shorter contexts, a smaller batch or another replica.",
            needs=Needs.TRAFFIC,
            alerts=("LLMKVCacheNearlyFull",),
        ),
        Panel(
            title="Preemptions",
            kind=Kind.TIME_SERIES,
            queries=(Query(per(MODEL, WHERE.rate("llm_preemptions_total")), "{{model}}"),),
            unit="cps",
            least=0,
            means="Requests thrown back to the queue for want of KV cache, per second; their prefill is done twice.",
            do="Any for long: lower the batch limit or give the KV cache more memory.",
            needs=Needs.TRAFFIC,
            alerts=("LLMPreemptionsHigh",),
        ),
        Panel(
            title="Prefix cache hit ratio",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(
                    f"{per(MODEL, WHERE.rate('llm_prefix_cache_hit_tokens_total'))}"
                    f" / ({per(MODEL, WHERE.rate('llm_prefix_cache_queried_tokens_total'))} > 0)",
                    "{{model}}",
                ),
            ),
            unit=RATIO,
            least=0,
            most=1,
            means="Share of looked-up prompt tokens that the prefix cache held. Empty while nothing is looked up, or with the cache off.",
            do="A fall: a changed prompt template, another router policy, a restart, or a KV cache too full to keep prefixes.",
            needs=Needs.TRAFFIC,
            alerts=("LLMPrefixCacheHitRatioLow",),
        ),
        Panel(
            title="KV cache capacity",
            kind=Kind.STAT,
            queries=(now(WHERE.of("llm_kv_cache_capacity_tokens"), "{{model}}"),),
            means="Tokens that the KV cache holds, all ranks.",
            do="`llm-exporter kv CONFIG_JSON` says what it should be.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Ranks",
            kind=Kind.TIME_SERIES,
            queries=(Query(WHERE.of("llm_rank_kv_cache_usage_ratio"), "KV cache, rank {{rank}} {{model}}"),),
            unit=RATIO,
            least=0,
            most=1,
            means="KV cache by data-parallel rank.",
            do="Ranks far apart: the router in front of them does not balance.",
            needs=Needs.RANKS,
        ),
        Panel(
            title="Disaggregated queues",
            kind=Kind.TIME_SERIES,
            queries=(Query(WHERE.of("llm_disaggregated_queue_requests"), "{{stage}} {{model}}"),),
            least=0,
            means="Requests between prefill and decode servers.",
            do="A queue at decode_transfer is the network between the two; at prefill_bootstrap too few prefill servers.",
            needs=Needs.DISAGGREGATED,
        ),
    ),
)
