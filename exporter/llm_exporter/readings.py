"""The vocabulary: every canonical field of an engine, once, with its unit and meaning.

A *reading* is what one source said at one moment. `engines/` turns a page into an `EngineReading`; `state/` remembers readings;
`signals/` derives from them. A field with `metric` is published as it stands (CONTRACT 6.1); one without is evidence for signals only.

Read this file first, then `signals/model.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """How a field behaves over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Unit(StrEnum):
    """Base units. The value is the suffix that a metric's name must carry ("" for pure counts of things)."""

    SECONDS = "seconds"
    TIMESTAMP = "timestamp_seconds"
    TOKENS = "tokens"
    REQUESTS = "requests"
    RATIO = "ratio"
    BYTES = "bytes"
    WATTS = "watts"
    JOULES = "joules"
    CELSIUS = "celsius"
    HERTZ = "hertz"
    TOKENS_PER_SECOND = "tokens_per_second"
    REQUESTS_PER_SECOND = "requests_per_second"
    BYTES_PER_SECOND = "bytes_per_second"
    CORES = "cores"
    COUNT = ""
    FLAG = ""
    INFO = "info"


class Merge(StrEnum):
    """How the data-parallel ranks of one server become one value. Tensor and pipeline ranks are merged before, in `engines/`."""

    SUM = "sum"
    MAX = "max"
    MEAN = "mean"
    ONCE = "once"  # the same for all ranks: the highest is taken


class Field(NamedTuple):
    """One canonical field.

    `label` names the one extra label the field may have; `values` is its closed set, which a counter starts at 0 (CONTRACT 6).
    """

    name: str
    kind: Kind
    unit: Unit
    help: str
    metric: str = ""
    label: str = ""
    values: tuple[str, ...] = ()
    merge: Merge = Merge.SUM


OUTCOMES = ("stop", "length", "abort", "error", "other")
HTTP_CODES = ("2xx", "4xx", "5xx")
DISAGGREGATED_STAGES = ("prefill_bootstrap", "prefill_inflight", "decode_prealloc", "decode_transfer")

_C, _G, _H = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM
_S, _T, _R = Unit.SECONDS, Unit.TOKENS, Unit.REQUESTS

# fmt: off
FIELDS: tuple[Field, ...] = (
    # histograms
    Field("time_to_first_token",    _H, _S, "Time from the server's receipt of a request to its first output token; streaming requests only, where the engine tells them apart.", "llm_time_to_first_token_seconds"),
    Field("inter_token_latency",    _H, _S, "Gap between two successive outputs of one request, as it happens.", "llm_inter_token_latency_seconds"),
    Field("time_per_output_token",  _H, _S, "Decode time of a finished request per output token after the first.", "llm_time_per_output_token_seconds"),
    Field("e2e_request_latency",    _H, _S, "Time from the server's receipt of a request to its last token; observed when it finishes.", "llm_e2e_request_latency_seconds"),
    Field("request_queue_time",     _H, _S, "Time a request waited in the scheduler's queue before it was first scheduled.", "llm_request_queue_time_seconds"),
    Field("request_prefill_time",   _H, _S, "Time from a request's first scheduling to its first token, all chunks and waits between them.", "llm_request_prefill_time_seconds"),
    Field("request_decode_time",    _H, _S, "Time from a request's first to its last token.", "llm_request_decode_time_seconds"),
    Field("request_prompt_tokens",  _H, _T, "Prompt tokens of a finished request, cached ones included.", "llm_request_prompt_tokens"),
    Field("request_generation_tokens", _H, _T, "Output tokens of a finished request.", "llm_request_generation_tokens"),
    # counters
    Field("prompt_tokens",          _C, _T, "Prompt tokens, cached ones included.", "llm_prompt_tokens_total"),
    Field("prompt_tokens_cached",   _C, _T, "Prompt tokens that were served from a cache instead of being computed.", "llm_prompt_tokens_cached_total"),
    Field("prompt_tokens_computed", _C, _T, "Prompt tokens that were computed: the prefill work done.", "llm_prompt_tokens_computed_total"),
    Field("generation_tokens",      _C, _T, "Output tokens.", "llm_generation_tokens_total"),
    Field("prefix_cache_queried_tokens", _C, _T, "Prompt tokens that were looked up in the prefix cache.", "llm_prefix_cache_queried_tokens_total"),
    Field("prefix_cache_hit_tokens", _C, _T, "Prompt tokens that the prefix cache held.", "llm_prefix_cache_hit_tokens_total"),
    Field("requests_received",      _C, _R, "Requests that the inference routes received (prompts, where the engine tells them from sequences).", "llm_requests_received_total"),
    Field("requests_finished",      _C, _R, "Finished requests by outcome.", "llm_requests_finished_total", "outcome", OUTCOMES),
    Field("requests_rejected",      _C, _R, "Requests refused by an admission limit, by the engine's reason.", "llm_requests_rejected_total", "reason"),
    Field("preemptions",            _C, Unit.COUNT, "Times a running request was thrown back to the queue for want of KV cache (retractions too).", "llm_preemptions_total"),
    Field("http_responses",         _C, Unit.COUNT, "Answers of the inference routes by class of status code; a refusal or a crash inside a stream is 2xx.", "llm_http_responses_total", "code", HTTP_CODES),
    # gauges
    Field("requests_running",       _G, _R, "Requests in the running batch.", "llm_requests_running"),
    Field("requests_waiting",       _G, _R, "Requests in the scheduler's queue, deferred ones included.", "llm_requests_waiting"),
    Field("requests_waiting_capacity", _G, _R, "Waiting requests that lack only room (KV cache or a place in the batch).", "llm_requests_waiting_capacity"),
    Field("requests_deferred",      _G, _R, "Requests that wait for something other than room: LoRA budget, KV transfer, grammar.", "llm_requests_deferred"),
    Field("requests_running_limit", _G, _R, "Most requests that the batch may hold.", "llm_requests_running_limit"),
    Field("disaggregated_queue_requests", _G, _R, "Requests in the queues of a prefill or decode server of a disaggregated pair.", "llm_disaggregated_queue_requests", "stage", DISAGGREGATED_STAGES),
    Field("kv_cache_usage",         _G, Unit.RATIO, "Used share of the KV cache of the fullest rank; cached blocks that nobody references count as free.", "llm_kv_cache_usage_ratio", merge=Merge.MAX),
    Field("kv_cache_usage_mean",    _G, Unit.RATIO, "Used share of the KV cache, mean of all ranks.", "llm_kv_cache_usage_mean_ratio", merge=Merge.MEAN),
    Field("kv_cache_capacity_tokens", _G, _T, "Tokens that the KV cache holds, all ranks.", "llm_kv_cache_capacity_tokens"),
    Field("kv_cache_block_tokens",  _G, _T, "Tokens in one block of the KV cache; a shared prefix shorter than this cannot hit.", "llm_kv_cache_block_tokens", merge=Merge.ONCE),
    # evidence only
    Field("first_tokens",           _C, _R, "Requests whose first token came out, streaming or not: starts of service."),
    Field("steps",                  _C, Unit.COUNT, "Engine steps with output (vLLM) or forward passes (SGLang): proof of progress."),
    Field("realtime_tokens",        _C, _T, "Tokens counted as the work happens, by mode: prefill_compute, prefill_cache, decode.", "", "mode"),
    Field("prefill_effective_tokens", _C, _T, "Prefill tokens without those counted again after a retraction, by mode: input, device_hit, host_hit, storage_hit.", "", "mode"),
    Field("recomputed_input_tokens", _C, _T, "Prompt tokens thrown away by retractions."),
    Field("evicted_tokens",         _C, _T, "Tokens evicted from the prefix cache."),
    Field("streamed_request_latency", _H, _S, "SGLang: as e2e_request_latency, of streaming requests only, of which its time to first token is."),
    Field("request_process_time",   _H, _S, "SGLang: time from the scheduler's receipt of a request to its entry into the waiting queue."),
    Field("forward_execution_seconds", _C, _S, "GPU seconds inside forward passes, by category (SGLang with its device timer).", "", "category"),
    Field("scheduler_idle_seconds", _C, _S, "Wall seconds in which the scheduler had no work.", "", merge=Merge.SUM),
    Field("scheduler_stage_seconds", _C, _S, "Wall seconds of the scheduler's loop, by stage.", "", "category"),
    Field("scheduler_cpu_seconds",  _C, _S, "CPU seconds of the scheduler process."),
    Field("frontend_cpu_seconds",   _C, _S, "CPU seconds of the server's other processes, by component.", "", "component"),
    Field("graph_passes",           _C, Unit.COUNT, "Forward passes by mode (decode_cuda_graph, decode_none, prefill_cuda_graph, prefill_none).", "", "mode"),
    Field("estimated_flops",        _C, Unit.COUNT, "Floating-point operations per GPU, the engine's own estimate."),
    Field("http_requests_active",   _G, _R, "Requests on the inference routes that are being answered."),
    Field("awake",                  _G, Unit.FLAG, "1 while the engine is awake, 0 while it sleeps.", merge=Merge.MAX),
    Field("context_tokens_limit",   _G, _T, "Longest context that the server accepts.", merge=Merge.ONCE),
    Field("prefix_cache_enabled",   _G, Unit.FLAG, "1 where the prefix cache is on, 0 where it is off.", merge=Merge.ONCE),
    Field("process_start_time",     _G, Unit.TIMESTAMP, "Start of the process that serves the page.", merge=Merge.ONCE),
)
# fmt: on

FIELD: Mapping[str, Field] = {row.name: row for row in FIELDS}

# Gauges that also appear per data-parallel rank, where there are several (CONTRACT 6.1).
RANK_METRICS: Mapping[str, str] = {
    "requests_running": "llm_rank_requests_running",
    "requests_waiting": "llm_rank_requests_waiting",
    "kv_cache_usage": "llm_rank_kv_cache_usage_ratio",
}


class Slot(NamedTuple):
    """Where one number of a reading belongs.

    part: "value" for counters and gauges; "bucket" (with `le`, cumulative, +inf last) and "sum" for histograms; `le` is -1 elsewhere.
    The count of a histogram is its +inf bucket. `rank` is the data-parallel rank ("" where the engine names none).
    """

    field: str
    model: str
    rank: str
    label: str
    part: str = "value"
    le: float = -1.0


class Absence(StrEnum):
    """Why a field is not there. The values are those of `llm_signal_status` (CONTRACT 6.2)."""

    NOT_SUPPORTED = "not_supported"  # this engine or release never has it
    NOT_EXPOSED = "not_exposed"  # it should have it, and the page lacks it
    FEATURE_OFF = "feature_off"  # the server was started without it
    NO_TRAFFIC = "no_traffic"  # the engine shows it from its first event on, and there was none yet


class Layout:
    """The slots of a reading, in order. Two readings of the same shape share one Layout object, so `is` tells a changed shape.

    Attributes:
        slots: one per number.
        sources: per field, the upstream metric names that were used, for `explain` and HELP.
        absent: per canonical field that is missing, why.
    """

    __slots__ = ("absent", "index", "models", "ranks", "slots", "sources")

    def __init__(self, slots: Sequence[Slot], sources: Mapping[str, tuple[str, ...]], absent: Mapping[str, Absence]) -> None:
        self.slots = tuple(slots)
        self.sources = dict(sources)
        self.absent = dict(absent)
        self.index = {slot: position for position, slot in enumerate(self.slots)}
        self.models = tuple(dict.fromkeys(slot.model for slot in self.slots))
        self.ranks = tuple(dict.fromkeys(slot.rank for slot in self.slots))


@dataclass(frozen=True, slots=True)
class EngineReading:
    """What an engine's page said, in canonical words, per data-parallel rank.

    Attributes:
        engine: "vllm" or "sglang".
        layout: which number is which.
        values: one float per slot, finite; raw counters as the engine gave them.
        anomalies: impossible inputs met while reading (NaN in a counter, buckets that fall), by kind.
        page_age_seconds: age of the page by its own timestamps; None where it has none.
    """

    engine: str
    layout: Layout
    values: Sequence[float]
    anomalies: Mapping[str, int] = field(default_factory=dict)
    page_age_seconds: float | None = None
