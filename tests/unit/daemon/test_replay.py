"""Recordings through the pipeline: folders in, the exporter's page out, by the class and by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from golden.recordings import SGLANG, VLLM, recorded
from llm_exporter.cli.replay import command
from llm_exporter.config.model import Config
from llm_exporter.daemon.replaying import Replay, replay
from llm_exporter.errors import UsageError
from llm_exporter.sources.engine import Failed


def folder(root: Path, name: str, pages: list[tuple[int, Path | str]]) -> Path:
    """A recording on disk: pages, and failures as their reason."""
    made = root / name
    made.mkdir(parents=True)
    for second, page in pages:
        if isinstance(page, str):
            (made / f"t{second:03d}.fail").write_text(page + "\n")
        else:
            (made / f"t{second:03d}.prom").write_bytes(page.read_bytes())
    return made


def test_the_command_prints_what_the_class_says(tmp_path: Path) -> None:
    folders = [folder(tmp_path, "chat", list(VLLM)), folder(tmp_path, "code", list(SGLANG))]
    done = CliRunner().invoke(command, [str(path) for path in folders], catch_exceptions=False)
    assert done.exit_code == 0
    assert done.output == Replay([recorded("chat", VLLM), recorded("code", SGLANG)], Config()).run().render()[0].decode()


def test_json_holds_every_target_with_its_values_and_what_is_absent(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--format", "json", str(folder(tmp_path, "chat", list(VLLM)))], catch_exceptions=False)
    (target,) = json.loads(done.output)["targets"]
    assert (target["name"], target["engine"], target["up"]) == ("chat", "vllm", True)
    values = {row["metric"]: row.get("value") for row in target["signals"]}
    assert values["llm_generation_tokens_total"] == 25867.0
    assert {"signal": "gpu_starved", "window": "", "status": "needs_gpu"} in target["absent"]


def test_each_recording_is_seen_as_it_stood_at_its_own_end(tmp_path: Path) -> None:
    short = folder(tmp_path, "short", [(0, VLLM[0][1]), (5, VLLM[8][1])])
    long = folder(tmp_path, "long", [(0, SGLANG[0][1]), (3600, SGLANG[1][1])])
    text = replay([short, long], Config()).page.render()[0].decode()
    assert 'llm_requests_running{engine="vllm",model="tiny",target="short"} 6.0\n' in text
    assert 'llm_target_last_scrape_timestamp_seconds{target="short"} 5.0\n' in text


def test_a_recording_that_ends_in_failure_shows_the_failure(tmp_path: Path) -> None:
    text = replay([folder(tmp_path, "chat", [(0, VLLM[0][1]), (5, "http_503")])], Config()).page.render()[0].decode()
    assert 'llm_target_down_reason{reason="http_503",target="chat"} 1.0\n' in text
    assert 'llm_engine_state{state="loading",target="chat"} 1.0\n' in text
    assert "llm_requests_running{" not in text


def test_a_target_of_the_configuration_lends_its_settings_to_the_folder_of_its_name(tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    slo = "{name: ttft, metric: time_to_first_token, threshold: 1s, objective: 0.99}"
    config.write_text(
        f"targets:\n  - {{name: chat, url: 'http://127.0.0.1:9', service: talk, slos: [{slo}]}}\n  - {{name: other, url: 'http://127.0.0.1:9'}}\n"
    )
    chat, free = folder(tmp_path, "chat", list(VLLM[:3])), folder(tmp_path, "free", list(VLLM[:3]))
    done = CliRunner().invoke(command, ["--config.file", str(config), str(chat), str(free)], catch_exceptions=False)
    assert 'service="talk"' in done.output
    assert 'llm_slo_objective_ratio{engine="vllm",model="tiny",slo="ttft",target="chat"} 0.99' in done.output
    assert 'target="other"' not in done.output
    assert 'service="free"' in done.output


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_a_configured_engine_holds_in_replay_too(tmp_path: Path, engine: str) -> None:
    config = tmp_path / "llm-exporter.yml"
    config.write_text(f"targets: [{{name: chat, url: 'http://127.0.0.1:9', engine: {engine}}}]\n")
    done = CliRunner().invoke(
        command, ["--config.file", str(config), str(folder(tmp_path, "chat", list(VLLM[:2])))], catch_exceptions=False
    )
    assert ("llm_requests_running{" in done.output) is (engine == "vllm")


def test_two_folders_of_one_name_are_refused(tmp_path: Path) -> None:
    one, two = folder(tmp_path / "x", "chat", list(VLLM[:1])), folder(tmp_path / "y", "chat", list(VLLM[:1]))
    with pytest.raises(UsageError, match="two folders are named 'chat'"):
        replay([one, two], Config())


def test_the_folder_above_recordings_names_those_in_it(tmp_path: Path) -> None:
    for name in ("coder", "chat"):
        folder(tmp_path / "rec", name, list(VLLM[:1]))
    (tmp_path / "rec" / "notes").mkdir()
    with pytest.raises(UsageError) as caught:
        replay([tmp_path / "rec"], Config())
    assert str(caught.value).endswith(f"give {tmp_path / 'rec' / 'chat'} {tmp_path / 'rec' / 'coder'}")
    with pytest.raises(UsageError, match=r"holds no tNNN\.prom"):
        replay([tmp_path / "rec" / "notes"], Config())


def test_stepping_shows_every_moment() -> None:
    recording = recorded("chat", VLLM)
    played = Replay([recording], Config())
    seen = []
    for moment in recording.moments:
        played.step(moment, "chat")
        seen += [s.value for f in played.page.families() if f.metric.name == "llm_requests_waiting" for s in f.samples]
    assert seen == [0, 0, 0, 40, 40, 40, 32, 32, 31, 0, 0, 0, 8]
    assert not any(isinstance(moment.scraped, Failed) for moment in recording.moments)
