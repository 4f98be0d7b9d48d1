"""What an analysis gives back: numbers for programs, reasons for those that are missing, and one sentence of doubt for readers.

In: nothing. Out: `Finding` and `Span`, made by every analysis, read by `document.py`, `html.py` and `markdown.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_exporter.report.grid import Floats

SIGNIFICANT_DIGITS = 6


@dataclass(frozen=True)
class Span:
    """The window under review, unix seconds."""

    start: int
    end: int

    @property
    def hours(self) -> float:
        """Length."""
        return (self.end - self.start) / 3600


@dataclass
class Finding:
    """One answer.

    Attributes:
        numbers: keys and values exactly as in the JSON report; None where unknown.
        why: for each None, the reason.
        basis: window, n and doubt, for people.
    """

    numbers: dict[str, Any]
    why: dict[str, str] = field(default_factory=dict)
    basis: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.numbers[key]

    def document(self) -> dict[str, Any]:
        """The JSON object; its `why` names every null."""
        body = {key: plain(value) for key, value in self.numbers.items()}
        why = {key: self.why.get(key, "not known from this data") for key, value in body.items() if value is None}
        return {**body, "why": why} if why else body


def unknown(keys: tuple[str, ...], reason: str, basis: str = "") -> Finding:
    """A finding of which nothing is known."""
    return Finding(dict.fromkeys(keys), dict.fromkeys(keys, reason), basis)


def plain(value: Any) -> Any:
    """A value fit for JSON: no numpy types, no NaN or infinity, no digits that nobody measured."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(number) else None
    return value


def percentile(values: Floats | None, q: float) -> float | None:
    """Percentile of the known values; None where there are none."""
    known = values[np.isfinite(values)] if values is not None else np.zeros(0)
    return float(np.percentile(known, q)) if known.size else None
