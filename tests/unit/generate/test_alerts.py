"""The alerts that on-call may route on: names, severities, and what each must say."""

from __future__ import annotations

import re

import pytest

from llm_exporter.generate.alert import Alert, Severity
from llm_exporter.generate.alerts import ALERTS
from llm_exporter.generate.boards import BOARDS
from llm_exporter.generate.rules import alert_rule, annotations_of
from llm_exporter.generate.settings import RuleSettings

PAGES = """LLMTargetDown LLMEngineStalled LLMNoFirstTokens LLMProbeFailing LLMSLOBudgetBurnFast LLMSLOBudgetBurnMedium LLMErrorRateHigh
LLMExporterDown LLMTargetsMissing"""
TICKETS = """LLMSLOBudgetBurnSlow LLMTTFTP99High LLMQueueGrowing LLMKVCacheNearlyFull LLMPreemptionsHigh LLMPrefixCacheHitRatioLow
LLMGPUStarvedByCPU LLMGPUThrottled LLMGPUXidError LLMGPULost LLMGPUForeignProcess LLMProbeMisconfigured LLMScrapeSlow LLMSignalsMissing
LLMEngineRestarting LLMExporterConfigReloadFailed LLMExporterSourceDown LLMCapacityReviewMissing"""

every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


@pytest.mark.parametrize(("severity", "names"), [("page", PAGES), ("ticket", TICKETS), ("none", "LLMEngineStarting")])
def test_the_names_are_those_that_were_promised(severity: str, names: str) -> None:
    assert {alert.name for alert in ALERTS if alert.severity is Severity(severity)} == set(names.split())


@every_alert
def test_a_rule_carries_severity_and_what_a_person_needs(alert: Alert) -> None:
    rule = alert_rule(alert, RuleSettings())
    assert rule is not None
    assert rule["labels"] == {"severity": alert.severity.value}
    assert rule["annotations"]["runbook_url"].endswith(f"/{alert.name}.md")
    assert rule["annotations"]["dashboard_url"].startswith("http")
    assert "$value" not in str(rule["labels"])


@every_alert
def test_a_summary_names_who_is_affected(alert: Alert) -> None:
    who = {"target", "gpu", "instance"} & set(re.findall(r"\$labels\.(\w+)", alert.summary))
    assert who


@every_alert
def test_texts_use_only_labels_that_the_alert_has(alert: Alert) -> None:
    used = set(re.findall(r"\$labels\.(\w+)", " ".join(annotations_of(alert, RuleSettings()).values())))
    assert used <= {"job", "instance", *alert.labels}


@every_alert
def test_a_threshold_is_told_where_the_alert_tells_its_value(alert: Alert) -> None:
    if alert.thresholds and "limit" in alert.value:
        assert any(threshold.text in alert.value or f"{threshold.value}" in alert.value for threshold in alert.thresholds)


@every_alert
def test_a_page_says_what_it_cannot_see_or_sees_all(alert: Alert) -> None:
    if alert.severity is Severity.PAGE:
        assert alert.blind


def test_the_error_rate_names_its_blind_spot() -> None:
    blind = next(alert.blind for alert in ALERTS if alert.name == "LLMErrorRateHigh")
    assert "2xx" in blind
    assert "probe" in blind


def test_boards_have_ids_of_their_own() -> None:
    assert len({board.uid for board in BOARDS}) == len(BOARDS)
