"""A page's shape, sorted for look-ups by one engine's table: names in one spelling, model and rank of each series, release shown.

Built once per shape by `compile.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from llm_exporter.engines.tables import EngineTable, Release, Source, release
from llm_exporter.sources.exposition import Shape

UNKNOWN: Release = (9999,)
"""Generation of a page of which no name is known: it can only be newer than this table."""

MODELS_MOST = 64
RANKS_MOST = 512
"""Models of one server, and data-parallel ranks of one model, that are read; each costs hundreds of our series. The widest known
deployments have 320 ranks. What a page names beyond that is rubbish (or an attack), and is counted as anomaly `too_many`."""

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")


class Key(NamedTuple):
    """Model and data-parallel rank that a series belongs to."""

    model: str
    rank: str


class Entry(NamedTuple):
    """One series of a page: its position in the values, its owner, its labels."""

    position: int
    name: str
    key: Key
    labels: Mapping[str, str]


class Facts:
    """What a page has, in the words of one table.

    Attributes:
        entries: table name (":x" for the engine's own, in either spelling) → its series.
        helps: table name → HELP text.
        present: every table name that has samples or a TYPE line, histograms without their suffix too.
        models: model names on the page, in order.
        ranks: whether any series names a data-parallel rank.
        generation: newest release whose names are on the page; the server is at least that new.
    """

    def __init__(self, shape: Shape, table: EngineTable) -> None:
        self.table = table
        self.models = tuple(dict.fromkeys(value for series in shape.series for name, value in series.labels if name == table.model_label))
        self.entries: dict[str, list[Entry]] = {}
        self.ranks = False
        for position, series in enumerate(shape.series):
            labels = dict(series.labels)
            self.ranks = self.ranks or table.rank_label in labels
            key = Key(labels.get(table.model_label, self.sole_model), labels.get(table.rank_label, ""))
            self.entries.setdefault(table.word(series.name), []).append(Entry(position, series.name, key, labels))
        self.helps = {table.word(name): text for name, text in shape.helps.items()}
        self.present = set(self.entries)
        for name in self.entries:
            self.present.update(name.removesuffix(suffix) for suffix in HISTOGRAM_SUFFIXES if name.endswith(suffix))
        for name, kind in shape.types.items():
            word = table.word(name)
            self.present.add(word)
            if kind == "counter" and not word.endswith("_total"):  # OpenMetrics names the family without it
                self.present.add(word + "_total")
        self.generation = self._generation()

    @property
    def sole_model(self) -> str:
        """Model of series that name none: the page's only model, else unknown."""
        return self.models[0] if len(self.models) == 1 else ""

    def chosen(self, name: str, where: Mapping[str, frozenset[str]]) -> list[Entry]:
        """Series of that name that count: parts of a total left out, selected by labels that the name has."""
        entries = self.entries.get(name, [])
        for label, total in self.table.totals.items():
            found = {entry.labels.get(label, "") for entry in entries}
            if total in found and len(found) > 1:
                entries = [entry for entry in entries if entry.labels.get(label, "") == total]
        for label, wanted in where.items():
            if any(label in entry.labels for entry in entries):
                entries = [entry for entry in entries if entry.labels.get(label) in wanted]
        return entries

    def label_values(self, label: str) -> set[str]:
        """Values that a label has anywhere on the page."""
        return {entry.labels[label] for entries in self.entries.values() for entry in entries if label in entry.labels}

    def keys(self, names: Iterable[str]) -> list[Key]:
        """Owners of the first of these names that is on the page; a family without samples belongs to the page's model."""
        for name in names:
            if name in self.entries:
                return list(dict.fromkeys(entry.key for entry in self.entries[name]))
            if name in self.present:
                return [Key(self.sole_model, "")]
        return []

    def _generation(self) -> Release:
        seen = [release(since) for name, since in self.table.markers.items() if name in self.present]
        seen += [release(source.since) for source in all_sources(self.table) if source.name in self.present and source.since]
        return max(seen, default=UNKNOWN)


class Concerning(NamedTuple):
    """The part of a page that its table can use: as a shape of its own, where its series stand on the page, and how many were too many."""

    shape: Shape
    positions: list[int]
    left_out: int


def concerning(shape: Shape, table: EngineTable) -> Concerning:
    """The part of a page that its table can use; bounded, whatever the page holds.

    A page may change for ever in what does not concern us (lists of LoRA adapters in labels); this part then stays the same.
    """
    words = _used_words(table)
    named = {series.name for series in shape.series}
    wanted = {name for name in named if table.word(name) in words}
    usable = [position for position, series in enumerate(shape.series) if series.name in wanted]
    at = _within_bounds(shape, usable, table)
    types = {name: kind for name, kind in shape.types.items() if not words.isdisjoint((table.word(name), table.word(name) + "_total"))}
    for name in sorted(named | shape.types.keys()):
        if table.word(name) in table.markers:
            types.setdefault(name, "untyped")
    helps = {name: text for name, text in shape.helps.items() if name in types or table.word(name) in words}
    return Concerning(Shape(tuple(shape.series[position] for position in at), types, helps), at, len(usable) - len(at))


def _within_bounds(shape: Shape, usable: list[int], table: EngineTable) -> list[int]:
    """Positions without those of the models and ranks that come after as many as are read, in the page's order."""
    kept: dict[str, set[str]] = {}
    found: list[int] = []
    for position in usable:
        model = rank = ""
        for name, value in shape.series[position].labels:
            if name == table.model_label:
                model = value
            elif name == table.rank_label:
                rank = value
        ranks = kept.get(model)
        if ranks is None:
            if len(kept) > MODELS_MOST:  # one more: series that name no model stand for themselves
                continue
            ranks = kept[model] = set()
        if rank not in ranks:
            if len(ranks) > RANKS_MOST:
                continue
            ranks.add(rank)
        found.append(position)
    return found


@cache
def _used_words(table: EngineTable) -> frozenset[str]:
    """Every name that a table asks for."""
    names = {source.name for source in all_sources(table)}
    for row in table.rows:
        names.update(row.born_with)
        for choice in row.choices:
            names.update(choice.zero_with)
    return frozenset(name + suffix for name in names for suffix in ("", *HISTOGRAM_SUFFIXES))


@cache
def all_sources(table: EngineTable) -> tuple[Source, ...]:
    """Every source of a table."""
    return tuple(source for row in table.rows for choice in row.choices for source in choice.sources)
