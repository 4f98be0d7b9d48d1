"""The fast page equals the reference: prometheus_client's encoders over the same families, in both formats, for any label value."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from llm_exporter.expose.page import Page
from llm_exporter.metrics import Family, HistogramSample, Metric, Sample
from llm_exporter.readings import Kind, Unit

GAUGE = Metric("llm_thing_ratio", Kind.GAUGE, Unit.RATIO, 'A "thing" \\ with a quote.', ("target", "model"))
COUNTER = Metric("llm_things_total", Kind.COUNTER, Unit.COUNT, "Things.", ("target",))
HISTOGRAM = Metric("llm_wait_seconds", Kind.HISTOGRAM, Unit.SECONDS, "Waits.", ("target",))
BARE = Metric("llm_alone", Kind.GAUGE, Unit.COUNT, "No labels.", ())

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
number = st.floats(allow_nan=False, allow_infinity=False, width=64)


@st.composite
def histogram(draw: st.DrawFn, target: str) -> HistogramSample:
    bounds = sorted(draw(st.sets(st.floats(0.001, 1e7), min_size=1, max_size=5)))
    counts = sorted(draw(st.lists(st.integers(0, 10**12), min_size=len(bounds) + 1, max_size=len(bounds) + 1)))
    return HistogramSample((target,), (*bounds, float("inf")), [float(c) for c in counts], draw(st.floats(0, 1e12)))


@st.composite
def families(draw: st.DrawFn) -> list[Family]:
    targets: Sequence[str] = draw(st.lists(text, min_size=1, max_size=3, unique=True))
    pairs = draw(st.lists(st.tuples(st.sampled_from(targets), text), max_size=4, unique=True))
    return [
        Family(GAUGE, [Sample(pair, draw(number)) for pair in pairs]),
        Family(COUNTER, [Sample((t,), draw(st.floats(0, 1e15))) for t in targets]),
        Family(HISTOGRAM, [draw(histogram(t)) for t in targets]),
        Family(BARE, [Sample((), draw(number))]),
    ]


def made(found: list[Family]) -> tuple[Page, CollectorRegistry]:
    page = Page((GAUGE, COUNTER, HISTOGRAM, BARE), lambda: 0.0)
    page.put("x", found)
    registry = CollectorRegistry()
    registry.register(page)
    return page, registry


@settings(max_examples=150, deadline=None)
@given(families())
def test_text_is_byte_for_byte_the_reference(found: list[Family]) -> None:
    page, registry = made(found)
    body, content_type = page.render("text/plain;version=0.0.4")
    assert body == generate_latest(registry)
    assert content_type.startswith("text/plain; version=0.0.4")


@settings(max_examples=150, deadline=None)
@given(families())
def test_openmetrics_is_byte_for_byte_the_reference(found: list[Family]) -> None:
    page, registry = made(found)
    body, content_type = page.render("application/openmetrics-text;version=1.0.0")
    assert body == generate_openmetrics(registry)
    assert content_type.startswith("application/openmetrics-text")


@settings(max_examples=100, deadline=None)
@given(text)
def test_any_label_value_survives_the_round_trip(value: str) -> None:
    page, _ = made([Family(GAUGE, [Sample((value, value), 1.0)])])
    (family,) = text_string_to_metric_families(page.render()[0].decode())
    assert family.samples[0].labels == {"target": value, "model": value}
