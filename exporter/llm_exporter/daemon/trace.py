"""The path of every value of one target: the engine's raw line → canonical field → signal → our metric; for `/debug` and `explain`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from llm_exporter.daemon.documents import published
from llm_exporter.daemon.pipeline import Pipeline
from llm_exporter.expose.page import Page
from llm_exporter.metrics import HistogramSample
from llm_exporter.readings import FIELDS
from llm_exporter.signals.catalogue import SIGNALS
from llm_exporter.sources.exposition import Page as SeriesPage
from llm_exporter.sources.exposition import Series
from llm_exporter.wording import plain_number

# A field can come from hundreds of bucket lines; these many tell a person what they look like.
LINES_SHOWN = 6

FIELDS_OF: Mapping[str, tuple[str, ...]] = {
    **{row.metric: (row.name,) for row in FIELDS if row.metric},
    **{signal.name: signal.reads + tuple(f for f in signal.uses if f not in signal.reads) for signal in SIGNALS},
}


def _lines_of(page: SeriesPage, used: Collection[Series]) -> list[str]:
    """The used lines in the page's order."""
    found = []
    for series, value in zip(page.shape.series, page.values, strict=True):
        if series in used:
            labels = ",".join(f'{name}="{text}"' for name, text in series.labels)
            number = plain_number(value)
            found.append(f"{series.name}{{{labels}}} {number}" if labels else f"{series.name} {number}")
    if len(found) > LINES_SHOWN:
        return [*found[: LINES_SHOWN - 1], f"… {len(found) - LINES_SHOWN + 1} more lines"]
    return found


def _used(pipeline: Pipeline, page: SeriesPage, sources: Mapping[str, tuple[str, ...]]) -> dict[str, set[Series]]:
    """By field, the series that its numbers are made of; where they are the labels of an information line, that line."""
    used: dict[str, set[Series]] = {field: set() for field in sources}
    for slot, several in pipeline.series_behind(page).items():
        if slot.field in used:
            used[slot.field].update(several)
    for field, names in sources.items():
        if not used[field]:
            used[field].update(series for series in page.shape.series if series.name in names and series.name.endswith("_info"))
    return used


def _observed(sample: HistogramSample) -> str:
    return f"{plain_number(sample.cumulative[-1])} observations, sum {plain_number(sample.sum)}"


def trace(pipeline: Pipeline, page: Page, metric: str | None = None) -> list[dict[str, Any]]:
    """A row per published sample and per absent signal; only those of `metric` where it is given."""
    merged, series = pipeline.store.latest, pipeline.last_page
    sources: Mapping[str, tuple[str, ...]] = merged.table.sources if merged is not None else {}
    used = _used(pipeline, series, sources) if series is not None else {}
    lines = {field: _lines_of(series, used[field]) if series is not None else [] for field in sources}

    def path(name: str) -> dict[str, Any]:
        fields = [field for field in FIELDS_OF.get(name, ()) if field in sources]
        return {"fields": fields, "lines": [line for field in fields for line in lines[field]]}

    rows: list[dict[str, Any]] = []
    for family in published(page).get(pipeline.target.name, []):
        name = family.metric.name
        if metric not in (None, name):
            continue
        for sample in family.samples:
            labels = dict(zip(family.metric.labels, sample.labels, strict=False))
            if name == "llm_signal_status":
                rows.append(
                    {
                        "metric": f"llm_{labels['signal']}",
                        "labels": {"window": labels["window"]} if labels["window"] else {},
                        "value": None,
                        "status": labels["status"],
                        **path(f"llm_{labels['signal']}"),
                    }
                )
                continue
            labels.pop("target", None)
            value = _observed(sample) if isinstance(sample, HistogramSample) else sample.value
            rows.append({"metric": name, "labels": labels, "value": value, "status": "", **path(name)})
    return rows
