"""Columns of a frame: where each merged number of a target stands.

An `EngineReading` has slots per data-parallel rank. A `Table` says which slots become one column, and how: sums over ranks, the highest, or
the mean. It is built once per layout and shared by all frames of that shape; windows and the page find numbers through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from llm_exporter.readings import FIELD, Absence, Kind, Layout, Merge, Slot


class HistogramColumns(NamedTuple):
    """Columns of one histogram: `len(bounds)` cumulative counts from `first` on, then the sum at `sum_at` (-1 where it is absent)."""

    bounds: tuple[float, ...]
    first: int
    sum_at: int

    @property
    def count_at(self) -> int:
        """The column of the count: the +inf bucket."""
        return self.first + len(self.bounds) - 1


class Column(NamedTuple):
    """One merged number: the slots that make it and how. `cumulative` numbers only grow between restarts."""

    slots: tuple[Slot, ...]
    merge: Merge
    cumulative: bool


class Table:
    """The columns of frames made from one layout.

    Attributes:
        columns: in order of position.
        scalars: (model, field) → label value ("" where the field has none) → position.
        histograms: (model, field) → its columns.
        ranks: (model, field) → rank → slot, for gauges that are also shown per rank; only with several ranks.
        absent: canonical field → why it is missing, as the engine's table says.
    """

    __slots__ = ("absent", "columns", "histograms", "models", "ranks", "scalars", "sources")

    def __init__(self, layout: Layout) -> None:
        self.columns: list[Column] = []
        self.scalars: dict[tuple[str, str], dict[str, int]] = {}
        self.histograms: dict[tuple[str, str], HistogramColumns] = {}
        self.ranks: dict[tuple[str, str], dict[str, Slot]] = {}
        self.absent: Mapping[str, Absence] = layout.absent
        self.sources = layout.sources
        self.models = layout.models
        scalars: dict[tuple[str, str, str], list[Slot]] = {}
        buckets: dict[tuple[str, str], dict[str, dict[float, Slot]]] = {}
        sums: dict[tuple[str, str], list[Slot]] = {}
        for slot in layout.slots:
            if slot.part == "value":
                scalars.setdefault((slot.model, slot.field, slot.label), []).append(slot)
            elif slot.part == "bucket":
                buckets.setdefault((slot.model, slot.field), {}).setdefault(slot.rank, {})[slot.le] = slot
            else:
                sums.setdefault((slot.model, slot.field), []).append(slot)
        for (model, field, label), slots in scalars.items():
            row = FIELD[field]
            self.scalars.setdefault((model, field), {})[label] = len(self.columns)
            self.columns.append(Column(tuple(slots), row.merge, row.kind is Kind.COUNTER))
            if row.kind is Kind.GAUGE and not row.label and len({slot.rank for slot in slots}) > 1:
                self.ranks[model, field] = {slot.rank: slot for slot in slots}
        for key, by_rank in buckets.items():
            self._add_histogram(key, by_rank, sums.get(key, []))

    def _add_histogram(self, key: tuple[str, str], by_rank: dict[str, dict[float, Slot]], sums: list[Slot]) -> None:
        # Ranks with different edges can only be added where the edges agree: anything else would move counts between buckets.
        common = set.intersection(*(set(edges) for edges in by_rank.values()))
        bounds = tuple(sorted(common))
        first = len(self.columns)
        for bound in bounds:
            self.columns.append(Column(tuple(edges[bound] for edges in by_rank.values()), Merge.SUM, cumulative=True))
        sum_at = -1
        if sums:
            sum_at = len(self.columns)
            self.columns.append(Column(tuple(sums), Merge.SUM, cumulative=True))
        self.histograms[key] = HistogramColumns(bounds, first, sum_at)

    def has(self, model: str, field: str) -> bool:
        """Whether this model's page holds the field."""
        return (model, field) in self.scalars or (model, field) in self.histograms
