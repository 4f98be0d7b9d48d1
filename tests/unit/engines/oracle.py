"""The right values of a captured page, by prometheus_client's parser and plain rules. Shares nothing with the package on purpose."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

REPEATING = {"tp_rank", "pp_rank", "moe_ep_rank", "pid"}
VLLM_ROUTES = {"/v1/chat/completions", "/v1/completions"}
SGLANG_ROUTES = {"/v1/chat/completions", "/v1/completions", "/generate"}


class RawPage:
    """All samples of a page, with sglang_x read as sglang:x."""

    def __init__(self, text: str) -> None:
        self.samples: list[tuple[str, dict[str, str], float]] = []
        self.families: set[str] = set()
        self.help: dict[str, str] = {}
        for family in text_string_to_metric_families(text):
            name = re.sub(r"^(sglang|vllm)_", r"\1:", family.name)
            self.families.add(name)
            self.help[name] = family.documentation
            for sample in family.samples:
                self.samples.append((re.sub(r"^(sglang|vllm)_", r"\1:", sample.name), dict(sample.labels), float(sample.value)))
        self.names = {name for name, _, _ in self.samples}

    def rows(self, name: str, **where: Any) -> list[tuple[dict[str, str], float]]:
        found = []
        for sample, labels, value in self.samples:
            if sample == name and all(labels.get(k) in (v if isinstance(v, (set, tuple)) else {v}) for k, v in where.items()):
                found.append((labels, value))
        return found

    def total(self, name: str, **where: Any) -> float | None:
        """Sum, ranks that repeat a number once."""
        rows = self.rows(name, **where)
        if not rows:
            return None
        once: dict[tuple[Any, ...], float] = {}
        for labels, value in rows:
            key = tuple(sorted((k, v) for k, v in labels.items() if k not in REPEATING))
            once[key] = max(value, once.get(key, -math.inf))
        return sum(once.values())

    def per_rank(self, name: str, label: str) -> list[float]:
        ranks: dict[str, float] = {}
        for labels, value in self.rows(name):
            rank = labels.get(label, "")
            ranks[rank] = max(value, ranks.get(rank, -math.inf))
        return list(ranks.values())

    def histogram(self, name: str, **where: Any) -> dict[str, Any] | None:
        """Merged buckets by bound, sum; None without a count."""
        rows = self.rows(name + "_bucket", **where)
        if not any(labels["le"] == "+Inf" for labels, _ in rows):
            return None
        buckets: dict[float, dict[tuple[Any, ...], float]] = defaultdict(dict)
        for labels, value in rows:
            key = tuple(sorted((k, v) for k, v in labels.items() if k not in REPEATING | {"le"}))
            buckets[float(labels["le"])][key] = max(value, buckets[float(labels["le"])].get(key, 0.0))
        return {"buckets": {le: sum(parts.values()) for le, parts in sorted(buckets.items())}, "sum": self.total(name + "_sum", **where)}


def first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def vllm(page: RawPage) -> dict[str, Any]:
    """Canonical fields of a vLLM page; a field that is missing or None is absent."""
    h, t = page.histogram, page.total
    right: dict[str, Any] = {
        "time_to_first_token": h("vllm:time_to_first_token_seconds"),
        "inter_token_latency": first(h("vllm:inter_token_latency_seconds"), h("vllm:time_per_output_token_seconds")),
        "time_per_output_token": h("vllm:request_time_per_output_token_seconds"),
        "e2e_request_latency": h("vllm:e2e_request_latency_seconds"),
        "request_queue_time": first(h("vllm:request_queue_time_seconds"), h("vllm:time_in_queue_requests")),
        "request_prefill_time": h("vllm:request_prefill_time_seconds"),
        "request_decode_time": h("vllm:request_decode_time_seconds"),
        "request_prompt_tokens": h("vllm:request_prompt_tokens"),
        "request_generation_tokens": h("vllm:request_generation_tokens"),
        "first_tokens": t("vllm:time_to_first_token_seconds_count"),
        "prompt_tokens": t("vllm:prompt_tokens_total"),
        "generation_tokens": t("vllm:generation_tokens_total"),
        "preemptions": t("vllm:num_preemptions_total"),
        "steps": t("vllm:iteration_tokens_total_count"),
        "awake": t("vllm:engine_sleep_state", sleep_state="awake") and 1.0,
        "requests_running": t("vllm:num_requests_running"),
        "requests_waiting": t("vllm:num_requests_waiting"),
        "requests_waiting_capacity": first(t("vllm:num_requests_waiting_by_reason", reason="capacity"), t("vllm:num_requests_waiting")),
        "requests_deferred": t("vllm:num_requests_waiting_by_reason", reason="deferred"),
        "process_start_time": t("process_start_time_seconds"),
    }
    usage = page.per_rank("vllm:kv_cache_usage_perc", "engine") or page.per_rank("vllm:gpu_cache_usage_perc", "engine")
    if usage:
        right["kv_cache_usage"], right["kv_cache_usage_mean"] = max(usage), sum(usage) / len(usage)
    _vllm_cache(page, right)
    finished = page.rows("vllm:request_success_total")
    if finished or page.families & {"vllm:request_success", "vllm:request_success_total"}:
        outcomes = dict.fromkeys(("stop", "length", "abort", "error", "other"), 0.0)
        for labels, value in finished:
            outcomes[labels["finished_reason"] if labels["finished_reason"] in outcomes else "other"] += value
        right["requests_finished"] = outcomes
    if page.rows("vllm:admission_rejections_total"):
        right["requests_rejected"] = {labels["reason"]: value for labels, value in page.rows("vllm:admission_rejections_total")}
    if page.families & {"http_requests", "http_requests_total"}:
        codes = dict.fromkeys(("2xx", "4xx", "5xx"), 0.0)
        for labels, value in page.rows("http_requests_total", handler=VLLM_ROUTES):
            codes[labels["status"]] += value
        right["http_responses"] = codes
        right["requests_received"] = sum(codes.values())
    else:
        right["requests_received"] = t("vllm:request_params_n_count")
    return right


def _vllm_cache(page: RawPage, right: dict[str, Any]) -> None:
    t = page.total
    config = [labels for labels, _ in page.rows("vllm:cache_config_info")]
    block = float(config[0]["block_size"]) if config and config[0].get("block_size", "None") != "None" else None
    if config and block:
        right["kv_cache_block_tokens"] = block
        if "kv_cache_size_tokens" in config[0]:
            right["kv_cache_capacity_tokens"] = sum(float(labels["kv_cache_size_tokens"]) for labels in config)
        else:
            right["kv_cache_capacity_tokens"] = float(config[0]["num_gpu_blocks"]) * block  # already all ranks
        if "enable_prefix_caching" in config[0]:
            right["prefix_cache_enabled"] = float(config[0]["enable_prefix_caching"] == "True")
    hits, queries = t("vllm:prefix_cache_hits_total"), t("vllm:prefix_cache_queries_total")
    in_tokens = True
    if queries is None and "vllm:gpu_prefix_cache_queries_total" in page.names:
        documentation = page.help.get("vllm:gpu_prefix_cache_queries") or page.help["vllm:gpu_prefix_cache_queries_total"]
        in_tokens = "blocks" not in documentation
        factor = 1.0 if in_tokens else block
        if factor is not None:
            hits, queries = t("vllm:gpu_prefix_cache_hits_total") * factor, t("vllm:gpu_prefix_cache_queries_total") * factor
    right["prefix_cache_hit_tokens"], right["prefix_cache_queried_tokens"] = hits, queries
    right["prompt_tokens_cached"] = first(t("vllm:prompt_tokens_cached_total"), hits)
    right["prompt_tokens_computed"] = first(
        t("vllm:prompt_tokens_by_source_total", source="local_compute"),
        t("vllm:prompt_tokens_total") - hits if hits is not None and in_tokens else None,
    )


def sglang(page: RawPage) -> dict[str, Any]:
    """Canonical fields of an SGLang page; a field that is missing or None is absent."""
    h, t = page.histogram, page.total
    streams = any("is_streaming" in labels for name, labels, _ in page.samples if name.startswith("sglang:time_to_first_token"))
    stage = "sglang:per_stage_req_latency_seconds"
    right: dict[str, Any] = {
        "time_to_first_token": h("sglang:time_to_first_token_seconds", **({"is_streaming": "true"} if streams else {})),
        "inter_token_latency": first(h("sglang:inter_token_latency_seconds"), h("sglang:time_per_output_token_seconds")),
        "time_per_output_token": h("sglang:request_time_per_output_token_seconds"),
        "e2e_request_latency": h("sglang:e2e_request_latency_seconds"),
        "streamed_request_latency": h("sglang:e2e_request_latency_seconds", **({"is_streaming": "true"} if streams else {})),
        "request_queue_time": h("sglang:queue_time_seconds"),
        "request_prefill_time": h(stage, stage="prefill_forward"),
        "request_process_time": h(stage, stage="request_process"),
        "request_prompt_tokens": h("sglang:prompt_tokens_histogram"),
        "request_generation_tokens": h("sglang:generation_tokens_histogram"),
        "first_tokens": t("sglang:time_to_first_token_seconds_count"),
        "requests_running": t("sglang:num_running_reqs"),
        "requests_waiting_capacity": t("sglang:num_queue_reqs"),
        "requests_deferred": t("sglang:num_grammar_queue_reqs"),
        "kv_cache_capacity_tokens": t("sglang:max_total_num_tokens"),
        "kv_cache_block_tokens": max(page.per_rank("sglang:page_size", "dp_rank"), default=None),
        "context_tokens_limit": max(page.per_rank("sglang:context_len", "dp_rank"), default=None),
        "steps": t("sglang:cuda_graph_passes_total"),
        "scheduler_idle_seconds": t("sglang:scheduler_idle_seconds_total"),
    }
    if right["requests_waiting_capacity"] is not None:
        right["requests_waiting"] = right["requests_waiting_capacity"] + (right["requests_deferred"] or 0.0)
    usage = page.per_rank("sglang:token_usage", "dp_rank")
    if usage:
        right["kv_cache_usage"], right["kv_cache_usage_mean"] = max(usage), sum(usage) / len(usage)
    _sglang_tokens(page, right)
    done = t("sglang:num_requests_total")
    if done is not None:
        aborted = t("sglang:num_aborted_requests_total")
        counts_aborts = aborted is not None or "sglang:num_grammar_queue_reqs" in page.names
        right["requests_finished"] = {"other": done - (aborted or 0.0), "abort": aborted or 0.0} if counts_aborts else {"other": done}
        right["requests_received"] = done
    if "sglang:http_requests_total" in page.names:
        right["requests_received"] = t("sglang:http_requests_total", endpoint=SGLANG_ROUTES) or 0.0
        codes = dict.fromkeys(("2xx", "4xx", "5xx"), 0.0)
        for labels, value in page.rows("sglang:http_responses_total", endpoint=SGLANG_ROUTES):
            codes[labels["status_code"][0] + "xx"] += value
        right["http_responses"] = codes
        right["http_requests_active"] = t("sglang:http_requests_active", endpoint=SGLANG_ROUTES) or 0.0
    if {"sglang:realtime_tokens_total", "sglang:cuda_graph_passes_total"} & page.names:
        right["preemptions"] = t("sglang:num_retracted_requests_total") or 0.0
    stages = {
        "prefill_bootstrap": first(t("sglang:num_prefill_bootstrap_queue_reqs"), t("sglang:num_prefill_prealloc_queue_reqs")),
        "prefill_inflight": first(t("sglang:num_prefill_inflight_queue_reqs"), t("sglang:num_prefill_infight_queue_reqs")),
        "decode_prealloc": t("sglang:num_decode_prealloc_queue_reqs"),
        "decode_transfer": t("sglang:num_decode_transfer_queue_reqs"),
    }
    roles = {labels["engine_type"] for _, labels, _ in page.samples if "engine_type" in labels}
    if roles != {"unified"} and any(value is not None for value in stages.values()):
        right["disaggregated_queue_requests"] = {name: value for name, value in stages.items() if value is not None}
    return right


def _sglang_tokens(page: RawPage, right: dict[str, Any]) -> None:
    t = page.total
    prompt, cached = t("sglang:prompt_tokens_total"), t("sglang:cached_tokens_total")
    if prompt is not None and cached is None and "sglang:inter_token_latency_seconds_count" in page.names:
        cached = 0.0  # 0.4.4 and later: born at the first hit
    live = "sglang:realtime_tokens_total"
    effective = "sglang:prefill_effective_tokens_total"
    right["prompt_tokens"], right["generation_tokens"] = prompt, t("sglang:generation_tokens_total")
    right["prompt_tokens_cached"] = right["prefix_cache_hit_tokens"] = cached
    if cached is not None:
        right["prefix_cache_queried_tokens"] = prompt
        right["prompt_tokens_computed"] = prompt - cached if prompt is not None else None
    if live in page.names:
        modes = {mode: t(live, mode=mode) or 0.0 for mode in ("prefill_compute", "prefill_cache", "decode")}
        right["prompt_tokens_computed"] = modes["prefill_compute"]
        right["prefix_cache_hit_tokens"] = modes["prefill_cache"]
        right["prefix_cache_queried_tokens"] = modes["prefill_cache"] + modes["prefill_compute"]
        prefills = t("sglang:per_stage_req_latency_seconds_count", stage="prefill_forward") or 0.0
        right["generation_tokens"] = modes["decode"] + prefills + (t("sglang:num_retracted_requests_total") or 0.0)
    if effective in page.names:
        right["prompt_tokens"] = right["prefix_cache_queried_tokens"] = t(effective)
        hits = t(effective, mode={"device_hit", "host_hit", "storage_hit"})
        right["prompt_tokens_cached"] = right["prefix_cache_hit_tokens"] = hits
