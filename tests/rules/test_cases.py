"""Every alert fires when it should and is silent when it should be; every threshold matters."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path

import pytest

from llm_exporter.generate.alerts import ALERT, ALERTS
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import THRESHOLDS, Threshold
from llm_exporter.readings import Unit
from rules.running import CASES, needs_promtool, run_cases
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
