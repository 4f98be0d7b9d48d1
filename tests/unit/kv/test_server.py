"""`llm-exporter kv --url`: our figures beside the server's own, and a server of another model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fakes.stream_player import Play, StreamPlayer
from llm_exporter.cli.kv import command
from llm_exporter.errors import FetchError, UsageError
from llm_exporter.probing.typed_url import base_url

CONFIGS = Path(__file__).parents[2] / "fixtures" / "model_configs"


def call(name: str, *arguments: str) -> Result:
    return CliRunner().invoke(command, [str(CONFIGS / f"{name}.json"), *arguments], catch_exceptions=False, env={"COLUMNS": "200"})


def vllm(*, model: str = "acme/chat-8b", tokens: int = 432_000, size: int = 131_072, dtype: str = "auto") -> StreamPlayer:
    """Tells of a cache of so many tokens of this size."""
    labels = f'block_size="16",cache_dtype="{dtype}",kv_cache_size_tokens="{tokens}",kv_cache_memory_bytes="{tokens * size}"'
    models = json.dumps({"data": [{"id": model, "max_model_len": 131_072}]}).encode()
    return StreamPlayer(
        Play(),
        pages={
            "/metrics": f"vllm:cache_config_info{{{labels}}} 1.0\n".encode(), "/version": b'{"version":"0.32.0"}', "/v1/models": models
        },
    )  # fmt: skip


def sglang(model_type: str | None) -> StreamPlayer:
    info: dict[str, Any] = {"model_path": "/models/tiny", "model_type": model_type}
    return StreamPlayer(
        Play(), pages={"/model_info": json.dumps(info).encode(), "/server_info": b'{"version":"0.5.23","max_total_num_tokens":1000}'}
    )


def test_a_server_of_this_config_agrees() -> None:
    with vllm() as server:
        result = call("llama-3.1-8b", "--url", server.url, "--json")
    found = json.loads(result.output)["server"]
    assert result.exit_code == 0
    assert (found["engine"], found["models"], found["capacity_tokens"]) == ("vllm", ["acme/chat-8b"], 432_000)
    assert found["bytes_per_token_measured"] == pytest.approx(131_072)
    assert found["difference_ratio"] == pytest.approx(0.0)
    assert (found["agrees"], found["verdict"]) == (
        True,
        "agrees in bytes per token: the server runs acme/chat-8b; other models may share the figure",
    )


def test_a_server_of_another_model_is_named_and_exits_with_1() -> None:
    with vllm(model="tiny", size=1024) as server:
        result = call("llama-3.1-8b", "--url", server.url)
    assert result.exit_code == 1
    assert "DISAGREES: the server runs tiny; its 1024 B per token cannot be this config's 131072 B" in result.output
    assert "the server runs" in result.output


def test_a_server_that_takes_longer_prompts_than_the_config_allows_is_pointed_out() -> None:
    with vllm() as server:  # Mistral's cache has the same bytes per token, its context is 32768
        result = call("mistral-7b-v0.1", "--url", server.url)
    assert "Its context of 131072 tokens is beyond this config's 32768" in result.output


def test_another_dtype_of_the_cache_is_named() -> None:
    with vllm(size=65_536, dtype="fp8_e4m3") as server:
        assert "the server says fp8_e4m3" in call("llama-3.1-8b", "--url", server.url).output
        assert call("llama-3.1-8b", "--kv-dtype", "fp8", "--url", server.url).exit_code == 0


@pytest.mark.parametrize(("size", "agrees"), [(24_600, True), (49_152, True), (1024, False), (131_072, False)])
def test_a_model_with_windows_is_judged_roughly(size: int, agrees: bool) -> None:
    with vllm(size=size) as server:
        found = json.loads(call("gpt-oss-20b", "--url", server.url, "--json").output)["server"]
    assert found["agrees"] is agrees


def test_sglang_says_its_model_type_and_another_one_is_another_model() -> None:
    with sglang("qwen2") as server:
        result = call("llama-3.1-8b", "--url", server.url)
    assert result.exit_code == 1
    assert "ANOTHER MODEL: the server runs" in result.output
    assert "of model_type qwen2; the config is of llama" in result.output


@pytest.mark.parametrize("model_type", ["gemma3", "gemma3_text"])
def test_the_type_of_the_whole_and_of_its_text_part_are_one_model(model_type: str) -> None:
    with sglang(model_type) as server:
        result = call("gemma-3-27b", "--url", server.url)
    assert result.exit_code == 0
    assert "NOT CHECKED" in result.output


def test_a_server_that_gives_no_figure_is_not_called_right() -> None:
    with StreamPlayer(Play(), pages={"/v1/models": b'{"data":[{"id":"tiny"}]}'}) as server:
        result = call("llama-3.1-8b", "--url", server.url)
    assert result.exit_code == 0
    assert "NOT CHECKED: the server runs tiny; it is neither vLLM nor SGLang, or hides /metrics" in result.output


@pytest.mark.parametrize("form", ["{host}", "http://{host}/", "http://{host}/v1", "{host}/v1/"])
def test_the_url_may_be_written_as_probe_takes_it(form: str) -> None:
    with vllm() as server:
        result = call("llama-3.1-8b", "--url", form.format(host=server.url.removeprefix("http://")))
    assert result.exit_code == 0, result.output


def test_a_server_that_is_not_there_is_a_fetch_error() -> None:
    with vllm() as server:
        url = server.url
    with pytest.raises(FetchError, match="cannot connect"):
        call("llama-3.1-8b", "--url", url)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://llm.example/v1", "https://llm.example"),
        ("https://llm.example/team/v1/", "https://llm.example/team"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("llm.example", "http://llm.example"),
    ],
)
def test_base_url(text: str, clean: str) -> None:
    assert base_url(text) == clean


@pytest.mark.parametrize("text", ["", "ftp://host", "http://", "http://[::1", "host:port", "host:99999", "host:8000/?key=x", "a host"])
def test_what_is_no_base_url_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(UsageError, match=rf"^--url: {re.escape(repr(text))} .+; (write|remove) "):
        base_url(text, "--url")


@pytest.mark.parametrize("text", ["http://user:hunter2@host", "user:hunter2@host", "ftp://:hunter2@host"])
def test_credentials_in_a_url_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError, match="credentials in a URL") as caught:
        base_url(text)
    assert "hunter2" not in str(caught.value)


def test_brackets_in_names_are_printed_and_not_obeyed(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(
        json.dumps({**json.loads((CONFIGS / "llama-3.1-8b.json").read_text()), "model_type": "[/bold]new", "torch_dtype": "[/x]"})
    )
    with vllm(model="[/red]tiny") as server:
        result = CliRunner().invoke(command, [str(file), "--url", server.url], catch_exceptions=False, env={"COLUMNS": "200"})
    assert "the server runs [/red]tiny" in result.output
    assert result.output.startswith("[/bold]new: GQA")
