"""What a configuration changes in the rules: ranges, literals, labels, links; and that a time scale changes times alone."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_exporter.config.durations import parse_duration
from llm_exporter.config.load import load_config
from llm_exporter.generate.alerts import ALERT
from llm_exporter.generate.artefacts import alert_artefacts
from llm_exporter.generate.notes import notes_of
from llm_exporter.generate.rules import annotations_of
from llm_exporter.generate.settings import RuleSettings, settings_of
from llm_exporter.signals.review_records import RECORDS

CONFIG = """
global: {scrape_interval: 5s}
targets:
  - {name: chat, url: "http://127.0.0.1:8000", slos: [{name: ttft, metric: time_to_first_token, threshold: 1s, objective: 0.99}]}
  - {name: docs, url: "http://127.0.0.1:8001", engine: vllm, slos: [{name: ttft, metric: time_to_first_token, threshold: 2s, objective: 0.9}]}
  - {name: batch, url: "http://127.0.0.1:8002"}
generate: {prometheus_scrape_interval: 15s, job: engines, alert_labels: [team], grafana_url: "https://g.example/x/", runbook_base_url: "https://r.example"}
"""
DISCOVERS = 'file_sd_configs: [{files: ["targets/*.yml"]}]\n'


def settings(tmp_path: Path, text: str, scale: str = "1") -> RuleSettings:
    file = tmp_path / "llm-exporter.yml"
    file.write_text(text)
    return settings_of(load_config(file, {}), Decimal(scale))


def test_ranges_hold_four_scrapes_of_the_slower_side(tmp_path: Path) -> None:
    assert settings(tmp_path, "").shortest == "1m"
    assert settings(tmp_path, "generate: {prometheus_scrape_interval: 60s}").shortest == "4m"
    assert settings(tmp_path, "global: {scrape_interval: 30s}").shortest == "2m"


def test_objectives_of_a_configuration_are_literals_by_slo_and_target(tmp_path: Path) -> None:
    fast = ALERT["LLMSLOBudgetBurnFast"].expression(settings(tmp_path, CONFIG))
    medium = ALERT["LLMSLOBudgetBurnMedium"].expression(settings(tmp_path, CONFIG))
    assert 'ratio_rate1h{slo="ttft",target="chat"} > 0.144\n' in fast
    assert "docs" not in fast, "14.4 times 10 % can never be"
    assert 'ratio_rate6h{slo="ttft",target="docs"} > 0.6\n' in medium
    assert "error_budget" not in fast + medium


def test_without_a_configuration_objectives_are_read_from_the_metrics() -> None:
    assert "> 14.4 * target_model:llm_slo_error_budget:ratio" in ALERT["LLMSLOBudgetBurnFast"].expression(RuleSettings())


def test_with_discovery_the_objectives_of_discovered_targets_are_read_from_the_metrics(tmp_path: Path) -> None:
    fast = ALERT["LLMSLOBudgetBurnFast"].expression(settings(tmp_path, CONFIG + DISCOVERS))
    assert 'target="chat"} > 0.144' in fast
    assert '> 14.4 * target_model:llm_slo_error_budget:ratio{target!~"batch|chat|docs"}' in fast


def test_without_any_objective_there_are_no_burn_rules(tmp_path: Path) -> None:
    files = alert_artefacts(settings(tmp_path, 'targets: [{name: a, url: "http://127.0.0.1:1"}]'))
    assert "LLMSLOBudgetBurn" not in files["alerts/alerts.yml"]


def test_only_configured_targets_page_when_they_leave(tmp_path: Path) -> None:
    alert = ALERT["LLMTargetsMissing"]
    known = alert.expression(settings(tmp_path, CONFIG + DISCOVERS))
    assert 'llm_target_up{target=~"batch|chat|docs"}' in known
    assert "discovery" not in known
    assert "discovery" in alert.expression(RuleSettings())
    assert alert.expression(settings(tmp_path, DISCOVERS)) == ""


def test_the_job_of_the_configuration_is_watched(tmp_path: Path) -> None:
    assert 'up{job="engines"}' in ALERT["LLMExporterDown"].expression(settings(tmp_path, CONFIG))


def test_links_lead_to_the_configured_places_with_variables_filled(tmp_path: Path) -> None:
    told = annotations_of(ALERT["LLMProbeFailing"], settings(tmp_path, CONFIG))
    assert told["runbook_url"] == "https://r.example/LLMProbeFailing.md"
    assert told["dashboard_url"].startswith("https://g.example/x/d/llm-probe?from=now-1h&to=now&var-job={{ $labels.job | urlquery }}")
    assert "&var-target={{ $labels.target | urlquery }}&var-module={{ $labels.module | urlquery }}" in told["dashboard_url"]


def test_labels_are_joined_from_one_info_per_target(tmp_path: Path) -> None:
    rules = alert_artefacts(settings(tmp_path, CONFIG))["alerts/alerts.yml"]
    assert "group_left (team) topk by (job, instance, target) (1, last_over_time(llm_target_info[1m]))" in rules
    assert "topk by (job, instance, target) (1, last_over_time(llm_target_info[1h]))" in rules, "a target that is gone has an old info"


def test_notes_name_tiers_that_are_left_out_and_thresholds_without_an_edge(tmp_path: Path) -> None:
    file = tmp_path / "llm-exporter.yml"
    file.write_text(CONFIG)
    notes = list(notes_of(load_config(file, {})))
    assert any(note.startswith("docs, SLO ttft: the fast tier") for note in notes)
    assert any("vLLM has no bucket edge at 2 s" in note and "1 s is measured in its place" in note for note in notes)
    assert not any(note.startswith(("chat", "batch", "generate.")) for note in notes)
    assert not any("SGLang" in note for note in notes), "docs is known to be vLLM"


def test_links_that_a_pager_cannot_open_are_told(tmp_path: Path) -> None:
    file = tmp_path / "llm-exporter.yml"
    file.write_text("targets: []\ngenerate: {grafana_url: 'https://g.example'}\n")
    notes = list(notes_of(load_config(file, {})))
    assert [note.partition(" ")[0] for note in notes] == ["generate.runbook_base_url"]


DURATION = re.compile(r"(?<=\[)\w+(?=\])|(?<=offset )\w+")


def rules_of(files: dict[str, str]) -> list[dict[str, Any]]:
    groups = [group for name in ("alerts/recording.yml", "alerts/alerts.yml") for group in yaml.safe_load(files[name])["groups"]]
    return [{"interval": group["interval"], **rule} for group in groups for rule in group["rules"]]


@pytest.mark.parametrize("scale", ["60", "7.5"])
def test_a_time_scale_divides_every_window_for_and_interval_and_changes_nothing_else(tmp_path: Path, scale: str) -> None:
    plain = rules_of(alert_artefacts(settings(tmp_path, CONFIG), RECORDS))
    scaled = rules_of(alert_artefacts(settings(tmp_path, CONFIG, scale), RECORDS))
    seen = 0
    for before, after in zip(plain, scaled, strict=True):
        ages = ALERT[before["alert"]].thresholds if "alert" in before else ()
        text_before, text_after = before.pop("expr"), after.pop("expr")
        for age in [threshold for threshold in ages if threshold.name in ("xid_age", "review_age")]:
            text_before = text_before.replace(f"{age.value:f}", "AGE")
            text_after = text_after.replace(f"{(age.value / Decimal(scale)).normalize():f}", "AGE")
        for key in ("interval", "for"):
            if key in before:
                assert parse_duration(before.pop(key)) == pytest.approx(
                    parse_duration(after.pop(key)) * float(scale), abs=0.001 * float(scale)
                )
        wanted, given = DURATION.findall(text_before), DURATION.findall(text_after)
        assert [parse_duration(text) for text in wanted] == pytest.approx(
            [parse_duration(text) * float(scale) for text in given], abs=0.001 * float(scale)
        )
        assert DURATION.sub("TIME", text_before) == DURATION.sub("TIME", text_after)
        for rule in (before, after):  # evidence is read through R
            if "evidence" in rule.get("annotations", {}):
                rule["annotations"]["evidence"] = DURATION.sub("TIME", rule["annotations"]["evidence"])
        assert before == after
        seen += len(wanted)
    assert seen > 100
