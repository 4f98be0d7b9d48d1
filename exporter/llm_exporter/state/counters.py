"""Counters across resets: from readings per rank to merged numbers, published and unwrapped.

*Published* numbers are the engine's own (CONTRACT 6.1): they fall when the server restarts. Where only some ranks restart or vanish, their
last value stays in the sum until all have restarted. *Unwrapped* numbers never fall: a restart counts from zero on top of what was; windows
are differences of them. Called by `store.EngineStore` once per good scrape.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

from llm_exporter.readings import FIELD, EngineReading, Kind, Layout, Merge, Slot
from llm_exporter.state.table import Table

# A rank has restarted when this share of its counters that stood above zero has fallen. One torn read moves one series, a restart moves
# nearly all; some counters may already have passed their old value after a busy gap, hence not "all".
RESTART_SHARE = 0.5
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
        self._layout: Layout | None = None
        self._table: Table | None = None
        self._cumulative: list[bool] = []
        self._raw: dict[Slot, float] = {}  # last value of every cumulative slot ever seen, vanished ones too
        self._base: dict[Slot, float] = {}  # what unwrapped adds to raw
        self._held: dict[Slot, float] = {}  # what published adds to raw after a partial restart
        self._restarted_ranks: set[str] = set()
        self._start_times: dict[str, float] = {}
        self._last: list[float] = []
        self._positions: list[int] | None = None  # of each column's one slot, where every column has one
        self._ghosts: dict[Slot, list[Slot]] = {}

    def add(self, reading: EngineReading) -> tuple[Merged, Changes]:
        """Takes one reading; returns its merged numbers and what changed since the one before."""
        changes = Changes(anomalies=sum(reading.anomalies.values()))
        known = self._layout is not None
        if reading.layout is not self._layout:
            self._layout = reading.layout
            self._table = Table(reading.layout)
            self._cumulative = [slot.part != "value" or FIELD[slot.field].kind is Kind.COUNTER for slot in reading.layout.slots]
            self._last = []
            columns = self._table.columns
            single = all(len(column.slots) == 1 for column in columns)
            self._positions = [reading.layout.index[column.slots[0]] for column in columns] if single else None
            self._ghosts = self._vanished(reading.layout)
        renewed = self._renewed(reading)
        if known:
            self._note_falls(reading, renewed, changes)
        raw = self._raw
        for slot, cumulative, value in zip(reading.layout.slots, self._cumulative, reading.values, strict=True):
            if cumulative:
                raw[slot] = value
        self._last = list(reading.values)
        return self._merge(reading), changes

    # -- restarts ------------------------------------------------------------------------------------------------------------------

    def _note_falls(self, reading: EngineReading, renewed: bool, changes: Changes) -> None:
        fallen = self._fallen(reading)
        if not fallen and not renewed:
            return
        restarted = self._restarted(reading.layout, fallen) if fallen else set()
        if renewed:  # the process behind the page is another one: all its ranks count from zero
            restarted = set(reading.layout.ranks)
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
            self._restart(reading.layout, restarted)

    def _fallen(self, reading: EngineReading) -> dict[Slot, float]:
        slots = reading.layout.slots
        if self._last:  # the same layout as before: compare by position
            return {
                slots[i]: value
                for i, (value, before) in enumerate(zip(reading.values, self._last, strict=True))
                if value < before and self._cumulative[i]
            }
        raw = self._raw
        return {
            slot: value
            for slot, cumulative, value in zip(slots, self._cumulative, reading.values, strict=True)
            if cumulative and value < raw.get(slot, 0.0)
        }

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

    def _renewed(self, reading: EngineReading) -> bool:
        """Whether another process answers than the one before."""
        renewed = False
        for slot, value in zip(reading.layout.slots, reading.values, strict=True):
            if slot.field == "process_start_time":
                before = self._start_times.get(slot.rank)
                self._start_times[slot.rank] = value
                renewed |= before is not None and abs(value - before) > START_TIME_TOLERANCE
        return renewed

    def _restart(self, layout: Layout, ranks: set[str]) -> None:
        for slot, value in self._raw.items():
            if slot.rank in ranks:
                self._base[slot] = self._base.get(slot, 0.0) + value
                self._held[slot] = self._held.get(slot, 0.0) + value
                self._raw[slot] = 0.0
        self._restarted_ranks |= ranks
        if self._restarted_ranks >= set(layout.ranks):
            # all have restarted: the sum is the engines' own again, and ranks that left for good leave it
            self._held.clear()
            self._restarted_ranks.clear()
            for slot, value in self._raw.items():
                if slot not in layout.index and value:
                    self._base[slot] = self._base.get(slot, 0.0) + value
                    self._raw[slot] = 0.0

    # -- merging -------------------------------------------------------------------------------------------------------------------

    def _merge(self, reading: EngineReading) -> Merged:
        table, values, index = self._table, reading.values, reading.layout.index
        assert table is not None
        if self._positions is not None and not self._base and not self._held and not self._ghosts:
            numbers = array("d", [values[position] for position in self._positions])
            return Merged(table, numbers, numbers, {})
        published, unwrapped = array("d"), array("d")
        for column in table.columns:
            parts = [values[index[slot]] for slot in column.slots]
            if column.merge is Merge.SUM:
                total = flat = sum(parts)
            elif column.merge is Merge.MEAN:
                total = flat = sum(parts) / len(parts)
            else:
                total = flat = max(parts)
            if column.cumulative:
                for slot in column.slots:
                    total += self._held.get(slot, 0.0)
                    flat += self._base.get(slot, 0.0)
                for slot in self._ghosts.get(column.slots[0]._replace(rank=""), ()):
                    total += self._raw[slot] + self._held.get(slot, 0.0)
                    flat += self._raw[slot] + self._base.get(slot, 0.0)
            published.append(total)
            unwrapped.append(flat)
        ranks = {slot: values[index[slot]] for by_rank in table.ranks.values() for slot in by_rank.values()}
        return Merged(table, published, unwrapped, ranks)

    def _vanished(self, layout: Layout) -> dict[Slot, list[Slot]]:
        """Slots seen before and not in this layout, by their key without rank: a rank that vanished stays in the sums of the others."""
        found: dict[Slot, list[Slot]] = {}
        for slot in self._raw:
            if slot not in layout.index:
                found.setdefault(slot._replace(rank=""), []).append(slot)
        return found
