"""Names are the interface: units and suffixes, forbidden labels, nothing that OpenMetrics would refuse, everything with help and bound."""

from __future__ import annotations

import re

import pytest

from llm_exporter import telemetry
from llm_exporter.daemon.published import declared
from llm_exporter.metrics import Metric
from llm_exporter.readings import Kind, Unit

METRICS = (*declared(), *telemetry.METRICS)
FORBIDDEN = {"job", "instance", "quantile", "pid", "le", "hostname", "type", "user", "command"}
BAD_SUFFIX = re.compile(r"_(percent|perc|ms|millis|milliseconds|mib|gb|mb|mhz|mw|kb|minutes|hours)(_total)?$")
# label names of CONTRACT 6 that stand alone on families about the target itself
COUNTS = (Unit.COUNT, Unit.FLAG)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_a_metric_is_named_by_the_rules(metric: Metric) -> None:
    name = metric.name
    assert re.fullmatch(r"llm_[a-z0-9_]+", name)
    assert not BAD_SUFFIX.search(name)
    assert name.endswith("_total") == (metric.kind is Kind.COUNTER), "counters, and only they, end in _total"
    stem = name.removesuffix("_total")
    assert not stem.endswith(("_count", "_sum", "_bucket", "_created"))
    if metric.unit is Unit.REQUESTS:
        assert "_requests" in stem or "requests_" in stem, "a count of requests says so"
    elif metric.unit is Unit.TOKENS:
        assert "_tokens" in stem, "a count of tokens says so"
    elif metric.unit not in COUNTS:
        assert stem.endswith("_" + metric.unit.value), f"must end in its unit {metric.unit.value}"
    assert not FORBIDDEN & set(metric.labels)
    assert len(set(metric.labels)) == len(metric.labels)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_a_metric_says_what_it_is_and_how_many_series_it_makes(metric: Metric) -> None:
    assert metric.help.endswith(".") or metric.help[-1].isalnum()
    assert metric.help[0].isupper() or metric.help[0].isdigit()
    assert "NaN" not in metric.help, "greps for NaN on the page must find values only"
    assert metric.bound, "write what bounds the number of series"


def test_no_name_stands_twice_nor_clashes_in_openmetrics() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    stems = {metric.name.removesuffix("_total") for metric in METRICS if metric.kind is Kind.COUNTER}
    assert not stems & set(names)
