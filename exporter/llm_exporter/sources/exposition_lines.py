r"""One line of an exposition in full generality: text format 0.0.4 and OpenMetrics 1.0, with the quoted names of Prometheus 3.

Knows labels with spaces, braces, `\\`, `\"` and `\n` in their values, timestamps, exemplars and comments. `exposition.py` calls it
for the lines that it has not seen before. Raises `BadLineError` with the reason; the caller adds the place.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple, NoReturn


class BadLineError(Exception):
    """A line that is not in the format. Never leaves the two exposition modules."""


class Series(NamedTuple):
    """Identity of one series: metric name and labels, sorted by label name, unescaped."""

    name: str
    labels: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        inner = ",".join(f'{name}="{_ESCAPED.sub(_escape, value)}"' for name, value in self.labels)
        return f"{self.name}{{{inner}}}" if inner else self.name


_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_GAP = re.compile(r"[ \t]+")
_BLANKS = re.compile(r"[ \t]*")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*")[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|\})')
_QUOTED_NAME = re.compile(r'[ \t]*"((?:[^"\\]|\\.)+)"[ \t]*(,|\})')
_QUOTED_COMMENT = re.compile(r'"((?:[^"\\]|\\.)+)"[ \t]*(.*)\Z', re.DOTALL)
_CLOSE = re.compile(r"[ \t]*\}")
_ESCAPES = re.compile(r'\\([\\n"])')
_ESCAPED = re.compile(r'[\\\n"]')
NUMBER = re.compile(rb"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?|[nN][aA][nN])")
"""A value, whole. Python's `float` takes more (blanks, 1_000), Go's takes hexadecimal too; no client library writes those."""

_MILLISECONDS = re.compile(r"-?[0-9]{1,19}\Z")
"""As many digits as an int64 of Prometheus has; Python refuses to read thousands, and a float cannot hold hundreds."""

TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram"})


def _escape(match: re.Match[str]) -> str:
    return {"\\": "\\\\", "\n": "\\n", '"': '\\"'}[match[0]]


def _unescape(text: str) -> str:
    """Undo the three escapes of label values. Any other backslash stands for itself, as in Prometheus' own parser."""
    return _ESCAPES.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text


class Comment(NamedTuple):
    """A line that begins with `#`. `kind` is "TYPE", "HELP", "EOF" (the end of an OpenMetrics page) or "" for a remark."""

    kind: str
    name: str = ""
    text: str = ""


REMARK = Comment("")


def read_comment(line: bytes, openmetrics: bool) -> Comment:
    """One line that begins with `#`."""
    text = _decoded(line).strip(" \t\r")
    if openmetrics and text == "# EOF":
        return Comment("EOF")
    words = _GAP.split(text[1:].lstrip(" \t"), 1)
    if len(words) < 2 or words[0] not in ("TYPE", "HELP"):
        return REMARK
    name, rest = _comment_name(words[1])
    if words[0] == "HELP":
        return Comment("HELP", name, _unescape(rest)) if name else REMARK
    if not name:
        raise BadLineError("no metric name after TYPE")
    if rest not in TYPES:
        raise BadLineError(f"unknown metric type {rest!r}")
    return Comment("TYPE", name, rest)


def _comment_name(text: str) -> tuple[str, str]:
    quoted = _QUOTED_COMMENT.match(text)
    if quoted:
        return _unescape(quoted[1]), quoted[2]
    name = _NAME.match(text)
    if not name or (name.end() < len(text) and text[name.end()] not in " \t"):
        return "", text
    return name[0], text[name.end() :].strip(" \t")


def refuse_after_end() -> NoReturn:
    """Refuse a line that stands behind `# EOF`."""
    raise BadLineError("text after # EOF")


def read_sample(line: bytes, openmetrics: bool) -> tuple[Series, float, float | None, bytes | None]:
    """One sample.

    Returns:
        Series, value, timestamp in unix seconds (None without), and the bytes before the value where nothing follows the value.
    """
    text = _decoded(line)
    series, end = _series(text)
    blanks = _BLANKS.match(text, end)
    assert blanks
    if blanks.end() == end and text[end - 1] not in "}":
        raise BadLineError("no value")
    rest = text[blanks.end() :].rstrip("\r")
    if openmetrics:
        rest = rest.split(" # ", 1)[0]  # the exemplar: not used, and no word of value and timestamp can hold this
    words = _GAP.split(rest.strip(" \t"), 2)
    if len(words) > 2 or not _is_number(words[0]):
        raise BadLineError(f"{rest!r} is no number" if len(words) < 3 else f"text after the timestamp: {words[2]!r}")
    if len(words) == 1:
        plain = text[:end].encode() if rest == words[0] and blanks[0] == " " else None
        return series, float(words[0]), None, plain
    return series, float(words[0]), _timestamp(words[1], openmetrics), None


def _is_number(word: str) -> bool:
    return NUMBER.fullmatch(word.encode()) is not None


def _timestamp(word: str, openmetrics: bool) -> float:
    """Unix seconds: OpenMetrics has seconds, the text format whole milliseconds."""
    if openmetrics:
        if not _is_number(word) or word.lower().lstrip("+-") in ("nan", "inf", "infinity"):
            raise BadLineError(f"{word!r} is no timestamp")
        return float(word)
    if not _MILLISECONDS.match(word):
        raise BadLineError(f"{word!r} is no timestamp in milliseconds")
    return int(word) / 1000


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise BadLineError("not UTF-8") from None


def _series(text: str) -> tuple[Series, int]:
    """Name and labels at the beginning of a sample line, and where they end."""
    start = _BLANKS.match(text)
    assert start
    match = _NAME.match(text, start.end())
    name = match[0] if match else ""
    at = match.end() if match else start.end()
    opened = _BLANKS.match(text, at)
    assert opened
    if text[opened.end() : opened.end() + 1] != "{":
        if not name:
            raise BadLineError("no metric name")
        return Series(name, ()), at
    at = opened.end() + 1
    if not name:
        quoted = _QUOTED_NAME.match(text, at)
        if not quoted:
            raise BadLineError("no metric name")
        name = _unescape(quoted[1])
        at = quoted.end()
        if quoted[2] == "}":
            return Series(name, ()), at
    labels, at = _labels(text, at)
    return Series(name, labels), at


def _labels(text: str, at: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """Labels from behind the opening brace (or a comma), and the place behind the closing one."""
    labels: dict[str, str] = {}
    while True:
        close = _CLOSE.match(text, at)
        if close:
            return _pairs(labels), close.end()
        match = _LABEL.match(text, at)
        if not match:
            raise BadLineError("broken labels")
        name = _unescape(match[1][1:-1]) if match[1][0] == '"' else match[1]
        if name in labels:
            raise BadLineError(f"label {name!r} twice")
        labels[name] = _unescape(match[2])
        at = match.end()
        if match[3] == "}":
            return _pairs(labels), at


def _pairs(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(map(_pair, labels.keys(), labels.values())))


@lru_cache(maxsize=8192)
def _pair(name: str, value: str) -> tuple[str, str]:
    """One object for all series that have it: on a page of 60 000 lines the labels would take most of the memory."""
    return name, value
