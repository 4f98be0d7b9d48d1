"""Every alert fires when it should and is silent when it should be; every threshold matters."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from llm_exporter.generate.alerts import ALERT, ALERTS
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import THRESHOLDS, Threshold
from llm_exporter.readings import Unit
from rules.running import CASES, needs_promtool, promtool, promtool_case, rules_for, run_cases
from rules.series import KINDS


@pytest.mark.parametrize("name", ALERT)
def test_every_alert_has_a_case_of_every_kind_or_a_reason(name: str) -> None:
    cases = CASES[name]
    kinds = {case.kind for case in cases.cases}
    assert kinds | set(cases.without) == set(KINDS)
    assert not kinds & set(cases.without), "a kind has both cases and a reason against them"
    assert all(bool(case.fires) for case in cases.cases if case.kind == "fires")
    assert not [case for case in cases.cases if case.kind in ("just_below", "too_short", "idle", "counter_reset") and case.fires]


def test_no_case_is_of_an_alert_that_does_not_exist() -> None:
    assert set(CASES) == set(ALERT)


@pytest.mark.system
@needs_promtool
@pytest.mark.parametrize("name", ALERT)
def test_the_alert_behaves_in_every_case(name: str, tmp_path: Path) -> None:
    ran = run_cases(tmp_path, name)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def moved(threshold: Threshold, up: bool) -> Decimal:
    """A quarter more or less; whole numbers move by at least one."""
    if threshold.unit in (Unit.COUNT, Unit.REQUESTS) and threshold.value == threshold.value.to_integral_value():
        by = Decimal(max(1, math.ceil(threshold.value / 4)))
        return threshold.value + (by if up else -by)
    return threshold.value * (Decimal("1.25") if up else Decimal("0.8"))


@pytest.mark.parametrize("threshold", THRESHOLDS, ids=lambda threshold: threshold.name)
def test_every_threshold_is_used_by_an_alert_that_says_so(threshold: Threshold) -> None:
    users = [alert for alert in ALERTS if threshold in alert.thresholds]
    assert users
    changed = RuleSettings(changed={threshold.name: threshold.value * 3})
    for alert in ALERTS:
        assert (alert.expression(changed) != alert.expression(RuleSettings())) == (alert in users), alert.name


@pytest.mark.system
@needs_promtool
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
@pytest.mark.parametrize("threshold", THRESHOLDS, ids=lambda threshold: threshold.name)
def test_a_case_notices_when_the_threshold_moves(threshold: Threshold, up: bool, tmp_path: Path) -> None:
    name = next(alert.name for alert in ALERTS if threshold in alert.thresholds)
    ran = run_cases(tmp_path, name, RuleSettings(changed={threshold.name: moved(threshold, up)}), ("fires", "just_below"))
    assert ran.returncode != 0, f"{threshold.name} may be {moved(threshold, up)} and nobody notices"
    assert "FAILED" in ran.stdout + ran.stderr
    assert "exp:" in ran.stdout + ran.stderr, "promtool failed for another reason"


@pytest.mark.system
@needs_promtool
@pytest.mark.parametrize("name", [alert.name for alert in ALERTS if alert.hold])
def test_a_case_notices_when_the_alert_no_longer_waits(name: str, tmp_path: Path) -> None:
    alert = replace(ALERT[name], hold=0)
    cases = [promtool_case(alert, case) for case in CASES[name].cases if case.kind == "too_short"]
    ran = promtool(tmp_path, rules_for(alert, RuleSettings()), cases)
    assert "exp:" in ran.stdout + ran.stderr, f"{name} may fire at once and nobody notices"


CONDITION = re.compile(r"^\s*(and|unless|or)\b")


def shortened() -> list[tuple[str, int]]:
    """(alert, line) of every condition that stands on a line of its own."""
    found = []
    for alert in ALERTS:
        for at, line in enumerate(alert.expression(RuleSettings()).splitlines()):
            if CONDITION.match(line) and line.count("(") == line.count(")") and line.split() not in (["or"], ["and"]):
                found.append((alert.name, at))
    return found


@pytest.mark.system
@needs_promtool
@pytest.mark.parametrize(("name", "line"), shortened())
def test_a_case_notices_when_a_condition_is_dropped(name: str, line: int, tmp_path: Path) -> None:
    lines = ALERT[name].expression(RuleSettings()).splitlines()
    alert = replace(ALERT[name], expression=lambda _: "\n".join(lines[:line] + lines[line + 1 :]))
    cases = [promtool_case(alert, case) for case in CASES[name].cases if not case.fires]
    ran = promtool(tmp_path, rules_for(alert, RuleSettings()), cases)
    assert "exp:" in ran.stdout + ran.stderr, f"without {lines[line]!r} nobody notices"
