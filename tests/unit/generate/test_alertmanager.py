"""The example configuration of Alertmanager: valid, routed by severity, and quiet where another alert says it already."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from llm_exporter.generate.alertmanager import INHIBITIONS, alertmanager_document, alertmanager_file
from llm_exporter.generate.alerts import ALERT

AMTOOL = shutil.which("amtool")
needs_amtool = pytest.mark.skipif(AMTOOL is None, reason="amtool is missing (Debian package prometheus-alertmanager; make system-deps)")


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert AMTOOL is not None
    return subprocess.run([AMTOOL, *arguments], capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "alertmanager.yml"
    file.write_text(alertmanager_file())
    return str(file)


@pytest.mark.system
@needs_amtool
def test_alertmanager_accepts_the_configuration(config: str) -> None:
    ran = amtool("check-config", config)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@needs_amtool
@pytest.mark.parametrize(("severity", "receiver"), [("page", "page"), ("ticket", "ticket"), ("none", "nobody"), ("other", "ticket")])
def test_the_severity_decides_who_is_told(config: str, severity: str, receiver: str) -> None:
    ran = amtool(
        "config",
        "routes",
        "test",
        f"--config.file={config}",
        f"--verify.receivers={receiver}",
        f"severity={severity}",
        "alertname=LLMTargetDown",
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


Labels = Mapping[str, str]
CHAT = {"job": "llm-exporter", "instance": "e:9880", "target": "chat"}


def matches(matchers: list[str], labels: Labels) -> bool:
    for matcher in matchers:
        name, operator, value = re.fullmatch(r'(\w+)(=~|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
        there = labels.get(name, "")
        if not (re.fullmatch(value, there) if operator == "=~" else there == value):
            return False
    return True


def muted(alert: Labels, firing: Labels) -> bool:
    """What Alertmanager does: a source that matches, a target that matches, equal labels (missing ones are empty), no self-inhibition."""
    for rule in alertmanager_document()["inhibit_rules"]:
        if not matches(rule["source_matchers"], firing) or not matches(rule["target_matchers"], alert):
            continue
        if matches(rule["target_matchers"], firing) and matches(rule["source_matchers"], alert):
            continue
        if all(alert.get(label, "") == firing.get(label, "") for label in rule["equal"]):
            return True
    return False


def labels(name: str, **more: str) -> Labels:
    return {"alertname": name, "severity": ALERT[name].severity.value, **CHAT, **more}


@pytest.mark.parametrize(
    ("source", "silent"),
    [
        ("LLMTargetDown", ["LLMTTFTP99High", "LLMSLOBudgetBurnFast", "LLMGPUStarvedByCPU", "LLMGPUThrottled", "LLMProbeFailing", "LLMNoFirstTokens", "LLMScrapeSlow", "LLMSignalsMissing"]),
        ("LLMEngineStalled", ["LLMGPUStarvedByCPU", "LLMNoFirstTokens", "LLMSLOBudgetBurnMedium"]),
        ("LLMEngineStarting", ["LLMTargetDown", "LLMEngineStalled", "LLMNoFirstTokens", "LLMSLOBudgetBurnFast", "LLMTTFTP99High", "LLMProbeFailing", "LLMPrefixCacheHitRatioLow"]),
        ("LLMGPUXidError", ["LLMGPUStarvedByCPU"]),
        ("LLMGPULost", ["LLMGPUStarvedByCPU"]),
        ("LLMErrorRateHigh", ["LLMQueueGrowing", "LLMKVCacheNearlyFull", "LLMGPUXidError"]),
        ("LLMExporterDown", ["LLMTargetDown", "LLMTargetsMissing", "LLMExporterSourceDown"]),
    ],
)  # fmt: skip
def test_an_alert_mutes_what_it_explains_on_its_own_target(source: str, silent: list[str]) -> None:
    firing = {key: value for key, value in labels(source).items() if source != "LLMExporterDown" or key != "target"}
    for name in silent:
        assert muted(labels(name), firing), f"{source} must mute {name}"
        if source != "LLMExporterDown":
            assert not muted({**labels(name), "target": "docs"}, firing), "another target is another matter"
            assert not muted({**labels(name), "instance": "f:9880"}, firing), "another exporter's target of the same name is another server"


@pytest.mark.parametrize(
    ("source", "heard"),
    [
        ("LLMTargetDown", ["LLMTargetDown", "LLMTargetsMissing", "LLMEngineStarting"]),
        ("LLMEngineStalled", ["LLMEngineStalled", "LLMTargetDown", "LLMErrorRateHigh"]),
        ("LLMEngineStarting", ["LLMTargetsMissing", "LLMExporterDown", "LLMGPUXidError", "LLMGPULost", "LLMEngineStarting"]),
        ("LLMGPUStarvedByCPU", ["LLMSLOBudgetBurnFast", "LLMEngineStalled"]),
        ("LLMQueueGrowing", ["LLMSLOBudgetBurnFast", "LLMTTFTP99High"]),
    ],
)
def test_an_alert_mutes_nothing_that_it_does_not_explain(source: str, heard: list[str]) -> None:
    assert not [name for name in heard if muted(labels(name), labels(source))]


def test_the_faster_burn_mutes_the_slower_of_the_same_objective_alone() -> None:
    same = {"model": "m", "slo": "ttft"}
    order = ["LLMSLOBudgetBurnFast", "LLMSLOBudgetBurnMedium"]
    for faster, slower in (order, ["LLMSLOBudgetBurnFast", "LLMSLOBudgetBurnSlow"], ["LLMSLOBudgetBurnMedium", "LLMSLOBudgetBurnSlow"]):
        assert muted(labels(slower, **same), labels(faster, **same))
        assert not muted(labels(faster, **same), labels(slower, **same))
    assert not muted(labels(order[1], **same), labels(order[0], model="m", slo="itl"))


def test_an_absent_exporter_mutes_nothing_of_one_that_is_there() -> None:
    absent = {"alertname": "LLMExporterDown", "severity": "page", "job": "llm-exporter"}
    assert not muted(labels("LLMTargetDown"), absent)


def test_no_alert_mutes_itself_and_every_name_exists() -> None:
    for rule in INHIBITIONS:
        assert not set(rule.sources) & set(rule.muted), rule.why
        assert set(rule.sources) | set(rule.muted) <= set(ALERT)
