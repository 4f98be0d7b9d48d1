"""`diagnose`: the verdict on recorded and misbehaving servers, in words and as JSON."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from fakes.servers import FakeServer, in_turn, needs_header, page, routes
from llm_exporter.cli import diagnose
from llm_exporter.cli.diagnose import HOPELESS_AFTER, base_url, follow, target_of
from llm_exporter.cli.diagnose_text import print_diagnosis
from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.diagnosing import Diagnosis, Watch, document
from llm_exporter.daemon.machine import Machine
from llm_exporter.daemon.replaying import Replay
from llm_exporter.errors import ConfigError, UsageError
from llm_exporter.recording import read_recording
from llm_exporter.signals.bottleneck import CAUSES
from llm_exporter.sources.engine import Failed, Fetched

H200 = Path(__file__).parents[2] / "fixtures" / "recordings" / "h200"
REFUSED = Failed("refused", "nothing listens on 127.0.0.1:8000", "is the server up?", 0.01)


def fetched(body: bytes) -> Fetched:
    return Fetched(body, "text/plain; version=0.0.4", 0.01)


def watched(name: str, *, hardware: bool = True) -> Diagnosis:
    """A recording as a live server would have been seen."""
    recording = read_recording(H200 / name)
    replay = Replay([recording], Config())
    machine, pipeline = replay._machines[name], replay.pipelines[name]
    target = Target(name="server", url="http://gpu-7:8000")
    watch = Watch(target, version=lambda _: "0.22.0", hardware=pipeline.hardware) if hardware else Watch(target, version=lambda _: "0.22.0")
    for moment in recording.moments:
        machine.advance(moment.second)
        watch.tick(moment.scraped, moment.second)
    return watch.diagnosis()


def told(found: Diagnosis) -> str:
    out = StringIO()
    print_diagnosis(Console(file=out, width=400, highlight=False), found, "http://gpu-7:8000")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "cause", "advice", "flag"),
    [
        ("extra-cgroup_quota", "host_starved", "cpu_quota", ""),
        ("mid_starved-mid_one_core", "host_starved", "cpu_contention", "--numa-bind"),
        ("small_eager-eager_decode_16cores", "host_starved", "scheduler", "--stream-interval"),
        ("mid_kv-kv_pressure", "kv_cache", "kv_full", "--kv-cache-dtype fp8"),
        ("mid-cache_heavy", "frontend", "frontend", "--api-server-count"),
        ("mid-prefill_heavy", "prefill_compute", "prefill_bound", "--quantization fp8"),
        ("mid-decode_heavy", "decode_memory", "decode_bound", ""),
        ("extra-foreign_gpu_process", "foreign_process", "foreign_process", ""),
        ("mid-idle", "idle", "no_traffic", ""),
        ("mid-stalled", "stalled", "stalled", ""),
    ],
)
def test_a_known_situation_is_named_with_evidence_and_the_right_advice(name: str, cause: str, advice: str, flag: str) -> None:
    found = watched(name)
    assert found.failure == ""
    assert found.cause == cause
    assert found.advice[0].key == advice
    assert found.advice[0].because, "advice without evidence"
    assert flag in "\n".join(found.advice[0].flags)
    text = told(found)
    assert text.startswith("http://gpu-7:8000  vllm 0.22.0, model m, watched")
    assert f"Verdict: {cause}, confidence" in text
    assert found.meaning in text
    assert "nan" not in text.lower().split()
    assert "None" not in text
    assert "\x1b" not in text, "no colour where it is piped"


def test_eager_decode_is_told_to_use_graphs() -> None:
    keys = [row.key for row in watched("small_eager-eager_decode_16cores").advice]
    assert keys == ["scheduler", "launch"]


def test_a_light_load_needs_nothing() -> None:
    found = watched("mid_starved-light_load")
    assert (found.cause, found.advice) == ("none", ())
    assert "Nothing to change" in told(found)


def test_the_waterfall_adds_up_to_the_time_to_first_token() -> None:
    found = watched("mid-cache_heavy")
    assert found.ttft is not None
    assert found.ttft.mean is not None
    assert found.phases["queue"] + found.phases["prefill"] + found.phases["frontend"] == pytest.approx(found.ttft.mean)
    text = told(found)
    rows = [line for line in text.splitlines() if re.match(r"  (API server|queue|prefill) +[\d.]+ m?s", line)]
    assert [row.split("  ")[1].strip() for row in rows] == ["API server", "queue", "prefill"]


def test_populations_that_differ_are_not_subtracted() -> None:
    found = watched("mid_kv-kv_pressure")
    assert "frontend" not in found.phases
    assert "the rest is not shown" in told(found)


def test_without_gpu_and_host_it_says_what_it_cannot_tell() -> None:
    found = watched("mid-decode_heavy", hardware=False)
    assert found.cause == "unknown"
    assert found.confidence is None
    assert found.advice == ()
    text = told(found)
    assert "Cannot tell" in text
    assert "that takes readings of the GPU" in text
    assert "that takes readings of its processes" in text


def test_the_engines_own_causes_are_found_without_a_gpu() -> None:
    found = watched("mid_kv-kv_pressure", hardware=False)
    assert found.cause == "kv_cache"
    assert found.confidence is not None
    assert found.confidence <= 0.5


def test_a_verdict_that_changed_is_said() -> None:
    found = watched("mid-stalled")
    assert found.history["stalled"] > found.history["decode_memory"] > 0
    assert sum(found.history.values()) == pytest.approx(1.0)
    assert found.since is not None
    assert 20 <= found.since <= 24
    assert any("earlier in this watch the verdict was" in note for note in found.notes)


def pages(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((H200 / name).glob("t*.prom"))]


def plain_watch() -> Watch:
    return Watch(Target(name="server", url="http://gpu-7:8000"))


def test_no_traffic_is_said() -> None:
    watch = plain_watch()
    for second, body in enumerate(pages("mid-idle")):
        watch.tick(fetched(body), 2.0 * second)
    found = watch.diagnosis()
    assert found.cause == "idle"
    assert any(note.startswith("no traffic") for note in found.notes)
    assert found.ttft is None


def test_a_server_that_cannot_be_reached() -> None:
    watch = plain_watch()
    for second in range(3):
        watch.tick(REFUSED, float(second))
    found = watch.diagnosis()
    assert found.failure == "the server cannot be reached: refused (nothing listens on 127.0.0.1:8000)"
    assert found.failed == {"refused": 3}
    assert "No diagnosis" in told(found)
    assert "is the server up?" in told(found)


def test_a_server_that_goes_down_while_it_is_watched() -> None:
    watch = plain_watch()
    bodies = pages("mid-idle")
    for second, body in enumerate(bodies):
        watch.tick(fetched(body), 2.0 * second)
    watch.tick(REFUSED, 2.0 * len(bodies))
    found = watch.diagnosis()
    assert "went down while it was watched: refused" in found.failure
    assert found.history, "what was seen before is still told"
    assert "before that:" in told(found)


def test_a_server_that_restarts_while_it_is_watched() -> None:
    watch = plain_watch()
    bodies = pages("mid-decode_heavy")
    for second, body in enumerate(bodies[6:10]):
        watch.tick(fetched(body), 2.0 * second)
    watch.tick(REFUSED, 8.0)
    asked: list[str] = []
    watch._version = lambda engine: asked.append(engine) or "0.33.0"  # type: ignore[func-returns-value]
    again = [
        re.sub(rb"(?m)^(process_start_time_seconds) .*$", rb"\g<1> 1.8e+09", re.sub(rb"(?m)^(vllm:\S+) \S+$", rb"\g<1> 0.0", body))
        for body in bodies[:1]
    ]
    for second in range(7):
        watch.tick(fetched(again[0]), 20.0 + 2 * second)
    found = watch.diagnosis()
    assert found.failure == ""
    assert found.restarts == 1
    assert any("restarted once" in note for note in found.notes)
    assert any("scrapes failed: refused ×1" in note for note in found.notes)
    assert "restarted" in [row.key for row in found.advice]
    assert asked == ["vllm"], "the release may be another one, and is asked for once"
    assert found.version == "0.33.0"


def test_a_page_without_an_engine() -> None:
    watch = plain_watch()
    watch.tick(fetched(b"# TYPE up gauge\nup 1\n"), 0.0)
    found = watch.diagnosis()
    assert found.failure == "the server answers, but the page holds no engine's metrics"


def test_too_short_a_watch_says_so() -> None:
    watch = plain_watch()
    for second, body in enumerate(pages("mid-decode_heavy")[:3]):
        watch.tick(fetched(body), 2.0 * second)
    found = watch.diagnosis()
    assert found.cause == "unknown"
    assert any("only 4 s of readings" in note for note in found.notes)


@pytest.mark.parametrize("name", ["mid_kv-kv_pressure", "mid-idle", "mid-stalled"])
def test_json_holds_the_same_and_no_nan(name: str) -> None:
    found = watched(name)
    text = json.dumps(document(found, "http://gpu-7:8000"), allow_nan=False)
    read: dict[str, Any] = json.loads(text)
    assert read["verdict"]["cause"] == found.cause
    unmeasured = {"frontend"} if name == "mid-idle" else set()  # no request, so no time that it could have a share of
    assert set(read["verdict"]["scores"]) == set(CAUSES) - {"none", "unknown"} - unmeasured
    assert [row["rank"] for row in read["advice"]] == list(range(1, len(found.advice) + 1))
    assert read["failure"] is None
    assert read["measured"]["busy_from"] == "gpm"
    if found.ttft is not None:
        assert set(read["time_to_first_token"]["phase_mean_seconds"]) <= {"frontend", "queue", "prefill"}


def test_json_of_a_failure_has_no_verdict() -> None:
    watch = plain_watch()
    watch.tick(REFUSED, 0.0)
    read = document(watch.diagnosis(), "http://gpu-7:8000")
    assert (read["verdict"], read["measured"], read["advice"]) == (None, None, [])
    assert "refused" in read["failure"]


def test_a_servers_words_are_no_markup() -> None:
    body = pages("mid-idle")[0].replace(b'model_name="m"', b'model_name="[red]m[/red][bold"')
    watch = plain_watch()
    watch.tick(fetched(body), 0.0)
    assert "model [red]m[/red][bold" in told(watch.diagnosis())


# -- the command -------------------------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_watches_as_long_as_asked_once_a_second() -> None:
    clock, watch = Clock(), plain_watch()
    seconds: list[float] = []
    follow(watch, lambda: fetched(pages("mid-idle")[0]), 20.0, told=seconds.append, clock=clock, sleep=clock.sleep)
    assert seconds == [float(n) for n in range(21)]


def test_a_page_that_is_slow_to_make_is_asked_for_less_often() -> None:
    clock, watch = Clock(), plain_watch()
    seconds: list[float] = []
    slow = Fetched(pages("mid-idle")[0], "text/plain; version=0.0.4", 0.4)
    follow(watch, lambda: slow, 20.0, told=seconds.append, clock=clock, sleep=clock.sleep)
    assert len(seconds) == 11


def test_a_dead_server_is_not_waited_for_and_a_loading_one_is() -> None:
    for failed, scrapes in ((REFUSED, HOPELESS_AFTER), (Failed("http_503", "", "", 0.01), 21)):
        clock, watch = Clock(), plain_watch()
        follow(watch, lambda failed=failed: failed, 20.0, clock=clock, sleep=clock.sleep)  # type: ignore[misc]
        assert watch.diagnosis().scrapes == scrapes


def test_an_interrupt_ends_the_watch_with_what_is_known() -> None:
    clock, watch = Clock(), plain_watch()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.now >= 12.0:
            raise KeyboardInterrupt

    follow(watch, lambda: fetched(pages("mid-idle")[0]), 60.0, clock=clock, sleep=sleep)
    assert watch.diagnosis().seconds == 11.0


@pytest.fixture
def no_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command without waiting, and without this machine's GPUs and processes."""
    clock = Clock()

    def quick(watch: Watch, scraped: Any, seconds: float, **_: Any) -> None:
        follow(watch, scraped, seconds, clock=clock, sleep=clock.sleep)

    monkeypatch.setattr(diagnose, "follow", quick)
    monkeypatch.setattr(Machine, "apply", lambda *_: None)
    return


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(diagnose.command, list(arguments), standalone_mode=False, env=environment)


@pytest.mark.usefixtures("no_hardware")
def test_the_command_prints_a_diagnosis_and_sends_the_token() -> None:
    version = page(b'{"version": "0.22.0"}', content_type="application/json")
    served = routes({"/base/metrics": in_turn(*(page(body) for body in pages("mid-idle"))), "/base/version": version})
    with FakeServer(needs_header("authorization", "Bearer sk-planted", served)) as server:
        result = run(f"{server.url}/base/v1/", "--watch", "20", LLM_EXPORTER_TOKEN="sk-planted")
    assert result.exception is None
    assert result.return_value == 0
    assert "vllm 0.22.0, model m, watched 20 s" in result.output
    assert "Verdict: idle" in result.output
    assert "sk-planted" not in result.output
    assert "\x1b" not in result.output


@pytest.mark.usefixtures("no_hardware")
def test_the_command_fails_where_the_server_cannot_be_read() -> None:
    with FakeServer(page(b"no", 401)) as server:
        result = run(server.url, "--json")
    assert result.return_value == 1
    assert "http_401" in json.loads(result.stdout)["failure"]


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:8000/", "http://h:8000"),
        ("http://h:8000/metrics", "http://h:8000"),
        ("https://h/llm/v1", "https://h/llm"),
        ("http://[::1]:8000/v1/", "http://[::1]:8000"),
    ],
)
def test_what_people_paste_as_url(given: str, base: str) -> None:
    assert base_url(given) == base


@pytest.mark.parametrize("given", ["ftp://h", "http://", "http://u:sk-planted@h:8000", "http://h:port", "http://h/?key=sk-planted"])
def test_a_url_that_cannot_be_used(given: str) -> None:
    with pytest.raises((ConfigError, UsageError)) as error:
        base_url(given)
    assert "sk-planted" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "gpus"), [("auto", "auto"), ("none", "none"), ("0,1", (0, 1)), ("GPU-11111111-2222-3333-4444-555555555555", None)]
)
def test_gpus(given: str, gpus: Any) -> None:
    found = target_of("http://h:8000", given, "/metrics").gpus
    assert gpus is None or found == gpus


def test_gpus_that_are_none() -> None:
    with pytest.raises(UsageError, match="gpus"):
        target_of("http://h:8000", "first", "/metrics")


def test_a_watch_of_less_than_fifteen_seconds_is_refused() -> None:
    result = run("http://h:8000", "--watch", "10")
    assert result.exception is not None
    assert "15" in str(result.exception)


def test_every_key_of_the_json_is_documented() -> None:
    text = (H200.parents[3] / "docs" / "diagnose.md").read_text()
    found = document(watched("mid-cache_heavy"), "http://gpu-7:8000")
    keys = set(found) | set(found["verdict"]) | set(found["time_to_first_token"]) | set(found["advice"][0])
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
