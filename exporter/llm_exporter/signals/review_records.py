"""The only series that the capacity review reads: recording rules as data.

In: nothing. Out: `RECORDS`, read by `history.py` (which asks for the record, or for its expression where the rule is missing) and by the
generator of alert rules (which emits each as a recording rule). Counters are recorded as levels, not as rates: the review forms the
increases itself, so a restart, a gap or an engine swap is seen for what it is. No record reads a metric with the label `window`.

Expressions use `without`, so that labels a Prometheus server adds (cluster, region) survive and can be matched.
"""

from __future__ import annotations

from typing import NamedTuple

STEP_SECONDS = 300
COARSE_SECONDS = 3600
DEFAULT_RANGE = "5m"


class Record(NamedTuple):
    """One recording rule.

    Attributes:
        key: the word by which the review knows it.
        record: name of the recorded series, `level:metric:operations`.
        template: PromQL; `$R` is the range, `$M` the user's matchers in braces (or nothing), `$N` the same after a comma.
        meaning: one sentence for the generated documentation.
        level: True where the value is a counter as it stands; the review takes its increases.
        coarse: True where one value an hour is enough (histogram buckets, verdicts); all others are read every five minutes.
        per: labels that tell series of one target apart.
    """

    key: str
    record: str
    template: str
    meaning: str
    level: bool = False
    coarse: bool = False
    per: tuple[str, ...] = ()

    def expression(self, window: str = DEFAULT_RANGE, matchers: str = "") -> str:
        """PromQL over the raw metrics.

        Args:
            window: range of the inner functions; at least four scrape intervals.
            matchers: `cluster="a"`, without braces; empty for none.
        """
        braces, comma = (f"{{{matchers}}}", f",{matchers}") if matchers else ("", "")
        return self.template.replace("$R", window).replace("$M", braces).replace("$N", comma)

    def selector(self, matchers: str = "") -> str:
        """PromQL that reads the recorded series."""
        return f"{self.record}{{{matchers}}}" if matchers else self.record


def _level(key: str, metric: str, meaning: str, *per: str, coarse: bool = False) -> Record:
    stem = metric.removesuffix("_total")
    return Record(key, f"target:{stem}:last5m", f"last_over_time({metric}$M[$R])", meaning, True, coarse, per)


def _mean(key: str, metric: str, meaning: str) -> Record:
    return Record(key, f"target:{metric}:avg5m", f"avg_over_time({metric}$M[$R])", meaning)


_JOIN = "llm_gpu_target$M * on (job, instance, gpu) group_left ()"
# A power cap is how a GPU under full load looks; heat, brakes and slowdowns are not.
_HARMFUL = 'reason=~"hw_slowdown|.*thermal.*|.*brake.*"'

RECORDS: tuple[Record, ...] = (
    _mean("up", "llm_target_up", "Share of the last five minutes in which the target's page could be read."),
    _level("prompt_tokens", "llm_prompt_tokens_total", "Prompt tokens, cached ones included."),
    _level("computed_tokens", "llm_prompt_tokens_computed_total", "Prompt tokens that were computed."),
    _level("generation_tokens", "llm_generation_tokens_total", "Output tokens."),
    _level("queried_tokens", "llm_prefix_cache_queried_tokens_total", "Prompt tokens looked up in the prefix cache."),
    _level("hit_tokens", "llm_prefix_cache_hit_tokens_total", "Prompt tokens found in the prefix cache."),
    _level("received", "llm_requests_received_total", "Requests received."),
    _level("finished", "llm_requests_finished_total", "Requests finished.", "outcome"),
    _level("rejected", "llm_requests_rejected_total", "Requests refused at the door.", "reason"),
    _level("preemptions", "llm_preemptions_total", "Requests thrown back to the queue for want of KV cache."),
    _level("restarts", "llm_engine_restarts_total", "Engine restarts seen."),
    _level("slo_requests", "llm_slo_requests_total", "Requests that an SLO counts.", "slo"),
    _level("slo_good", "llm_slo_good_requests_total", "Requests that met an SLO.", "slo"),
    _level("first_tokens", "llm_time_to_first_token_seconds_count", "First tokens sent."),
    _mean("running", "llm_requests_running", "Mean number of running requests."),
    _mean("waiting", "llm_requests_waiting", "Mean number of waiting requests."),
    _mean("kv_usage", "llm_kv_cache_usage_ratio", "Mean used share of the KV cache."),
    _mean("starved", "llm_gpu_starved", "Share of the last five minutes in which the GPUs were called starved."),
    Record("gpus", "target:llm_gpu_target:sum5m", "sum without (gpu) (last_over_time(llm_gpu_target$M[$R]))", "GPUs of the target."),
    Record(
        "busy",
        "target:llm_gpu_active:sum_avg5m",
        f"sum without (gpu) ({_JOIN} (avg_over_time(llm_gpu_graphics_active_ratio$M[$R])"
        " or avg_over_time(llm_gpu_utilization_ratio$M[$R])))",
        "GPUs of the target that are busy: active share (else utilisation), summed.",
    ),
    Record(
        "throttled",
        "target:llm_gpu_throttled_seconds:sum_rate5m",
        f"sum without (gpu) ({_JOIN} max without (reason) (rate(llm_gpu_throttled_seconds_total{{{_HARMFUL}$N}}[$R])))",
        "GPUs of the target that are slowed down by heat or a brake: GPU-seconds per second; a power cap is not counted.",
    ),
    _level("ttft_bucket", "llm_time_to_first_token_seconds_bucket", "Time to first token, buckets.", "le", coarse=True),
    _level("itl_bucket", "llm_inter_token_latency_seconds_bucket", "Inter-token latency, buckets.", "le", coarse=True),
    _level("e2e_sum", "llm_e2e_request_latency_seconds_sum", "Request latency, sum.", coarse=True),
    _level("e2e_count", "llm_e2e_request_latency_seconds_count", "Request latency, count.", coarse=True),
    _level("ttft_sum", "llm_time_to_first_token_seconds_sum", "Time to first token, sum.", coarse=True),
    _level("queue_sum", "llm_request_queue_time_seconds_sum", "Time in the queue, sum.", coarse=True),
    _level("queue_count", "llm_request_queue_time_seconds_count", "Time in the queue, count.", coarse=True),
    _level("prefill_sum", "llm_request_prefill_time_seconds_sum", "Prefill time, sum.", coarse=True),
    _level("decode_sum", "llm_request_decode_time_seconds_sum", "Decode time, sum.", coarse=True),
    Record(
        "verdict",
        "target:llm_bottleneck_verdict:avg1h",
        "avg_over_time(llm_bottleneck_verdict$M[1h])",
        "Share of the last hour by what limited the target.",
        coarse=True,
        per=("cause",),
    ),
)

# Facts without a rule: read raw, one value an hour; they change rarely and have few series.
FACTS: tuple[Record, ...] = (
    Record("info", "", "last_over_time(llm_target_info$M[1h])", "Engine, version and service of a target.", coarse=True),
    Record("slo_threshold", "", "last_over_time(llm_slo_threshold_seconds$M[1h])", "Threshold of an SLO.", coarse=True, per=("slo",)),
    Record("slo_objective", "", "last_over_time(llm_slo_objective_ratio$M[1h])", "Objective of an SLO.", coarse=True, per=("slo",)),
)

RECORD = {record.key: record for record in (*RECORDS, *FACTS)}
