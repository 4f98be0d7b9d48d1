"""Pieces of PromQL: quoting, numbers, durations, selectors, aggregations.

In: Python values. Out: text that Prometheus 2.42 and MetricsQL read the same way. Every rule and panel is put together here, so that no
other module quotes, rounds or escapes. Labels are dropped with `without` where numbers are combined, so that labels which a server adds
(cluster, region) survive.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

from llm_exporter.config.durations import format_duration

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
_TARGET = ("job", "instance", "target")


class Matcher(NamedTuple):
    """One condition of a selector; `value` is unquoted text, a regular expression where the operator is =~ or !~."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.label}{self.operator}{quoted(self.value)}"


def quoted(text: str) -> str:
    """A PromQL string."""
    return '"' + "".join(_ESCAPES.get(character, character) for character in text) + '"'


def number(value: Decimal | int) -> str:
    """A decimal literal without exponent and without noise; floats are refused, since 1 − 0.999 is none that a person wrote."""
    if isinstance(value, float) or not Decimal(value).is_finite():
        raise TypeError(f"{value!r} is no finite Decimal")
    text = format(Decimal(value), "f")
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"


def duration(seconds: Decimal | int) -> str:
    """A range or `for`, at least a millisecond: Prometheus knows nothing shorter."""
    if seconds <= 0:
        raise ValueError(f"{seconds} s is no range")
    return format_duration(max(float(seconds), 0.001))


def equals(label: str, value: str) -> Matcher:
    """`label="value"`."""
    return Matcher(label, "=", value)


def one_of(label: str, values: Iterable[str]) -> Matcher:
    """`label` is one of these literal values."""
    texts = sorted(set(values))
    return Matcher(label, "=", texts[0]) if len(texts) == 1 else Matcher(label, "=~", "|".join(re.escape(text) for text in texts))


def none_of(label: str, values: Iterable[str]) -> Matcher:
    """`label` is none of these literal values."""
    texts = sorted(set(values))
    return Matcher(label, "!=", texts[0]) if len(texts) == 1 else Matcher(label, "!~", "|".join(re.escape(text) for text in texts))


def pattern(label: str, expression: str) -> Matcher:
    """`label` matches the regular expression, which is anchored by Prometheus."""
    return Matcher(label, "=~", expression)


def selector(metric: str, *matchers: Matcher) -> str:
    """`metric{…}`."""
    return metric + ("{" + ",".join(str(matcher) for matcher in matchers) + "}" if matchers else "")


def over(function: str, series: str, window: str, *, offset: str = "") -> str:
    """`function(series[window] offset …)`."""
    return f"{function}({series}[{window}]{f' offset {offset}' if offset else ''})"


def without(operator: str, labels: Sequence[str], expression: str) -> str:
    """An aggregation that drops labels."""
    return f"{operator} without ({', '.join(labels)}) ({expression})"


def either(*expressions: str) -> str:
    """What any of the expressions gives; an alert is one expression, since two rules of one name and labels are an error to promtool."""
    return expressions[0] if len(expressions) == 1 else "\nor\n".join(f"({expression})" for expression in expressions)


def on_target(operator: str) -> str:
    """A set operator (and, or, unless) that compares exporter and target alone."""
    return f"{operator} on ({', '.join(_TARGET)})"


def lines(*parts: str) -> str:
    """Operands and operators, one a line."""
    return "\n".join(parts)
