"""From a `Sheet` to Grafana's JSON; the only module that knows grafanalib.

grafanalib writes the frame, grid, targets, variables, time series, stats and state timelines. Its heat map, table and bar gauge are of
retired plug-ins, so those are thin subclasses of its Panel; today's options come from `dashboards_options.py`. One cleaning step drops
nulls and keys that Grafana no longer knows.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from grafanalib import core
from grafanalib._gen import DashboardEncoder

from llm_exporter.generate.dashboards_model import WIDTH, Kind, Panel, Query, Row, Sheet, Variable, metrics_in
from llm_exporter.generate.dashboards_options import field_defaults, link, options, overrides, threshold_steps, transformations
from llm_exporter.generate.settings import RuleSettings

# What Grafana 10.0 writes itself; 11 to 13 read it and know no reason to refuse it.
SCHEMA_VERSION = 38
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_RETIRED: Mapping[str, frozenset[str]] = {
    "dashboard": frozenset(("__inputs", "gnetId", "hideControls", "rows", "sharedCrosshair", "style")),
    "panels": frozenset(("cacheTimeout", "editable", "error", "height", "minSpan", "span", "timeShift")),
    "targets": frozenset(("intervalFactor", "metric", "query", "step", "target")),
    "variables": frozenset(("tagValuesQuery", "tagsQuery", "useTags")),
    "current": frozenset(("tags",)),
    "timepicker": frozenset(("time_options",)),
}


class _BarGauge(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    def to_json_data(self) -> Any:
        return self.panel_json({"type": Kind.BARS.value})


class _Table(core.Panel):  # type: ignore[misc]
    def to_json_data(self) -> Any:
        return self.panel_json({"type": Kind.TABLE.value})


class _HeatMap(core.Panel):  # type: ignore[misc]
    def to_json_data(self) -> Any:
        return self.panel_json({"type": Kind.HEAT_MAP.value})


_CLASSES: Mapping[Kind, Any] = {
    Kind.TIME_SERIES: core.TimeSeries,
    Kind.STAT: core.Stat,
    Kind.STATES: core.StateTimeline,
    Kind.HEAT_MAP: _HeatMap,
    Kind.TABLE: _Table,
    Kind.BARS: _BarGauge,
}


def dashboard_json(sheet: Sheet, settings: RuleSettings) -> str:
    """The file that Grafana provisions."""
    dashboard = core.Dashboard(
        title=sheet.board.title,
        uid=sheet.board.uid,
        description=sheet.purpose,
        schemaVersion=SCHEMA_VERSION,
        tags=list(sheet.tags),
        timezone="browser",
        refresh=sheet.refresh,
        graphTooltip=1,  # one crosshair through all panels
        time=core.Time(sheet.since, "now"),
        templating=core.Templating([_data_source(), *(_variable(variable) for variable in sheet.variables)]),
        annotations=core.Annotations(_annotations(sheet, settings)),
        links=[
            core.DashboardLink(title="Boards", type="dashboards", tags=list(sheet.tags), asDropdown=True, includeVars=True, keepTime=True)
        ],
        panels=list(_panels(sheet, settings)),
        version=1,
    )
    plain = json.loads(json.dumps(dashboard, cls=DashboardEncoder))
    plain["fiscalYearStartMonth"] = 0
    return json.dumps(_clean(plain, "dashboard"), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def panel_id(title: str) -> int:
    """A number that stays when panels come and go, so that links to a panel stay right."""
    return zlib.crc32(title.encode()) % 1_000_000 + 1


# -- frame ------------------------------------------------------------------------------------------------------------------------------


# Keys of a variable that Grafana fills in by itself.
_WRITTEN_OUT = {"allowCustomValue": True, "skipUrlSync": False}


def _data_source() -> Any:
    template = core.Template(name="datasource", label="Prometheus", type="datasource", query="prometheus", refresh=1, sort=0)
    return {**template.to_json_data(), "current": {"text": "", "value": ""}, **_WRITTEN_OUT}


def _variable(variable: Variable) -> Any:
    many = {} if variable.single else {"multi": True, "includeAll": True, "allValue": ".*"}
    template = core.Template(
        name=variable.name, label=variable.label, query=variable.query, dataSource=SOURCE, refresh=2, sort=1, regex="", **many
    )
    return {
        **template.to_json_data(),
        "query": {"query": variable.query, "refId": "PrometheusVariableQueryEditor-VariableQuery", "qryType": 1},
        "current": {"text": "", "value": ""} if variable.single else {"selected": True, "text": ["All"], "value": ["$__all"]},
        **_WRITTEN_OUT,
    }


def _annotations(sheet: Sheet, settings: RuleSettings) -> list[dict[str, Any]]:
    window = settings.window(120)
    exporters = 'job=~"$job",instance=~"$instance"'
    targets = "" if (variable := _named(sheet, "target")) is None else f',target={"" if variable.single else "~"}"$target"'
    return [
        {"name": name, "datasource": SOURCE, "enable": True, "hide": False, "builtIn": 0, "iconColor": color, "expr": expr}
        for name, color, expr in (
            ("Engine restart", "red", f"increase(llm_engine_restarts_total{{{exporters}{targets}}}[{window}]) > 0"),
            (
                "Configuration reload",
                "blue",
                f"changes(llm_exporter_config_last_reload_success_timestamp_seconds{{{exporters}}}[{window}]) > 0",
            ),
        )
    ]


def _named(sheet: Sheet, name: str) -> Variable | None:
    return next((variable for variable in sheet.variables if variable.name == name), None)


def _panels(sheet: Sheet, settings: RuleSettings) -> Iterator[Any]:
    top = 0
    for row in sheet.rows:
        yield _heading(row, top)
        top += 1
        left = tallest = 0
        for panel in row.panels:
            if left + panel.width > WIDTH:
                top, left, tallest = top + tallest, 0, 0
            yield _panel(panel, core.GridPos(h=panel.height, w=panel.width, x=left, y=top), settings)
            left, tallest = left + panel.width, max(tallest, panel.height)
        top += tallest


def _heading(row: Row, top: int) -> dict[str, Any]:
    heading = core.RowPanel(title=row.title, id=panel_id(f"row {row.title}"), gridPos=core.GridPos(h=1, w=WIDTH, x=0, y=top))
    kept = ("collapsed", "gridPos", "id", "panels", "title", "type")
    return {
        **{key: value for key, value in heading.to_json_data().items() if key in kept},
        **({"repeat": row.repeat} if row.repeat else {}),
    }


# -- one panel --------------------------------------------------------------------------------------------------------------------------


def _panel(panel: Panel, place: Any, settings: RuleSettings) -> Any:
    return _CLASSES[panel.kind](
        title=panel.title,
        id=panel_id(panel.title),
        gridPos=place,
        dataSource=SOURCE,
        description=describe(panel, settings),
        targets=[_target(panel, query, position) for position, query in enumerate(panel.queries)],
        thresholds=threshold_steps(panel, settings),
        maxDataPoints=None,
        repeat=core.Repeat(direction="h"),
        timeFrom=panel.time_from or None,
        links=_runbooks(panel, settings),
        transformations=transformations(panel),
        extraJson={"fieldConfig": {"defaults": field_defaults(panel), "overrides": overrides(panel)}, "options": options(panel)},
    )


def describe(panel: Panel, settings: RuleSettings) -> str:
    """What it means, what to do, which limits are drawn, what it reads."""
    limits = [f"{threshold.meaning}: {threshold.text}" for threshold in panel.thresholds]
    reads = dict.fromkeys(name for query in panel.queries for name in metrics_in(query.expr))
    parts = [
        panel.means,
        f"**What to do:** {panel.do}",
        *([f"**Limit, as in the alert:** {'; '.join(limits)}."] if limits else []),
        *([f"**Runbook:** {', '.join(f'{_runbook(name, settings)}' for name in panel.alerts)}"] if panel.alerts else []),
        f"**If it is empty:** {panel.empty_text}.",
        f"Reads {', '.join(f'`{name}`' for name in reads)}.",
    ]
    return "\n\n".join(parts)


def _runbook(alert: str, settings: RuleSettings) -> str:
    return f"{settings.runbook_base_url}/{alert}.md"


def _runbooks(panel: Panel, settings: RuleSettings) -> list[dict[str, Any]]:
    """Links; only where the runbooks have an address: a path of the repository leads nowhere from Grafana."""
    if not settings.runbook_base_url.startswith(("http://", "https://")):
        return []
    return [link(f"Runbook {alert}", _runbook(alert, settings), tab=True) for alert in panel.alerts]


def _target(panel: Panel, query: Query, position: int) -> dict[str, Any]:
    letter = chr(ord("A") + position)
    instant = query.instant or panel.kind is Kind.TABLE
    shape = {Kind.TABLE: "table", Kind.HEAT_MAP: "time_series" if panel.by_series else "heatmap"}.get(panel.kind, "time_series")
    target = core.Target(
        expr=query.expr, refId=letter, legendFormat=query.legend or "__auto", instant=instant, format=shape, datasource=SOURCE
    )
    return {**target.to_json_data(), "range": not instant, "editorMode": "code", "interval": None}


# -- cleaning ---------------------------------------------------------------------------------------------------------------------------


def _clean(value: Any, place: str) -> Any:
    """Without nulls (but that of a first threshold) and without what Grafana has retired. `place`: key under which the value stands."""
    if isinstance(value, list):
        return [_clean(item, place) for item in value]
    if not isinstance(value, dict):
        return value
    inner = {"templating": "variables", "annotations": "annotations"}.get(place, "")
    return {
        key: _clean(item, inner if key == "list" and inner else key)
        for key, item in value.items()
        if key not in _RETIRED.get(place, ()) and (item is not None or (place == "steps" and key == "value"))
    }
