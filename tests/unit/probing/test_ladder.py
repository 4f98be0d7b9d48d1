"""The ladder and the commands `probe` and `compare`, on a server whose TTFT follows a known law and which has a prefix cache."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fakes.probing import FakeProber, good
from fakes.stream_player import Play, Request, Step, StreamPlayer, chat_chunk
from llm_exporter.cli.compare import command as compare_command
from llm_exporter.cli.measuring import parse_cache, parse_headers, parse_lengths
from llm_exporter.cli.probe import command as probe_command
from llm_exporter.errors import SourceError, UsageError
from llm_exporter.probing.ladder import LadderRun, Plan, Server, fitting_lengths
from llm_exporter.probing.servers import ServerFacts
from llm_exporter.sources.probe import ProbeReading


class Engine:
    """TTFT = fixed + per token · computed tokens; a prompt that was seen before costs its last block only."""

    def __init__(self, fixed: float = 0.004, per_token: float = 4e-6, context: int = 40960) -> None:
        self.fixed, self.per_token = fixed, per_token
        self.seen: set[str] = set()
        self.active = self.most_active = 0
        self.lock = threading.Lock()
        self.pages = {
            "/v1/models": json.dumps({"data": [{"id": "tiny", "max_model_len": context}]}).encode(),
            "/version": b'{"version": "0.32.0"}',
            "/metrics": b'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True"} 1.0\n',
        }

    def __call__(self, request: Request) -> Play:
        prompt = request.json["messages"][0]["content"]
        tokens = 20 + len(prompt) // 4
        cached = (tokens - 16) // 16 * 16 if prompt in self.seen else 0
        self.seen.add(prompt)
        with self.lock:
            self.active += 1
            self.most_active = max(self.most_active, self.active)
        ttft = self.fixed + self.per_token * (tokens - cached)
        usage = {"prompt_tokens": tokens, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": cached}}
        end = chat_chunk({}, "length") + chat_chunk(None, usage=usage) + b"data: [DONE]\n\n"
        threading.Timer(ttft, self._leave).start()
        return Play([Step(ttft, chat_chunk({"content": "a"})), Step(ttft + 0.002, chat_chunk({"content": "b"})), Step(ttft + 0.002, end)])

    def _leave(self) -> None:
        with self.lock:
            self.active -= 1


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def server(engine: Engine) -> Iterator[StreamPlayer]:
    with StreamPlayer(engine, pages=engine.pages) as player:
        yield player


def run(command: Any, *arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)  # type: ignore[no-any-return]


def test_probe_json_has_the_contracts_form_and_the_right_figures(engine: Engine, server: StreamPlayer) -> None:
    document = run(probe_command, server.url, "--prompt-tokens", "2048,8192,16384", "--repeat", "3", "--gpu", "none")
    assert (document["url"], document["engine"], document["engine_version"], document["model"]) == (server.url, "vllm", "0.32.0", "tiny")
    assert document["conditions"]["prefix_cache"] == "on"
    assert document["conditions"]["concurrency"] == 1
    assert {(row["prompt_tokens"], row["cache"]) for row in document["runs"]} == {
        (length, cache) for length in (2048, 8192, 16384) for cache in ("cold", "warm")
    }
    for row in document["runs"]:
        assert row["n"] == 3
        assert row["results"] == {"success": 3}
        assert row["prompt_tokens_measured"] == pytest.approx(row["prompt_tokens"], rel=0.01)
        assert len(row["ttft_seconds"]["samples"]) == 3
        assert row["ttft_seconds"]["min"] <= row["ttft_seconds"]["median"] <= row["ttft_seconds"]["max"]
        assert (row["cached_tokens"] > 0.9 * row["prompt_tokens"]) == (row["cache"] == "warm")
    cold = next(row for row in document["runs"] if (row["prompt_tokens"], row["cache"]) == (16384, "cold"))
    assert cold["ttft_seconds"]["min"] == pytest.approx(0.004 + 4e-6 * 16384, abs=0.02)
    assert document["fit"]["per_token_seconds"] == pytest.approx(4e-6, rel=0.4)
    assert document["prefix_cache"][-1]["warm_to_cold_ratio"] < 0.6


def test_probe_prints_a_table_and_draws(server: StreamPlayer, tmp_path: Path) -> None:
    picture = tmp_path / "f.png"
    arguments = [server.url, "--prompt-tokens", "64,512", "--repeat", "2", "--plot", str(picture)]
    result = CliRunner().invoke(probe_command, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0
    assert "time to first token, ms" in result.stdout
    assert "state it with --gpu" in result.stdout
    assert "prefix cache at 512 tokens" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_token_reaches_the_server_and_no_output(server: StreamPlayer) -> None:
    arguments = [server.url, "--prompt-tokens", "64", "--repeat", "1", "--cache", "cold", "--header", "X-Team: ${TEAM}"]
    environment = {"LLM_EXPORTER_TOKEN": "sk-hidden", "TEAM": "t-hidden"}
    result = CliRunner().invoke(probe_command, arguments, catch_exceptions=False, env=environment)
    assert {request.headers.get("authorization") for request in server.requests} == {"Bearer sk-hidden"}
    assert server.posts[0].headers["x-team"] == "t-hidden"
    assert "hidden" not in result.output


def test_concurrency_sends_that_many_at_once(engine: Engine, server: StreamPlayer) -> None:
    engine.fixed = 0.15
    document = run(probe_command, server.url, "--prompt-tokens", "64", "--repeat", "2", "--cache", "cold", "--concurrency", "4")
    assert document["runs"][0]["n"] == 8
    assert engine.most_active == 4


def test_compare_finds_a_slower_server_and_says_so(server: StreamPlayer) -> None:
    slower = Engine(fixed=0.04)
    with StreamPlayer(slower, pages=slower.pages) as other:
        document = run(compare_command, server.url, other.url, "--prompt-tokens", "64,1024", "--cache", "cold", "--repeat", "5")
    assert [each["url"] for each in document["servers"]] == [server.url, other.url]
    for row in document["differences"]:
        assert row["real"] is True
        assert row["ttft_shift_seconds"] == pytest.approx(0.036, abs=0.015)
        assert row["lower"] <= row["ttft_shift_seconds"] <= row["upper"]
    assert "later" in document["conclusions"][0]


def test_two_names_of_one_server_do_not_warm_each_other(engine: Engine, server: StreamPlayer) -> None:
    alias = server.url.replace("127.0.0.1", "localhost")
    document = run(compare_command, server.url, alias, "--prompt-tokens", "512", "--cache", "cold", "--repeat", "3")
    assert [each["runs"][0]["cached_tokens"] for each in document["servers"]] == [0, 0]
    prompts = [request.json["messages"][0]["content"] for request in server.posts]
    assert len({prompt[16:] for prompt in prompts[4:]}) == 3  # the same words on both
    assert len(set(prompts)) == len(prompts)


@pytest.mark.parametrize(("name", "words"), [("f.xyz", "must end in"), ("nowhere/f.png", "no directory")])
def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_sent(
    engine: Engine, server: StreamPlayer, tmp_path: Path, name: str, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        CliRunner().invoke(probe_command, [server.url, "--plot", str(tmp_path / name)], catch_exceptions=False)
    assert server.requests == []


def test_compare_needs_two() -> None:
    with pytest.raises(UsageError, match="two URLs"):
        CliRunner().invoke(compare_command, ["http://a"], catch_exceptions=False)


def test_a_server_without_a_model_needs_the_flag() -> None:
    with StreamPlayer(Engine(), pages={"/version": b'{"version": "1"}'}) as player, pytest.raises(UsageError, match="--model"):
        CliRunner().invoke(probe_command, [player.url], catch_exceptions=False)


def test_credentials_in_the_url_are_refused() -> None:
    with pytest.raises(UsageError, match="--header") as caught:
        CliRunner().invoke(probe_command, ["http://user:pw@127.0.0.1:1"], catch_exceptions=False)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "context", "lengths"),
    [
        ((2048, 8192), None, (2048, 8192)),
        ((8192, 2048), 40960, (2048, 8192)),
        ((2048, 4096, 8192, 16384, 32768), 20000, (2048, 4096, 8192, 16384, 19345)),
        ((2048, 4096, 8192), 4300, (2048, 4096)),
        ((2048, 4096), 2048, (483, 966, 1449, 1932)),
    ],
)
def test_the_context_caps_the_ladder(wanted: tuple[int, ...], context: int | None, lengths: tuple[int, ...]) -> None:
    assert fitting_lengths(wanted, context, 8) == lengths


def test_a_context_without_room_is_refused() -> None:
    with pytest.raises(UsageError, match="no room"):
        fitting_lengths((2048,), 40, 8)


SERVER = Server("http://a", ServerFacts(models=("m",), engine="vllm"), "m")


def test_samples_are_interleaved_and_the_first_requests_are_not_counted() -> None:
    prober = FakeProber()
    advanced: list[str] = []
    ladder_run = LadderRun([SERVER], Plan((512, 4096), repeat=5, seed=3), prober, advanced.append)
    (ladder,) = ladder_run.carry_out()
    assert [len(cell.readings) for cell in ladder.cells] == [5, 5, 5, 5]
    assert len(prober.calls) == 2 + 10 + 20  # warming up, cold, warm with their primings
    assert len(advanced) == ladder_run.steps
    lengths = [len(prompt) for prompt in prober.prompts[2:]]
    changes = sum(earlier != later for earlier, later in pairwise(lengths))
    assert changes > 5


def test_each_warm_sample_follows_its_own_priming_at_once() -> None:
    prober = FakeProber()
    LadderRun([SERVER], Plan((512,), cache=("warm",), repeat=3), prober).carry_out()
    prompts = prober.prompts[2:]
    assert len(prompts) == 6
    assert len(set(prompts)) == 1


def test_a_server_that_fails_at_once_ends_the_measurement_with_its_reason() -> None:
    prober = FakeProber(answer=lambda _: ProbeReading("http_404", detail="HTTP 404"))
    with pytest.raises(SourceError, match="http_404"):
        LadderRun([SERVER], Plan((512,)), prober).carry_out()


def test_single_failures_are_counted_and_many_end_it() -> None:
    count = iter(range(1000))
    prober = FakeProber(answer=lambda prompt: ProbeReading("timeout") if next(count) in (5, 9) else good(prompt))
    (ladder,) = LadderRun([SERVER], Plan((512,), cache=("cold",), repeat=10), prober).carry_out()
    assert ladder.cells[0].results == {"success": 8, "timeout": 2}
    count = iter(range(1000))
    prober = FakeProber(answer=lambda prompt: ProbeReading("timeout") if next(count) > 4 else good(prompt))
    with pytest.raises(SourceError, match="3 requests in a row failed"):
        LadderRun([SERVER], Plan((512,), cache=("cold",), repeat=10), prober).carry_out()


@pytest.mark.parametrize(("text", "lengths"), [("2048", (2048,)), ("2K,8k", (2048, 8192)), (" 64 , 128", (64, 128))])
def test_lengths_are_parsed(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "0", "a", "1,,2", "-5"])
def test_bad_lengths_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="--prompt-tokens"):
        parse_lengths(text)


def test_cache_and_headers_are_checked() -> None:
    assert parse_cache("warm,cold,warm") == ("warm", "cold")
    with pytest.raises(UsageError, match="'hot'"):
        parse_cache("hot")
    with pytest.raises(UsageError, match="Name: value"):
        parse_headers(["nonsense"], {})
    with pytest.raises(UsageError, match="NOPE"):
        parse_headers(["A: ${NOPE}"], {})


def test_a_measurement_ends_in_time(server: StreamPlayer) -> None:
    started = time.monotonic()
    run(probe_command, server.url, "--prompt-tokens", "64", "--repeat", "1", "--cache", "cold")
    assert time.monotonic() - started < 10
