"""TABLE: canonical fields ← vLLM's metrics, newest names first. From 0.3.3 (V0) to 0.33 (V1), as far as each release goes.

V1 labels every series with `engine`, the index of a data-parallel rank; V0 has `model_name` alone. Releases are those in which a name
was first seen. Read by `compile.py`; the file to edit when vLLM renames something: add the new name in front of the old one.
"""

from __future__ import annotations

from collections.abc import Mapping

from llm_exporter.engines.facts import Facts, Key
from llm_exporter.engines.tables import Choice, Counted, EngineTable, Part, Row, Source, newest, one, values
from llm_exporter.readings import HTTP_CODES, OUTCOMES, Absence

ROUTES = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/embeddings",
        "/v2/embed",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/chat/completions/batch",
        "/inference/v1/generate",
        "/generate",
        "/generative_scoring",
        "/invocations",
    }
)
"""Routes that put work into the engine, as the label `handler` spells them."""

ON_ROUTES = {"handler": ROUTES}
OUTCOME_NAMES = {"stop": "stop", "length": "length", "abort": "abort", "error": "error"}


def tokens_per_lookup(facts: Facts) -> float | None:
    """Factor that turns `gpu_prefix_cache_*` into tokens: up to 0.8.5 they count blocks, afterwards tokens, and HELP says which."""
    text = facts.helps.get(":gpu_prefix_cache_queries_total") or facts.helps.get(":gpu_prefix_cache_queries") or ""
    if "tokens" in text:
        return 1.0
    return _one_size(facts, "block_size") if "blocks" in text else None


def v1(facts: Facts) -> bool:
    """Whether the page is a V1 engine's: it labels ranks, or (0.7.3 to 0.8.0) counts prefix-cache lookups."""
    return facts.ranks or ":gpu_prefix_cache_queries_total" in facts.present


def _config(facts: Facts, label: str) -> dict[Key, float]:
    """A number from the labels of cache_config_info, per rank; "None" and the like give nothing."""
    found: dict[Key, float] = {}
    for entry in facts.entries.get(":cache_config_info", []):
        try:
            number = float(entry.labels.get(label, ""))
        except ValueError:
            continue
        if 0 < number < float("inf"):
            found[entry.key] = max(number, found.get(entry.key, 0.0))
    return found


def _one_size(facts: Facts, label: str) -> float | None:
    sizes = set(_config(facts, label).values())
    return sizes.pop() if len(sizes) == 1 else None


def capacity_tokens(facts: Facts) -> Mapping[Key, float]:
    """Tokens of each rank: kv_cache_size_tokens, else blocks × block size. num_gpu_blocks is the sum of the server's ranks, on each."""
    told = _config(facts, "kv_cache_size_tokens")
    if told:
        return told
    blocks, size = _config(facts, "num_gpu_blocks"), _config(facts, "block_size")
    return {key: count * size[key] / len(blocks) for key, count in blocks.items() if key in size}


def block_tokens(facts: Facts) -> Mapping[Key, float]:
    """Tokens of a block."""
    return _config(facts, "block_size")


def prefix_cache_enabled(facts: Facts) -> Mapping[Key, float]:
    """1 or 0 from enable_prefix_caching; releases before 0.5.5 and the value "None" do not tell."""
    flags = {"True": 1.0, "False": 0.0}
    return {
        entry.key: flags[entry.labels["enable_prefix_caching"]]
        for entry in facts.entries.get(":cache_config_info", [])
        if entry.labels.get("enable_prefix_caching") in flags
    }


def _not_told(facts: Facts) -> Absence | None:
    """cache_config_info without the label, or without a number in it. V1 began (0.7.3) without it."""
    if ":cache_config_info" in facts.present:
        return Absence.NOT_EXPOSED
    return _first_v1(facts)


def _first_v1(facts: Facts) -> Absence | None:
    """V1 before it labelled ranks (0.7.3, 0.8.0), where a field of V0 came back later."""
    return Absence.NOT_SUPPORTED if v1(facts) and not facts.ranks else None


def _no_answers_yet(facts: Facts) -> Absence | None:
    """In multi-process mode (no process metrics) the HTTP metrics are born with the first answer."""
    return None if "process_start_time_seconds" in facts.present else Absence.NO_TRAFFIC


def _single_process_only(facts: Facts) -> Absence | None:
    """Several API servers share a registry, and that has no process metrics."""
    return None if "process_start_time_seconds" in facts.present else Absence.NOT_SUPPORTED


_HITS = (
    one(Source(":prefix_cache_hits_total", "0.9.2")),
    Choice((Part((Source(":gpu_prefix_cache_hits_total", "0.7.3"),)),), scale=tokens_per_lookup),
)
_QUERIES = (
    one(Source(":prefix_cache_queries_total", "0.9.2")),
    Choice((Part((Source(":gpu_prefix_cache_queries_total", "0.7.3"),)),), scale=tokens_per_lookup),
)
_PROMPT = Source(":prompt_tokens_total", "0.3.3")
_EXTERNAL = Source(":external_prefix_cache_hits_total", "0.11.1", optional=True)


def tokens_in_lookups(facts: Facts) -> float | None:
    """1 where the lookups are in tokens already: a difference with prompt tokens needs both in one unit."""
    return 1.0 if tokens_per_lookup(facts) == 1.0 else None


ROWS = (
    Row("time_to_first_token", newest((":time_to_first_token_seconds", "0.3.3")), Counted.FIRST_TOKEN,
        "Streaming or not is not told apart. From arrival in the API server (before tokenising from 0.17 on)."),
    Row("first_tokens", newest((":time_to_first_token_seconds_count", "0.3.3")), Counted.FIRST_TOKEN, "Sequences: n > 1 counts n times."),
    Row("inter_token_latency", newest((":inter_token_latency_seconds", "0.10.2"), (":time_per_output_token_seconds", "0.3.3")),
        note="One observation per output of the engine, which holds several tokens with speculative decoding."),
    Row("time_per_output_token", newest((":request_time_per_output_token_seconds", "0.11.0")), Counted.FINISH,
        "A request with one output token observes 0.", possible=v1),
    Row("e2e_request_latency", newest((":e2e_request_latency_seconds", "0.3.3")), Counted.FINISH,
        "Requests whose client went away are not observed."),
    Row("request_queue_time", newest((":request_queue_time_seconds", "0.6.6"), (":time_in_queue_requests", "0.6.6")), Counted.FINISH,
        "Waits after a preemption are not in it. Lowest bound is 0.3 s: use mean, not quantiles."),
    Row("request_prefill_time", newest((":request_prefill_time_seconds", "0.6.6")), Counted.FINISH, "Lowest bound is 0.3 s."),
    Row("request_decode_time", newest((":request_decode_time_seconds", "0.6.6")), Counted.FINISH, "Preemptions are in it."),
    Row("request_prompt_tokens", newest((":request_prompt_tokens", "0.4.3")), Counted.FINISH),
    Row("request_generation_tokens", newest((":request_generation_tokens", "0.4.3")), Counted.FINISH),
    Row("prompt_tokens", (one(_PROMPT),), Counted.FIRST_TOKEN, "Computation again after a preemption is in no counter."),
    Row("prompt_tokens_cached",
        (one(Source(":prompt_tokens_cached_total", "0.16.0")),
         one(Source(":prompt_tokens_by_source_total", "0.16.0", values(source=("local_cache_hit", "external_kv_transfer")))),
         one(Source(":prefix_cache_hits_total", "0.9.2"), _EXTERNAL),
         Choice((Part((Source(":gpu_prefix_cache_hits_total", "0.7.3"),)),), scale=tokens_per_lookup)),
        Counted.FIRST_TOKEN, "Before 0.16 from the prefix cache's hits, which are counted at admission.", possible=v1,
        absent=lambda facts: Absence.NOT_SUPPORTED if _lookups_in_unknown_unit(facts) else None),
    Row("prompt_tokens_computed",
        (one(Source(":prompt_tokens_by_source_total", "0.16.0", values(source="local_compute"))),
         one(_PROMPT, minus=(Source(":prompt_tokens_cached_total", "0.16.0"),)),
         one(_PROMPT, minus=(Source(":prefix_cache_hits_total", "0.9.2"), _EXTERNAL)),
         Choice((Part((_PROMPT,), (Source(":gpu_prefix_cache_hits_total", "0.7.3"),)),), scale=tokens_in_lookups)),
        Counted.FIRST_TOKEN, "Before 0.16 prompt less hits; held, not falling, while hits of requests in flight are ahead of their prompts. "
        "V0, and V1 while it counted blocks, do not tell.", possible=v1,
        absent=lambda facts: Absence.NOT_SUPPORTED if _lookups_in_unknown_unit(facts) or _lookups_in_blocks(facts) else None),
    Row("generation_tokens", newest((":generation_tokens_total", "0.3.3")), note="Those of requests aborted later are in it."),
    Row("prefix_cache_queried_tokens", _QUERIES, Counted.ADMISSION,
        "Up to 0.8.5 blocks × block size. Up to 0.26 a request that could not be placed is counted at each try.", possible=v1,
        absent=lambda facts: Absence.NOT_SUPPORTED if _lookups_in_unknown_unit(facts) else None),
    Row("prefix_cache_hit_tokens", _HITS, Counted.ADMISSION, "As the lookups.", possible=v1,
        absent=lambda facts: Absence.NOT_SUPPORTED if _lookups_in_unknown_unit(facts) else None),
    Row("requests_received",
        (one(Source("http_requests_total", "0.4.3", ON_ROUTES), zero_with=("http_requests_total",)),
         one(Source(":request_params_n_count", "0.4.3"))),
        Counted.ANSWERED, "HTTP requests of the inference routes, counted when their answer ends, refused ones too; n > 1 is one request. "
        "Where the page has no HTTP metrics: finished prompts."),
    Row("requests_finished",
        (one(Source(":request_success_total", "0.4.3", label="finished_reason", rename=OUTCOME_NAMES, other="other"),
             zero_with=(":request_success_total",), seed=OUTCOMES),),
        Counted.FINISH, "Sequences: n > 1 counts n times. A client that goes away is not counted (V1). error from 0.13 on."),
    Row("requests_rejected", (one(Source(":admission_rejections_total", "0.32.0", label="reason")),), Counted.ARRIVAL,
        "Refusals by --max-num-queued-reqs and --max-num-queued-tokens; inside a stream the HTTP status is 200."),
    Row("preemptions", newest((":num_preemptions_total", "0.4.3")), absent=_first_v1),
    Row("http_responses",
        (one(Source("http_requests_total", "0.4.3", ON_ROUTES, label="status", rename={code: code for code in HTTP_CODES}),
             zero_with=("http_requests_total",), seed=HTTP_CODES),),
        Counted.ANSWERED, absent=_no_answers_yet),
    Row("requests_running", newest((":num_requests_running", "0.2.7")), Counted.STATE, "Prefills in chunks are in it."),
    Row("requests_waiting", (one(Source(":num_requests_waiting", "0.2.7")), one(Source(":num_requests_waiting_by_reason", "0.20.2"))),
        Counted.STATE, "Requests that V0 swapped to CPU memory are not in it."),
    Row("requests_waiting_capacity",
        (one(Source(":num_requests_waiting_by_reason", "0.20.2", values(reason="capacity"))), one(Source(":num_requests_waiting", "0.2.7"))),
        Counted.STATE, "Before 0.20 all waiting requests."),
    Row("requests_deferred", (one(Source(":num_requests_waiting_by_reason", "0.20.2", values(reason="deferred"))),), Counted.STATE),
    Row("kv_cache_usage", newest((":kv_cache_usage_perc", "0.9.2"), (":gpu_cache_usage_perc", "0.2.7")), Counted.STATE),
    Row("kv_cache_usage_mean", newest((":kv_cache_usage_perc", "0.9.2"), (":gpu_cache_usage_perc", "0.2.7")), Counted.STATE),
    Row("kv_cache_capacity_tokens", (Choice((Part((Source(":cache_config_info", "0.3.3"),)),), constants=capacity_tokens),),
        Counted.CONSTANT, "Where kv_cache_size_tokens is missing, blocks × block size, which is too high for hybrid models.", absent=_not_told),
    Row("kv_cache_block_tokens", (Choice((Part((Source(":cache_config_info", "0.3.3"),)),), constants=block_tokens),),
        Counted.CONSTANT, absent=_not_told),
    Row("prefix_cache_enabled", (Choice((Part((Source(":cache_config_info", "0.3.3"),)),), constants=prefix_cache_enabled),),
        Counted.CONSTANT, absent=_not_told),
    Row("steps", newest((":iteration_tokens_total_count", "0.6.6")), note="Steps without output are not in it."),
    Row("estimated_flops", newest((":estimated_flops_per_gpu_total", "0.17.1")), flag="--enable-mfu-metrics",
        note="Stays 0 without the flag: 0 is not idle."),
    Row("awake", (one(Source(":engine_sleep_state", "0.11.1", values(sleep_state="awake"))),), Counted.STATE, possible=v1),
    Row("frontend_cpu_seconds", (Choice((Part((Source("process_cpu_seconds_total", "0.3.3"),), label="api_server"),)),),
        absent=_single_process_only),
    Row("process_start_time", newest(("process_start_time_seconds", "0.3.3")), Counted.CONSTANT, absent=_single_process_only),
)  # fmt: skip


def _lookups_in_unknown_unit(facts: Facts) -> bool:
    return (
        ":prefix_cache_hits_total" not in facts.present
        and ":gpu_prefix_cache_hits_total" in facts.present
        and tokens_per_lookup(facts) is None
    )


def _lookups_in_blocks(facts: Facts) -> bool:
    return (
        ":prefix_cache_hits_total" not in facts.present
        and ":gpu_prefix_cache_hits_total" in facts.present
        and tokens_in_lookups(facts) is None
    )


TABLE = EngineTable(
    engine="vllm",
    prefix="vllm",
    model_label="model_name",
    rank_label="engine",
    repeated=frozenset({"pid", "tp_rank", "pp_rank"}),
    totals={},
    rows=ROWS,
    markers={
        ":request_inference_time_seconds": "0.6.6",
        ":lora_requests_info": "0.6.6",
        ":mm_cache_queries_total": "0.11.1",
        ":kv_block_lifetime_seconds": "0.12.0",
        ":request_prefill_kv_computed_tokens": "0.13.0",
        ":estimated_read_bytes_per_gpu_total": "0.17.1",
        ":tool_call_parser_invocations_total": "0.24.0",
        ":request_num_preemptions": "0.30.0",
        ":prompt_tokens_cached_by_source_total": "0.32.0",
    },
    hint="a vLLM server shows no engine metrics with --disable-log-stats: start it without",
)
