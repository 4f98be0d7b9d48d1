"""Input series and cases for `promtool test rules`, written in minutes instead of steps.

A case says what Prometheus saw, when it is asked, and which alerts (as label sets) must fire then. Every alert has a case of every kind in
`KINDS`, or a reason why the kind does not apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

KINDS = ("fires", "just_below", "too_short", "no_data", "target_gone", "counter_reset", "idle")
JOB = {"job": "llm-exporter", "instance": "e:9880"}
TARGET = {**JOB, "target": "chat"}
MODEL = {**TARGET, "engine": "vllm", "model": "m"}
RESET = "reset"

Number = float | int | str


def series(name: str, common: Mapping[str, str], /, **labels: str) -> str:
    """`name{…}` as promtool wants it."""
    pairs = ",".join(f'{key}="{value}"' for key, value in {**common, **labels}.items())
    return f"{name}{{{pairs}}}"


def j(name: str, /, **labels: str) -> str:
    """A series of the exporter."""
    return series(name, JOB, **labels)


def t(name: str, /, **labels: str) -> str:
    """A series of the target chat."""
    return series(name, TARGET, **labels)


def m(name: str, /, **labels: str) -> str:
    """A series of its model."""
    return series(name, MODEL, **labels)


def _steps(minutes: Number, step: int) -> int:
    return int(Decimal(str(minutes)) * 60 / step)


def _run(start: Decimal, each: Decimal, count: int) -> str:
    if count == 1:
        return f"{start:f}"
    return f"{start:f}{'-' if each < 0 else '+'}{abs(each):f}x{count - 1}"


def gauge(*segments: tuple[Number, Number | None], step: int = 15) -> str:
    """Segments of (minutes, value); None is no sample."""
    parts = []
    for minutes, value in segments:
        count = _steps(minutes, step)
        parts.append(f"_x{count}" if value is None else _run(Decimal(str(value)), Decimal(0), count))
    return " ".join(parts)


def counter(*segments: tuple[Number, Number | None] | str, start: Number = 0, step: int = 15) -> str:
    """Segments of (minutes, increase per minute); None is no sample (nothing is added meanwhile), RESET falls to zero."""
    level, parts = Decimal(str(start)), []
    for segment in segments:
        if isinstance(segment, str):
            level = Decimal(0)
            continue
        minutes, rate = segment
        count = _steps(minutes, step)
        if rate is None:
            parts.append(f"_x{count}")
            continue
        each = Decimal(str(rate)) * step / 60
        parts.append(_run(level, each.quantize(Decimal("1.0000000000")), count))
        level += each * count
    return " ".join(parts)


Labels = Mapping[str, str]


@dataclass(frozen=True)
class Case:
    """One moment of one scenario.

    at: minutes after the start; step: seconds between samples and between evaluations.
    fires: label sets of the alerts that must fire, without severity; empty for silence.
    """

    kind: str
    seen: Mapping[str, str]
    at: float
    fires: tuple[Labels, ...] = ()
    step: int = 15
    about: str = ""


@dataclass(frozen=True)
class Cases:
    """All cases of one alert, and the reasons why kinds do not apply."""

    alert: str
    cases: tuple[Case, ...]
    without: Mapping[str, str] = field(default_factory=dict)


FLAG = "the signal is 0 or 1; there is nothing just below"
NO_COUNTER = "reads no counter"
AT_ONCE = "has no `for`: what it reads has settled before"
