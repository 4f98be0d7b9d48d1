"""Cases from public reports about alerts: almost no traffic, a gap in the scrapes, ranges too short for the interval."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_exporter.config.durations import parse_duration
from llm_exporter.config.load import load_config
from llm_exporter.generate.alerts import ALERT
from llm_exporter.generate.artefacts import alert_artefacts
from llm_exporter.generate.settings import RuleSettings, settings_of
from llm_exporter.signals.review_records import RECORDS
from rules.running import needs_promtool, promtool, rules_for
from rules.series import MODEL, counter, gauge, m

CASES = Path(__file__).parents[1] / "fixtures" / "cases"
P99 = ALERT["LLMTTFTP99High"]
FIRING = {"severity": "ticket", **{key: value for key, value in MODEL.items() if key != "engine"}}


def slow_and_fast(slow_per_5m: int, fast_per_5m: int, minutes: int, gap: tuple[int, int] | None = None) -> list[dict[str, str]]:
    """The exporter's histogram where `slow` requests take 30 s; `gap`: minutes without samples, in which the engine goes on."""
    found = []
    for le, per_5m in (("1", fast_per_5m), ("20", fast_per_5m), ("40", slow_per_5m + fast_per_5m), ("+Inf", slow_per_5m + fast_per_5m)):
        found.append((m("llm_time_to_first_token_seconds_bucket", le=le), per_5m))
    found.append((m("llm_time_to_first_token_seconds_count"), slow_per_5m + fast_per_5m))
    series = []
    for name, per_5m in found:
        values = counter((minutes, per_5m / 5))
        if gap is not None:
            start, end = gap
            before, after = counter((start, per_5m / 5)), counter((minutes - end, per_5m / 5), start=per_5m / 5 * end)
            values = f"{before} _x{(end - start) * 4} {after}"
        series.append({"series": name, "values": values})
    return series


def states(name: str, series: list[dict[str, str]], minutes: list[float], firing: list[bool]) -> dict[str, Any]:
    return {
        "name": name,
        "interval": "15s",
        "input_series": series,
        "alert_rule_test": [
            {"eval_time": f"{int(at * 60)}s", "alertname": P99.name, "exp_alerts": [{"exp_labels": FIRING}] if there else []}
            for at, there in zip(minutes, firing, strict=True)
        ],
    }


def every_quarter(start: float, end: float) -> list[float]:
    return [start + step / 4 for step in range(int((end - start) * 4) + 1)]


@pytest.mark.system
@needs_promtool
def test_alr_01_a_p99_of_three_requests_calls_nobody_and_of_three_hundred_it_does(tmp_path: Path) -> None:
    case = yaml.safe_load((CASES / "ALR-01" / "promtool_series.yaml").read_text())
    tests = []
    for name, row in case.items():
        minutes = round(parse_duration(row["duration"]) / 60)
        high = row["expect"] == "firing_and_stable"
        at = every_quarter(7, minutes - 0.25) if high else every_quarter(0, minutes - 0.25)
        tests.append(states(name, slow_and_fast(row["slow_per_5m"], row["fast_per_5m"], minutes), at, [high] * len(at)))
    ran = promtool(tmp_path, rules_for(P99, RuleSettings()), tests)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@needs_promtool
def test_alr_02_a_minute_without_samples_does_not_resolve_a_firing_alert(tmp_path: Path) -> None:
    case = yaml.safe_load((CASES / "ALR-02" / "timeline.yaml").read_text())
    gap = tuple(round(parse_duration(text) / 60) for text in case["no_samples"])
    end = round(parse_duration(case["breach"][1]) / 60)
    assert (case["interval"], case["expect_notifications"]) == ("15s", 1)
    at = every_quarter(7, end - 0.25)  # from before the gap to the end: firing all the time is one notification
    ran = promtool(
        tmp_path, rules_for(P99, RuleSettings()), [states("gap", slow_and_fast(9, 291, end, (gap[0], gap[1])), at, [True] * len(at))]
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@needs_promtool
def test_alr_02_a_gap_that_lasts_is_told_by_another_alert(tmp_path: Path) -> None:
    down = ALERT["LLMExporterDown"]
    job = {"job": "llm-exporter", "instance": "e:9880"}
    test = {
        "interval": "15s",
        "input_series": [{"series": 'up{job="llm-exporter",instance="e:9880"}', "values": gauge((10, 1), (20, 0))}],
        "alert_rule_test": [{"eval_time": "13m", "alertname": down.name, "exp_alerts": [{"exp_labels": {"severity": "page", **job}}]}],
    }
    ran = promtool(tmp_path, rules_for(down, RuleSettings()), [test])
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(("file", "least"), [("config60.yaml", 240), ("config15.yaml", 60)])
def test_alr_04_no_range_is_shorter_than_four_scrapes(file: str, least: int, tmp_path: Path) -> None:
    interval = yaml.safe_load((CASES / "ALR-04" / file).read_text())["scrape_interval"]
    config = tmp_path / "llm-exporter.yml"
    config.write_text(f"generate: {{prometheus_scrape_interval: {interval}, alert_labels: [team]}}\n")
    files = alert_artefacts(settings_of(load_config(config, {})), RECORDS)
    ranges = [parse_duration(text) for name in files for text in re.findall(r"\[(\w+)\]", files[name])]
    assert len(ranges) > 100
    assert min(ranges) == least
