"""Windows: what happened between two frames of one target.

`Window` is all that a windowed signal sees of the past. Its base is the oldest frame not older than the window (a frame exactly that old
still counts); a window that is not yet full uses what there is, from two frames on. Restarts are already unwrapped by `counters`.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from llm_exporter.state.table import HistogramColumns, Table

# Real scrapes come a little late; a frame that is late by less than this still belongs to the window it was meant for.
LATENESS_SECONDS = 0.5


class Frame(NamedTuple):
    """One good scrape, merged. `at` is monotonic seconds; `numbers` are unwrapped, one per column of the table."""

    at: float
    table: Table
    numbers: array[float]


@dataclass(frozen=True, slots=True)
class HistogramIncrease:
    """What a histogram gained in a window.

    Shape: `cumulative[i]` observations at or below `bounds[i]`, ascending, bounds end in +inf.
    Units: those of the histogram; `sum` is None where the engine gives none.
    """

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    sum: float | None

    @property
    def count(self) -> float:
        """Observations in the window."""
        return self.cumulative[-1]

    @property
    def mean(self) -> float | None:
        """Mean of the observations; None without any."""
        if self.sum is None or self.count <= 0:
            return None
        return self.sum / self.count

    def quantile(self, q: float) -> Quantile | None:
        """The q-quantile by PromQL's interpolation; None without observations.

        Source: Prometheus `histogram_quantile` on classic buckets. A rank in the +inf bucket gives the highest finite bound and is marked.
        """
        if self.count <= 0 or len(self.bounds) < 2:
            return None
        rank = q * self.count
        i = bisect_left(self.cumulative, rank)
        if i == len(self.bounds) - 1:
            return Quantile(self.bounds[-2], saturated=True, width=math.inf)
        low = self.bounds[i - 1] if i else 0.0
        high = self.bounds[i]
        if i == 0 and high <= 0:
            return Quantile(high, saturated=False, width=0.0)
        below = self.cumulative[i - 1] if i else 0.0
        inside = self.cumulative[i] - below
        value = low + (high - low) * ((rank - below) / inside if inside > 0 else 1.0)
        return Quantile(value, saturated=False, width=high - low)


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile with its honesty: `width` is that of the bucket that holds it; `saturated` means "at least this"."""

    value: float
    saturated: bool
    width: float


class Window:
    """Increases and gauge readings of one model between two frames.

    Args:
        frames: the frames of the window, oldest first, at least one.
        model: the model's label value.
        name: "1m" or "5m", or "" for a window of evidence.
    """

    __slots__ = ("_histograms", "_quantiles", "frames", "model", "name")

    def __init__(self, frames: Sequence[Frame], model: str, name: str = "") -> None:
        self.frames = frames
        self.model = model
        self.name = name
        self._histograms: dict[str, HistogramIncrease | None] = {}
        self._quantiles: dict[tuple[str, float], Quantile | None] = {}

    @property
    def seconds(self) -> float:
        """Time between the first and the last frame; 0 with one frame."""
        return self.frames[-1].at - self.frames[0].at

    @property
    def scrapes(self) -> int:
        """Good scrapes in the window, both ends included."""
        return len(self.frames)

    def increases(self, field: str) -> dict[str, float]:
        """Increase of a counter by label value ("" where it has none); a series born in the window counts from zero."""
        base, head = self.frames[0], self.frames[-1]
        now = head.table.scalars.get((self.model, field), {})
        then = base.table.scalars.get((self.model, field), {})
        return {label: max(0.0, head.numbers[at] - (base.numbers[then[label]] if label in then else 0.0)) for label, at in now.items()}

    def increase(self, field: str) -> float | None:
        """Increase of a counter, summed over its label; None where the head frame lacks it."""
        parts = self.increases(field)
        return sum(parts.values()) if parts else None

    def histogram(self, field: str) -> HistogramIncrease | None:
        """What the histogram gained; None where it is absent or where its edges changed with the newest frame."""
        if field not in self._histograms:
            self._histograms[field] = self._histogram(field)
        return self._histograms[field]

    def quantile(self, field: str, q: float) -> Quantile | None:
        """The q-quantile of what the histogram gained; several signals ask for the same one."""
        key = (field, q)
        if key not in self._quantiles:
            gained = self.histogram(field)
            self._quantiles[key] = None if gained is None else gained.quantile(q)
        return self._quantiles[key]

    def _histogram(self, field: str) -> HistogramIncrease | None:
        key = (self.model, field)
        head = self.frames[-1]
        columns = head.table.histograms.get(key)
        if columns is None:
            return None
        now = _slice(head, columns)
        base = self._histogram_base(key, columns)
        if base is None:
            return None
        columns_then = base.table.histograms.get(key)
        then = _slice(base, columns_then) if columns_then else (0.0,) * len(now)
        cumulative: list[float] = []
        floor = 0.0
        for a, b in zip(now, then, strict=True):
            floor = max(floor, a - b)  # a bucket read before its predecessor may have gained less: never less than below it
            cumulative.append(floor)
        total = None
        if columns.sum_at >= 0:
            before = base.numbers[columns_then.sum_at] if columns_then and columns_then.sum_at >= 0 else 0.0
            total = max(0.0, head.numbers[columns.sum_at] - before)
        return HistogramIncrease(columns.bounds, tuple(cumulative), total)

    def _histogram_base(self, key: tuple[str, str], columns: HistogramColumns) -> Frame | None:
        """The oldest frame from which a difference makes sense: same edges, or none yet (born at zero)."""
        oldest: Frame | None = None
        same = self.frames[-1].table
        for frame in reversed(self.frames[:-1]):
            if frame.table is not same:
                other = frame.table.histograms.get(key)
                if other is not None and other.bounds != columns.bounds:
                    break
                same = frame.table
            oldest = frame
        return oldest

    def gauge(self, field: str, label: str = "") -> list[tuple[float, float]]:
        """(at, value) of a gauge over the window, oldest first; frames without it are left out."""
        key = (self.model, field)
        found: list[tuple[float, float]] = []
        table: Table | None = None
        position: int | None = None
        for at, table_then, numbers in self.frames:
            if table_then is not table:
                table = table_then
                position = table.scalars.get(key, {}).get(label)
            if position is not None:
                found.append((at, numbers[position]))
        return found


def _slice(frame: Frame, columns: HistogramColumns) -> Sequence[float]:
    return frame.numbers[columns.first : columns.first + len(columns.bounds)]


def frames_within(frames: Sequence[Frame], seconds: float) -> Sequence[Frame]:
    """The frames not older than `seconds` before the newest; always holds the newest."""
    oldest = frames[-1].at - seconds - LATENESS_SECONDS
    first = next(i for i, frame in enumerate(frames) if frame.at >= oldest)
    return frames[first:]
