"""A recorded scenario has the format of recordings of real servers, and holds the same numbers as its truth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_exporter.demo.recording import write_recording
from llm_exporter.demo.scenarios import SCENARIOS
from llm_exporter.hardware import gpu_reading_from_record, host_reading_from_record
from llm_exporter.recording import read_recording


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_recording_is_read_back(engine: str, tmp_path: Path) -> None:
    simulation = write_recording(SCENARIOS["starved"], engine, 30.0, 2.0, tmp_path / "chat", skip=90.0)
    recording = read_recording(tmp_path / "chat")
    assert recording.name == "chat"
    assert [moment.second for moment in recording.moments] == list(range(0, 31, 2))
    assert len(recording.gpu) == len(recording.host) == 31
    gpu = [gpu_reading_from_record(line) for _, line in recording.gpu]
    mean = sum(reading.graphics_active_ratio or 0.0 for reading in gpu[1:]) / 30
    assert mean == pytest.approx(simulation.truth_between(90.0, 120.0).gpu_ratio, abs=0.02)
    host = [host_reading_from_record(line) for _, line in recording.host]
    assert host[-1].cgroups[0].throttled_periods > host[0].cgroups[0].throttled_periods
    meta = json.loads((tmp_path / "chat" / "meta.json").read_text())
    assert meta["truth"] == "host_starved"
    assert "host_starved" in meta["accept"]
    assert "stalled" in meta["never"]
    assert meta["truth_values"]["gap_ratio"] > 0.4


def test_one_scenario_and_seed_give_one_recording(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_recording(SCENARIOS["healthy"], "vllm", 6.0, 3.0, tmp_path / name)
    for file in sorted((tmp_path / "one").iterdir()):
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes(), file.name
    write_recording(SCENARIOS["healthy"], "vllm", 6.0, 3.0, tmp_path / "other", seed=2)
    assert (tmp_path / "other/t006.prom").read_text() != (tmp_path / "one/t006.prom").read_text()


def test_a_whole_scenario_names_all_its_phases(tmp_path: Path) -> None:
    write_recording(SCENARIOS["queue"], "vllm", 100.0, 50.0, tmp_path / "chat", release="0.10.2")
    meta = json.loads((tmp_path / "chat" / "meta.json").read_text())
    assert [phase["causes"][0] for phase in meta["phases"]] == ["none", "queue"]
    assert [(phase["start"], phase["end"]) for phase in meta["phases"]] == [(0.0, 60.0), (60.0, 100.0)]
    assert meta["engine"] == "vllm 0.10.2 (simulated)"
    assert "vllm:gpu_cache_usage_perc" in (tmp_path / "chat" / "t050.prom").read_text()
