"""Numbers as people read them, never in scientific notation, and others' words without what moves a terminal's cursor.

In: floats, text. Out: text, for the tables and sentences of commands.
"""

from __future__ import annotations

import math
from decimal import Decimal

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_WHOLE_BELOW = 2.0**53  # above it a float no longer tells neighbouring whole numbers apart


def plain_number(value: float, figures: int = 6) -> str:
    """Whole numbers in full, others with so many figures; `inf` and `nan` as they are."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < _WHOLE_BELOW:
        return str(int(value))
    return f"{Decimal(f'{value:.{figures}g}'):f}"


def three_figures(value: float) -> str:
    """A measured number, no more exact than it is: `1.23`, `45600`."""
    return plain_number(float(f"{value:.3g}"), 3)


def plain_seconds(seconds: float) -> str:
    """A time with three figures in the unit that suits it: `5.77 s`, `8.02 ms`, `0 s`."""
    rounded = float(f"{seconds:.3g}")  # first, or 999.7 ms would be 1000 ms
    for scale, unit in _TIME_UNITS:
        if abs(rounded) >= scale:
            return f"{three_figures(rounded / scale)} {unit}"
    return "0 s" if rounded == 0 else f"{three_figures(rounded / 1e-9)} ns"


def harmless(text: str) -> str:
    """Somebody else's words for a terminal or a picture: every character that is not printable becomes a replacement character."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
