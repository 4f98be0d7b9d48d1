"""What the person reads who is called: every alert's annotations, expanded by promtool, against a golden file.

`pytest tests/rules/test_annotations.py --update-golden` renews tests/golden/annotations.json; read the diff.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from llm_exporter.generate.alerts import ALERT
from llm_exporter.generate.settings import RuleSettings
from rules.running import CASES, needs_promtool, promtool, promtool_case, rules_for
from rules.series import Case, gauge, j, m, t

GOLDEN = Path(__file__).parents[1] / "golden" / "annotations.json"

# What the evidence asks for, beside what the case itself shows.
BACKGROUND = {
    t("llm_bottleneck_verdict", cause="queue"): 1,
    t("llm_bottleneck_verdict", cause="none"): 0,
    t("llm_bottleneck_evidence_ratio", cause="host_starved", evidence="hottest_thread"): 0.98,
    t("llm_target_down_reason", reason="refused"): 1,
    t("llm_engine_state", state="ready"): 1,
    t("llm_engine_stalled"): 0,
    t("llm_gpu_starved_ratio", window="5m"): 0.42,
    t("llm_probe_success", module="short"): 0,
    t("llm_probe_last_result", module="short", result="timeout"): 1,
    t("llm_target_info", engine="vllm", engine_version="0.33.0"): 1,
    m("llm_requests_running"): 32,
    m("llm_requests_waiting"): 7,
    m("llm_kv_cache_usage_ratio"): 0.875,
    m("llm_time_to_first_token_quantile_saturated", q="0.99", window="5m"): 0,
    m("llm_time_to_first_token_quantile_error_seconds", q="0.99", window="5m"): 2.5,
    m("llm_slo_threshold_seconds", slo="ttft"): 2,
    m("llm_slo_effective_threshold_seconds", slo="ttft"): 1,
    j("llm_gpu_info", gpu="0", name="NVIDIA H200", uuid="GPU-1", driver="580.1"): 1,
    j("llm_gpu_throttle_active", gpu="0", reason="sw_thermal_slowdown"): 1,
    j("llm_gpu_temperature_celsius", gpu="0", sensor="gpu"): 91,
    j("llm_gpu_power_watts", gpu="0"): 412.5,
    j("llm_gpu_up", gpu="0"): 1,
    j("llm_gpu_up", gpu="1"): 0,
}


def told_case(name: str) -> Case:
    """The alert's first firing case, with the background that it does not show itself."""
    case = next(case for case in CASES[name].cases if case.kind == "fires")
    shown = {series.split("{", 1)[0] for series in case.seen}
    if name in ("LLMGPULost", "LLMGPUThrottled"):  # of which the background would make a second alert
        shown |= {"llm_gpu_up", "llm_gpu_throttle_active"}
    length = int(case.at) + 2 * case.step // 60 + 1
    seen = {series: gauge((length, value), step=case.step) for series, value in BACKGROUND.items() if series.split("{", 1)[0] not in shown}
    return Case(case.kind, {**case.seen, **seen}, case.at, case.fires, case.step)


def expanded(folder: Path, name: str) -> dict[str, str]:
    """Asks promtool for the annotations by expecting none."""
    alert = ALERT[name]
    ran = promtool(folder, rules_for(alert, RuleSettings(), annotated=True), [promtool_case(alert, told_case(name))])
    got = (ran.stdout + ran.stderr).split("got:", 1)[1]
    labels_and_text = re.search(r"Annotations:\{(.*)\}", got)
    assert labels_and_text, got
    return {key: json.loads(f'"{text}"') for key, text in re.findall(r'(\w+)="((?:\\.|[^"\\])*)"', labels_and_text[1])}


@pytest.mark.system
@needs_promtool
@pytest.mark.slow
def test_the_golden_file_is_renewed_where_that_is_asked_for(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if not request.config.getoption("--update-golden"):
        assert set(json.loads(GOLDEN.read_text())) == set(ALERT), "pytest tests/rules/test_annotations.py --update-golden"
        return
    told = {name: expanded(tmp_path, name) for name in ALERT}
    GOLDEN.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


@pytest.mark.system
@needs_promtool
@pytest.mark.parametrize("name", ALERT)
def test_the_annotations_say_what_the_golden_file_says(name: str, tmp_path: Path) -> None:
    alert, golden = ALERT[name], json.loads(GOLDEN.read_text())
    ran = promtool(tmp_path, rules_for(alert, RuleSettings(), annotated=True), [promtool_case(alert, told_case(name), golden[name])])
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ALERT)
def test_the_annotations_are_whole(name: str) -> None:
    told = json.loads(GOLDEN.read_text())[name]
    assert {"summary", "value", "meaning", "action", "runbook_url", "dashboard_url"} <= set(told)
    for text in told.values():
        assert "error" not in text.lower() or "expanding" not in text
        assert "{{" not in text
        assert "<no value>" not in text
        assert "%!" not in text
    if "target" in ALERT[name].labels:
        assert "chat" in told["summary"] + told["dashboard_url"]
    assert re.search(r"\d", told["value"]) or name in (
        "LLMEngineStalled",
        "LLMGPUStarvedByCPU",
        "LLMExporterDown",
        "LLMTargetsMissing",
        "LLMProbeMisconfigured",
    )
