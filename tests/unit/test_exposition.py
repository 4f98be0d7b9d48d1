"""The exposition parser: formats, refusals, and what one page leaves for the next."""

from __future__ import annotations

import math

import pytest

from llm_exporter.errors import ParseError
from llm_exporter.sources.exposition import KNOWN_SHAPES, Page, PageParser, Series

PAGE = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="m"} 1234.0
up 1
"""


def parse(body: bytes | str, content_type: str = "") -> Page:
    return PageParser().parse(body.encode() if isinstance(body, str) else body, content_type)


def refused(body: bytes | str, content_type: str = "") -> ParseError:
    with pytest.raises(ParseError) as caught:
        parse(body, content_type)
    return caught.value


def test_a_page_has_series_values_types_and_helps() -> None:
    page = parse(PAGE)
    assert page.shape.series == (
        Series("vllm:num_requests_running", (("engine", "0"), ("model_name", "m"))),
        Series("vllm:prompt_tokens_total", (("engine", "0"), ("model_name", "m"))),
        Series("up", ()),
    )
    assert page.values == [3.0, 1234.0, 1.0]
    assert page.shape.types == {"vllm:num_requests_running": "gauge", "vllm:prompt_tokens_total": "counter"}
    assert page.shape.helps == {"vllm:num_requests_running": "Number of requests in model execution batches."}
    assert page.oldest_timestamp is None


@pytest.mark.parametrize(
    ("line", "series", "value"),
    [
        ('a{b="x y"} 1', Series("a", (("b", "x y"),)), 1.0),
        ('a{b="}"} 1', Series("a", (("b", "}"),)), 1.0),
        ('a{b="\\\\ \\" \\n \\t"} 1', Series("a", (("b", '\\ " \n \\t'),)), 1.0),
        ('a{z="1",b="2",} 1', Series("a", (("b", "2"), ("z", "1"))), 1.0),
        ('a { z = "1" , b = "2" } 1', Series("a", (("b", "2"), ("z", "1"))), 1.0),
        ('a{b="模型/聊天"} 1', Series("a", (("b", "模型/聊天"),)), 1.0),
        ("a{} 1", Series("a", ()), 1.0),
        ("a\t1", Series("a", ()), 1.0),
        ("  a   1  ", Series("a", ()), 1.0),
        ('a{b="2"}1', Series("a", (("b", "2"),)), 1.0),
        ("a 1\r", Series("a", ()), 1.0),
        ("a +Inf", Series("a", ()), math.inf),
        ("a -inf", Series("a", ()), -math.inf),
        ("a 1.7e+09", Series("a", ()), 1.7e9),
        ("a .5", Series("a", ()), 0.5),
        ("a 5.", Series("a", ()), 5.0),
        ('{"my metric","my label"="v"} 1', Series("my metric", (("my label", "v"),)), 1.0),
        ('{"my.metric"} 1', Series("my.metric", ()), 1.0),
    ],
)
def test_lines_of_every_kind(line: str, series: Series, value: float) -> None:
    page = parse(line + "\n")
    assert page.shape.series == (series,)
    assert page.values == [value]


def test_nan_is_a_value() -> None:
    assert math.isnan(parse("a NaN\n").values[0])


@pytest.mark.parametrize(
    "line",
    ["a", "a 1_000", "a 0x10", "a one", "a{b=2} 1", 'a{b="2} 1', 'a{b="2"', 'a{b="1",b="2"} 1', "a 1 x", "a 1 1.5", "a 1 2 3", "1a 1",
     "a 1\x0b", "a ١", "{} 1", 'a{,b="2"} 1', "# TYPE a countr", "# TYPE a", "a 1e", 'a{b="2"}', "a-b 1", "a nan_"],
)  # fmt: skip
def test_a_bad_line_refuses_the_page_and_is_named(line: str) -> None:
    error = refused(f"good 1\n{line}\ngood2 1\n")
    assert error.reason == "parse"
    assert "line 2" in error.detail


def test_a_bad_line_is_refused_where_a_good_one_was() -> None:
    parser = PageParser()
    parser.parse(b"a 1\nb 2\n")
    for bad in (b"1_0", b"", b"x", b"2 z"):
        with pytest.raises(ParseError, match="line 2"):
            parser.parse(b"a 1\nb " + bad + b"\n")
    assert parser.parse(b"a 1\nb 3\n").values == [1.0, 3.0]


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("<!DOCTYPE html>\n<html><body>Not here</body></html>\n", "text/html"),
        ("<html>\n", "text/plain"),
        ('{"detail":"Not Found"}', "application/json"),
        ("Not Found", "text/plain"),
        ("\n\n  <p>\n", ""),
    ],
)
def test_what_is_no_exposition_at_all_is_told_apart(body: str, content_type: str) -> None:
    error = refused(body, content_type)
    assert error.reason == "not_metrics"
    assert "metrics_path" in error.hint


def test_bytes_that_are_not_utf8_refuse_the_page() -> None:
    error = refused(b'good 1\na{b="\xff"} 1\n')
    assert error.reason == "parse"
    assert "line 2: not UTF-8" in error.detail


@pytest.mark.parametrize("body", ["", "\n", "# just a remark\n", "  \n\n"])
def test_an_empty_page_is_a_page(body: str) -> None:
    assert parse(body).values == []


def test_a_last_line_without_newline_is_taken_if_it_is_complete() -> None:
    assert parse("a 1\nb 2").values == [1.0, 2.0]
    assert "line 2" in refused("a 1\nb").detail


@pytest.mark.parametrize(
    "body",
    [
        'a{x="1",y="2"} 1\nb 1\na{y="2",x="1"} 2\n',
        'a{x="1",y="2"} 1\nb 1\na{x="1",y="2"} 1\n',
        '{"a","x"="1",y="2"} 1\na{x="1",y="2"} 1\n',
    ],
)
def test_a_series_twice_is_refused_by_name(body: str) -> None:
    error = refused(body)
    assert error.reason == "parse"
    assert 'a{x="1",y="2"}' in error.detail


def test_timestamps_are_milliseconds_in_text() -> None:
    parser = PageParser()
    for _ in range(2):
        assert parser.parse(b"a 1 1700000005000\nb 2 1700000001500\nc 3\n").oldest_timestamp == 1700000001.5
    assert parser.parse(b"a 1\nb 2\nc 3\n").oldest_timestamp is None


@pytest.mark.parametrize("timestamp", ["9" * 20, "9" * 400, "-" + "9" * 400, "9" * 5000])
def test_timestamps_that_no_clock_can_show_are_refused(timestamp: str) -> None:
    with pytest.raises(ParseError, match="no timestamp"):
        PageParser().parse(f"a 1 {timestamp}\n".encode())


def test_openmetrics_has_seconds_exemplars_and_an_end() -> None:
    body = (
        '# TYPE a counter\na_total{b="x # y"} 5.0 1700000005.25 # {trace_id="KOO5"} 1.0 1700000000\na_created{b="x # y"} 1.7e+09\n# EOF\n'
    )
    page = parse(body)
    assert page.values == [5.0, 1.7e9]
    assert page.oldest_timestamp == 1700000005.25
    assert page.shape.types == {"a": "counter"}


@pytest.mark.parametrize("exemplar", ["", ' # {trace_id="a"} 1.0'])
def test_openmetrics_values_are_followed_from_page_to_page(exemplar: str) -> None:
    parser = PageParser()
    for value in (1.0, 2.0, 2.0, 7.5):
        assert parser.parse(f"# TYPE a counter\na_total {value}{exemplar}\n# EOF\n".encode()).values == [value]


def test_openmetrics_that_was_cut_is_refused() -> None:
    assert "EOF" in refused("# TYPE a counter\na_total 1\n", "application/openmetrics-text; version=1.0.0; charset=utf-8").detail
    assert "line 2" in refused("# EOF\na 1\n", "application/openmetrics-text").detail


def test_bounds_are_numbers_whatever_their_spelling() -> None:
    page = parse('a_bucket{le="10"} 1\nb_bucket{le="10.0"} 1\nc_bucket{le="1e+01"} 1\n')
    assert {float(dict(series.labels)["le"]) for series in page.shape.series} == {10.0}


def test_like_pages_share_their_shape() -> None:
    parser = PageParser()
    first = parser.parse(PAGE)
    first.shape.plans["mine"] = 1
    second = parser.parse(PAGE.replace(b"1234.0", b"1300.0").replace(b" 3.0", b" NaN"))
    assert second.shape is first.shape
    assert second.values[1:] == [1300.0, 1.0]
    assert math.isnan(second.values[0])
    assert first.values == [3.0, 1234.0, 1.0], "an earlier page does not change"
    assert parser.parse(PAGE.replace(b'engine="0",model_name="m"', b'model_name="m",engine="0"')).shape is first.shape


def test_a_new_series_makes_a_new_shape_and_the_old_one_comes_back() -> None:
    parser = PageParser()
    first = parser.parse(PAGE)
    more = parser.parse(b"new 5\n" + PAGE)
    assert more.shape is not first.shape
    assert more.values == [5.0, *first.values]
    assert parser.parse(PAGE).shape is first.shape


@pytest.mark.parametrize(
    "other",
    [PAGE.replace(b"running gauge", b"running counter"), PAGE.replace(b"up 1", b"down 1"),
     PAGE.replace(b"batches.", b"batches, deprecated."), b"up 1\n" + PAGE.removesuffix(b"up 1\n")],
    ids=["type", "name", "help", "order"],
)  # fmt: skip
def test_other_pages_have_another_shape(other: bytes) -> None:
    parser = PageParser()
    assert parser.parse(PAGE).shape is not parser.parse(other).shape


def test_a_label_that_changes_for_ever_does_not_fill_memory() -> None:
    parser = PageParser()
    for number in range(100):
        parser.parse(PAGE + f'info{{adapters="{number}"}} 1.7e9\n'.encode())
    assert len(parser._shapes) == KNOWN_SHAPES
    assert len(parser._memo) == 4


def test_a_page_that_was_refused_leaves_nothing() -> None:
    parser = PageParser()
    good = parser.parse(PAGE)
    with pytest.raises(ParseError):
        parser.parse(PAGE.replace(b"1234.0", b"5000.0") + b"broken{\n")
    again = parser.parse(PAGE)
    assert again.values == good.values
    assert again.shape is good.shape


def test_an_error_quotes_a_long_line_in_part() -> None:
    assert len(refused("a 1\n" + "x" * 100_000 + "\n").detail) < 300


def test_series_share_their_labels() -> None:
    """Field case TGT-13: 60 000 lines with labels of their own each would hold 100 MB for as long as the target is there."""
    page = PageParser().parse(b'a{model="m",rank="1"} 1\nb{rank="1",model="m"} 2\n')
    first, second = page.shape.series
    assert [pair is other for pair, other in zip(first.labels, second.labels, strict=True)] == [True, True]
