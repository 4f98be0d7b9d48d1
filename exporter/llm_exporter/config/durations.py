"""Durations as Prometheus writes them (`5s`, `1m30s`, `250ms`, `1w`): text to seconds and back.

Source: `ParseDuration` of prometheus/common: units y w d h m s ms in this order, each at most once, whole numbers, or a bare `0`.
"""

from __future__ import annotations

import re

_UNITS = (("y", 31_536_000_000), ("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_GRAMMAR = re.compile("".join(rf"(?:(\d+){unit})?" for unit, _ in _UNITS), re.ASCII)
_LONGEST_MILLISECONDS = 100 * _UNITS[0][1]


def parse_duration(text: str) -> float:
    """Seconds that `text` stands for.

    Raises:
        ValueError: the text is no duration; the message says what to write instead.
    """
    if text == "0":
        return 0.0
    match = _GRAMMAR.fullmatch(text)
    if not match or not text:
        raise ValueError(f"is not a duration; {_remedy(text)}")
    milliseconds = sum(int(count) * size for count, (_, size) in zip(match.groups(), _UNITS, strict=True) if count)
    if milliseconds > _LONGEST_MILLISECONDS:
        raise ValueError("is longer than 100 years; write for example 30s, 1m30s or 500ms")
    return milliseconds / 1000


def format_duration(seconds: float) -> str:
    """Shortest Prometheus spelling of `seconds`, rounded to milliseconds; weeks and years are written in days."""
    rest = round(seconds * 1000)
    if rest == 0:
        return "0"
    text = ""
    for unit, size in _UNITS[2:]:
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text


def _remedy(text: str) -> str:
    if re.fullmatch(r"\d*\.\d+s", text):
        return f"write {format_duration(float(text[:-1]))}"
    if re.fullmatch(r"\d+", text):
        return f"write {text}s for seconds"
    if re.fullmatch(r"\d+:\d+(:\d+)?", text):
        return "write for example 12h30m instead of 12:30"
    return "write for example 30s, 1m30s or 500ms (units y, w, d, h, m, s, ms, in this order)"
