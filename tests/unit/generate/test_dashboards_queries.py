"""Every query of every panel: PromQL that parses, metrics that exist, variables that are declared, and no gauge of a window aggregated."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from llm_exporter.expose import hardware, probes, targets
from llm_exporter.generate.dashboards import ENGINE_SPECIFIC, SHEETS, dashboard_artefacts, queries, rendered
from llm_exporter.generate.dashboards_model import Panel, metrics_in, unit_of
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.metrics import Metric
from llm_exporter.readings import Kind
from llm_exporter.signals import derive
from llm_exporter.signals.recorded import RECORDED
from llm_exporter.signals.review_records import RECORDS
from llm_exporter.telemetry import Telemetry
from promql_reading import aggregated, metrics_of

QUERIES = queries()
GOLDEN = Path(__file__).parents[2] / "golden" / "metrics.prom"
DECLARED: tuple[Metric, ...] = (*derive.METRICS, *targets.METRICS, *probes.METRICS, *hardware.METRICS)
UNIT = {metric.name: unit_of(metric.unit) for metric in DECLARED}
SERIES = {metric.name for metric in DECLARED if metric.kind is not Kind.HISTOGRAM} | {
    metric.name + suffix for metric in DECLARED if metric.kind is Kind.HISTOGRAM for suffix in ("_bucket", "_sum", "_count")
}
OF_PROMETHEUS = {"up", "scrape_duration_seconds", "ALERTS"}
OWN = {name for family in Telemetry().registry.collect() for name in (family.name, family.name + "_total")}
ELSEWHERE = {"llm_target_info", "llm_report_last_success_timestamp_seconds"}  # labels by configuration; the report's own schedule
RECORDS_MADE = {rule.record for rule in RECORDED} | {record.record for record in RECORDS if record.record}
WINDOWED = {metric.name for metric in DECLARED if "window" in metric.labels} - {derive.STATUS_METRIC.name}
VARIABLE = re.compile(r"\$\{?(\w+)")


@pytest.fixture(scope="module")
def pages() -> dict[str, set[str]]:
    """Series on the recorded page of each engine."""
    found: dict[str, set[str]] = {"vllm": set(), "sglang": set()}
    for family in text_string_to_metric_families(GOLDEN.read_text()):
        for sample in family.samples:
            if sample.labels.get("engine") in found:
                found[sample.labels["engine"]].add(sample.name)
    return found


def test_panels_name_only_series_that_somebody_makes() -> None:
    made = SERIES | OF_PROMETHEUS | OWN | ELSEWHERE | RECORDS_MADE
    assert {(query.board, query.panel): metrics_of(query.query) - made for query in QUERIES if metrics_of(query.query) - made} == {}


def test_descriptions_name_what_the_queries_read() -> None:
    for query in QUERIES:
        assert set(metrics_in(query.query)) == metrics_of(query.query), query


def test_metrics_of_an_engine_are_on_a_recorded_page_of_both(pages: dict[str, set[str]]) -> None:
    assert all(len(names) > 50 for names in pages.values()), "the golden page lacks an engine"
    of_engines = {name for metric in derive.METRICS if "engine" in metric.labels for name in SERIES if name.startswith(metric.name)}
    read = {name for query in QUERIES for name in metrics_of(query.query)} & of_engines
    missing = {name for name in read if any(name not in names for names in pages.values())}
    assert missing == set(ENGINE_SPECIFIC), "declare it in ENGINE_SPECIFIC, or take it out where both have it"


def test_no_gauge_of_a_window_is_aggregated() -> None:
    assert [query for query in QUERIES if aggregated(query.query) & WINDOWED] == []


def test_only_the_board_of_one_target_shows_gauges_of_a_window() -> None:
    assert {query.board for query in QUERIES if metrics_of(query.query) & WINDOWED} == {"llm-target"}


def test_two_exporters_of_the_same_targets_are_not_added_up() -> None:
    """A sum keeps job and instance, or is one over values of which the highest was taken first."""
    for query in QUERIES:
        for labels, inner in re.findall(r"\b(?:sum|avg|count)(?: by \(([^()]*)\))? \(?(.{7})", query.query.replace("sum(", "sum (")):
            assert {"job", "instance"} <= set(labels.split(", ")) or inner.lstrip("(").startswith("max by"), query


def test_ranges_grow_with_the_scrape_interval() -> None:
    """$__interval shrinks below the scrape interval when zooming in; a fixed rate may be shorter than four scrapes."""
    windows = [found for query in QUERIES for found in re.findall(r"\b(?:rate|increase)\([^\[\]]*\[([^\]]*)\]", query.query)]
    assert len(windows) > 50
    assert set(windows) == {"$__rate_interval", "$__range"}
    assert not [query for query in QUERIES if "$__interval" in query.query]


@pytest.mark.parametrize("path", [f"dashboards/{sheet.board.uid}.json" for sheet in SHEETS])
def test_variables_are_declared_and_used_safely(path: str) -> None:
    made = json.loads(dashboard_artefacts(RuleSettings())[path])
    variables = {variable["name"]: variable for variable in made["templating"]["list"]}
    builtin = {"__rate_interval", "__range", "__url_time_range", "__data", "__field", "__all"}
    texts = [target["expr"] for panel in made["panels"] for target in panel.get("targets", [])]
    texts += [mark["expr"] for mark in made["annotations"]["list"]]
    texts += [variable["query"]["query"] for variable in variables.values() if variable["type"] == "query"]
    assert set(VARIABLE.findall(json.dumps(made))) <= set(variables) | builtin, "legends, titles and links too"
    for text in texts:
        for operator, name in re.findall(r'(=~|!~|!=|=)"\$(\w+)"', text):
            assert operator == ("=~" if variables[name]["multi"] else "="), text
        assert not re.search(r"\$\{\w+:|\[\[", text), "a format of ours would be escaped a second time"
        assert len(re.findall(r'"\$\w+"', text)) == len(re.findall(r"\$(?!__)\w+", text)), "a variable stands alone in its quotes"
    for variable in variables.values():
        if variable["type"] == "query":
            assert variable["multi"] == variable["includeAll"] == (variable.get("allValue") == ".*")


def test_every_variable_of_a_board_is_used() -> None:
    for path, text in dashboard_artefacts(RuleSettings()).items():
        if path.endswith(".json"):
            for variable in json.loads(text)["templating"]["list"]:
                assert f'"${variable["name"]}' in text.replace('\\"', '"') or variable["name"] == "datasource", (path, variable["name"])


def plain_metric(panel: Panel) -> str | None:
    """The metric of a panel that shows one as it stands."""
    for query in panel.queries:
        found = re.fullmatch(r"(?:max by \([^()]*\) \()?(\w+)\{[^{}]*\}\)?", query.expr)
        if found and found[1] in UNIT:
            return found[1]
    return None


@pytest.mark.parametrize(
    "panel", [panel for sheet in SHEETS for panel in sheet.panels() if plain_metric(panel)], ids=lambda panel: panel.title
)
def test_the_unit_is_that_of_the_declaration(panel: Panel) -> None:
    metric = plain_metric(panel)
    assert metric is not None
    if not panel.codes and not panel.columns and panel.unit != "none":
        assert panel.unit == UNIT[metric], f"{panel.title} shows {metric}"


def as_rules() -> str:
    rules = [{"record": f"panel:query:{at}", "expr": rendered(query.query, target="chat")} for at, query in enumerate(QUERIES)]
    return yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]})


def test_rendered_queries_hold_no_variable() -> None:
    assert "$" not in as_rules()


@pytest.mark.system
def test_promtool_reads_every_query(promtool: str, tmp_path: Path) -> None:
    (tmp_path / "panels.yml").write_text(as_rules())
    done = subprocess.run(
        [promtool, "check", "rules", str(tmp_path / "panels.yml")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(QUERIES)} rules found" in done.stdout
