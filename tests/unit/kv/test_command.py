"""`llm-exporter kv`: what it prints, what it refuses, what it exits with."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from llm_exporter.cli.kv import command
from llm_exporter.errors import ConfigError, UsageError

CONFIGS = Path(__file__).parents[2] / "fixtures" / "model_configs"


def config_of(name: str) -> str:
    return str(CONFIGS / f"{name}.json")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False, env={"COLUMNS": "200"})


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text((CONFIGS / "llama-3.1-8b.json").read_text())
    return file


def run(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.output)  # type: ignore[no-any-return]


def test_the_command_says_what_fits_and_what_it_assumes(config_file: Path) -> None:
    document = run(str(config_file), "--gpu-memory", "80GiB", "--weights", "16GB", "--context", "32768", "--concurrency", "4")
    free = 0.9 * 80 * 2**30 - 16e9 - 2**30
    fits = document["fits"]
    assert fits["free_bytes"] == pytest.approx(free)
    assert (fits["longest_context_tokens"], fits["longest_context_bound_by"]) == (131_072, "model")
    assert fits["concurrency"] == int(free // (131_072 * 32768))
    assert fits["longest_context_tokens_of_each"] == int(free // (4 * 131_072))
    assert fits["longest_context_of_each_bound_by"] == "memory"
    assert any("90% of 80 GiB" in line for line in document["assumptions"])


def test_weights_are_estimated_within_one_percent_and_called_an_estimate(config_file: Path) -> None:
    document = run(str(config_file), "--gpu-memory", "80GiB")
    assert document["fits"]["weight_bytes"] == pytest.approx(2 * 8.03e9, rel=0.01)
    assert any("estimated from the config" in line for line in document["assumptions"])


def test_weights_are_exact_where_an_index_lies_beside_the_config(config_file: Path) -> None:
    (config_file.parent / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 123000000}}')
    assert run(str(config_file), "--gpu-memory", "80GiB", "--tp", "2")["fits"]["weight_bytes"] == 61_500_000


@pytest.mark.parametrize("flag", ["--gpu-memory", "--weights"])
def test_a_size_whose_unit_was_forgotten_is_refused(config_file: Path, flag: str) -> None:
    given = {"--gpu-memory": "80GiB", "--weights": "16GB", flag: "80"}
    with pytest.raises(UsageError, match=rf"^{flag}: '80' is 80 bytes.*80GiB"):
        CliRunner().invoke(command, [str(config_file), *(word for pair in given.items() for word in pair)], catch_exceptions=False)


def test_a_model_that_does_not_fit_says_so_in_words_and_by_how_much(config_file: Path) -> None:
    arguments = [str(config_file), "--gpu-memory", "10GiB", "--weights", "16GiB"]
    fits = run(*arguments, exit_code=1)["fits"]
    missing = 16 * 2**30 + 2**30 + 131_072 - 0.9 * 10 * 2**30
    assert (fits["does_fit"], fits["concurrency"], fits["longest_context_tokens"], fits["free_bytes"]) == (False, 0, 0, 0)
    assert fits["missing_bytes"] == pytest.approx(missing)
    table = call(*arguments).output
    assert "does not fit: needs 8 GiB more" in fits["verdict"]
    assert fits["verdict"] in table
    assert not re.search(r"-\d", table), "never a negative size"
    assert "free for the cache" not in table


def test_the_models_limit_caps_the_longest_context_and_is_named(config_file: Path) -> None:
    arguments = [str(config_file), "--gpu-memory", "80GiB"]
    assert "131072 tokens, the model's own limit" in call(*arguments).output
    small = run(str(config_file), "--gpu-memory", "24GiB", "--weights", "16GB")["fits"]
    assert small["longest_context_tokens"] == int((0.9 * 24 * 2**30 - 16e9 - 2**30) // 131_072)
    assert small["longest_context_bound_by"] == "memory"


@pytest.mark.parametrize(("context", "warned"), [("131072", False), ("200000", True)])
def test_a_context_beyond_the_models_limit_is_warned_of(config_file: Path, context: str, warned: bool) -> None:
    notes = run(str(config_file), "--context", context)["notes"]
    assert any(f"--context {context} is beyond the model's 131072 tokens" in note for note in notes) is warned


def test_the_table_has_the_same_figures(config_file: Path) -> None:
    result = CliRunner().invoke(command, [str(config_file), "--gpu-memory", "80GiB", "--context", "8192"], catch_exceptions=False)
    assert "131072 B = 128 KiB" in result.output
    assert "assumed:" in result.output


@pytest.mark.parametrize("text", ["not json", "[1]"])
def test_a_file_that_is_no_config_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        CliRunner().invoke(command, [str(file)], catch_exceptions=False)


def test_what_fits_is_not_known_without_the_weights_and_the_rest_is_given(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    config = json.loads((CONFIGS / "llama-3.1-8b.json").read_text())
    del config["vocab_size"]
    file.write_text(json.dumps(config))
    document = run(str(file), "--gpu-memory", "80GiB")
    assert document["bytes_per_token"] == 131_072
    assert document["fits"]["does_fit"] is None
    assert any("no vocab_size" in note and "give --weights" in note for note in document["notes"])
    assert "not known" in call(str(file), "--gpu-memory", "80GiB").output
    assert run(str(file), "--gpu-memory", "80GiB", "--weights", "16GB")["fits"]["does_fit"] is True


def test_a_float32_checkpoint_is_served_in_16_bits_and_fits(tmp_path: Path) -> None:
    document = run(config_of("gemma-2-9b"), "--gpu-memory", "24GiB")
    assert document["bytes_per_token"] == 344_064
    assert document["fits"]["does_fit"] is True
    assert document["fits"]["weight_bytes"] == pytest.approx(18.48e9, rel=0.005)
    assert any("vLLM's and SGLang's `auto` serve it as bfloat16" in line for line in document["assumptions"])
    wide = run(config_of("gemma-2-9b"), "--kv-dtype", "fp32")
    assert (wide["bytes_per_token"], wide["assumptions"]) == (688_128, [])


def test_float32_files_are_halved_as_the_engine_halves_them(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text((CONFIGS / "gemma-2-9b.json").read_text())
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 36966823936}}')
    document = run(str(file), "--gpu-memory", "24GiB")
    assert document["fits"]["weight_bytes"] == 18_483_411_968
    assert any("in float32, halved" in line for line in document["assumptions"])


@pytest.mark.parametrize(("text", "tokens"), [("32k", 32768), ("32K", 32768), ("32768", 32768), ("1M", 1_048_576)])
def test_tokens_may_be_written_short(text: str, tokens: int) -> None:
    document = run(config_of("llama-3.1-8b"), "--context", text)
    assert (document["context_tokens"], document["context_source"]) == (tokens, "--context")


@pytest.mark.parametrize("text", ["0", "-5", "32kb", "3.5k", "", "many"])
def test_a_context_that_is_no_number_is_refused_with_an_example(text: str) -> None:
    result = call(config_of("llama-3.1-8b"), "--context", text)
    assert result.exit_code == 2
    assert "write for example 32768 or 32K" in result.output


def test_the_context_says_where_it_is_from(tmp_path: Path) -> None:
    assert "2048 tokens: max_position_embeddings, the default of the model's class" in call(config_of("falcon-7b")).output
    bare = tmp_path / "config.json"
    bare.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}))
    assert "32768 tokens: assumed: the config names no limit; give --context" in call(str(bare)).output


def test_the_longest_context_is_never_beyond_the_models_own() -> None:
    fits = run(config_of("falcon-7b"), "--gpu-memory", "80GiB", "--concurrency", "3")["fits"]
    assert (fits["longest_context_tokens"], fits["longest_context_bound_by"]) == (2048, "model")
    assert (fits["longest_context_tokens_of_each"], fits["longest_context_of_each_bound_by"]) == (2048, "model")


def test_a_context_of_the_model_that_memory_does_not_hold_names_the_engines_flags() -> None:
    document = run(config_of("gpt-oss-20b"), "--gpu-memory", "16GiB")
    assert document["fits"]["concurrency"] == 0
    longest = document["fits"]["longest_context_tokens"]
    assert 24_000 < longest < 28_000
    assert any(f"at most {longest}" in note and "--max-model-len" in note for note in document["notes"])


@pytest.mark.parametrize(
    ("arguments", "remedies"),
    [
        (["llama-3.1-70b", "--gpu-memory", "80GiB", "--context", "32K"], ["--tensor-parallel 2 is the least that fits"]),
        # free: 77309411328 - 2 * 8029995008 - 2**30 = 60175679488 bytes = 4 * 131072 * 114776; 4 x 16 GiB are asked for
        (
            ["llama-3.1-8b", "--gpu-memory", "80GiB", "--context", "128K", "--concurrency", "4"],
            ["--tensor-parallel 2 is the least that fits", "--context 114776 at most", "--concurrency 3 at most", "--kv-dtype fp8"],
        ),
        (
            ["gpt2", "--gpu-memory", "1GiB"],
            ["GPUs with more memory, or weights of fewer bits: no --tensor-parallel of this model is enough"],
        ),
    ],
)
def test_what_does_not_fit_exits_with_1_and_names_each_remedy(arguments: list[str], remedies: list[str]) -> None:
    name, *flags = arguments
    fits = run(config_of(name), *flags, exit_code=1)["fits"]
    assert fits["remedies"] == remedies
    shown = call(config_of(name), *flags)
    assert shown.exit_code == 1
    assert fits["verdict"] in shown.output
    assert "to make it fit: " + "; or ".join(remedies) in shown.output


@pytest.mark.parametrize(("change", "value"), [("--tp", "2"), ("--context", "114776"), ("--concurrency", "3"), ("--kv-dtype", "fp8")])
def test_each_remedy_makes_it_fit_and_one_less_does_not(change: str, value: str) -> None:
    flags = {"--gpu-memory": "80GiB", "--context": "128K", "--concurrency": "4", "--kv-dtype": "auto", "--tp": "1"}
    assert call(config_of("llama-3.1-8b"), *(word for pair in flags.items() for word in pair)).exit_code == 1
    flags[change] = value
    assert call(config_of("llama-3.1-8b"), *(word for pair in flags.items() for word in pair)).exit_code == 0
    if value.isdigit() and change != "--tp":
        flags[change] = str(int(value) + 1)
        assert call(config_of("llama-3.1-8b"), *(word for pair in flags.items() for word in pair)).exit_code == 1


@pytest.mark.parametrize("gpus", ["3", "5", "128"])
def test_heads_that_cannot_be_shared_are_refused_with_what_can(gpus: str) -> None:
    with pytest.raises(
        UsageError, match=rf"--tensor-parallel {gpus}: 64 attention heads and 8 KV heads .* Possible: 1, 2, 4, 8, 16, 32, 64$"
    ):
        call(config_of("llama-3.1-70b"), "--tp", gpus)


def test_concurrency_needs_no_gpu_to_say_what_it_takes() -> None:
    document = run(config_of("llama-3.1-8b"), "--context", "32K", "--concurrency", "4")
    assert document["bytes_of_requests"] == 4 * 32768 * 131_072
    assert "4 requests of 32768 tokens" in call(config_of("llama-3.1-8b"), "--context", "32K", "--concurrency", "4").output


@pytest.mark.parametrize(
    ("flag", "value", "needed"),
    [("--weights", "16GB", "--gpu-memory"), ("--gpu-memory-utilization", "0.8", "--gpu-memory"), ("--header", "A: b", "--url")],
)
def test_a_flag_that_would_be_ignored_is_refused(flag: str, value: str, needed: str) -> None:
    with pytest.raises(UsageError, match=f"^{flag} says nothing without {needed}$"):
        call(config_of("llama-3.1-8b"), flag, value)


@pytest.mark.parametrize(("memory", "chunk", "more"), [("24GiB", 2048, "256 MiB"), ("80GiB", 8192, "1 GiB"), ("180GiB", 16384, "2 GiB")])
def test_figures_of_windows_say_what_prefill_adds(memory: str, chunk: int, more: str) -> None:
    lines = run(config_of("mistral-7b-v0.1"), "--gpu-memory", memory)["assumptions"]
    assert any(
        f"hold 4096 tokens of a request and no more; during its prefill they hold the chunk too: up to {more}" in line for line in lines
    )
    assert any(f"chunks of {chunk} tokens" in line for line in lines)
    assert any("one that keeps all tokens needs 4 GiB for a request of 32768 tokens" in line for line in lines)
    short = run(config_of("mistral-7b-v0.1"), "--gpu-memory", memory, "--context", "4K")["assumptions"]
    assert not any("window" in line for line in short)


def test_a_file_that_is_no_json_is_told_in_words(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("<html>")
    with pytest.raises(
        ConfigError, match=r"config\.json is no JSON \(line 1, column 1: .*\); a Hugging Face config.json holds a JSON object$"
    ):
        call(str(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"config\.json is no text; a Hugging Face"):
        call(str(file))


def test_an_error_of_the_config_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match=rf"^{re.escape(str(file))}: the config has no num_hidden_layers"):
        call(str(file))
