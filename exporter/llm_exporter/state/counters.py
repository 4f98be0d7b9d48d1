"""Counters across resets: from readings per rank to merged numbers, published and unwrapped.

*Published* numbers are the engine's own (CONTRACT 6.1): they fall when the server restarts. Where only some ranks restart or vanish, their
last value stays in the sum until all have restarted. *Unwrapped* numbers never fall: a restart counts from zero on top of what was; windows
are differences of them. Called by `store.EngineStore` once per good scrape.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from operator import add
from typing import NamedTuple

from llm_exporter.readings import FIELD, EngineReading, Kind, Layout, Merge, Slot
from llm_exporter.state.table import Table

# A rank has restarted when this share of its counters that stood above zero has fallen. One torn read moves one series, a restart moves
# nearly all; some counters may already have passed their old value after a busy gap, hence not "all".
RESTART_SHARE = 0.5
# Slots of vanished models and ranks that are remembered, in case they come back: those of 320 ranks, the widest known deployment, of a busy
# vLLM. A page that names others each time would fill memory; then those that have been gone longest are forgotten.
VANISHED_MOST = 70_000
# A start time is a float that prometheus_client computes once; a change of less than this is no restart.
START_TIME_TOLERANCE = 1.0


class Merged(NamedTuple):
    """One frame's numbers, a value per column of the table."""

    table: Table
    published: array[float]
    unwrapped: array[float]
    ranks: dict[Slot, float]  # raw gauges per rank, where the table names them


@dataclass(slots=True)
class Changes:
    """What the last reading told about the server."""

    restarted: bool = False
    anomalies: int = 0


class CounterBook:
    """Remembers each rank's counters. One per target and engine; not thread-safe."""

    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._last: list[float] = []  # of that shape; empty where the last reading had another
        self._raw: dict[Slot, float] = {}  # last value of every cumulative slot ever seen, vanished ones too, as of `_remember`
        self._base: dict[Slot, float] = {}  # what unwrapped adds to raw
        self._held: dict[Slot, float] = {}  # what published adds to raw after a partial restart
        self._restarted_ranks: set[str] = set()
        self._start_times: dict[str, float] = {}
        # slots seen before and not in this layout, by their key without rank: a rank that vanished stays in the sums of the others
        self._vanished: dict[Slot, dict[Slot, None]] = {}
        self._gone: dict[Slot, None] = {}  # the same slots, those that have been gone longest first
        self._offsets: tuple[array[float], array[float]] | None = None  # per column, of published and unwrapped numbers; None where 0

    def add(self, reading: EngineReading) -> tuple[Merged, Changes]:
        """Takes one reading; returns its merged numbers and what changed since the one before."""
        changes = Changes(anomalies=sum(reading.anomalies.values()))
        known = self._shape is not None
        shape = self._shape
        if shape is None or reading.layout is not shape.layout:
            self._remember()
            shape = self._change(_Shape(reading.layout))
            self._last = []
            self._offsets = self._sum_offsets(shape)
        renewed = self._renewed(reading, shape)
        if known and self._note_falls(reading, shape, renewed, changes):
            self._offsets = self._sum_offsets(shape)
        self._last = list(reading.values)
        return self._merge(reading.values, shape), changes

    def _remember(self) -> None:
        """Brings `_raw` up to date; between falls and changes of shape, the last reading's values say it all."""
        if self._shape is not None:
            self._raw.update((self._shape.layout.slots[at], self._last[at]) for at in self._shape.cumulative if self._last)

    def _change(self, shape: _Shape) -> _Shape:
        """Takes another layout: what the one before had and this one lacks has vanished. Cost: the slots of these two."""
        before, self._shape = self._shape, shape
        for slot in shape.layout.slots:
            if slot in self._gone:
                self._leave_vanished(slot)
        if before is not None:
            for at in before.cumulative:
                slot = before.layout.slots[at]
                if slot not in shape.layout.index and slot in self._raw:
                    self._gone[slot] = None
                    self._vanished.setdefault(slot._replace(rank=""), {})[slot] = None
        for slot in list(islice(self._gone, max(0, len(self._gone) - VANISHED_MOST))):
            self._leave_vanished(slot)
            for numbers in (self._raw, self._base, self._held):
                numbers.pop(slot, None)
        return shape

    def _leave_vanished(self, slot: Slot) -> None:
        del self._gone[slot]
        key = slot._replace(rank="")
        del self._vanished[key][slot]
        if not self._vanished[key]:
            del self._vanished[key]

    # -- restarts ------------------------------------------------------------------------------------------------------------------

    def _note_falls(self, reading: EngineReading, shape: _Shape, renewed: bool, changes: Changes) -> bool:
        """Whether any counter fell or the process is another one."""
        fallen = self._fallen(reading, shape)
        if not fallen and not renewed:
            return False
        self._remember()
        restarted = self._restarted(shape.layout, fallen) if fallen else set()
        if renewed:  # the process behind the page is another one: all its ranks count from zero
            restarted = set(shape.layout.ranks)
        for slot, value in fallen.items():
            if slot.rank in restarted:
                continue
            before = self._raw[slot]
            # no restart: a torn read (small dip, stays flat) or a series that was dropped and born again (counts from zero)
            self._base[slot] = self._base.get(slot, 0.0) + (before - value if value > before / 2 else before)
            if slot.part == "value" or slot.le == float("inf"):
                changes.anomalies += 1
        if restarted:
            changes.restarted = True
            self._restart(shape, restarted)
        return True

    def _fallen(self, reading: EngineReading, shape: _Shape) -> dict[Slot, float]:
        slots, values = shape.layout.slots, reading.values
        if self._last:  # the same layout as before: compare by position
            last = self._last
            return {slots[at]: values[at] for at in shape.cumulative if values[at] < last[at]}
        raw = self._raw
        return {slots[at]: values[at] for at in shape.cumulative if values[at] < raw.get(slots[at], 0.0)}

    def _restarted(self, layout: Layout, fallen: dict[Slot, float]) -> set[str]:
        stood: dict[str, int] = {}
        fell: dict[str, int] = {}
        for slot in layout.slots:
            # buckets would outvote everything else; a histogram is heard once, by its count
            if (slot.part == "bucket" and slot.le != float("inf")) or self._raw.get(slot, 0.0) <= 0.0:
                continue
            stood[slot.rank] = stood.get(slot.rank, 0) + 1
            fell[slot.rank] = fell.get(slot.rank, 0) + (slot in fallen)
        return {rank for rank, n in stood.items() if fell[rank] and fell[rank] >= RESTART_SHARE * n}

    def _renewed(self, reading: EngineReading, shape: _Shape) -> bool:
        """Whether another process answers than the one before."""
        renewed = False
        for at in shape.start_times:
            rank, value = shape.layout.slots[at].rank, reading.values[at]
            before = self._start_times.get(rank)
            self._start_times[rank] = value
            renewed |= before is not None and abs(value - before) > START_TIME_TOLERANCE
        return renewed

    def _restart(self, shape: _Shape, ranks: set[str]) -> None:
        for slot, value in self._raw.items():
            if slot.rank in ranks:
                self._base[slot] = self._base.get(slot, 0.0) + value
                self._held[slot] = self._held.get(slot, 0.0) + value
                self._raw[slot] = 0.0
        self._restarted_ranks |= ranks
        if self._restarted_ranks >= shape.counting_ranks:
            # all have restarted: the sum is the engines' own again, and ranks that left for good leave it
            self._held.clear()
            self._restarted_ranks.clear()
            for slot, value in self._raw.items():
                if slot not in shape.layout.index and value:
                    self._base[slot] = self._base.get(slot, 0.0) + value
                    self._raw[slot] = 0.0

    # -- merging -------------------------------------------------------------------------------------------------------------------

    def _merge(self, values: Sequence[float], shape: _Shape) -> Merged:
        numbers = array("d", [values[places[0]] if len(places) == 1 else _merged(merge, values, places) for places, merge in shape.places])
        ranks = {slot: values[shape.layout.index[slot]] for by_rank in shape.table.ranks.values() for slot in by_rank.values()}
        if self._offsets is None:
            return Merged(shape.table, numbers, numbers, ranks)
        published, unwrapped = (array("d", map(add, numbers, offsets)) for offsets in self._offsets)
        return Merged(shape.table, published, unwrapped, ranks)

    def _sum_offsets(self, shape: _Shape) -> tuple[array[float], array[float]] | None:
        """What restarts and vanished ranks add to each column until the next fall; None where nothing does."""
        if not self._base and not self._held and not self._vanished:
            return None
        published, unwrapped = array("d"), array("d")
        for column in shape.table.columns:
            held = base = 0.0
            if column.cumulative:
                for slot in column.slots:
                    held += self._held.get(slot, 0.0)
                    base += self._base.get(slot, 0.0)
                for slot in self._vanished.get(column.slots[0]._replace(rank=""), ()):
                    held += self._raw[slot] + self._held.get(slot, 0.0)
                    base += self._raw[slot] + self._base.get(slot, 0.0)
            published.append(held)
            unwrapped.append(base)
        return published, unwrapped


class _Shape:
    """What is worked out once per layout.

    Attributes:
        cumulative: positions of the slots that only grow between restarts.
        start_times: positions of process start times.
        counting_ranks: ranks that have such slots; a rank that counts nothing cannot be seen to restart.
        places: per column of the table, the positions of its slots and how to merge them.
    """

    __slots__ = ("counting_ranks", "cumulative", "layout", "places", "start_times", "table")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.table = Table(layout)
        slots = layout.slots
        self.cumulative = [at for at, slot in enumerate(slots) if slot.part != "value" or FIELD[slot.field].kind is Kind.COUNTER]
        self.start_times = [at for at, slot in enumerate(slots) if slot.field == "process_start_time"]
        self.counting_ranks = {slots[at].rank for at in self.cumulative}
        self.places = [(tuple(layout.index[slot] for slot in column.slots), column.merge) for column in self.table.columns]


def _merged(merge: Merge, values: Sequence[float], places: Sequence[int]) -> float:
    parts = [values[at] for at in places]
    if merge is Merge.SUM:
        return sum(parts)
    return sum(parts) / len(parts) if merge is Merge.MEAN else max(parts)
