"""Field cases GRF-01 and GRF-03, the dashboards' part of ALR-04, and the arithmetic of the error band; rendered as Grafana renders them."""

from __future__ import annotations

import json
import re
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_exporter.generate.dashboards import dashboard_artefacts, queries
from llm_exporter.generate.dashboards_parts import Selection, quantile_edge
from llm_exporter.generate.settings import RuleSettings

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
FILES = dashboard_artefacts(RuleSettings())
BOARDS = {path: text for path, text in FILES.items() if path.endswith(".json")}


def expectation(case: str) -> list[dict[str, Any]]:
    checks: list[dict[str, Any]] = json.loads((CASES / case / "expect.json").read_text())["checks"]
    return checks


def escaped(value: str) -> str:
    """What Grafana makes of one value of a variable with several values (prometheusSpecialRegexEscape), between the query's quotes."""
    return re.sub(r"[$^*{}\[\]'+?.()|]", r"\\\\\g<0>", value.replace("\\", "\\\\\\\\"))


def filled(query: str, **values: list[str]) -> str:
    """A query with the chosen values in its variables; All elsewhere."""
    for name in ("job", "instance", "target", "model", "module", "gpu"):
        chosen = [escaped(value) for value in values.get(name, [])]
        text = ".*" if not chosen else chosen[0] if len(chosen) == 1 else f"({'|'.join(chosen)})"
        query = query.replace(f'=~"${name}"', f'=~"{text}"')
    return query.replace('="$target"', '="chat"').replace("$__rate_interval", "1m").replace("$__range", "1h")


def evaluate(promtool: str, folder: Path, series: dict[str, str], expr: str, at: str, labels: list[str]) -> str:
    """Runs promtool; "" where the query gives exactly these series."""
    test = {
        "rule_files": [],
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": expr, "eval_time": at, "exp_samples": [yaml.safe_load(label) for label in labels]}],
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run([promtool, "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_grf_01_no_unresolved_input_and_every_data_source_resolves() -> None:
    checks = json.loads((CASES / "GRF-01" / "checks.json").read_text())
    (pattern,) = [check["no_match"] for check in expectation("GRF-01") if "no_match" in check]
    for text in BOARDS.values():
        assert not re.search(pattern, text)
        assert not [word for word in checks["forbid"] if word in text]
        made = json.loads(text)
        assert made.get("id") is checks["top_level_id"]
        types = {variable["name"]: variable["type"] for variable in made["templating"]["list"]}
        uids = set(re.findall(r'"uid": "([^"]+)"', text)) - {made["uid"]}
        assert {types[uid.strip("${}")] for uid in uids} == {"datasource"}


def test_grf_03_variables_with_several_values_never_stand_behind_equals() -> None:
    (pattern,) = [check["no_match"] for check in expectation("GRF-03") if "no_match" in check]
    for query in queries():
        assert not re.search(pattern, query.query), query


def model_queries() -> list[str]:
    return sorted(
        {query.query for query in queries() if 'model=~"$model"' in query.query and query.query.startswith("llm_requests_running{")}
    )


@pytest.mark.parametrize(
    "chosen", [["acme/chat-8b.v1+fp8"], ["/srv/models/chat (beta)"], ["acme/chat-8b.v1+fp8", "/srv/models/chat (beta)"]]
)
def test_grf_03_a_query_selects_exactly_the_chosen_models(chosen: list[str], promtool: str, tmp_path: Path) -> None:
    models = json.loads((CASES / "GRF-03" / "models.json").read_text())
    (query,) = model_queries()
    series = {f'llm_requests_running{{job="e",instance="i",target="chat",model="{model}"}}': "1+0x4" for model in models}
    wanted = [json.dumps({"labels": name, "value": 1}) for name in series if any(f'model="{model}"' in name for model in chosen)]
    assert len(wanted) == len(chosen)
    assert evaluate(promtool, tmp_path, series, filled(query, model=chosen), "30s", wanted) == ""


def test_grf_03_the_cases_own_selection() -> None:
    (check,) = [check for check in expectation("GRF-03") if check["signal"] == "query_selects"]
    (query,) = model_queries()
    found = re.search(r'model=~"([^"]*)"', filled(query, model=check["value"]))
    assert found
    pattern = json.loads(f'"{found[1]}"')  # a PromQL string escapes as JSON does
    assert all(re.fullmatch(pattern, name) for name in check["value"])
    assert not any(re.fullmatch(pattern, name) for name in check["not_selects"])


def test_alr_04_boards_follow_the_scrape_interval() -> None:
    for text in BOARDS.values():
        assert "[$__interval]" not in text
    minute = dashboard_artefacts(RuleSettings(least_range=Decimal(240)))
    assert "timeInterval: 1m" in minute["dashboards/provisioning/datasources/llm-exporter.yml"]


@pytest.mark.parametrize(("upper", "edge"), [(True, 2.5), (False, 1)])
def test_the_error_band_is_the_bucket_of_the_quantile(upper: bool, edge: float, promtool: str, tmp_path: Path) -> None:
    """100 requests: 50 up to 0.5 s, 90 up to 1 s, all up to 2.5 s: the P99 lies between 1 and 2.5 s."""
    where = Selection(("job", "instance", "target"))
    expr = filled(quantile_edge(where, "llm_ttft_seconds", "0.99", "target", upper=upper))
    labels = 'job="e",instance="i",target="chat",engine="vllm",model="m"'
    counts = {"0.5": 50, "1.0": 90, "2.5": 100, "5.0": 100, "+Inf": 100}
    series = {f'llm_ttft_seconds_bucket{{{labels},le="{le}"}}': f"0+{count}x8" for le, count in counts.items()}
    series[f"llm_ttft_seconds_count{{{labels}}}"] = "0+100x8"
    # a point near 0 of the bucket is its lower edge: rounded here
    expr = f"round({expr}, 0.001)"
    assert (
        evaluate(promtool, tmp_path, series, expr, "90s", [json.dumps({"labels": '{job="e",instance="i",target="chat"}', "value": edge})])
        == ""
    )


def test_the_error_band_is_absent_without_requests(promtool: str, tmp_path: Path) -> None:
    where = Selection(("job", "instance", "target"))
    labels = 'job="e",instance="i",target="chat"'
    series = {f'llm_ttft_seconds_bucket{{{labels},le="{le}"}}': "7+0x8" for le in ("1.0", "+Inf")}
    series[f"llm_ttft_seconds_count{{{labels}}}"] = "7+0x8"
    expr = filled(quantile_edge(where, "llm_ttft_seconds", "0.99", "target", upper=True))
    assert evaluate(promtool, tmp_path, series, expr, "90s", []) == ""


def test_the_verdict_of_a_target_is_one_number(promtool: str, tmp_path: Path) -> None:
    (query,) = [query.query for query in queries() if query.board == "llm-fleet" and query.panel == "Verdict"]
    series = {
        f'llm_bottleneck_verdict{{job="e",instance="{instance}",target="chat",cause="{cause}"}}': f"{int(cause == one)}+0x4"
        for instance, one in (("a", "queue"), ("b", "none"))
        for cause in ("none", "idle", "queue")
    }
    wanted = [
        json.dumps({"labels": f'{{job="e",instance="{instance}",target="chat"}}', "value": code}) for instance, code in (("a", 2), ("b", 0))
    ]
    assert evaluate(promtool, tmp_path, series, filled(query), "30s", wanted) == ""
