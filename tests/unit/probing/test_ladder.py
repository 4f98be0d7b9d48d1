"""The ladder and the commands `probe` and `compare`, on a server whose TTFT follows a known law and which has a prefix cache."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from click.testing import CliRunner

from fakes.ladders import LATE, cell_of, ladder_of
from fakes.probing import FakeProber, good
from fakes.stream_player import Play, Request, Step, StreamPlayer, chat_chunk
from llm_exporter.cli.compare import command as compare_command
from llm_exporter.cli.measured_text import untimed_lines
from llm_exporter.cli.measuring import parse_cache, parse_headers, parse_lengths
from llm_exporter.cli.probe import command as probe_command
from llm_exporter.errors import SourceError, UsageError
from llm_exporter.probing.document import fit_of, probe_document
from llm_exporter.probing.ladder import Cell, EndedEarly, Ladder, LadderRun, Plan, Server, fitting_lengths, lengths_asked_for
from llm_exporter.probing.plot import plot_documents, titles
from llm_exporter.probing.servers import ServerFacts
from llm_exporter.sources.probe import ProbeCall, ProbeReading


class Engine:
    """TTFT = fixed + per token · computed tokens; a prompt that was seen before costs its last block only."""

    def __init__(self, fixed: float = 0.004, per_token: float = 4e-6, context: int = 40960, model: str = "tiny") -> None:
        self.fixed, self.per_token = fixed, per_token
        self.seen: set[str] = set()
        self.active = self.most_active = 0
        self.lock = threading.Lock()
        self.pages = {
            "/v1/models": json.dumps({"data": [{"id": model, "max_model_len": context}]}).encode(),
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
    assert "not known: gpu, device, precision" in result.stdout
    assert "name it with --gpu" in result.stdout
    assert "trimmed: mean without the highest and lowest fifth" in result.stdout
    assert "prefix cache at 512 tokens: warm ÷ cold" in result.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_token_reaches_the_server_and_no_output(server: StreamPlayer) -> None:
    arguments = [server.url, "--prompt-tokens", "64", "--repeat", "1", "--cache", "cold", "--header", "X-Team: ${TEAM}"]
    environment = {"LLM_EXPORTER_TOKEN": "sk-hidden", "TEAM": "t-hidden"}
    result = CliRunner().invoke(probe_command, arguments, catch_exceptions=False, env=environment)
    assert {request.headers.get("authorization") for request in server.requests} == {"Bearer sk-hidden"}
    assert server.posts[0].headers["x-team"] == "t-hidden"
    assert "hidden" not in result.output


def test_concurrency_sends_that_many_at_once(engine: Engine, server: StreamPlayer) -> None:
    engine.fixed = 0.5  # all four are there by then, also on a busy machine
    document = run(probe_command, server.url, "--prompt-tokens", "64", "--repeat", "2", "--cache", "cold", "--concurrency", "4")
    (row,) = document["runs"]
    assert (row["n"], row["n_samples"]) == (8, 2)
    assert len(row["ttft_seconds"]["samples"]) == 8
    assert len(row["ttft_seconds"]["sample_medians"]) == 2
    assert engine.most_active == 4


def test_compare_finds_a_slower_server_and_says_so(server: StreamPlayer) -> None:
    slower = Engine(fixed=0.1)
    with StreamPlayer(slower, pages=slower.pages) as other:
        document = run(compare_command, server.url, other.url, "--prompt-tokens", "64,1024", "--cache", "cold", "--repeat", "7")
    assert [each["url"] for each in document["servers"]] == [server.url, other.url]
    for row in document["differences"]:
        assert row["real"] is True
        assert row["ttft_shift_seconds"] == pytest.approx(0.096, abs=0.03)
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


def test_each_server_can_have_conditions_of_its_own(server: StreamPlayer) -> None:
    arguments = [server.url, server.url, "--prompt-tokens", "64", "--cache", "cold", "--repeat", "1"]
    document = run(compare_command, *arguments, "--gpu", "H100", "--gpu", "H200", "--precision", "bf16")
    found = [one["conditions"] for one in document["servers"]]
    assert [(one["gpu"], one["precision"], one["quantization"]) for one in found] == [("H100", "bf16", None), ("H200", "bf16", None)]
    with pytest.raises(UsageError, match="--gpu is given 3 times for 2 URLs"):
        CliRunner().invoke(compare_command, [*arguments, *["--gpu", "x"] * 3], catch_exceptions=False)


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


def test_lengths_that_somebody_asked_for_are_not_replaced_by_others() -> None:
    assert lengths_asked_for((4096, 1024, 64), 2048, 8) == (64, 1024)
    assert lengths_asked_for((4096,), None, 8) == (4096,)
    with pytest.raises(UsageError, match=r"4096 does not fit: the server's context of 2048 tokens holds prompts of up to 1932"):
        lengths_asked_for((4096,), 2048, 8)


def test_what_does_not_fit_is_named() -> None:
    engine = Engine(context=2048)
    with StreamPlayer(engine, pages=engine.pages) as player:
        arguments = [player.url, "--prompt-tokens", "64,4096", "--repeat", "1", "--cache", "cold"]
        result = CliRunner().invoke(probe_command, arguments, catch_exceptions=False, env={"COLUMNS": "160"})
        assert "The context of 2048 tokens does not hold 4096 tokens. Measured: 64." in result.stderr
        with pytest.raises(UsageError, match="4096 does not fit"):
            CliRunner().invoke(probe_command, [player.url, "--prompt-tokens", "4096"], catch_exceptions=False)


@pytest.mark.parametrize("model", ["m[awq]", "org/m[/bold]", "m[bold red]", "a\x1b[31mb\x1b]0;title\x07", "m$\\frac$", "m\u202ex"])
def test_a_models_name_is_printed_as_it_is_and_is_no_command(tmp_path: Path, model: str) -> None:
    engine = Engine(model=model)
    common = ["--prompt-tokens", "64", "--repeat", "1", "--cache", "cold", "--plot"]
    with StreamPlayer(engine, pages=engine.pages) as player:
        one = CliRunner().invoke(probe_command, [player.url, *common, str(tmp_path / "a.png")], catch_exceptions=False)
        two = CliRunner().invoke(compare_command, [player.url, player.url, *common, str(tmp_path / "b.png")], catch_exceptions=False)
        assert player.posts[0].json["model"] == model
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in model)
    for result in (one, two):
        assert result.exit_code == 0
        assert f"model {printable}\n" in result.stdout
        assert "\x1b" not in result.output


def test_compare_names_the_servers_a_and_b_and_says_when_they_are_one(server: StreamPlayer) -> None:
    arguments = [server.url, server.url, "--prompt-tokens", "64", "--repeat", "3", "--cache", "cold"]
    result = CliRunner().invoke(compare_command, arguments, catch_exceptions=False)
    assert f"A  {server.url}  vllm 0.32.0, model tiny" in result.stdout
    assert "A and B are the same URL: any difference is chance" in result.stdout
    assert f"B ({server.url}) against A ({server.url})" in result.stdout
    assert "With --repeat 3 no difference can be called real: it takes 4 samples." in " ".join(result.stderr.split())


def test_a_credential_that_a_server_repeats_is_not_printed() -> None:
    def echo(request: Request) -> Play:
        error = json.dumps({"error": {"message": f"no access for {request.headers['authorization']}"}}).encode()
        return Play([Step(0.0, b"data: " + error + b"\n\n")])

    with StreamPlayer(echo, pages=Engine().pages) as player, pytest.raises(SourceError, match="no access for") as caught:
        CliRunner().invoke(probe_command, [player.url], catch_exceptions=False, env={"LLM_EXPORTER_TOKEN": "sk-hidden-token"})
    assert "sk-hidden" not in str(caught.value)


def test_the_picture_tells_servers_apart_and_says_what_it_shows(tmp_path: Path) -> None:
    def ladder(url: str) -> Ladder:
        cold = [cell_of(tokens, "cold", [tokens * 1e-5, tokens * 1.1e-5], counted=tokens) for tokens in (512, 1024)]
        return ladder_of(*cold, cell_of(512, "warm", [0.003, 0.004]), conditions={"prefix_cache": "on"}, url=url)

    ladders = [ladder("http://a:1"), ladder("http://b:1")]
    documents = [probe_document(each, {"gpu": "H200"}) for each in ladders]
    picture = tmp_path / "f.svg"
    with mpl.rc_context({"svg.fonttype": "none"}):
        plot_documents(documents, [fit_of(each) for each in ladders], picture, ["A", "B"])
    words = re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())
    for name in "AB":
        for line in ("cold, median", "cold, fit", "warm, median"):
            assert words.count(f"{name} {line}") == 1
    assert "time to first token, ms" in words
    assert any("A: http://a:1, vllm 0.32.0, m, gpu H200, prefix_cache on, concurrency 1" in word for word in words)
    assert titles(documents[:1])[0].startswith("http://a:1, vllm 0.32.0, m")


def test_samples_that_were_read_late_are_left_out_and_counted() -> None:
    ladder = ladder_of(cell_of(512, "cold", [0.1, None, 0.12]), cell_of(1024, "cold", [None, None, None]))
    document = probe_document(ladder)
    first, second = document["runs"]
    assert (first["n"], first["n_samples"], first["without_ttft"], first["ttft_seconds"]["median"]) == (2, 2, [LATE], pytest.approx(0.11))
    assert (second["n"], second["without_ttft"], second["ttft_seconds"]["median"]) == (0, [LATE] * 3, None)
    assert untimed_lines(document) == [f"4 of 6 requests have no time to first token and are left out: {LATE}"]
    assert untimed_lines(probe_document(ladder_of(cell_of(512, "cold", [0.1])))) == []


def test_each_reason_for_a_missing_time_is_told_with_its_count() -> None:
    early = "the server answered before it had the whole request"
    late = [f"this machine read the first token up to {late} ms late, so there is no time to first token" for late in (9, 30, 12)]
    details = [f"{early}, so there is no time to first token", *late, ""]
    cell = Cell(512, "cold", [[ProbeReading("success", detail)] for detail in details] + [[ProbeReading("timeout", "after 2 s")]])
    (line,) = untimed_lines(probe_document(ladder_of(cell)))
    assert line == (
        "5 of 5 requests have no time to first token and are left out: 3 × this machine read the first token up to 30 ms late; "
        f"1 × {early}; 1 × for no known reason"
    )


def test_requests_at_once_are_one_sample_for_every_statistic() -> None:
    """Each sample of three requests queues in steps of 0.1 s: alike from sample to sample, so nothing else ran meanwhile."""
    cells = [cell_of(tokens, "cold", [[base, base + 0.1, base + 0.2]] * 5) for tokens, base in ((512, 0.1), (1024, 0.2))]
    document = probe_document(ladder_of(*cells))
    assert document["runs"][0]["n"] == 15
    assert document["runs"][0]["ttft_seconds"]["max"] == pytest.approx(0.3)
    assert document["runs"][0]["ttft_seconds"]["spread_ratio"] == 0.0
    assert document["fit"]["contended"] is False


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
    with pytest.raises(SourceError, match="3 samples in a row failed"):
        LadderRun([SERVER], Plan((512,), cache=("cold",), repeat=10), prober).carry_out()


class TwoServers(FakeProber):
    """The second fails from its `healthy`-th request on."""

    def __init__(self, healthy: int, failing: Any = lambda _: True) -> None:
        super().__init__()
        self.healthy, self.failing, self.asked = healthy, failing, 0

    def measure(self, call: ProbeCall) -> ProbeReading:
        reading = super().measure(call)
        if call.url != OTHER.url:
            return reading
        self.asked += 1
        late = self.asked - self.healthy
        return ProbeReading("timeout", "after 2 s nothing") if late > 0 and self.failing(late) else reading


OTHER = Server("http://b", SERVER.facts, "m")


def test_a_server_that_dies_beside_a_good_one_ends_the_measurement_and_what_was_measured_is_kept() -> None:
    prober = TwoServers(healthy=6)
    with pytest.raises(EndedEarly, match=r"http://b: 3 samples in a row failed: after 2 s nothing") as caught:
        LadderRun([SERVER, OTHER], Plan((64, 128), cache=("cold",), repeat=10, seed=1), prober).carry_out()
    assert prober.asked == 6 + 3
    assert caught.value.reason == "timeout"
    good_one, dead = caught.value.ladders
    assert sum(len(cell.good) for cell in dead.cells) == 4
    assert sum(len(cell.readings) for cell in dead.cells) == 7
    assert sum(len(cell.good) for cell in good_one.cells) >= 6


def test_with_many_at_once_a_sample_counts_as_one_and_only_where_all_of_it_fails() -> None:
    prober = TwoServers(healthy=2)
    with pytest.raises(EndedEarly, match="3 samples in a row failed"):
        LadderRun([OTHER], Plan((64,), repeat=10, concurrency=8, seed=2, cache=("cold",)), prober).carry_out()
    assert prober.asked == 2 + 3 * 8
    prober = TwoServers(healthy=2, failing=lambda number: number % 8)  # one of eight comes through
    (ladder,) = LadderRun([OTHER], Plan((64,), repeat=10, concurrency=8, cache=("cold",)), prober).carry_out()
    assert ladder.cells[0].results == {"timeout": 70, "success": 10}


class Dying(Engine):
    """Refuses everything from a request on."""

    def __init__(self, healthy: int) -> None:
        super().__init__()
        self.left = healthy

    def __call__(self, request: Request) -> Play:
        self.left -= 1
        if self.left >= 0:
            return super().__call__(request)
        return Play([Step(0.0, b'data: {"error": {"message": "engine is dead"}}\n\n')])


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("command", "first"), [(compare_command, ["alive"]), (probe_command, [])])
def test_the_commands_show_what_was_measured_before_a_server_died_and_fail(
    server: StreamPlayer, command: Any, first: list[str], as_json: bool
) -> None:
    with StreamPlayer(Dying(7), pages=Engine().pages) as dying:
        arguments = [*(server.url for _ in first), dying.url, "--prompt-tokens", "64", "--repeat", "20", "--cache", "cold"]
        result = CliRunner().invoke(command, [*arguments, *(["--json"] if as_json else [])], env={"COLUMNS": "160"})
        assert len(dying.posts) == 7 + 3
    assert isinstance(result.exception, EndedEarly)
    assert f"{dying.url}: 3 samples in a row failed: engine is dead" in str(result.exception)
    if as_json:
        document = json.loads(result.stdout)
        assert document["ended_early"] == str(result.exception)
        document = document["servers"][-1] if first else document
        assert document["runs"][0]["results"] == {"success": 5, "in_band_error": 3}
    else:
        assert "3 in_band_error" in result.stdout


def test_a_server_that_dies_before_anything_is_measured_has_nothing_to_show() -> None:
    with StreamPlayer(Dying(2), pages=Engine().pages) as dying:
        result = CliRunner().invoke(probe_command, [dying.url, "--prompt-tokens", "64", "--cache", "cold"])
    assert isinstance(result.exception, EndedEarly)
    assert result.stdout == ""


@pytest.mark.parametrize("command", [probe_command, compare_command])
@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://127.0.0.1:99999",
        "http://a..b:8000",
        "http://127.0.0.1:0",
        "ftp://x",
        "http://",
        "http://h:80:90",
        "http://.a",
    ],
)
def test_an_address_that_cannot_be_one_is_named_with_what_to_write(command: Any, url: str) -> None:
    with pytest.raises(UsageError, match=r"write ") as caught:
        CliRunner().invoke(command, [url, url] if command is compare_command else [url], catch_exceptions=False)
    assert repr(url) in str(caught.value)


@pytest.mark.parametrize(("text", "lengths"), [("2048", (2048,)), ("2K,8k", (2048, 8192)), (" 64 , 128", (64, 128))])
def test_lengths_are_parsed(text: str, lengths: tuple[int, ...]) -> None:
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "0", "a", "1,,2", "-5"])
def test_bad_lengths_are_named(text: str) -> None:
    with pytest.raises(UsageError, match="--prompt-tokens"):
        parse_lengths(text)


def test_cache_and_headers_are_checked() -> None:
    assert parse_cache("warm,cold,warm") == ("warm", "cold")
    assert parse_cache("both") == ("cold", "warm")
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
