"""TABLE: canonical fields ← SGLang's metrics, newest names first. From 0.3.5 to 0.5.23, as far as each release goes.

Two processes report: the tokenizer (requests; no rank) and the scheduler (one series per rank that reports). `sglang:x` becomes
`sglang_x` behind SGLang's gateway and for scrapers that ask for OpenMetrics; both are read. Many series are born at their first event.
Read by `compile.py`; the file to edit when SGLang renames something: add the new name in front of the old one.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_exporter.engines.facts import Facts, Key
from llm_exporter.engines.tables import Choice, Counted, EngineTable, Part, Row, Source, newest, one, release, values
from llm_exporter.readings import HTTP_CODES, Absence

ROUTES = frozenset(
    {
        "/generate",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v1/classify",
        "/v1/score",
        "/v1/rerank",
        "/v1/audio/transcriptions",
        "/encode",
        "/classify",
        "/invocations",
        "/vertex_generate",
        "/api/chat",
        "/api/generate",
        "/inference/v1/generate",
    }
)
"""Routes that put work into the engine, as the label `endpoint` spells them."""

ON_ROUTES = {"endpoint": ROUTES}
CODES = {str(code): f"{code // 100}xx" for code in range(100, 600) if f"{code // 100}xx" in HTTP_CODES}
STREAMED = values(is_streaming="true")
HITS = ("device_hit", "host_hit", "storage_hit")

# Proof that a release has a counter whose series is born late: names of the same process that are there from the start or earlier.
FINISHED = (":num_requests_total", ":prompt_tokens_total")
SINCE_0_5_7 = (":realtime_tokens_total", ":cuda_graph_passes_total")
REQUESTS_SEEN = (":num_requests_total", ":prompt_tokens_total", ":e2e_request_latency_seconds")
FORWARDS_SEEN = (":realtime_tokens_total", ":cuda_graph_passes_total", ":queue_time_seconds")


def counts_cached(facts: Facts) -> bool:
    """Whether the release counts cached tokens, though their series may not be born."""
    return facts.generation >= release("0.4.4")


def counts_aborts(facts: Facts) -> bool:
    """Whether the release counts aborts, though their series may not be born."""
    return facts.generation >= release("0.4.7")


def counts_live(facts: Facts) -> bool:
    """Whether the release counts tokens as the work happens, though their series may not be born."""
    return facts.generation >= release("0.5.7")


def page_size(facts: Facts) -> Mapping[Key, float]:
    """Tokens of a page of the KV cache, from the labels of cache_config_info (0.5.9 and 0.5.10)."""
    found: dict[Key, float] = {}
    for entry in facts.entries.get(":cache_config_info", []):
        try:
            found[entry.key] = float(entry.labels.get("page_size", ""))
        except ValueError:
            continue
    return found


def disaggregated(facts: Facts) -> bool:
    """Whether this is a prefill or decode server; a unified server has the queues too, for ever 0."""
    return facts.label_values("engine_type") != {"unified"}


def _unified(facts: Facts) -> Absence | None:
    if facts.generation < release("0.4.6.post5"):
        return Absence.NOT_SUPPORTED
    return None if disaggregated(facts) else Absence.FEATURE_OFF


def _nothing_streamed(facts: Facts) -> Absence | None:
    """Gaps are observed for streams only; from 0.5.17 on the page tells whether there was one."""
    streamed = facts.label_values("is_streaming")
    return Absence.NO_TRAFFIC if streamed and "true" not in streamed else None


def _token_histograms(facts: Facts) -> Absence | None:
    """From 0.5.2 to 0.5.22 the histograms of lengths needed --collect-tokens-histogram."""
    return Absence.FEATURE_OFF if release("0.5.2") <= facts.generation < release("0.5.23") else None


def _queue(*names_since: tuple[str, str], stage: str) -> Part:
    return Part(tuple(Source(name, since, optional=True) for name, since in names_since), label=stage)


_PROMPT = Source(":prompt_tokens_total", "0.3.5.post2")
_CACHED = Source(":cached_tokens_total", "0.4.4", optional=True)
_EFFECTIVE_HITS = Source(":prefill_effective_tokens_total", "0.5.18", values(mode=HITS))
_ABORTED = Source(":num_aborted_requests_total", "0.4.7", optional=True)
_STAGE = ":per_stage_req_latency_seconds"

ROWS = (
    Row("time_to_first_token", (one(Source(":time_to_first_token_seconds", "0.3.5.post2", STREAMED)),), Counted.FIRST_TOKEN,
        "Streaming requests only from 0.5.17 on; before, the others are in it. From the HTTP server's receipt, tokenising included.",
        born_with=REQUESTS_SEEN),
    Row("first_tokens", newest((":time_to_first_token_seconds_count", "0.3.5.post2")), Counted.FIRST_TOKEN, born_with=REQUESTS_SEEN),
    Row("inter_token_latency", newest((":inter_token_latency_seconds", "0.4.4"), (":time_per_output_token_seconds", "0.3.5.post2")),
        note="Gap between outputs divided by the tokens in them, weighted by tokens.", born_with=REQUESTS_SEEN, absent=_nothing_streamed),
    Row("time_per_output_token", newest((":request_time_per_output_token_seconds", "0.5.22")), Counted.FINISH, "Not of aborted requests.",
        born_with=REQUESTS_SEEN),
    Row("e2e_request_latency", newest((":e2e_request_latency_seconds", "0.3.5.post2")), Counted.FINISH, "Aborted requests are in it.",
        born_with=REQUESTS_SEEN),
    Row("streamed_request_latency", (one(Source(":e2e_request_latency_seconds", "0.3.5.post2", STREAMED)),), Counted.FINISH,
        "Streaming requests only from 0.5.17 on; before, the others are in it. Aborted requests are in it.", born_with=REQUESTS_SEEN),
    Row("request_queue_time", newest((":queue_time_seconds", "0.5.3"), (":queue_time_s", "0.5.2")), Counted.ADMISSION,
        "A second wait, after a retraction, is not in it. Until 0.5.11 nothing is told between 0 and 0.1 s.", born_with=FORWARDS_SEEN),
    Row("request_prefill_time", (one(Source(_STAGE, "0.5.3", values(stage="prefill_forward"))),), Counted.FIRST_TOKEN,
        born_with=FORWARDS_SEEN, possible=lambda facts: facts.label_values("engine_type") != {"decode"}),
    Row("request_prompt_tokens", newest((":prompt_tokens_histogram", "0.4.6.post5")), Counted.FINISH, flag="--collect-tokens-histogram",
        absent=_token_histograms),
    Row("request_generation_tokens", newest((":generation_tokens_histogram", "0.4.6.post5")), Counted.FINISH, flag="--collect-tokens-histogram",
        absent=_token_histograms),
    Row("prompt_tokens", (one(Source(":prefill_effective_tokens_total", "0.5.18")), one(_PROMPT)), Counted.LIVE,
        "As prefill batches run from 0.5.18 on; before, when a request finishes, in one jump.", born_with=REQUESTS_SEEN),
    Row("prompt_tokens_cached",
        (one(_EFFECTIVE_HITS),
         one(Source(":cached_tokens_total", "0.4.4"), zero_with=FINISHED)),
        Counted.LIVE, "As prefill batches run from 0.5.18 on; before, when a request finishes.", born_with=REQUESTS_SEEN),
    Row("prompt_tokens_computed",
        (one(Source(":realtime_tokens_total", "0.5.7", values(mode="prefill_compute")), zero_with=SINCE_0_5_7),
         Choice((Part((_PROMPT,), (_CACHED,)),), needs=counts_cached, since="0.4.4")),
        Counted.LIVE, "Computation again after a retraction is in it. Before 0.5.7 prompt less cached, when a request finishes.",
        born_with=REQUESTS_SEEN),
    Row("generation_tokens",
        (Choice((Part((Source(":realtime_tokens_total", "0.5.7", values(mode="decode"), optional=True),
                       Source(_STAGE + "_count", "0.5.3", values(stage="prefill_forward"), optional=True),
                       Source(":num_retracted_requests_total", "0.5.7", optional=True))),),
                zero_with=SINCE_0_5_7, needs=counts_live, since="0.5.7"),
         one(Source(":generation_tokens_total", "0.3.5.post2"))),
        Counted.LIVE, "Decoded tokens, and one token per prefill, those after a retraction too. Before 0.5.7 when a request finishes, in one jump.",
        born_with=REQUESTS_SEEN),
    Row("prefix_cache_queried_tokens",
        (one(Source(":prefill_effective_tokens_total", "0.5.18")),
         one(Source(":realtime_tokens_total", "0.5.7", values(mode=("prefill_compute", "prefill_cache"))), zero_with=SINCE_0_5_7),
         Choice((Part((_PROMPT,)),), needs=counts_cached, since="0.4.4")),
        Counted.LIVE, "Before 0.5.18 retracted requests are counted again; before 0.5.7 when a request finishes.", born_with=REQUESTS_SEEN),
    Row("prefix_cache_hit_tokens",
        (one(_EFFECTIVE_HITS),
         one(Source(":realtime_tokens_total", "0.5.7", values(mode="prefill_cache")), zero_with=SINCE_0_5_7),
         one(Source(":cached_tokens_total", "0.4.4"), zero_with=FINISHED)),
        Counted.LIVE, "As the lookups. Never from the gauge cache_hit_rate, which is that of the last batch.", born_with=REQUESTS_SEEN),
    Row("requests_received",
        (one(Source(":http_requests_total", "0.5.7", ON_ROUTES), zero_with=(":http_requests_total",)), one(Source(":num_requests_total", "0.4.2"))),
        Counted.ARRIVAL, "HTTP requests of the inference routes. Before 0.5.7 finished requests.", born_with=REQUESTS_SEEN),
    Row("requests_finished",
        (Choice((Part((Source(":num_requests_total", "0.4.2"),), (_ABORTED,), "other"), Part((_ABORTED,), label="abort")),
                seed=("other", "abort"), needs=counts_aborts),
         Choice((Part((Source(":num_requests_total", "0.4.2"),), label="other"),))),
        Counted.FINISH, "abort counts abort messages (a client that goes away, /abort_request; abort_all is one). other is all else.",
        born_with=REQUESTS_SEEN),
    Row("preemptions",
        (one(Source(":num_retracted_requests_total", "0.5.7"), zero_with=SINCE_0_5_7),
         one(Source(":num_retractions_sum", "0.5.4.post3")),
         one(Source(":total_retracted_reqs", "0.4.9.post6"))),
        note="Requests retracted. 0.5.4 to 0.5.6: retractions of finished requests."),
    Row("http_responses",
        (one(Source(":http_responses_total", "0.5.7", ON_ROUTES, label="status_code", rename=CODES),
             zero_with=(":http_responses_total", ":http_requests_total"), seed=HTTP_CODES),),
        Counted.ANSWERED),
    Row("requests_running", newest((":num_running_reqs", "0.3.5.post2")), Counted.STATE,
        "Refreshed at prefills, every 40 decode steps and when idle."),
    Row("requests_waiting", (one(Source(":num_queue_reqs", "0.3.5.post2"), Source(":num_grammar_queue_reqs", "0.4.6.post5", optional=True)),), Counted.STATE,
        "Waiting queue and grammar queue."),
    Row("requests_waiting_capacity", newest((":num_queue_reqs", "0.3.5.post2")), Counted.STATE),
    Row("requests_deferred", newest((":num_grammar_queue_reqs", "0.4.6.post5")), Counted.STATE, "Requests that wait for their grammar."),
    Row("disaggregated_queue_requests",
        (Choice((_queue((":num_prefill_bootstrap_queue_reqs", "0.5.12"), (":num_prefill_prealloc_queue_reqs", "0.4.6.post5"), stage="prefill_bootstrap"),
                 _queue((":num_prefill_inflight_queue_reqs", "0.5.2"), (":num_prefill_infight_queue_reqs", "0.4.6.post5"), stage="prefill_inflight"),
                 _queue((":num_decode_prealloc_queue_reqs", "0.4.6.post5"), stage="decode_prealloc"),
                 _queue((":num_decode_transfer_queue_reqs", "0.4.6.post5"), stage="decode_transfer")),
                needs=disaggregated, since="0.4.6.post5"),),
        Counted.STATE, absent=_unified),
    Row("kv_cache_usage", newest((":token_usage", "0.3.5.post2")), Counted.STATE, "Of the fullest pool; rounded to 0.01 by the server."),
    Row("kv_cache_usage_mean", newest((":token_usage", "0.3.5.post2")), Counted.STATE, "Rounded to 0.01 by the server."),
    Row("kv_cache_capacity_tokens", newest((":max_total_num_tokens", "0.5.6")), Counted.CONSTANT),
    Row("kv_cache_block_tokens",
        (one(Source(":page_size", "0.5.11")), Choice((Part((Source(":cache_config_info", "0.5.9"),)),), constants=page_size)), Counted.CONSTANT),
    Row("steps", (one(Source(":cuda_graph_passes_total", "0.5.7")),), note="Forward passes.", born_with=FORWARDS_SEEN),
    Row("realtime_tokens", (one(Source(":realtime_tokens_total", "0.5.7", label="mode")),), born_with=FORWARDS_SEEN),
    Row("prefill_effective_tokens", (one(Source(":prefill_effective_tokens_total", "0.5.18", label="mode")),)),
    Row("recomputed_input_tokens", (one(Source(":num_retracted_input_tokens_total", "0.5.7"), zero_with=SINCE_0_5_7),)),
    Row("evicted_tokens", (one(Source(":evicted_tokens_total", "0.5.6"), zero_with=SINCE_0_5_7),)),
    Row("request_process_time", (one(Source(_STAGE, "0.5.3", values(stage="request_process"))),), Counted.ADMISSION, born_with=FORWARDS_SEEN),
    Row("forward_execution_seconds",
        (one(Source(":forward_execution_seconds_total", "0.5.11", label="category")),
         one(Source(":gpu_execution_seconds_total", "0.5.7", label="category"))),
        flag="SGLANG_ENABLE_METRICS_DEVICE_TIMER=1"),
    Row("scheduler_idle_seconds", newest((":scheduler_idle_seconds_total", "0.5.20"))),
    Row("scheduler_stage_seconds", (one(Source(":scheduler_stage_seconds_total", "0.5.20", label="category")),)),
    Row("scheduler_cpu_seconds", newest((":scheduler_process_cpu_seconds_total", "0.5.20"))),
    Row("frontend_cpu_seconds", (one(Source(":process_cpu_seconds_total", "0.5.8", label="component")),)),
    Row("graph_passes", (one(Source(":cuda_graph_passes_total", "0.5.7", label="mode")),), born_with=FORWARDS_SEEN),
    Row("estimated_flops", newest((":estimated_flops_per_gpu_total", "0.5.10")), flag="--enable-mfu-metrics"),
    Row("http_requests_active", (one(Source(":http_requests_active", "0.5.8", ON_ROUTES), zero_with=(":http_requests_active",)),), Counted.STATE),
    Row("context_tokens_limit", newest((":context_len", "0.5.11")), Counted.CONSTANT),
)  # fmt: skip


TABLE = EngineTable(
    engine="sglang",
    prefix="sglang",
    model_label="model_name",
    rank_label="dp_rank",
    repeated=frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "ep_rank", "cp_rank", "attn_cp_rank", "moe_dp_rank", "attn_tp_rank", "pid"}),
    totals={"priority": "", "cache_source": "total"},
    rows=ROWS,
    markers={
        ":gen_throughput": "0.3.5.post2",
        ":num_used_tokens": "0.3.5.post2",
        ":cache_hit_rate": "0.3.5.post2",
        ":num_so_requests_total": "0.4.6.post5",
        ":spec_accept_length": "0.4.2",
        ":swa_token_usage": "0.5.2",
        ":utilization": "0.5.2",
        ":new_token_ratio": "0.5.6",
        ":decode_sum_seq_lens": "0.5.7",
        ":full_token_usage": "0.5.10",
        ":kv_available_tokens": "0.5.11",
        ":uncached_prompt_tokens_histogram": "0.5.12",
        ":startup_time_seconds": "0.5.17",
        ":dp_attention_steps_total": "0.5.22",
        ":prealloc_full_token_usage": "0.5.23",
    },
    hint="an SGLang server has metrics with --enable-metrics only",
)
