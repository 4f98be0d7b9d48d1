"""The files as they are committed and as configurations change them: valid for Prometheus and vmalert, silent when all is well."""

from __future__ import annotations

import shutil
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_exporter.config.load import load_config
from llm_exporter.generate.alerts import ALERT
from llm_exporter.generate.artefacts import alert_artefacts
from llm_exporter.generate.settings import RuleSettings, settings_of
from llm_exporter.signals.review_records import RECORDS
from rules.running import PROMTOOL, needs_promtool, promtool, rules_for
from rules.series import MODEL, TARGET, counter, gauge, j, m, t

VMALERT = shutil.which("vmalert")
CONFIGS = {
    "generic": None,
    "objectives, labels and discovery": """
targets:
  - {name: 'chat "é" \\d', url: "http://127.0.0.1:8000", slos: [{name: ttft, metric: time_to_first_token, threshold: 1s, objective: 0.99}]}
  - {name: docs, url: "http://127.0.0.1:8001", slos: [{name: ttft, metric: time_to_first_token, threshold: 2s, objective: 0.9}]}
file_sd_configs: [{files: ["targets/*.yml"]}]
generate: {alert_labels: [team, service], job: 'j"x'}
""",
    "no objectives": 'targets: [{name: chat, url: "http://127.0.0.1:8000"}]',
    "slow scrapes": "generate: {prometheus_scrape_interval: 5m}",
}


def written(folder: Path, text: str | None, scale: str = "1") -> list[str]:
    config = None
    if text is not None:
        (folder / "llm-exporter.yml").write_text(text)
        config = load_config(folder / "llm-exporter.yml", {})
    files = alert_artefacts(settings_of(config, Decimal(scale)), RECORDS)
    paths = []
    for name in ("recording", "alerts"):
        path = folder / f"{name}.yml"
        path.write_text(files[f"alerts/{name}.yml"])
        paths.append(str(path))
    return paths


@pytest.mark.system
@needs_promtool
@pytest.mark.parametrize("scale", ["1", "60"])
@pytest.mark.parametrize("name", CONFIGS)
def test_prometheus_accepts_the_rules(name: str, scale: str, tmp_path: Path) -> None:
    assert PROMTOOL is not None
    ran = subprocess.run(
        [PROMTOOL, "check", "rules", "--lint=all", "--lint-fatal", *written(tmp_path, CONFIGS[name], scale)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@pytest.mark.skipif(VMALERT is None, reason="vmalert is missing (Debian package victoria-metrics; make system-deps)")
@pytest.mark.parametrize("name", CONFIGS)
def test_vmalert_accepts_the_rules(name: str, tmp_path: Path) -> None:
    assert VMALERT is not None
    ran = subprocess.run(
        [VMALERT, "-dryRun", *(f"-rule={path}" for path in written(tmp_path, CONFIGS[name]))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def healthy() -> dict[str, str]:
    """Half an hour of a target with traffic, GPU and probe, and nothing wrong."""
    served = {
        m("llm_time_to_first_token_seconds_bucket", le=le): counter((40, rate))
        for le, rate in (("0.5", 55), ("1", 60), ("5", 60), ("+Inf", 60))
    }
    counted = {
        m("llm_time_to_first_token_seconds_count"): 60, m("llm_inter_token_latency_seconds_count"): 6000,
        m("llm_generation_tokens_total"): 6000, m("llm_requests_finished_total", outcome="stop"): 60,
        m("llm_requests_finished_total", outcome="error"): 0, m("llm_http_responses_total", code="2xx"): 60,
        m("llm_http_responses_total", code="5xx"): 0, m("llm_slo_requests_total", slo="ttft"): 60,
        m("llm_slo_good_requests_total", slo="ttft"): 59.9, m("llm_preemptions_total"): 0,
        m("llm_prefix_cache_hit_tokens_total"): 3000, m("llm_prefix_cache_queried_tokens_total"): 6000,
        t("llm_engine_restarts_total"): 0, t("llm_probe_requests_total", module="short", result="success"): 2,
        t("llm_probe_requests_total", module="short", result="timeout"): 0,
        j("llm_gpu_throttled_seconds_total", gpu="0", reason="sw_power_cap"): 60,
    }  # fmt: skip
    held = {
        j("up"): 1, t("llm_target_up"): 1, t("llm_target_scrape_duration_seconds"): 0.005, t("llm_engine_stalled"): 0,
        t("llm_engine_state", state="ready"): 1, t("llm_engine_state", state="loading"): 0, t("llm_gpu_starved"): 0,
        t("llm_probe_success", module="short"): 1, t("llm_probe_last_result", module="short", result="success"): 1,
        t("llm_signal_status", signal="x", window="", status="feature_off"): 1, m("llm_requests_running"): 20,
        m("llm_requests_waiting"): 3, m("llm_requests_waiting_capacity"): 3, m("llm_kv_cache_usage_ratio"): 0.8,
        m("llm_slo_objective_ratio", slo="ttft"): 0.99, t("llm_gpu_target", gpu="0"): 1, j("llm_gpu_up", gpu="0"): 1,
        j("llm_gpu_process_memory_bytes", gpu="0", target="chat"): 70_000_000_000, j("llm_gpu_expected_devices"): 1,
        j("llm_exporter_config_last_reload_successful"): 1, j("llm_exporter_source_up", source="nvml"): 1,
    }  # fmt: skip
    return {
        **served,
        **{name: counter((40, rate)) for name, rate in counted.items()},
        **{name: gauge((40, value)) for name, value in held.items()},
    }


def everything(folder: Path, seen: dict[str, str], at: int, expected: dict[str, list[dict[str, str]]]) -> subprocess.CompletedProcess[str]:
    """All rules at once, annotations left out; alerts that are not named must be silent."""
    groups: list[dict[str, Any]] = []
    for path in written(folder, None):
        for group in yaml.safe_load(Path(path).read_text())["groups"]:
            rules = [{key: value for key, value in rule.items() if key != "annotations"} for rule in group["rules"]]
            groups.append({**group, "rules": rules})
    test = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in seen.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{at}m",
                "alertname": name,
                "exp_alerts": [{"exp_labels": {"severity": alert.severity.value, **labels}} for labels in expected.get(name, [])],
            }
            for name, alert in ALERT.items()
        ],
    }
    return promtool(folder, {"groups": groups}, [test])


@pytest.mark.system
@needs_promtool
def test_all_alerts_are_silent_when_all_is_well(tmp_path: Path) -> None:
    ran = everything(tmp_path, healthy(), 35, {})
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.system
@needs_promtool
def test_a_hang_pages_as_a_hang_and_nothing_cries_about_latency(tmp_path: Path) -> None:
    flat = {
        name: values
        for name, values in healthy().items()
        if name.startswith(("llm_time", "llm_inter", "llm_gen", "llm_requests_f", "llm_http", "llm_slo_re", "llm_slo_g", "llm_prefix"))
    }
    seen = {**healthy(), **{name: f"{values.rsplit('x', 1)[0]}x79 {_last(values)}+0x79" for name, values in flat.items()}}
    seen[t("llm_engine_stalled")] = gauge((21, 0), (19, 1))
    ran = everything(tmp_path, seen, 30, {"LLMEngineStalled": [TARGET], "LLMNoFirstTokens": [MODEL]})
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _last(values: str) -> str:
    """Value after 79 steps of `a+bxN`."""
    start, each = values.rsplit("x", 1)[0].split("+")
    return f"{float(start) + 79 * float(each):f}"


INFO = [
    t("llm_target_info", engine="vllm", engine_version="0.32", team="search"),
    t("llm_target_info", engine="vllm", engine_version="0.33", team="search"),
]


def fires(folder: Path, name: str, settings: RuleSettings, seen: dict[str, str], at: int, expected: list[dict[str, str]]) -> None:
    alert = ALERT[name]
    test = {
        "interval": "15s",
        "input_series": [{"series": series, "values": values} for series, values in seen.items()],
        "alert_rule_test": [
            {
                "eval_time": f"{at}m",
                "alertname": name,
                "exp_alerts": [{"exp_labels": {"severity": alert.severity.value, **labels}} for labels in expected],
            }
        ],
    }
    ran = promtool(folder, rules_for(alert, settings), [test])
    assert ran.returncode == 0, ran.stdout + ran.stderr


TEAM = RuleSettings(alert_labels=("team",))


@pytest.mark.system
@needs_promtool
def test_an_upgrade_that_shows_two_infos_in_one_range_breaks_no_rule(tmp_path: Path) -> None:
    infos = {INFO[0]: gauge((5.5, 1), (10, None)), INFO[1]: gauge((5.5, None), (10, 1))}
    fires(tmp_path, "LLMTargetDown", TEAM, {**infos, t("llm_target_up"): gauge((4, 1), (10, 0))}, 6, [{**TARGET, "team": "search"}])


@pytest.mark.system
@needs_promtool
def test_a_target_without_info_still_pages(tmp_path: Path) -> None:
    fires(tmp_path, "LLMTargetDown", TEAM, {t("llm_target_up"): gauge((4, 1), (10, 0))}, 7, [TARGET])


@pytest.mark.system
@needs_promtool
def test_a_target_that_is_gone_keeps_its_team(tmp_path: Path) -> None:
    seen = {j("up"): gauge((30, 1)), t("llm_target_up"): gauge((5, 1)), INFO[0]: gauge((5, 1))}
    fires(tmp_path, "LLMTargetsMissing", TEAM, seen, 10, [{**TARGET, "team": "search"}])


@pytest.mark.system
@needs_promtool
def test_models_of_one_target_get_the_label_each(tmp_path: Path) -> None:
    seen = {INFO[0]: gauge((30, 1))}
    for model in ("m", "n"):
        seen[m("llm_kv_cache_usage_ratio").replace('model="m"', f'model="{model}"')] = gauge((30, 1))
    fires(tmp_path, "LLMKVCacheNearlyFull", TEAM, seen, 20, [{**MODEL, "model": model, "team": "search"} for model in ("m", "n")])


@pytest.mark.system
@needs_promtool
@pytest.mark.parametrize("name", ["LLMTargetDown", "LLMGPUThrottled", "LLMTargetsMissing"])
def test_targets_of_one_name_behind_two_exporters_are_two(name: str, tmp_path: Path) -> None:
    bad = {
        t("llm_target_up"): gauge((5, 1), (20, 0 if name == "LLMTargetDown" else None)),
        j("up"): gauge((40, 1)),
        t("llm_gpu_target", gpu="0"): gauge((40, 1)),
        j("llm_gpu_throttled_seconds_total", gpu="0", reason="hw_slowdown"): counter((40, 30)),
    }
    good = {
        t("llm_target_up"): gauge((40, 1)),
        j("up"): gauge((40, 1)),
        t("llm_gpu_target", gpu="0"): gauge((40, 1)),
        j("llm_gpu_throttled_seconds_total", gpu="0", reason="hw_slowdown"): counter((40, 0)),
    }
    seen = {**bad, **{series.replace("e:9880", "f:9880"): values for series, values in good.items()}}
    labels = {**TARGET, "gpu": "0"} if name == "LLMGPUThrottled" else TARGET
    fires(tmp_path, name, RuleSettings(), seen, 20, [labels])


@pytest.mark.system
@needs_promtool
def test_labels_that_a_server_adds_survive(tmp_path: Path) -> None:
    def west(series: str) -> str:
        return series.replace('job="', 'cluster="west",job="')

    slo = {
        m("llm_slo_requests_total", slo="s"): counter((120, 60)),
        m("llm_slo_good_requests_total", slo="s"): counter((120, 30)),
        m("llm_slo_objective_ratio", slo="s"): gauge((120, 0.99)),
    }
    expected = {key: value for key, value in MODEL.items() if key != "engine"}
    fires(
        tmp_path,
        "LLMSLOBudgetBurnFast",
        RuleSettings(),
        {west(series): values for series, values in slo.items()},
        70,
        [{"cluster": "west", **expected, "slo": "s"}],
    )


@pytest.mark.system
@needs_promtool
def test_an_engine_that_is_exchanged_stays_one_series_of_its_objective(tmp_path: Path) -> None:
    seen = {}
    for engine, segments in (("vllm", ((60, 1.0), (60, None))), ("sglang", ((60, None), (60, 1.0)))):
        for name, rate in (("llm_slo_requests_total", 60), ("llm_slo_good_requests_total", 30)):
            series = m(name, slo="s").replace("vllm", engine)
            seen[series] = counter(*((minutes, None if on is None else rate) for minutes, on in segments))
        seen[m("llm_slo_objective_ratio", slo="s").replace("vllm", engine)] = gauge(
            *((minutes, None if on is None else 0.99) for minutes, on in segments)
        )
    expected = {key: value for key, value in MODEL.items() if key != "engine"}
    fires(tmp_path, "LLMSLOBudgetBurnFast", RuleSettings(), seen, 80, [{**expected, "slo": "s"}])


@pytest.mark.system
@needs_promtool
def test_literal_objectives_fire_like_those_read_from_the_metrics(tmp_path: Path) -> None:
    (tmp_path / "llm-exporter.yml").write_text(
        'targets: [{name: chat, url: "http://127.0.0.1:1", slos: [{name: s, metric: time_to_first_token, threshold: 1s, objective: 0.95}]}]'
    )
    settings = settings_of(load_config(tmp_path / "llm-exporter.yml", {}))
    seen = {m("llm_slo_requests_total", slo="s"): counter((120, 60)), m("llm_slo_good_requests_total", slo="s"): counter((120, 15))}
    expected = [{**{key: value for key, value in MODEL.items() if key != "engine"}, "slo": "s"}]
    fires(tmp_path, "LLMSLOBudgetBurnFast", settings, seen, 70, expected)
    seen[m("llm_slo_good_requests_total", slo="s")] = counter((120, 20))  # 67 % slow, limit 72 %
    fires(tmp_path, "LLMSLOBudgetBurnFast", settings, seen, 70, [])
