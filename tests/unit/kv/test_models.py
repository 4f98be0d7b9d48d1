"""Public models by their published config.json: bytes per token worked out by hand, and parameters against the models' own classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llm_exporter.errors import ConfigError
from llm_exporter.kv.dtypes import element_bytes, served_dtype
from llm_exporter.kv.memory import Cache
from llm_exporter.kv.modelconfig import read_config
from llm_exporter.kv.parameters import count_parameters
from llm_exporter.kv.shape import read_shape, shape_of
from llm_exporter.kv.weights import estimate

CONFIGS = Path(__file__).parents[2] / "fixtures" / "model_configs"

# Billions of parameters: transformers 5.19.0's class built from the same file. Layers for multi-token prediction are not in them.
PARAMETERS = {
    "deepseek-v3": 671.026, "falcon-40b": 41.303, "falcon-7b": 6.922, "gemma-2-9b": 9.242, "gemma-3-27b": 27.448, "glm-4.5-air": 106.852,
    "gpt-oss-120b": 116.829, "gpt-oss-20b": 20.915, "gpt2": 0.12444, "llama-3.1-70b": 70.554, "llama-3.1-8b": 8.030,
    "llama-4-scout": 108.661, "mistral-7b-v0.1": 7.242, "mixtral-8x7b": 46.703, "opt-1.3b": 1.3158, "phi-3-mini": 3.821,
    "qwen2-57b-a14b": 57.409, "qwen2.5-7b": 7.616, "qwen3-30b-a3b": 30.532, "qwen3-next-80b-a3b": 79.674, "starcoder2-7b": 7.174,
}  # fmt: skip


def load(name: str) -> dict[str, Any]:
    return json.loads((CONFIGS / f"{name}.json").read_text())  # type: ignore[no-any-return]


def cache(name: str) -> Cache:
    config = load(name)
    model = read_config(config)
    shape = shape_of(model)
    return Cache(shape, element_bytes("auto", served_dtype(model.dtype, model.name), model.quantization)[0])


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),  # 131072
        ("llama-3.1-70b", 2 * 80 * 8 * 128 * 2),  # 327680
        ("deepseek-v3", (512 + 64) * 61 * 2),  # 70272: one latent vector and one rotary key a layer
        ("mistral-7b-v0.1", 2 * 32 * 8 * 128 * 2),  # 131072, inside the window
        ("falcon-7b", 2 * 32 * 1 * 64 * 2),  # 8192: one head of keys for 71 that ask
        ("falcon-40b", 2 * 60 * 8 * 64 * 2),
        ("gemma-2-9b", 2 * 42 * 8 * 256 * 2),  # 344064: its float32 checkpoint is served in 16 bits
        ("gemma-3-27b", 2 * 62 * 16 * 128 * 2),  # 507904
        ("gpt-oss-20b", 2 * 24 * 8 * 64 * 2),  # 49152: MXFP4 is of weights, not of the cache
        ("qwen3-next-80b-a3b", 2 * 12 * 2 * 256 * 2),  # 24576: 12 of 48 layers have attention
        ("starcoder2-7b", 2 * 32 * 4 * 128 * 2),
    ],
)
def test_bytes_per_token(name: str, per_token: int) -> None:
    assert cache(name).bytes_per_token == per_token


@pytest.mark.parametrize(
    ("name", "beyond"),
    [
        ("mistral-7b-v0.1", 0),
        ("gemma-2-9b", 2 * 21 * 8 * 256 * 2),
        ("gemma-3-27b", 2 * 10 * 16 * 128 * 2),  # every sixth of 62 layers is global: 10
        ("gpt-oss-20b", 2 * 12 * 8 * 64 * 2),
        ("llama-3.1-8b", 131_072),
    ],
)
def test_bytes_of_one_more_token_in_a_long_context(name: str, beyond: int) -> None:
    assert cache(name).bytes_per_token_beyond_windows == beyond


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_parameters_are_those_of_the_models_class(name: str) -> None:
    model = read_config(load(name))
    assert count_parameters(model, shape_of(model)).total == pytest.approx(PARAMETERS[name] * 1e9, rel=0.002)


def test_every_config_here_is_held_against_its_class() -> None:
    assert {file.stem for file in CONFIGS.glob("*.json")} == set(PARAMETERS)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("llama-3.1-8b", 16.06),
        ("llama-3.1-70b", 141.1),
        ("gemma-2-9b", 18.48),  # half of the 36.97 of its float32 files
        ("gpt-oss-20b", 13.76),  # its checkpoint: experts 4.25 bits, attention, embeddings and routers 16
        ("gpt-oss-120b", 65.25),
        ("deepseek-v3", 673.0),  # 8 bits, embeddings 16
        # The checkpoint is 14.43 GB: it holds the table twice. Engines load it once (vLLM 0.32.0, models/falcon.py).
        ("falcon-7b", 13.84),
    ],
)
def test_estimated_bytes_of_weights(name: str, gigabytes: float) -> None:
    model = read_config(load(name))
    found = estimate(model, shape_of(model))
    assert found.total_bytes == pytest.approx(gigabytes * 1e9, rel=0.005)
    assert found.basis.startswith("estimated from the config: ")


@pytest.mark.parametrize(
    ("name", "tokens", "source"),
    [
        ("falcon-7b", 2048, "default of the model's class"),
        ("gemma-3-27b", 131_072, "default of the model's class"),  # its linear scaling is in the figure already
        ("gpt-oss-20b", 131_072, "max_position_embeddings of the config"),  # YaRN: likewise
        ("deepseek-v3", 163_840, "max_position_embeddings of the config"),
        ("gpt2", 1024, "n_positions of the config"),
    ],
)
def test_the_longest_context_says_where_it_is_from(name: str, tokens: int, source: str) -> None:
    shape = read_shape(load(name))
    assert shape.context_tokens == tokens
    assert source in shape.context_source


def test_linear_scaling_stretches_the_context() -> None:
    shape = read_shape({**load("llama-3.1-8b"), "max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}})
    assert (shape.context_tokens, shape.context_source) == (16384, "max_position_embeddings × 4 of linear scaling")


def test_what_the_class_fills_in_is_said() -> None:
    assert read_shape(load("gemma-3-27b")).notes[0] == ("the config leaves out what its class in transformers knows: vocab_size 262208")
    assert read_shape(load("llama-3.1-8b")).notes == ()


def test_a_null_is_no_gap() -> None:
    config = {**load("gemma-2-9b"), "sliding_window": None, "sliding_window_size": None}
    assert {group.window for group in read_shape(config).groups} == {None}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "jamba"}, "jamba"),
        ({"vocab_size": None}, "no vocab_size"),
        ({"quantization_config": {"quant_method": "newest"}}, "'newest'"),
    ],
)
def test_weights_that_cannot_be_estimated_say_why_and_are_no_number(change: dict[str, Any], words: str) -> None:
    model = read_config({**load("llama-3.1-8b"), **change})
    found = estimate(model, shape_of(model))
    assert found.total_bytes is None
    assert words in found.basis


def test_an_unknown_architecture_is_estimated_like_llama_and_says_so() -> None:
    model = read_config({**load("llama-3.1-8b"), "model_type": "brandnew"})
    assert "which this architecture may not be" in estimate(model, shape_of(model)).basis


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, 4),
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "int"}}}}, 8),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}},
            4.5,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 8),
    ],
)
def test_quantised_weights_keep_their_embeddings_whole(quantization: dict[str, Any], bits: float) -> None:
    model = read_config({**load("llama-3.1-8b"), "quantization_config": quantization})
    embeddings = 2 * 128_256 * 4096
    linear = 8_029_995_008 - embeddings  # of the 8030261248 parameters, 266240 are norms
    assert estimate(model, shape_of(model)).total_bytes == pytest.approx(linear * bits / 8 + embeddings * 2, rel=1e-6)


def test_attention_that_a_checkpoint_leaves_alone_is_counted_whole() -> None:
    quantization = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    model = read_config({**load("llama-3.1-8b"), "quantization_config": quantization})
    parts = count_parameters(model, shape_of(model))
    assert estimate(model, shape_of(model)).total_bytes == parts.mlp + 2 * (parts.attention + parts.embeddings)


@pytest.mark.parametrize(
    ("dtype", "architecture", "served", "words"),
    [
        ("bfloat16", "llama", "bfloat16", ""),
        ("float16", "opt", "float16", ""),
        ("float32", "gemma2", "bfloat16", "the config says float32; vLLM's and SGLang's `auto` serve it as bfloat16: 2 bytes"),
        ("float32", "llama", "bfloat16", "vLLM's `auto` serves it as bfloat16, SGLang's as float16: 2 bytes"),
        ("", "gpt_oss", "bfloat16", "the config names no dtype"),
        ("float8_e9", "llama", "float8_e9", "not known here"),
    ],
)
def test_the_dtype_that_auto_serves(dtype: str, architecture: str, served: str, words: str) -> None:
    found = served_dtype(dtype, architecture)
    assert (found.dtype, found.element_bytes) == (served, 2.0)
    assert words in found.assumption
    assert bool(found.assumption) is bool(words)


@pytest.mark.parametrize(
    ("quantization", "size"),
    [
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}, 1),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}}, 0.5),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, 1),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, 2),
        ({"quant_method": "fp8"}, 2),  # weights alone
    ],
)
def test_a_checkpoint_may_ask_for_a_quantised_cache(quantization: dict[str, Any], size: float) -> None:
    assert element_bytes("auto", served_dtype("bfloat16", "llama"), quantization)[0] == size
    assert element_bytes("bf16", served_dtype("bfloat16", "llama"), quantization)[0] == 2


def test_a_missing_key_of_attention_is_refused_by_name() -> None:
    config = load("deepseek-v3")
    del config["qk_rope_head_dim"]
    with pytest.raises(ConfigError, match="no qk_rope_head_dim"):
        read_shape(config)


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_a_key_of_any_other_form_gives_figures_or_a_config_error(name: str) -> None:
    """Each key in turn takes forms that it should not have; nothing else is raised, nothing runs long."""
    config = load(name)
    config["text_config"] = config.get("text_config") or {**config}
    extra = {"layer_types": None, "block_configs": None, "mlp_layer_types": None, "moe_layer_freq": None, "linear_attn_config": None}
    computed = 0
    for key in sorted(config["text_config"] | extra):
        forms: tuple[Any, ...] = (None, 0, -1, 10**12, "x", [], {}, [[]], [1], [{}], 0.5, True)
        for value in forms:
            try:
                model = read_config({**config, "text_config": {**config["text_config"], key: value}})
                shape = shape_of(model)
            except ConfigError:
                continue
            estimate(model, shape)
            assert Cache(shape, 2.0).bytes_per_token > 0
            computed += 1
    assert computed > 20
