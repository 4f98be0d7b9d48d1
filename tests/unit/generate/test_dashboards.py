"""The files that Grafana provisions: complete, unchanged by Grafana's own model classes, free of retired keys, laid out without overlap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from itertools import combinations
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from llm_exporter.generate.alerts import ALERT, ALERTS
from llm_exporter.generate.boards import BOARDS
from llm_exporter.generate.dashboards import SHEETS, dashboard_artefacts
from llm_exporter.generate.dashboards_model import Kind, Panel
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import KV_USAGE

SETTINGS = RuleSettings(runbook_base_url="https://wiki.example.org/runbooks")
FILES = dashboard_artefacts(SETTINGS)
BOARD_FILES = sorted(path for path in FILES if path.endswith(".json"))
CURRENT_TYPES = {"timeseries", "stat", "state-timeline", "heatmap", "table", "bargauge", "row"}
PANELS = [(sheet, panel) for sheet in SHEETS for panel in sheet.panels()]


def board(path: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(FILES[path])
    return loaded


def values_under(key: str, value: Any) -> Iterator[Any]:
    """Everything that stands under this key, anywhere."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == key:
                yield item
            yield from values_under(key, item)
    elif isinstance(value, list):
        for item in value:
            yield from values_under(key, item)


def nulls(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from nulls(item, f"{path}.{name}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from nulls(item, f"{path}[{at}]")
    elif value is None:
        yield path


def test_there_is_a_file_for_each_board() -> None:
    assert [(sheet.board.uid, sheet.board.title) for sheet in SHEETS] == [(known.uid, known.title) for known in BOARDS]
    assert {board(path)["uid"] for path in BOARD_FILES} == {known.uid for known in BOARDS}


@pytest.mark.parametrize("path", BOARD_FILES)
def test_grafanas_own_model_classes_read_and_write_it_unchanged(path: str) -> None:
    register_default_plugins()
    again = json.loads(json.dumps(Dashboard.from_json(board(path)), cls=JSONEncoder))
    assert again == board(path)


@pytest.mark.parametrize("path", BOARD_FILES)
def test_variables_of_the_board_are_those_that_alerts_fill(path: str) -> None:
    made = board(path)
    names = [variable["name"] for variable in made["templating"]["list"]]
    wanted = next(known.variables for known in BOARDS if known.uid == made["uid"])
    assert names[0] == "datasource"
    assert set(wanted) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", BOARD_FILES)
def test_only_current_panel_types(path: str) -> None:
    assert {panel["type"] for panel in board(path)["panels"]} <= CURRENT_TYPES


@pytest.mark.parametrize("path", BOARD_FILES)
def test_every_data_source_is_the_variable(path: str) -> None:
    made = board(path)
    for source in values_under("datasource", made):
        assert source == {"type": "prometheus", "uid": "${datasource}"}
    for panel in made["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]
            assert all(target["datasource"] for target in panel["targets"])


@pytest.mark.parametrize("path", BOARD_FILES)
def test_no_null_stays_but_the_first_threshold(path: str) -> None:
    assert all(".thresholds.steps[0].value" in place for place in nulls(board(path)))


@pytest.mark.parametrize("path", BOARD_FILES)
def test_retired_keys_are_gone(path: str) -> None:
    made = board(path)
    assert not {"rows", "style", "sharedCrosshair", "hideControls", "__inputs", "__requires", "id", "gnetId"} & set(made)
    assert "time_options" not in made["timepicker"]
    for panel in made["panels"]:
        assert not {"span", "minSpan", "height", "error", "cacheTimeout", "timeShift"} & set(panel)
        for target in panel.get("targets", []):
            assert not {"step", "metric", "intervalFactor", "target", "query"} & set(target)


@pytest.mark.parametrize("path", BOARD_FILES)
def test_schema_is_one_that_grafana_10_knows(path: str) -> None:
    assert board(path)["schemaVersion"] == 38


@pytest.mark.parametrize("path", BOARD_FILES)
def test_panels_have_their_own_id_and_place(path: str) -> None:
    panels = board(path)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    for place in places:
        assert place["w"] > 0
        assert place["h"] > 0
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


@pytest.mark.parametrize("path", BOARD_FILES)
def test_a_board_links_to_the_others(path: str) -> None:
    (link,) = board(path)["links"]
    assert link["type"] == "dashboards"
    assert set(link["tags"]) <= set(board(path)["tags"])
    assert link["includeVars"]
    assert link["keepTime"]


@pytest.mark.parametrize("path", BOARD_FILES)
def test_restarts_and_reloads_are_marked(path: str) -> None:
    marks = {mark["name"]: mark["expr"] for mark in board(path)["annotations"]["list"]}
    assert "llm_engine_restarts_total" in marks["Engine restart"]
    assert "llm_exporter_config_last_reload_success_timestamp_seconds" in marks["Configuration reload"]


@pytest.mark.parametrize("path", BOARD_FILES)
def test_every_panel_says_what_it_means_what_to_do_and_why_it_may_be_empty(path: str) -> None:
    for panel in board(path)["panels"]:
        if panel["type"] == "row":
            continue
        said = panel["description"]
        assert "**What to do:** " in said
        assert "**If it is empty:** " in said
        assert len(said.split("\n\n")[0]) > 5, panel["title"]
        assert len(panel["fieldConfig"]["defaults"]["noValue"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def made_panels() -> Iterator[tuple[Panel, dict[str, Any]]]:
    """Each panel as declared, and as Grafana gets it."""
    for sheet in SHEETS:
        made = {panel["title"]: panel for panel in board(f"dashboards/{sheet.board.uid}.json")["panels"]}
        yield from ((panel, made[panel.title]) for panel in sheet.panels())


def test_panels_link_the_runbooks_of_their_alerts() -> None:
    for panel, made in made_panels():
        assert set(panel.alerts) <= set(ALERT), panel.title
        assert [link["url"] for link in made["links"]] == [f"https://wiki.example.org/runbooks/{alert}.md" for alert in panel.alerts]


def test_without_an_address_runbooks_are_named_and_not_linked() -> None:
    made = json.loads(dashboard_artefacts(RuleSettings())["dashboards/llm-fleet.json"])
    panels = [panel for panel in made["panels"] if panel["type"] != "row"]
    assert all(panel["links"] == [] for panel in panels)
    assert any("docs/runbooks/LLMTTFTP99High.md" in panel["description"] for panel in panels)


def test_every_alert_is_found_from_a_panel() -> None:
    assert {alert.name for alert in ALERTS} == {name for _, panel in PANELS for name in panel.alerts}


def test_panels_that_runbooks_name_exist() -> None:
    titles = {(sheet.board.uid, panel.title) for sheet, panel in PANELS}
    assert {(cause.board.uid, cause.panel) for alert in ALERTS for cause in alert.causes} <= titles


def test_limits_in_panels_are_the_alerts_own() -> None:
    assert sum(bool(panel.thresholds) for panel, _ in made_panels()) > 10
    for panel, made in made_panels():
        steps = made["fieldConfig"]["defaults"]["thresholds"]["steps"]
        assert [step["value"] for step in steps] == [None, *(float(threshold.value) for threshold in panel.thresholds)]
        assert set(panel.thresholds) <= {limit for name in panel.alerts for limit in ALERT[name].thresholds}, panel.title


def test_a_changed_threshold_moves_the_line() -> None:
    changed = RuleSettings(changed={KV_USAGE.name: Decimal("0.5")})
    made = json.loads(dashboard_artefacts(changed)["dashboards/llm-target.json"])
    panel = next(panel for panel in made["panels"] if panel["title"] == "KV cache")
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1]["value"] == 0.5


def test_thresholds_ascend() -> None:
    for _, panel in PANELS:
        limits = [threshold.value for threshold in panel.thresholds]
        assert limits == sorted(limits), panel.title


def test_tables_link_their_rows_with_the_data_source() -> None:
    made = board("dashboards/llm-fleet.json")
    targets = next(panel for panel in made["panels"] if panel["title"] == "Targets")
    (url,) = [
        link["url"]
        for override in targets["fieldConfig"]["overrides"]
        for p in override["properties"]
        if p["id"] == "links"
        for link in p["value"]
    ]
    assert url.startswith("/d/llm-target?")
    assert "var-datasource=${datasource}" in url
    assert "var-target=${__data.fields.target}" in url


def test_codes_of_a_state_timeline_are_words() -> None:
    made = board("dashboards/llm-fleet.json")
    verdict = next(panel for panel in made["panels"] if panel["title"] == "Verdict")
    (mapping,) = verdict["fieldConfig"]["defaults"]["mappings"]
    for code, shown in mapping["options"].items():
        assert f'cause="{shown["text"]}"' in verdict["targets"][0]["expr"]
        assert f"== 1) * {code}" in verdict["targets"][0]["expr"]
    assert verdict["type"] == Kind.STATES.value


def test_a_file_stays_the_same_when_made_again() -> None:
    assert dashboard_artefacts(SETTINGS) == FILES


def test_data_source_states_the_scrape_interval_and_no_uid() -> None:
    for least, said in ((Decimal(60), "15s"), (Decimal(240), "1m")):
        made = dashboard_artefacts(RuleSettings(least_range=least))["dashboards/provisioning/datasources/llm-exporter.yml"]
        source = yaml.safe_load(made)["datasources"][0]
        assert source["jsonData"]["timeInterval"] == said
        assert "uid" not in source
