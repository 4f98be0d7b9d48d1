"""Configs that nobody meant well: whatever JSON is given, there are figures or one documented error, and nothing that moves a cursor."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.cli.kv import command, kv_document
from llm_exporter.errors import ConfigError, UsageError
from llm_exporter.kv import numbers

CONFIGS = Path(__file__).parents[2] / "fixtures" / "model_configs"
FUZZED = ("llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "gemma-3-27b", "qwen3-next-80b-a3b")
ROOM = Path(numbers.__file__).parent
# Keys that are read and hold no number.
WORDS = (
    "model_type", "torch_dtype", "dtype", "layer_types", "layers_block_type", "hybrid_override_pattern", "attn_type_list",
    "hybrid_layer_pattern", "linear_attn_config", "block_configs", "attn_layer_indices", "block_types", "use_sliding_window", "use_cla",
    "multi_query", "new_decoder_architecture", "multi_query_attention", "attn_config", "is_encoder_decoder", "tie_word_embeddings",
    "quantization_config", "compression_config", "rope_scaling", "rope_parameters", "text_config", "llm_config", "vision_config",
    "audio_config", "mlp_only_layers", "mlp_layer_types", "index_head_dim",
)  # fmt: skip
HUGE = "hugehugehuge"  # stands for a number of 5000 digits, which json.dumps does not write

odd_numbers = st.sampled_from(
    [0, -1, -32, 1, 3, 2**31, 10**18, 10**30, 10**400, -(10**400), 1.5, 1e308, -0.0, math.nan, math.inf, -math.inf]
)
odd_words = st.sampled_from(
    ["", "x", "32", "²", "[/bold]", "\x1b[2J", "\ud800", "jamba", "falcon", "gemma2", "full_attention", "LLG", HUGE]
)
plain = st.none() | st.booleans() | odd_numbers | st.integers() | odd_words
NESTED = ("attention", "n_heads_in_group", "no_op", "kv_n_heads", "full_attn_layers", "quant_method", "quant_algo", "quantization",
          "kv_cache_scheme", "kv_cache_quant_algo", "config_groups", "g", "weights", "num_bits", "bits", "type", "group_size", "ignore",
          "rope_type", "factor", "hidden_size", "num_hidden_layers", "model_type")  # fmt: skip
methods = st.fixed_dictionaries(
    {"quant_method": st.sampled_from(["gptq", "awq", "fp8", "mxfp4", "compressed-tensors", "modelopt", "bitsandbytes"])},
    optional={
        "bits": plain,
        "group_size": plain,
        "ignore": st.lists(plain, max_size=2),
        "config_groups": st.fixed_dictionaries({"g": st.fixed_dictionaries({"weights": st.fixed_dictionaries({"num_bits": plain})})}),
        "kv_cache_scheme": st.fixed_dictionaries({"type": st.just("float"), "num_bits": plain | st.lists(plain, max_size=1)}),
    },
)
scalings = st.fixed_dictionaries({"rope_type": st.sampled_from(["linear", "dynamic", "yarn"]), "factor": plain})
odd = st.recursive(
    plain | methods | scalings,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NESTED), inner, max_size=3),
    max_leaves=6,
) | st.builds(lambda value, times: [value] * times, plain, st.sampled_from([24, 62, 10_001]))
changes = st.dictionaries(st.sampled_from(sorted({*numbers.LIMITS, *WORDS})), odd, min_size=1, max_size=3)
flags = st.sampled_from([[], ["--gpu-memory", "80GiB"], ["--gpu-memory", "80GiB", "--concurrency", "7"], ["--kv-dtype", "fp8"]])


@pytest.fixture(scope="module")
def config_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile") / "config.json"


def written(file: Path, config: Any) -> str:
    file.write_text(json.dumps(config).replace(f'"{HUGE}"', "9" * 5000))
    return str(file)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False, env={"COLUMNS": "200"})


def outcome(*arguments: str) -> Result | str:
    """What is printed, or the text of an error that ends with exit code 2; any other exception is a fault of ours."""
    try:
        return call(*arguments)
    except (ConfigError, UsageError) as error:
        return str(error)


def changed(name: str, change: dict[str, Any]) -> dict[str, Any]:
    """The change stands in the language model's part."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    if "text_config" in config:
        return {**config, **change, "text_config": {**config["text_config"], **change}}
    return {**config, **change}


@pytest.mark.parametrize("name", FUZZED)
@given(change=changes, arguments=flags)
def test_any_value_of_any_key_gives_figures_or_the_documented_error(
    config_file: Path, name: str, change: dict[str, Any], arguments: list[str]
) -> None:
    path = written(config_file, changed(name, change))
    result, table = outcome(path, *arguments, "--json"), outcome(path, *arguments)
    if isinstance(result, str) or isinstance(table, str):
        assert result == table
        assert str(result).startswith(path)
        assert str(result).isprintable()
        assert len(str(result)) < 600
        return
    assert result.exit_code in (0, 1)
    document = json.loads(result.output, parse_constant=pytest.fail)  # neither NaN nor Infinity
    assert document["bytes_per_token"] > 0
    assert document["bytes_per_request"] > 0
    assert table.output.replace("\n", "").isprintable()


@pytest.mark.parametrize("name", FUZZED)
def test_empty_and_simple_values_of_every_key(config_file: Path, name: str) -> None:
    given_flags = {"gpu_memory": "80GiB", "weights": None, "gpu_memory_utilization": None, "url": None, "headers": (), "context": None}
    simple: tuple[Any, ...] = ("", [], {}, [[]], [{}], 0, 1, "x")
    computed = 0
    for key in sorted({*numbers.LIMITS, *WORDS}):
        for value in simple:
            path = Path(written(config_file, changed(name, {key: value})))
            try:
                document = kv_document(path, {**given_flags, "concurrency": None, "kv_dtype": "auto", "tensor_parallel": 1})
            except ConfigError:
                continue
            assert document["bytes_per_token"] > 0
            computed += 1
    assert computed > 200


@pytest.mark.parametrize("value", [10**400, 10**30, 1e308, math.inf, math.nan, HUGE, [10**30], -(10**400)])
def test_a_number_that_no_model_has_is_refused_by_key_value_and_range(config_file: Path, value: Any) -> None:
    for key, most in numbers.LIMITS.items():
        with pytest.raises(ConfigError, match=rf": {key} (\S+|\(.*\)) is outside 1 to {most}: no model has it$"):
            call(written(config_file, changed("llama-3.1-8b", {key: value})))


def test_the_limit_itself_is_allowed_and_one_more_is_not(config_file: Path) -> None:
    assert json.loads(call(written(config_file, changed("llama-3.1-8b", {"num_hidden_layers": 10_000})), "--json").output)
    with pytest.raises(ConfigError, match="num_hidden_layers 10001 is outside 1 to 10000"):
        call(written(config_file, changed("llama-3.1-8b", {"num_hidden_layers": 10_001})))


@pytest.mark.parametrize("key", sorted({"num_hidden_layers", "num_key_value_heads", "hidden_size", "max_position_embeddings"}))
@pytest.mark.parametrize("value", ["32", [1.5], {}, -7, 1.5, True])
def test_what_is_no_number_is_refused_by_key_value_and_range(config_file: Path, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{key} .* is no whole number above 0 \(allowed: 1 to {numbers.LIMITS[key]}\)$"):
        call(written(config_file, changed("llama-3.1-8b", {key: value, "head_dim": None})))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_kv_shared_layers": 32}, "num_kv_shared_layers 32: of 32 layers at most 31"),
        ({"layer_types": ["full_attention"] * 10_001}, r"10001 entries \(allowed: 1 to 10000\)"),
        ({"rope_scaling": {"type": "linear", "factor": "4"}}, "factor '4' is no number from 0 to 10000"),
        ({"quantization_config": {"kv_cache_scheme": {"type": "float", "num_bits": [8, "x"]}}}, r"num_bits \[…\] .* 1 to 64"),
        ({"model_type": ["llama"]}, r"model_type \[…\] is no text"),
        ({"num_key_value_heads": 0}, "num_key_value_heads 0 is no whole number above 0"),
        ({"num_key_value_heads": -1}, "num_key_value_heads -1 is no whole number above 0"),
        ({"layer_types": ["\x1b[2J" * 1000] * 32}, r"layer_types names '\\x1b"),
    ],
)
def test_faults_that_ended_in_a_traceback_or_in_figures_of_nothing(config_file: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call(written(config_file, changed("llama-3.1-8b", change)))


def test_a_config_nested_a_thousand_deep_is_read_without_recursion(config_file: Path) -> None:
    llama = (CONFIGS / "llama-3.1-8b.json").read_text()
    config_file.write_text('{"text_config": ' * 1500 + llama + "}" * 1500)
    result = outcome(str(config_file), "--json")
    if isinstance(result, str):
        assert "cannot be read" in result  # Python's own reader of JSON stops sooner in some versions
        return
    assert json.loads(result.output)["bytes_per_token"] == 131_072


def test_a_pattern_of_no_blocks_is_no_division_by_zero(config_file: Path) -> None:
    path = written(config_file, changed("llama-3.1-8b", {"model_type": "recurrent_gemma", "block_types": []}))
    assert json.loads(call(path, "--json").output)["layers"]["full"] == 32


def test_numbers_that_are_not_read_may_be_anything(config_file: Path) -> None:
    path = written(config_file, changed("llama-3.1-8b", {"rope_theta": HUGE, "eos_token_id": 10**400, "initializer_range": math.inf}))
    assert json.loads(call(path, "--json").output)["bytes_per_token"] == 131_072


def test_transformers_word_for_no_limit_is_none(config_file: Path) -> None:
    document = json.loads(call(written(config_file, changed("llama-3.1-8b", {"model_max_length": int(1e30)})), "--json").output)
    assert document["context_tokens"] == 131_072


@pytest.mark.parametrize("key", ["torch_dtype", "model_type"])
def test_control_characters_never_reach_the_terminal(config_file: Path, key: str) -> None:
    output = call(written(config_file, changed("llama-3.1-8b", {key: "\x1b[2Jred\x07\ud800"})), "--gpu-memory", "80GiB").output
    assert "\ufffd[2jred" in output.lower()
    assert output.replace("\n", "").isprintable()


@pytest.mark.parametrize("total", ["1" + "0" * 400, "9" * 5000, "NaN", "Infinity", "-5", "true", '"x"', "[" * 100_000])
def test_an_index_without_a_size_gives_way_to_the_estimate(tmp_path: Path, total: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"metadata": {{"total_size": {total}}}}}')
    path = written(tmp_path / "config.json", changed("llama-3.1-8b", {}))
    document = json.loads(call(path, "--gpu-memory", "80GiB", "--json").output)
    assert document["fits"]["weight_bytes"] == pytest.approx(2 * 8.03e9, rel=0.01)


@pytest.mark.parametrize("flag", ["--gpu-memory", "--weights", "--concurrency", "--tp", "--context"])
@pytest.mark.parametrize("digits", [400, 5000])
def test_a_flag_of_many_digits_is_refused(flag: str, digits: int) -> None:
    arguments = [str(CONFIGS / "llama-3.1-8b.json"), *(["--gpu-memory", "80GiB"] if flag == "--weights" else []), flag, "1" + "0" * digits]
    result = outcome(*arguments)
    assert isinstance(result, str) or result.exit_code == 2


def test_every_number_that_is_read_has_a_limit() -> None:
    named = set()
    for file in ROOM.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in ("optional", "whole", "number", "fraction"):
                    named |= {part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    assert len(named) > 50
    assert named <= set(numbers.LIMITS)
