"""Time as the review sees it: an even grid of windows in UTC, with the local hour and day of each.

In: start, end, step, time zone. Out: `Grid`, passed to every analysis. A window is named by its end: value i belongs to (t[i] − step,
t[i]]. Local hour and day are those of the window's start, so a night with 23 or 25 hours has 23 or 25 hours of windows, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

HOURS_OF_WEEK = 168


@dataclass(frozen=True)
class Grid:
    """Windows of equal length.

    Attributes:
        start: unix time at which the first window begins.
        count: number of windows.
        step: length of a window, seconds.
        zone: time zone of the reader.
    """

    start: int
    count: int
    step: int
    zone: tzinfo = field(default=UTC)

    @property
    def end(self) -> int:
        """Unix time at which the last window ends."""
        return self.start + self.count * self.step

    @cached_property
    def times(self) -> Ints:
        """Ends of the windows, unix seconds, shape (count,)."""
        return self.start + self.step * np.arange(1, self.count + 1, dtype=np.int64)

    @cached_property
    def _local(self) -> tuple[Ints, Ints]:
        hour_of_week = np.empty(self.count, dtype=np.int64)
        day = np.empty(self.count, dtype=np.int64)
        for index in range(self.count):
            moment = datetime.fromtimestamp(self.start + index * self.step, self.zone)
            hour_of_week[index] = moment.weekday() * 24 + moment.hour
            day[index] = moment.toordinal()
        return hour_of_week, day

    @property
    def hour_of_week(self) -> Ints:
        """0 is Monday 00:00 to 01:00 local, 167 the last hour of Sunday."""
        return self._local[0]

    @property
    def day(self) -> Ints:
        """Local calendar day of each window, as a proleptic ordinal."""
        return self._local[1]

    @property
    def weekday(self) -> Ints:
        """0 is Monday."""
        return self.hour_of_week // 24

    def within(self, start: int, end: int) -> Bools:
        """Which windows lie wholly in [start, end]."""
        times = self.times
        return (times - self.step >= start) & (times <= end)

    def position(self, at: Ints) -> Ints:
        """Index of the window that ends at each of these times; values outside are negative or ≥ count."""
        return (at - self.start) // self.step - 1


def stamp(at: float) -> str:
    """RFC 3339 in UTC, to the second: 2026-11-23T07:00:00Z."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def local(at: float, zone: tzinfo) -> str:
    """For people: Mon 23 Nov 08:00."""
    return datetime.fromtimestamp(at, zone).strftime("%a %d %b %H:%M")
