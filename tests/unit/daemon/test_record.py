"""Recordings of live servers: what is written, that it replays to the same page, and that no secret gets into it."""

from __future__ import annotations

import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes.servers import FakeServer, html_login, needs_header, page, routes, then
from llm_exporter.cli.record import command, seconds_of
from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.daemon.recording_run import TargetRecording, concerning
from llm_exporter.daemon.replaying import replay
from llm_exporter.errors import LlmExporterError, UsageError
from llm_exporter.expose.page import Page
from llm_exporter.hardware import GpuProcess, GpuReading
from llm_exporter.recording import new_folder, read_recording
from llm_exporter.sources.engine import Failed, Fetched, scrape
from llm_exporter.sources.http import Client

H200 = Path(__file__).parents[2] / "fixtures" / "recordings" / "h200"
BUSY = H200 / "mid-decode_heavy"
SECRET = "sk-planted-4711"


def bodies(count: int) -> list[bytes]:
    return [path.read_bytes() for path in sorted(BUSY.glob("t*.prom"))[:count]]


def recording(folder: Path, started: float = 100.0, name: str = "chat") -> TargetRecording:
    target = Target(name=name, url="http://server.invalid:8000")
    return TargetRecording(
        target, folder, started=started, started_at=1_790_000_000.25, timing=Timing(2.0, 5.0), version=lambda _: "0.22.0"
    )


def sample_lines(page: Page, *ignored: str) -> list[str]:
    """Sample lines without those of `ignored` metrics; the URL is not in a recording."""
    lines = page.render()[0].decode().splitlines()
    return [line.replace("http://server.invalid:8000", "URL").replace("http://recording.invalid", "URL") for line in lines
            if not line.startswith(("#", *ignored))]  # fmt: skip


def test_a_recording_of_a_live_server_replays_to_the_same_page(tmp_path: Path) -> None:
    now = [100.0]
    live_page = Page(declared(), lambda: now[0])
    target = Target(name="chat", url="http://server.invalid:8000")
    live = Pipeline(target, live_page, Timing(2.0, 5.0), lambda: 1_790_000_000.25 + now[0] - 100.0)
    kept = recording(tmp_path / "chat")
    kept.folder.mkdir()
    with FakeServer(then(*(page(body) for body in bodies(6)))) as server:
        client = Client(server.url)
        for step in range(6):
            now[0] = 100.0 + 2 * step
            scraped = scrape(client, "/metrics", timeout=5.0, clock=lambda: now[0])
            live.take(scraped, now[0])
            kept.take(scraped, now[0])
        client.close()
    live.status = replace(live.status, engine_version="0.22.0")  # what the daemon asks the server for
    live.publish(now[0], fresh=True)
    kept.write_meta(now[0])
    played = replay([tmp_path / "chat"], Config())
    duration = ("llm_target_scrape_duration_seconds",)
    got = sample_lines(played.page, *duration)
    assert len(got) > 300
    assert got == sample_lines(live_page, *duration)


def test_failures_keep_their_reason_and_nothing_else(tmp_path: Path) -> None:
    kept = recording(tmp_path)
    kept.take(Fetched(bodies(1)[0], "text/plain; version=0.0.4", 0.01), 100.0)
    kept.take(Failed("timeout", "no answer from 10.1.2.3:8000 in 5 s", "", 5.0), 102.0)
    kept.take(Failed("http_503", "loading", "", 0.1), 104.4)
    kept.take(Fetched(b"<!DOCTYPE html><p>sign in, " + SECRET.encode(), "text/html", 0.1), 106.0)
    assert sorted(path.name for path in tmp_path.glob("t*")) == ["t000.prom", "t002.fail", "t004.fail", "t006.fail"]
    assert (tmp_path / "t002.fail").read_text() == "timeout\n"
    assert (tmp_path / "t004.fail").read_text() == "http_503\n"
    assert (tmp_path / "t006.fail").read_text() == "not_metrics\n"
    assert kept.counted == {"pages": 1, "failures": 3, "gpu_lines": 0, "host_lines": 0}
    assert [moment.second for moment in read_recording(tmp_path).moments] == [0, 2, 4, 6]


def test_two_scrapes_in_one_second_leave_the_first(tmp_path: Path) -> None:
    kept = recording(tmp_path)
    kept.take(Failed("timeout", "", "", 1.0), 100.6)
    kept.take(Failed("refused", "", "", 1.0), 101.4)
    assert (tmp_path / "t001.fail").read_text() == "timeout\n"


def test_meta_says_who_was_recorded_and_when(tmp_path: Path) -> None:
    kept = recording(tmp_path)
    kept.take(Fetched(bodies(1)[0], "text/plain; version=0.0.4", 0.01), 100.0)
    kept.write_meta(130.5)
    meta = json.loads((tmp_path / "meta.json").read_text())
    assert meta["engine"] == "vllm 0.22.0"
    assert meta["started_at"] == 1_790_000_000.25
    assert meta["seconds"] == 30.5
    assert meta["interval_seconds"] == 2.0
    found = read_recording(tmp_path)
    assert (found.engine_version, found.started_at) == ("0.22.0", 1_790_000_000.25)
    assert "server.invalid" not in json.dumps(meta)


def test_hardware_lines_begin_at_second_zero_of_the_pages(tmp_path: Path) -> None:
    kept = recording(tmp_path)
    kept.take(Failed("timeout", "", "", 1.0), 100.0)
    kept.take_gpus([GpuReading(at=103.5, gpu="0", graphics_active_ratio=0.5, sm_active_ratio=0.25)], 103.5)
    kept.write_meta()
    found = read_recording(tmp_path)
    assert [second for second, _ in found.gpu] == [pytest.approx(3.5)]
    assert found.gpu[0][1]["gpm"]["graphics"] == 50.0


def test_a_target_gets_its_own_gpus_and_no_processes_of_others() -> None:
    processes = (GpuProcess(1, 1e9, True), GpuProcess(2, 2e9, True), GpuProcess(3, 3e9, True))
    readings = [GpuReading(at=1.0, gpu="0", processes=processes), GpuReading(at=1.0, gpu="1"), GpuReading(at=1.0, gpu="2")]
    placements = [("0", "a"), ("1", "b")]
    owners = {1: "a", 2: "b"}
    own = concerning(readings, "a", placements, owners)
    assert [reading.gpu for reading in own] == ["0"]
    assert [process.pid for process in own[0].processes or ()] == [1, 3]  # 3 is a stranger, and must stay visible
    unplaced = concerning(readings, "c", placements, owners)
    assert [reading.gpu for reading in unplaced] == ["2"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_name_that_is_no_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot be named"):
        new_folder(tmp_path, name)


def test_a_folder_that_is_not_empty_is_refused_before_anything_is_scraped(tmp_path: Path) -> None:
    (tmp_path / "out" / "chat").mkdir(parents=True)
    (tmp_path / "out" / "chat" / "t000.prom").write_text("old")
    with FakeServer() as server:
        config = tmp_path / "c.yml"
        config.write_text(f"targets: [{{name: chat, url: '{server.url}'}}]\n")
        result = CliRunner().invoke(command, ["--config.file", str(config), "--out", str(tmp_path / "out"), "--duration", "1"])
        assert isinstance(result.exception, UsageError)
        assert "is not empty" in str(result.exception)
        assert not server.requests
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        new_folder(tmp_path / "file", "chat")


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("90", 90.0), ("1.5", 1.5), ("1m30s", 90.0)])
def test_duration(text: str | None, seconds: float | None) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["0", "soon", "-5", ""])
def test_duration_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="--duration"):
        seconds_of(text)


def test_the_command_records_all_targets_and_no_secret(tmp_path: Path) -> None:
    good = bodies(1)[0]
    version = page(json.dumps({"version": "0.22.0"}).encode(), content_type="application/json")
    locked = needs_header("authorization", f"Bearer {SECRET}", routes({"/metrics": page(good), "/version": version}))
    with FakeServer(locked) as open_door, FakeServer(html_login()) as login, FakeServer(page(b"", 503)) as loading:
        config = tmp_path / "c.yml"
        config.write_text(
            "global: {scrape_interval: 1s, scrape_timeout: 2s}\ngpu: {enabled: false}\nhost: {enabled: false}\ntargets:\n"
            f"  - {{name: a, url: '{open_door.url}', authorization: {{credentials: {SECRET}}}}}\n"
            f"  - {{name: b, url: '{login.url}'}}\n  - {{name: c, url: '{loading.url}'}}\n"
        )
        result = CliRunner().invoke(command, ["--config.file", str(config), "--out", str(tmp_path / "out"), "--duration", "1.5"])
    assert result.exception is None, result.output
    assert len(list((tmp_path / "out" / "a").glob("t*.prom"))) == 2
    assert (tmp_path / "out" / "a" / "t000.prom").read_bytes() == good
    assert (tmp_path / "out" / "b" / "t000.fail").read_text() == "not_metrics\n"
    assert (tmp_path / "out" / "c" / "t000.fail").read_text() == "http_503\n"
    assert json.loads((tmp_path / "out" / "a" / "meta.json").read_text())["engine"] == "vllm 0.22.0"
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()) + result.output.encode()
    assert SECRET.encode() not in written
    assert b"127.0.0.1" not in written.replace(good, b"")
    replay([tmp_path / "out" / name for name in "abc"], Config())


def test_an_interrupt_ends_a_recording_cleanly(tmp_path: Path) -> None:
    seen = threading.Event()

    def handler(talk, request) -> None:  # type: ignore[no-untyped-def]
        talk.answer(bodies(1)[0])
        if request.path == "/metrics" and not seen.is_set():
            seen.set()
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    with FakeServer(handler) as server:
        config = tmp_path / "c.yml"
        config.write_text(f"gpu: {{enabled: false}}\nhost: {{enabled: false}}\ntargets: [{{name: a, url: '{server.url}'}}]\n")
        result = CliRunner().invoke(command, ["--config.file", str(config), "--out", str(tmp_path / "out")])
    assert result.exception is None, result.output
    assert json.loads((tmp_path / "out" / "a" / "meta.json").read_text())["seconds"] > 0


def test_a_recording_without_a_page_is_a_failure(tmp_path: Path) -> None:
    with FakeServer(page(b"", 503)) as server:
        config = tmp_path / "c.yml"
        config.write_text(f"gpu: {{enabled: false}}\nhost: {{enabled: false}}\ntargets: [{{name: a, url: '{server.url}'}}]\n")
        result = CliRunner().invoke(command, ["--config.file", str(config), "--out", str(tmp_path / "out"), "--duration", "0.3"])
    assert isinstance(result.exception, LlmExporterError)
    assert "not one page" in str(result.exception)
