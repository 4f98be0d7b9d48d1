"""What a simulated server says about itself: model list, server facts, load. Bodies only; `server.py` sends them."""

from __future__ import annotations

from typing import Any

from llm_exporter.demo.simulation import Simulation


def models(simulation: Simulation) -> dict[str, Any]:
    """The body of /v1/models."""
    limit = simulation.engine.hardware.context_tokens
    model: dict[str, Any] = {"id": simulation.model_name, "object": "model", "created": int(simulation.wall_at)}
    model |= {"owned_by": simulation.kind, "root": simulation.model_name, "parent": None, "max_model_len": limit}
    if simulation.kind == "vllm":
        rights = {"id": "modelperm-a85f21b220385417", "object": "model_permission", "created": int(simulation.wall_at)}
        allowed = {"allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_view": True}
        rest = {"allow_search_indices": False, "allow_fine_tuning": False, "organization": "*", "group": None}
        model["permission"] = [rights | allowed | rest | {"is_blocking": False}]
    return {"object": "list", "data": [model]}


def server_info(simulation: Simulation) -> dict[str, Any]:
    """The body of SGLang's /server_info, the fields that others read."""
    hardware = simulation.engine.hardware
    return {
        "model_path": simulation.model_name,
        "served_model_name": simulation.model_name,
        "context_length": hardware.context_tokens,
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "quantization": None,
        "tp_size": max(1, hardware.gpus),
        "dp_size": 1,
        "pp_size": 1,
        "page_size": hardware.block_tokens,
        "chunked_prefill_size": hardware.step_tokens,
        "max_running_requests": hardware.max_running,
        "max_total_num_tokens": hardware.kv_tokens,
        "disable_radix_cache": False,
        "enable_metrics": True,
        "version": simulation.release,
        "internal_states": [{"last_gen_throughput": 0.0, "memory_usage": {"token_capacity": hardware.kv_tokens}}],
    }


def loads(simulation: Simulation, now: float) -> dict[str, Any]:
    """The body of SGLang's /v1/loads; `now` on the model's clock."""
    engine = simulation.engine
    used = engine.pool.in_use * engine.hardware.block_tokens
    load = {
        "timestamp": simulation.wall_at + now,
        "dp_rank": 0,
        "num_running_reqs": len(engine.running),
        "num_waiting_reqs": len(engine.waiting),
        "num_used_tokens": used,
        "max_total_num_tokens": engine.hardware.kv_tokens,
        "max_running_requests": engine.hardware.max_running,
        "token_usage": round(engine.pool.in_use / engine.pool.capacity, 4),
    }
    return {"version": simulation.release, "accelerator": None, "num_accelerators": 1, "loads": [load]}
