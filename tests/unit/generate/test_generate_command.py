"""`llm-exporter generate`: writes, compares, and says what is out of date."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llm_exporter.cli.generate import command
from llm_exporter.generate.alerts import ALERT
from llm_exporter.generate.artefacts import alert_artefacts, collect, drift, runbook_artefacts, write
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.signals.review_records import RECORDS

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, standalone_mode=False)


def test_what_was_written_is_up_to_date(tmp_path: Path) -> None:
    assert run("alerts", "--out", str(tmp_path)).return_value == 0
    assert sorted(path.name for path in (tmp_path / "alerts").iterdir()) == ["alertmanager.yml", "alerts.yml", "recording.yml"]
    checked = run("alerts", "--check", "--out", str(tmp_path))
    assert (checked.return_value, checked.output) == (0, "")


def test_drift_is_shown_as_a_diff_and_fails(tmp_path: Path) -> None:
    run("alerts", "--out", str(tmp_path))
    file = tmp_path / "alerts" / "alerts.yml"
    file.write_text(file.read_text().replace("llm_target_up[1m]) == 0", "llm_target_up[1m]) == 1"))
    checked = run("alerts", "--check", "--out", str(tmp_path))
    assert checked.return_value == 1
    assert "-    expr: last_over_time(llm_target_up[1m]) == 1" in checked.output
    assert "+    expr: last_over_time(llm_target_up[1m]) == 0" in checked.output
    assert "1 of 3 files are out of date" in checked.output
    assert "llm_target_up[1m]) == 1" in file.read_text(), "--check writes nothing"


def test_a_missing_file_is_drift(tmp_path: Path) -> None:
    assert run("alerts", "--check", "--out", str(tmp_path)).return_value == 1


@pytest.mark.parametrize("scale", ["0", "-1", "0.5", "nan", "many"])
def test_a_time_scale_that_cannot_be_is_refused(scale: str) -> None:
    result = run("alerts", "--time-scale", scale)
    assert "must be a number of at least 1" in str(result.exception)


def test_notes_about_the_configuration_are_printed(tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    config.write_text(
        'targets: [{name: a, url: "http://127.0.0.1:1", slos: [{name: s, metric: time_to_first_token, threshold: 3s, objective: 0.9}]}]'
    )
    result = run("alerts", "--config.file", str(config), "--out", str(tmp_path))
    assert "note: a, SLO s: the fast tier" in result.output


def test_two_producers_of_one_file_are_a_mistake() -> None:
    with pytest.raises(ValueError, match="two producers make a"):
        collect([lambda: {"a": "1"}, lambda: {"a": "2"}])


def test_nothing_is_written_that_is_there_already(tmp_path: Path) -> None:
    assert write({"a/b": "1\n"}, tmp_path) == ["a/b"]
    assert write({"a/b": "1\n"}, tmp_path) == []


def test_the_committed_rules_and_runbooks_are_up_to_date() -> None:
    differences = drift({**alert_artefacts(RuleSettings(), RECORDS), **runbook_artefacts()}, ROOT)
    assert not differences, "run llm-exporter generate all\n" + "\n".join(differences)


def test_there_is_one_runbook_per_alert_and_none_else() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README"}
    assert pages == set(ALERT)


@pytest.mark.parametrize("name", ALERT)
def test_a_runbook_answers_what_a_tired_person_asks(name: str) -> None:
    text = runbook_artefacts()[f"docs/runbooks/{name}.md"]
    for heading in ("What it means to users", "First action", "How to confirm", "Likely causes", "When it fires"):
        assert f"## {heading}" in text
    assert ALERT[name].meaning in text
    assert len(ALERT[name].causes) >= 2
    assert name in runbook_artefacts()["docs/runbooks/README.md"]
