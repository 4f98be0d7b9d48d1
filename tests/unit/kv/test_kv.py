"""KV-cache bytes of well-known models (their published config.json, cut to the keys that matter), and the worked examples s5-*."""

from __future__ import annotations

from typing import Any

import pytest

from llm_exporter.errors import ConfigError, UsageError
from llm_exporter.kv.dtypes import element_bytes, served_dtype
from llm_exporter.kv.layers import Kind
from llm_exporter.kv.memory import Cache, allowed_tensor_parallel, capacity_tokens, concurrency_limit, measured_bytes_per_token, parse_bytes
from llm_exporter.kv.shape import read_shape

LLAMA_8B = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_70B = {**LLAMA_8B, "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64}
QWEN_7B = {
    "model_type": "qwen2", "num_hidden_layers": 28, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
    "sliding_window": 131072, "max_window_layers": 28, "use_sliding_window": False, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
    "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "torch_dtype": "bfloat16",
    "num_nextn_predict_layers": 1,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "sliding_window": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA2_9B = {
    "model_type": "gemma2", "num_hidden_layers": 42, "hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "sliding_window": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA3_4B = {
    "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024},
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152, "num_attention_heads": 16},
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 12,
}  # fmt: skip
JAMBA = {
    "model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "attn_layer_period": 8, "attn_layer_offset": 4, "mamba_d_state": 16, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "full_attention_interval": 4, "linear_num_value_heads": 32, "torch_dtype": "bfloat16",
}  # fmt: skip
NEMOTRON_H = {
    "model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "torch_dtype": "bfloat16",
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon",
    "num_hidden_layers": 32,
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "multi_query": True,
    "torch_dtype": "bfloat16",
}
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}
LLAMA4 = {
    "model_type": "llama4", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "llama4_text", "num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "attention_chunk_size": 8192,
    },
}  # fmt: skip


def cache(config: dict[str, Any], dtype: str = "auto", tp: int = 1) -> Cache:
    shape = read_shape(config)
    return Cache(shape, element_bytes(dtype, served_dtype(shape.dtype, shape.architecture))[0], tp)


@pytest.mark.parametrize(
    ("config", "dtype", "tp", "per_token"),
    [
        (LLAMA_8B, "auto", 1, 131_072),  # s5-llama8b
        ({**LLAMA_8B, "num_key_value_heads": 32}, "auto", 1, 524_288),  # s5-llama8b-naive-mha: what a GQA model must not give
        (LLAMA_70B, "auto", 8, 40_960),  # s5-llama70b-tp8
        (QWEN_7B, "auto", 8, 14_336),  # s5-qwen7b-tp8-replicated
        (DEEPSEEK_V3, "auto", 1, 70_272),  # s5-deepseek-mla
        (DEEPSEEK_V3, "auto", 8, 70_272),  # replicated on every rank
        (LLAMA_8B, "fp8", 1, 65_536),
        (LLAMA_8B, "int8", 1, 65_536),
        (LLAMA_8B, "fp32", 1, 262_144),
        (FALCON_7B, "auto", 1, 2 * 32 * 64 * 2),
        (GPT2, "auto", 1, 2 * 12 * 768 * 2),
        (JAMBA, "auto", 1, 2 * 4 * 8 * 128 * 2),
        (QWEN3_NEXT, "auto", 1, 2 * 12 * 2 * 256 * 2),
        (NEMOTRON_H, "auto", 1, 2 * 4 * 8 * 128 * 2),
    ],
)
def test_bytes_per_token(config: dict[str, Any], dtype: str, tp: int, per_token: int) -> None:
    assert cache(config, dtype, tp).bytes_per_token == per_token


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        (LLAMA_8B, "GQA"), (DEEPSEEK_V3, "MLA"), (FALCON_7B, "MQA"), (GPT2, "MHA"), (GEMMA3_4B, "GQA"), (JAMBA, "GQA"),
    ],
)  # fmt: skip
def test_kind_of_attention(config: dict[str, Any], attention: str) -> None:
    assert read_shape(config).attention == attention


@pytest.mark.parametrize(
    ("config", "full", "sliding", "window"),
    [
        (MISTRAL_7B, 0, 32, 4096),
        ({**MISTRAL_7B, "sliding_window": None}, 32, 0, None),
        (GEMMA2_9B, 21, 21, 4096),
        (GEMMA3_4B, 5, 29, 1024),
        (GPT_OSS_20B, 12, 12, 128),
        (LLAMA4, 12, 36, 8192),
        (QWEN_7B, 28, 0, None),
        ({**QWEN_7B, "use_sliding_window": True, "max_window_layers": 20}, 20, 8, 131072),
        ({**GEMMA2_9B, "model_type": "cohere2", "num_hidden_layers": 40, "sliding_window_pattern": 4}, 10, 30, 4096),
        ({**GEMMA2_9B, "model_type": "exaone4", "num_hidden_layers": 64, "sliding_window_pattern": "LLLG"}, 16, 48, 4096),
    ],
)
def test_layers_with_a_window(config: dict[str, Any], full: int, sliding: int, window: int | None) -> None:
    groups = read_shape(config).groups
    counts = {kind: sum(group.layers for group in groups if group.kind is kind) for kind in Kind}
    assert (counts[Kind.FULL], counts[Kind.SLIDING]) == (full, sliding)
    assert {group.window for group in groups} - {None} == ({window} if window else set())


def test_s5_hybrid_swa() -> None:
    config = {
        "model_type": "gemma3_text", "num_hidden_layers": 60, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "sliding_window": 1024, "sliding_window_pattern": 6,
    }  # fmt: skip
    assert cache(config, "fp8").bytes_per_request(32768) == 775_946_240


def test_a_request_shorter_than_the_window_costs_every_layer() -> None:
    mistral = cache(MISTRAL_7B)
    assert mistral.bytes_per_request(1000) == 131_072 * 1000
    assert mistral.bytes_per_request(100_000) == 131_072 * 4096
    assert mistral.bytes_per_token_beyond_windows == 0
    assert mistral.longest_context(131_072 * 4096) is None
    assert mistral.longest_context(131_072 * 4095) == 4095


def test_hybrids_say_what_is_not_counted() -> None:
    notes = read_shape(JAMBA).notes
    assert notes == ("28 layers keep a constant state per request (Mamba, linear attention or convolution): not counted",)
    assert any("24 layers keep a constant state" in note for note in read_shape(NEMOTRON_H).notes)
    assert any("multi-token prediction" in note for note in read_shape(DEEPSEEK_V3).notes)


def test_layers_that_share_a_cache_are_counted_once() -> None:
    config = {
        "model_type": "gemma3n_text", "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
        "num_kv_shared_layers": 15, "sliding_window": 512, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    }  # fmt: skip
    assert cache(config, "bf16").bytes_per_token == 20 * 2 * 2 * 256 * 2


def test_per_layer_heads_are_summed() -> None:
    config = {**LLAMA_8B, "model_type": "openelm", "num_hidden_layers": 4, "num_kv_heads": [3, 3, 4, 5], "head_dim": 64}
    del config["num_key_value_heads"]
    assert cache(config).bytes_per_token == 15 * 2 * 64 * 2


def test_an_unknown_architecture_with_plain_keys_is_computed_and_says_so() -> None:
    shape = read_shape({**LLAMA_8B, "model_type": "brandnew"})
    assert not shape.known
    assert "'brandnew' is not known here" in shape.notes[0]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**LLAMA_8B, "model_type": "brandnew", "ssm_state_size": 16}, "ssm_state_size"),
        ({"model_type": "mamba", "num_hidden_layers": 4}, "no attention"),
        ({"model_type": "t5", "num_layers": 4}, "encoder"),
        ({"model_type": "llama"}, "no num_hidden_layers"),
        ({**GPT_OSS_20B, "layer_types": ["strange"] * 24}, "'strange'"),
        ({"model_type": "gpt2", "n_layer": 1, "n_embd": 10, "n_head": 3}, "no multiple"),
    ],
)
def test_what_cannot_be_known_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_shape(config)


def test_worked_examples_of_capacity() -> None:
    assert capacity_tokens(27000, 16) == 432_000  # s5-capacity
    assert concurrency_limit(432_000, 4000, 600, 16) == pytest.approx(100.279, abs=1e-3)  # s5-concurrency
    assert measured_bytes_per_token(52.734375, 432_000) == pytest.approx(131_072, abs=0.5)  # s5-measured-bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("80GiB", 80 * 2**30),
        ("80GB", 80e9),
        ("80G", 80e9),
        ("1.5TiB", 1.5 * 2**40),
        ("1MiB", 2**20),
        ("1048576", 2**20),
        ("24gib", 24 * 2**30),
    ],
)
def test_sizes(text: str, count: float) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "80 apples", "-1G", "G"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        parse_bytes(text)


def test_bad_dtype() -> None:
    with pytest.raises(UsageError, match="fp7"):
        element_bytes("fp7", served_dtype("bfloat16", "llama"))


def test_layers_that_transformers_calls_indexed_are_the_latent_ones_of_sparse_attention() -> None:
    shape = read_shape({**DEEPSEEK_V3, "model_type": "deepseek_v32", "layer_types": ["indexed_attention"] * 61, "index_head_dim": 128})
    assert (shape.attention, shape.groups[0].layers) == ("MLA", 61)
    assert any("sparse attention" in note for note in shape.notes)


@pytest.mark.parametrize("value", [0, "32", -1, True])
def test_a_count_that_is_none_is_named_with_its_value(value: object) -> None:
    with pytest.raises(ConfigError, match=rf"num_hidden_layers {value!r} is no whole number above 0"):
        read_shape({**LLAMA_8B, "num_hidden_layers": value})


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        (LLAMA_70B, [1, 2, 4, 8, 16, 32, 64]),
        (QWEN_7B, [1, 2, 4, 28]),  # 28 heads; 7 and 14 would cut the 4 KV heads unevenly
        (FALCON_7B, [1, 71]),
        (DEEPSEEK_V3, [1, 2, 4, 8, 16, 32, 64, 128]),  # MLA has no KV heads to share
    ],
)
def test_heads_are_shared_evenly(config: dict[str, Any], allowed: list[int]) -> None:
    assert allowed_tensor_parallel(read_shape(config)) == allowed
