"""Every captured page: each canonical field has its right value (oracle.py), or is listed in absent.yaml with the reason."""

from __future__ import annotations

import fnmatch
import importlib.util
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from llm_exporter.engines.normalise import Normaliser, detect, missing_engine_hint
from llm_exporter.readings import FIELDS, EngineReading, Kind, Merge
from llm_exporter.sources.exposition import PageParser

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines"
PAGES = sorted(str(path.relative_to(FIXTURES)) for path in FIXTURES.rglob("*") if path.suffix in (".prom", ".txt"))
WITHOUT_ENGINE = "vllm/vllm-0.32.0-disable-log-stats-after-load.metrics.txt"
ABSENT: list[dict[str, Any]] = yaml.safe_load((FIXTURES / "absent.yaml").read_text())


def _load(name: str) -> ModuleType:
    """A neighbour file: test folders are no packages here."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


oracle = _load("oracle")


def read(page: str) -> EngineReading | None:
    return Normaliser().read(PageParser().parse((FIXTURES / page).read_bytes()))


def merged(reading: EngineReading) -> dict[str, Any]:
    """One value per field, ranks merged as CONTRACT 6 says: numbers, {label: number}, or a histogram."""
    parts: dict[str, dict[Any, list[float]]] = {}
    for slot, value in zip(reading.layout.slots, reading.values, strict=True):
        key = slot.le if slot.part == "bucket" else slot.part if slot.part == "sum" else slot.label
        parts.setdefault(slot.field, {}).setdefault(key, []).append(value)
    result: dict[str, Any] = {}
    for field in FIELDS:
        if field.name not in parts:
            continue
        fold = {Merge.SUM: sum, Merge.MAX: max, Merge.ONCE: max, Merge.MEAN: lambda ranks: sum(ranks) / len(ranks)}[field.merge]
        values = {key: fold(ranks) for key, ranks in parts[field.name].items()}
        if field.kind is Kind.HISTOGRAM:
            result[field.name] = {"buckets": {key: value for key, value in values.items() if key != "sum"}, "sum": values.get("sum")}
        else:
            result[field.name] = values if field.label else values[""]
    return result


def flat(value: Any) -> Any:
    """The same without nesting, for pytest.approx."""
    if isinstance(value, dict) and "buckets" in value:
        whole = {f"le {le}": count for le, count in value["buckets"].items()}
        return whole if value["sum"] is None else {**whole, "sum": value["sum"]}
    return value


@pytest.mark.parametrize("page", [page for page in PAGES if page != WITHOUT_ENGINE])
def test_each_field_has_its_right_value_or_is_absent(page: str) -> None:
    reading = read(page)
    assert reading is not None
    engine = page.split("/")[0]
    assert reading.engine == engine
    assert not reading.anomalies
    assert all(math.isfinite(value) for value in reading.values)
    raw = oracle.RawPage((FIXTURES / page).read_text())
    right = {name: value for name, value in getattr(oracle, engine)(raw).items() if value is not None}
    ours = merged(reading)
    published = {field.name for field in FIELDS if field.metric}
    for name, value in right.items():
        assert name in ours, f"{name} is missing: {reading.layout.absent.get(name)}"
        assert flat(ours[name]) == pytest.approx(flat(value), rel=1e-12), name
    assert set(ours) & published == set(right) & published
    assert set(reading.layout.absent) == {field.name for field in FIELDS} - set(ours)
    assert set(reading.layout.sources) == set(ours)


@pytest.mark.parametrize("page", [page for page in PAGES if page != WITHOUT_ENGINE])
def test_what_is_absent_is_listed_with_its_reason(page: str) -> None:
    reading = read(page)
    assert reading is not None
    listed: dict[str, str] = {}
    for group in ABSENT:
        if any(fnmatch.fnmatch(page, pattern) for pattern in group["pages"]):
            for reason, names in group.get("absent", {}).items():
                listed |= dict.fromkeys(names.split(), reason)
            for name in group.get("present", "").split():
                del listed[name]
    published = {field.name for field in FIELDS if field.metric}
    assert {name: str(reason) for name, reason in reading.layout.absent.items() if name in published} == listed


def test_every_page_of_the_list_exists() -> None:
    for group in ABSENT:
        for pattern in group["pages"]:
            assert fnmatch.filter(PAGES, pattern), f"{pattern} matches no page"


def test_a_server_without_log_stats_has_no_engine_and_says_what_to_do() -> None:
    page = PageParser().parse((FIXTURES / WITHOUT_ENGINE).read_bytes())
    assert detect(page.shape) is None
    assert Normaliser().read(page) is None
    assert "--disable-log-stats" in missing_engine_hint(page.shape)
