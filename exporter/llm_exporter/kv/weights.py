"""How many bytes the weights take: exact from the index beside a config.json, else estimated from the config, and said so."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llm_exporter.kv.memory import KV_DTYPES


def weight_bytes(config_file: Path, config: Mapping[str, Any]) -> tuple[float, str] | None:
    """(bytes of all weights, where the figure is from); None where neither an index nor the config says enough."""
    index = config_file.parent / "model.safetensors.index.json"
    try:
        total = json.loads(index.read_text())["metadata"]["total_size"]
        return float(total), f"total_size of {index.name}"
    except (OSError, ValueError, KeyError, TypeError):
        pass
    files = list(config_file.parent.glob("*.safetensors"))
    if files:
        return float(sum(file.stat().st_size for file in files)), "size of the .safetensors files beside it"
    estimate = _estimate(config)
    return None if estimate is None else (estimate, "estimated from the config; give --weights for the true size")


def _estimate(config: Mapping[str, Any]) -> float | None:
    """Parameters of a dense or mixture-of-experts Llama-like model, without small parts (norms, biases), times their bytes."""
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    assert isinstance(text, Mapping)
    try:
        hidden, layers, vocabulary = int(text["hidden_size"]), int(text["num_hidden_layers"]), int(text["vocab_size"])
        heads = int(text["num_attention_heads"])
        dense_width = int(text.get("intermediate_size") or 4 * hidden)
    except (KeyError, TypeError, ValueError):
        return None
    if "kv_lora_rank" in text:
        rope, nope, value = (int(text.get(key) or 0) for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        rank, query_rank = int(text["kv_lora_rank"]), int(text.get("q_lora_rank") or 0)
        query = hidden * query_rank + query_rank * heads * (nope + rope) if query_rank else hidden * heads * (nope + rope)
        attention = query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden
    else:
        head = int(text.get("head_dim") or hidden // heads)
        kv_heads = int(text.get("num_key_value_heads") or heads)
        attention = 2 * hidden * heads * head + 2 * hidden * kv_heads * head
    experts = int(text.get("n_routed_experts") or text.get("num_local_experts") or text.get("num_experts") or 0)
    dense_layers = layers
    mixture = 0
    if experts:
        width = int(text.get("moe_intermediate_size") or dense_width)
        shared = int(text.get("n_shared_experts") or 0)
        dense_layers = min(layers, int(text.get("first_k_dense_replace") or 0))
        mixture = (layers - dense_layers) * (experts + shared) * 3 * hidden * width
    embeddings = vocabulary * hidden * (1 if text.get("tie_word_embeddings", config.get("tie_word_embeddings")) is True else 2)
    parameters = embeddings + layers * attention + dense_layers * 3 * hidden * dense_width + mixture
    return parameters * _bytes_per_parameter(config, text)


def _bytes_per_parameter(config: Mapping[str, Any], text: Mapping[str, Any]) -> float:
    quantization = config.get("quantization_config") or text.get("quantization_config")
    if isinstance(quantization, Mapping):
        bits = quantization.get("bits") or quantization.get("w_bit")
        if isinstance(bits, int):
            return bits / 8 * 1.05  # scales and zero points
        method = str(quantization.get("quant_method", "")).lower()
        if method == "mxfp4":
            return 0.54
        if "fp8" in method or "fp8" in str(quantization.get("quant_algo", "")).lower():
            return 1.0
    dtype = str(text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype") or "")
    return float(KV_DTYPES.get(dtype.removeprefix("torch."), 2))
