"""`check config` and `check web-config`: exit code, summary, warnings, all errors."""

# tables: one case on one line

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llm_exporter.cli import main

GOOD = Path(__file__).parents[2] / "fixtures" / "config" / "good"


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["llm-exporter", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    captured = capsys.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, captured.out, captured.err


def test_a_good_file_gives_a_summary(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(monkeypatch, capsys, "check", "config", str(GOOD / "contract.yml"))
    assert code == 0
    assert out.split("\n") == [
        "scrape every 5s, timeout 10s",
        "targets: 1 (chat)",
        "discovery: 1 file_sd_configs, 0 http_sd_configs",
        "probe modules: short (every 30s), ladder (0 4 * * * Europe/Berlin)",
        "SLOs: 1",
        f"review: 0 8 * * mon Europe/Berlin, in {GOOD / 'reports'}",
        f"{GOOD / 'contract.yml'} is valid",
        "",
    ]
    assert "there is no file /run/secrets/token now" in err
    assert f"warning: file_sd_configs[0]: no_files: no file matches {GOOD / 'targets/*.yml'}" in err


def test_a_bad_file_gives_all_errors_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "c.yml"
    file.write_text("gpu: {a: 1}\nhost: {b: 1}\n")
    code, out, err = run(monkeypatch, capsys, "check", "config", str(file))
    assert (code, out) == (2, "")
    assert f"{file}:1: gpu.a: unknown key" in err
    assert f"{file}:2: host.b: unknown key" in err
    assert "Traceback" not in err


def test_a_missing_file_is_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(monkeypatch, capsys, "check", "config", str(tmp_path / "no.yml"))
    assert code == 2
    assert "no.yml: cannot be read: No such file or directory" in err


def test_localhost_in_a_container_is_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Field case OPS-01."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    file = tmp_path / "c.yml"
    file.write_text("targets:\n  - {name: a, url: 'http://localhost:8000'}\n  - {name: b, url: 'http://host.docker.internal:30000'}\n")
    code, _, err = run(monkeypatch, capsys, "check", "config", str(file))
    assert code == 0
    warnings = [line for line in err.split("\n") if line]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: {file}:2: targets[0].url: ")
    assert "localhost inside a container is the container itself; use host.docker.internal" in warnings[0]


def test_broken_discovery_files_are_warned_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{")
    file = tmp_path / "c.yml"
    file.write_text("file_sd_configs: [{files: [t.json]}]\nhttp_sd_configs: [{url: 'http://127.0.0.1:9/never-asked'}]\n")
    code, _, err = run(monkeypatch, capsys, "check", "config", str(file))
    assert code == 0
    assert "warning: file_sd_configs[0]: parse:" in err
    assert "http_sd" not in err


def test_a_web_configuration_is_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    file.write_text("http_server_config: {headers: {X-Frame-Options: deny}}\n")
    code, out, _ = run(monkeypatch, capsys, "check", "web-config", str(file))
    assert (code, out) == (0, f"{file} is valid\n")
    file.write_text("basic_auth_user: {}\n")
    code, _, err = run(monkeypatch, capsys, "check", "web-config", str(file))
    assert code == 2
    assert "basic_auth_user" in err
