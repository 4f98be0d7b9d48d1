"""Fast parse = full parse = prometheus_client, whatever the page; damage raises ParseError and nothing else."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from llm_exporter.engines.normalise import Normaliser
from llm_exporter.errors import ParseError
from llm_exporter.sources.exposition import Page, PageParser

FIXTURES = Path(__file__).parents[1] / "fixtures"
CAPTURED = sorted(path for path in (FIXTURES / "engines").rglob("*") if path.suffix in (".prom", ".txt"))
SMALL = [path for path in CAPTURED if path.stat().st_size < 15_000]

NAMES = st.from_regex(r"\A[a-z_:][a-z0-9_:]{0,8}\Z")
LABEL_NAMES = st.from_regex(r"\A[a-z_][a-z0-9_]{0,5}\Z").filter(lambda name: name != "le")
VALUES = st.one_of(
    st.floats(width=32).map(repr),
    st.integers(-(10**6), 10**6).map(str),
    st.sampled_from(["+Inf", "-Inf", "NaN", "inf", "1e+01", "0.0", "1.7e+09"]),
)
LABELS = st.dictionaries(LABEL_NAMES, st.text(st.characters(blacklist_categories=["Cs"]), max_size=8), max_size=3)


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def line(name: str, labels: dict[str, str], value: str, timestamp: int | None = None) -> str:
    inner = ",".join(f'{label}="{escaped(text)}"' for label, text in labels.items())
    return (f"{name}{{{inner}}} {value}" if inner else f"{name} {value}") + (f" {timestamp}" if timestamp is not None else "")


SERIES = st.lists(st.tuples(NAMES, LABELS), max_size=8, unique_by=lambda pair: (pair[0], tuple(sorted(pair[1].items()))))


def samples(page: Page) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    return sorted((series.name, series.labels, repr(value)) for series, value in zip(page.shape.series, page.values, strict=True))


def library(text: str, *, openmetrics: bool = False) -> list[tuple[str, tuple[tuple[str, str], ...], str]]:
    families = openmetrics_families(text) if openmetrics else text_string_to_metric_families(text)
    return sorted(
        (sample.name, tuple(sorted(sample.labels.items())), repr(float(sample.value))) for family in families for sample in family.samples
    )


def plain(text: str) -> bool:
    """Whether the library reads label values as they are: it splits lines where str.splitlines does, and strips blanks."""
    return len(text.splitlines()) == text.count("\n") + 1 and text.isprintable()


@settings(deadline=None)
@given(SERIES, st.data())
def test_a_page_reads_as_the_library_reads_it(series: list[tuple[str, dict[str, str]]], data: st.DataObject) -> None:
    # the library refuses labels that begin with two underscores, so there is nothing to compare with
    series = [
        (name, {label: text for label, text in labels.items() if plain(text) and not label.startswith("__")}) for name, labels in series
    ]
    series = list({(name, tuple(sorted(labels.items()))): (name, labels) for name, labels in series}.values())
    stamps = st.none() | st.integers(0, 2_000_000_000_000)
    text = "".join(line(name, labels, data.draw(VALUES), data.draw(stamps)) + "\n" for name, labels in series)
    assert samples(PageParser().parse(text.encode())) == library(text)


@settings(deadline=None, max_examples=60)
@given(SERIES, st.data(), st.integers(1, 4))
def test_a_parser_that_has_seen_pages_reads_as_a_fresh_one(
    series: list[tuple[str, dict[str, str]]], data: st.DataObject, pages: int
) -> None:
    parser = PageParser()
    for _ in range(pages):
        shown = [one for one in series if data.draw(st.integers(0, 9)) > 0]
        text = "# TYPE a gauge\n" + "".join(line(name, labels, data.draw(VALUES)) + "\n" for name, labels in shown)
        seen, fresh = parser.parse(text.encode()), PageParser().parse(text.encode())
        assert seen.shape.series == fresh.shape.series
        assert list(map(repr, seen.values)) == list(map(repr, fresh.values))
        assert seen.shape.types == fresh.shape.types


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.name)
def test_captured_pages_read_as_the_library_reads_them(path: Path) -> None:
    body = path.read_bytes()
    parser = PageParser()
    first, second = parser.parse(body), parser.parse(body)
    assert samples(first) == samples(second) == library(body.decode())
    assert second.shape is first.shape


@pytest.mark.parametrize("name", ["t000.prom", "t015.prom"])
def test_an_openmetrics_page_reads_as_the_library_reads_it(name: str) -> None:
    body = (FIXTURES / "cases" / "NAME-06" / "openmetrics" / name).read_bytes()
    assert samples(PageParser().parse(body, "application/openmetrics-text; version=1.0.0")) == library(body.decode(), openmetrics=True)


DAMAGE = st.tuples(st.integers(0, 20_000), st.sampled_from(["cut", "insert", "replace", "delete", "repeat"]), st.binary(max_size=6))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(SMALL), st.lists(DAMAGE, min_size=1, max_size=4))
def test_damage_raises_a_parse_error_or_nothing(path: Path, damages: list[tuple[int, str, bytes]]) -> None:
    body = path.read_bytes()
    parser = PageParser()
    parser.parse(body)
    for place, kind, noise in damages:
        at = place % (len(body) + 1)
        if kind == "cut":
            body = body[:at]
        elif kind == "insert":
            body = body[:at] + noise + body[at:]
        elif kind == "replace":
            body = body[:at] + noise + body[at + len(noise) :]
        elif kind == "delete":
            body = body[:at] + body[at + 5 :]
        else:
            body = body[:at] + body[max(0, at - 40) : at] + body[at:]
    outcomes = []
    for reader in (parser, PageParser()):
        try:
            page = reader.parse(body)
        except ParseError as error:
            outcomes.append([{"parse": "refused", "not_metrics": "refused"}[error.reason], error.detail])
        else:
            Normaliser().read(page)
            outcomes.append([*page.shape.series, *map(repr, page.values)])
    assert outcomes[0] == outcomes[1], "what was read before makes no difference"


UNWANTED = (
    "# TYPE python_gc_collections_total counter\n"
    'python_gc_collections_total{generation="0"} 7.0\n'
    "# TYPE vllm:prompt_tokens_created gauge\n"
    'vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09\n'
    "# TYPE sglang:something_new histogram\n"
    'sglang:something_new_bucket{le="+Inf"} 3.0\n'
    "process_open_fds NaN\n"
    'node_load1{instance="a b"} 0.5\n'
)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([path for path in SMALL if path.suffix == ".prom" and "0.4.6" in str(path)]), st.integers(0, 10_000))
def test_unwanted_families_change_nothing(path: Path, place: int) -> None:
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    at = place % (len(lines) + 1)
    mixed = "".join(lines[:at]) + UNWANTED + "".join(lines[at:])
    plain_reading = Normaliser().read(PageParser().parse(text.encode()))
    mixed_reading = Normaliser().read(PageParser().parse(mixed.encode()))
    assert plain_reading is not None
    assert mixed_reading is not None
    assert mixed_reading.layout.slots == plain_reading.layout.slots
    assert list(mixed_reading.values) == list(plain_reading.values)
    assert all(math.isfinite(value) for value in mixed_reading.values)
