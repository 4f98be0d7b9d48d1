"""Runs promtool on cases: writes the rules that an alert needs and a test file, and says what promtool said."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_exporter.generate.alert import Alert
from llm_exporter.generate.alerts import ALERT
from llm_exporter.generate.recording import recording_groups
from llm_exporter.generate.rules import alert_rule
from llm_exporter.generate.settings import RuleSettings
from rules import cases_engine, cases_gpu, cases_latency
from rules.series import KINDS, Case, Cases

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing (Debian package prometheus; make system-deps)")

CASES: dict[str, Cases] = {cases.alert: cases for cases in (*cases_latency.CASES, *cases_engine.CASES, *cases_gpu.CASES)}
_RECORD = re.compile(r"\w+:\w+:\w+")


def rules_for(alert: Alert, settings: RuleSettings, *, annotated: bool = False) -> dict[str, Any]:
    """The alert's rule and the recording rules below it, in one group: promtool evaluates all rules at one pace."""
    rule = alert_rule(alert, settings)
    assert rule is not None
    if not annotated:
        rule = {key: value for key, value in rule.items() if key != "annotations"}
    recorded = {row["record"]: row for group in recording_groups(settings) for row in group["rules"]}
    needed = [recorded[name] for name in dict.fromkeys(_RECORD.findall(rule["expr"]))]
    return {"groups": [{"name": "under-test", "interval": "15s", "rules": [*needed, rule]}]}


def promtool_case(alert: Alert, case: Case, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    expected = [
        {"exp_labels": {"severity": alert.severity.value, **labels}, **({"exp_annotations": dict(annotations)} if annotations else {})}
        for labels in case.fires
    ]
    return {
        "name": f"{alert.name}: {case.kind}{': ' + case.about if case.about else ''}",
        "interval": f"{case.step}s",
        "input_series": [{"series": name, "values": values} for name, values in case.seen.items()],
        "alert_rule_test": [{"eval_time": f"{int(Decimal(str(case.at)) * 60)}s", "alertname": alert.name, "exp_alerts": expected}],
    }


def promtool(folder: Path, rules: Mapping[str, Any], tests: Iterable[Mapping[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Tests of one file have one pace of evaluation, so each pace gets its own file."""
    assert PROMTOOL is not None
    (folder / "rules.yml").write_text(yaml.safe_dump(rules))
    by_pace: dict[str, list[Mapping[str, Any]]] = {}
    for test in tests:
        by_pace.setdefault(test["interval"], []).append(test)
    files = []
    for pace, group in by_pace.items():
        file = folder / f"test-{pace}.yml"
        file.write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": pace, "tests": group}))
        files.append(str(file))
    return subprocess.run([PROMTOOL, "test", "rules", *files], capture_output=True, text=True, timeout=100, check=False)


def run_cases(
    folder: Path, name: str, settings: RuleSettings | None = None, kinds: tuple[str, ...] = KINDS
) -> subprocess.CompletedProcess[str]:
    alert = ALERT[name]
    rules = rules_for(alert, settings or RuleSettings())
    return promtool(folder, rules, [promtool_case(alert, case) for case in CASES[name].cases if case.kind in kinds])
