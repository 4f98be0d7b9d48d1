"""Reads PromQL just well enough to say which metrics an expression names, and which of them it aggregates."""

from __future__ import annotations

import re
from collections.abc import Iterator

AGGREGATIONS = frozenset(["sum", "min", "max", "avg", "count", "group", "stddev", "stdvar", "topk", "bottomk", "quantile", "count_values"])
_WORDS = frozenset(
    ["and", "or", "unless", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "bool", "atan2", "inf", "nan"]
)
_LISTS = frozenset(["by", "without", "on", "ignoring", "group_left", "group_right"])
_TOKEN = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|`[^`]*`)|(?P<range>\[[^\]]*\])|(?P<name>[A-Za-z_:$][\w:$]*)|(?P<number>[\d.]+[\w.]*)|(?P<sign>[-+*/%^=!<>~(){},@])|\s+"""
)

Token = tuple[str, str]


def tokens(expression: str) -> list[Token]:
    """Kind and text, without blanks."""
    found, at = [], 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        assert match, f"cannot read PromQL at {expression[at : at + 20]!r}"
        if match.lastgroup:
            found.append((match.lastgroup, match.group()))
        at = match.end()
    return found


def _close(found: list[Token], start: int, opening: str = "(", closing: str = ")") -> int:
    depth = 0
    for at in range(start, len(found)):
        depth += (found[at][1] == opening) - (found[at][1] == closing)
        if depth == 0:
            return at
    raise AssertionError("brackets do not match")


def _metrics(found: list[Token]) -> Iterator[str]:
    at = 0
    while at < len(found):
        kind, text = found[at]
        after = found[at + 1][1] if at + 1 < len(found) else ""
        if text == "{":
            at = _close(found, at, "{", "}")
        elif kind == "name" and text.lower() in _LISTS and after == "(":
            at = _close(found, at + 1)
        elif kind == "name" and after != "(" and text.lower() not in _WORDS and text not in AGGREGATIONS:
            yield text
        at += 1


def metrics_of(expression: str) -> set[str]:
    """Every metric (or recorded series) that the expression names."""
    return set(_metrics(tokens(expression)))


def aggregated(expression: str) -> set[str]:
    """Those below an aggregation over series; aggregations over time (`avg_over_time`) are none."""
    found = tokens(expression)
    names: set[str] = set()
    for at, (kind, text) in enumerate(found):
        if kind != "name" or text not in AGGREGATIONS:
            continue
        opening = at + 1
        if opening < len(found) and found[opening][1].lower() in _LISTS:
            opening = _close(found, opening + 1) + 1
        if opening < len(found) and found[opening][1] == "(":
            names |= set(_metrics(found[opening : _close(found, opening) + 1]))
    return names
