"""Text that PromQL reads as it was meant."""

from __future__ import annotations

import json
import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.generate.promql import Matcher, duration, either, equals, none_of, number, one_of, over, quoted, selector, without


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs", "Cc"]) | st.sampled_from('"\\\n\t\r')))
def test_any_text_comes_back_from_its_quotes(text: str) -> None:
    assert json.loads(quoted(text)) == text  # these escapes mean the same in both languages


@given(st.lists(st.text(min_size=1), min_size=2, max_size=4, unique=True), st.text())
def test_alternatives_match_their_values_and_nothing_else(values: list[str], other: str) -> None:
    expression = one_of("x", values).value
    assert all(re.fullmatch(expression, value) for value in values)
    assert bool(re.fullmatch(expression, other)) == (other in values)


def test_one_value_is_compared_not_matched() -> None:
    assert str(one_of("target", ["a.b"])) == 'target="a.b"'
    assert str(none_of("target", ["a.b"])) == 'target!="a.b"'
    assert str(none_of("target", ["b", "a.b"])) == 'target!~"a\\\\.b|b"'


@pytest.mark.parametrize(
    ("value", "text"),
    [("14.40", "14.4"), ("0.1440", "0.144"), ("1", "1"), ("1E+3", "1000"), ("0.000", "0"), ("100", "100"), ("1E-7", "0.0000001")],
)
def test_numbers_have_neither_noise_nor_exponent(value: str, text: str) -> None:
    assert number(Decimal(value)) == text


@pytest.mark.parametrize("value", [0.1, Decimal("NaN"), Decimal("Infinity")])
def test_floats_and_what_is_no_number_are_refused(value: Decimal) -> None:
    with pytest.raises(TypeError):
        number(value)


@pytest.mark.parametrize(
    ("seconds", "text"), [(60, "1m"), (90, "1m30s"), (3 * 86_400, "3d"), (Decimal("0.25"), "250ms"), (Decimal("0.00001"), "1ms")]
)
def test_durations(seconds: Decimal | int, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("seconds", [0, -1])
def test_no_range_is_empty(seconds: int) -> None:
    with pytest.raises(ValueError, match="no range"):
        duration(seconds)


def test_parts_are_put_together() -> None:
    series = selector("up", equals("job", 'a"b'), Matcher("x", "!~", "y.*"))
    assert series == r'up{job="a\"b",x!~"y.*"}'
    assert selector("up") == "up"
    assert without("sum", ("a", "b"), over("rate", series, "5m")) == rf"sum without (a, b) (rate({series}[5m]))"
    assert over("last_over_time", "up", "1m", offset="1h") == "last_over_time(up[1m] offset 1h)"
    assert either("a") == "a"
    assert either("a", "b") == "(a)\nor\n(b)"
