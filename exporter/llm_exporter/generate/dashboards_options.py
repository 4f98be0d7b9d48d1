"""Today's options of each panel type, as Grafana 10 to 13 read them: thresholds, units, mappings, overrides, tables.

In: a `Panel`. Out: plain data for `panels.py`, which knows no option itself. Keys that Grafana fills in by itself are written out, so that
a file is the same after it was read and written by Grafana's own model classes.
"""

from __future__ import annotations

from typing import Any

from llm_exporter.generate.dashboards_model import Kind, Look, Panel
from llm_exporter.generate.settings import RuleSettings

_COLORS = ("yellow", "red", "dark-red")


def link(title: str, url: str, *, tab: bool = False) -> dict[str, Any]:
    """A link of a panel or a field."""
    return {
        "title": title,
        "url": url,
        "targetBlank": tab,
        "asDropdown": False,
        "icon": "",
        "includeVars": False,
        "keepTime": False,
        "tags": [],
        "tooltip": "",
        "type": "link",
    }


def threshold_steps(panel: Panel, settings: RuleSettings) -> list[dict[str, Any]]:
    """Colours by value: the limits are the alerts' own."""
    limits = [float(settings.limit(threshold)) for threshold in panel.thresholds]
    if panel.falling:  # red up to the limit, green from it on
        return [{"color": "red", "value": None}, *({"color": "green", "value": limit} for limit in limits)]
    colors = _COLORS[-len(limits) - 1 : -1] if limits else ()
    return [{"color": "green", "value": None}, *({"color": color, "value": limit} for color, limit in zip(colors, limits, strict=True))]


def field_defaults(panel: Panel) -> dict[str, Any]:
    """What holds for all series of a panel."""
    found: dict[str, Any] = {"unit": panel.unit, "noValue": panel.empty_text, "mappings": _mappings(panel)}
    if panel.least is not None:
        found["min"] = panel.least
    if panel.most is not None:
        found["max"] = panel.most
    if panel.row_link is not None and panel.kind is not Kind.TABLE:
        found["links"] = [_row_link(panel, "__field.labels")]
    if panel.kind is Kind.TIME_SERIES:
        found["color"] = {"mode": "palette-classic"}
        found["custom"] = {
            "fillOpacity": 60 if panel.stacked else 8,
            "lineInterpolation": "linear",
            "showPoints": "auto",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
            "scaleDistribution": {"type": "log", "log": 10} if panel.log_scale else {"type": "linear"},
        }
    elif panel.kind is Kind.STATES:
        found["color"] = {"mode": "thresholds"}
        found["custom"] = {"fillOpacity": 80, "lineWidth": 0}
    elif panel.kind is not Kind.HEAT_MAP:
        found["color"] = {"mode": "thresholds"}
    if panel.kind is Kind.TABLE:
        found["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False}
    elif panel.kind is Kind.HEAT_MAP:
        found["custom"] = {"hideFrom": {"legend": False, "tooltip": False, "viz": False}, "scaleDistribution": {"type": "linear"}}
    found.setdefault("custom", {})
    return found


def _mappings(panel: Panel) -> list[dict[str, Any]]:
    if not panel.codes or panel.kind is Kind.TABLE:
        return []
    options = {str(code.value): {"text": code.text, "color": code.color, "index": place} for place, code in enumerate(panel.codes)}
    return [{"type": "value", "options": options}]


def _row_link(panel: Panel, labels: str) -> dict[str, Any]:
    assert panel.row_link is not None
    board, names = panel.row_link
    filled = "".join(f"&var-{name}=${{{labels}.{name}}}" for name in names)
    url = f"/d/{board.uid}?${{__url_time_range}}&var-datasource=${{datasource}}{filled}"
    return link(f"Open {board.title}", url)


def _override(matcher: str, name: str, **properties: Any) -> dict[str, Any]:
    return {
        "matcher": {"id": matcher, "options": name},
        "properties": [{"id": key.replace("__", "."), "value": value} for key, value in properties.items()],
    }


def overrides(panel: Panel) -> list[dict[str, Any]]:
    """What holds for single series or columns."""
    found = []
    hidden = {"legend": True, "tooltip": False, "viz": False}
    for legend, look, other in panel.looks:
        if look is Look.BAND:
            drawn = {"custom__fillBelowTo": other, "custom__fillOpacity": 20, "custom__lineWidth": 0, "custom__hideFrom": hidden}
        elif look is Look.EDGE:
            drawn = {"custom__fillOpacity": 0, "custom__lineWidth": 0, "custom__hideFrom": hidden}
        elif look is Look.BARS:
            drawn = {"custom__drawStyle": "bars", "custom__fillOpacity": 60}
        else:
            drawn = {"custom__lineStyle": {"fill": "dash", "dash": [10, 10]}, "custom__fillOpacity": 0}
        found.append(_override("byRegexp", f"/^{legend}/", **drawn))
    if panel.kind is Kind.TABLE:
        found += [_override("byName", name, unit=unit) for name, unit in panel.units]
        if panel.codes:
            options = {str(code.value): {"text": code.text, "color": code.color, "index": at} for at, code in enumerate(panel.codes)}
            coded = [{"type": "value", "options": options}]
            found.append(_override("byName", panel.queries[0].legend, mappings=coded, custom__cellOptions={"type": "color-text"}))
        if panel.row_link is not None:
            key = panel.row_link[1][-1]
            found.append(_override("byName", key, links=[_row_link(panel, "__data.fields")]))
    return found


def transformations(panel: Panel) -> list[dict[str, Any]]:
    """A table's queries become one table with the columns that were asked for."""
    if panel.kind is not Kind.TABLE:
        return []
    names = {(f"Value #{chr(ord('A') + at)}" if len(panel.queries) > 1 else "Value"): q.legend for at, q in enumerate(panel.queries)}
    order = (*panel.columns, *names)
    shown = {key: text for key, text in names.items() if text}
    hidden = {"Time": True, **{key: True for key, text in names.items() if not text}}
    return [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": [name for name in order if name not in hidden]}}},
        {
            "id": "organize",
            "options": {
                "excludeByName": hidden,
                "includeByName": {},
                "indexByName": {name: place for place, name in enumerate(order)},
                "renameByName": shown,
            },
        },
        *_by_number(panel),
    ]


def _by_number(panel: Panel) -> list[dict[str, Any]]:
    """Labels are text, and 16384 stands before 2048: a column that is a number is made one, and sorted by."""
    if not panel.number:
        return []
    conversion = {"targetField": panel.number, "destinationType": "number"}
    return [
        {"id": "convertFieldType", "options": {"conversions": [conversion], "fields": {}}},
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": panel.number, "desc": False}]}},
    ]


def options(panel: Panel) -> dict[str, Any]:
    """Options of the panel type."""
    reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if panel.kind is Kind.TIME_SERIES:
        return {
            "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if panel.kind is Kind.STATES:
        return {
            "showValue": "auto",
            "rowHeight": 0.9,
            "mergeValues": True,
            "alignValue": "left",
            "perPage": 20,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        }
    if panel.kind is Kind.STAT:
        return {
            "graphMode": "none",
            "colorMode": "background" if panel.codes or panel.thresholds else "value",
            "justifyMode": "auto",
            "textMode": "auto",
            "wideLayout": True,
            "showPercentChange": False,
            "percentChangeColorMode": "standard",
            "orientation": "auto",
            "reduceOptions": reduce,
        }
    if panel.kind is Kind.BARS:
        return {
            "displayMode": "gradient",
            "valueMode": "color",
            "namePlacement": "auto",
            "showUnfilled": True,
            "sizing": "auto",
            "minVizWidth": 8,
            "minVizHeight": 16,
            "maxVizHeight": 300,
            "orientation": "horizontal",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "reduceOptions": reduce,
        }
    if panel.kind is Kind.TABLE:
        return {
            "frameIndex": 0,
            "showHeader": True,
            "showTypeIcons": False,
            "cellHeight": "sm",
            "footer": {"show": False, "reducer": [], "countRows": False},
        }
    return {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "fill": "dark-orange", "exponent": 0.5, "steps": 64, "reverse": False},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "selectionMode": "x",
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, **({} if panel.by_series else {"unit": panel.unit})},
    }
