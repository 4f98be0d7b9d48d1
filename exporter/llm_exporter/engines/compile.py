"""Shape + table → `Draft`: every number of a reading as sums of page positions, and why the missing fields are missing.

Ranks are merged here as far as they repeat one number (tensor, pipeline, expert and context parallel ranks, processes): the highest
counts. Data-parallel ranks stay apart as slots. Everything else that splits a series (streaming, custom labels) is summed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from llm_exporter.engines.facts import Entry, Facts, Key
from llm_exporter.engines.tables import Choice, EngineTable, Part, Row, Source
from llm_exporter.readings import FIELD, FIELDS, Absence, Kind, Merge, Slot
from llm_exporter.sources.exposition import Shape

Group = tuple[int, ...]
"""Positions of series that repeat one number; the highest counts."""


VALUES_MOST = 64
"""Values of an upstream label that are taken over where their set is open (reasons of rejection); further ones count as `other`."""


class Number(NamedTuple):
    """How one slot's value is made: scale × (sum of `plus` − sum of `minus`) + constant, each group counting once."""

    plus: tuple[Group, ...]
    minus: tuple[Group, ...] = ()
    scale: float = 1.0
    constant: float = 0.0

    @property
    def direct(self) -> int | None:
        """The position, where the value is simply that of one series."""
        if len(self.plus) == 1 and len(self.plus[0]) == 1 and not self.minus and self.scale == 1.0 and not self.constant:
            return self.plus[0][0]
        return None


class Draft(NamedTuple):
    """All numbers of a reading before they are put in order. Slots of one histogram follow each other, buckets ascending, sum last."""

    numbers: dict[Slot, Number]
    sources: dict[str, tuple[str, ...]]
    absent: dict[str, Absence]


def compile_shape(shape: Shape, table: EngineTable) -> Draft:
    """Read a page's shape against a table."""
    facts = Facts(shape, table)
    rows = {row.field: row for row in table.rows}
    draft = Draft({}, {}, {})
    for field in FIELDS:
        row = rows.get(field.name, Row(field.name))
        for choice in row.choices:
            numbers, names = _numbers(row, choice, facts)
            if numbers:
                draft.numbers.update(numbers)
                draft.sources[field.name] = names
                break
        else:
            draft.absent[field.name] = absence(row, facts)
    return draft


def absence(row: Row, facts: Facts) -> Absence:
    """Why a page lacks a field."""
    special = row.absent(facts) if row.absent else None
    if special is not None:
        return special
    oldest = min((choice.oldest for choice in row.choices), default=None)
    if oldest is None or oldest > facts.generation or (row.possible and not row.possible(facts)):
        return Absence.NOT_SUPPORTED
    needed = [source for choice in row.choices for source in choice.sources if not source.optional]
    if any(facts.chosen(source.name + "_bucket", source.where) for source in needed):
        return Absence.NOT_EXPOSED  # a histogram without its count
    if any(source.name in facts.present for source in needed):
        return Absence.NO_TRAFFIC
    if row.flag:
        return Absence.FEATURE_OFF
    if row.born_with and not any(name in facts.present for name in row.born_with):
        return Absence.NO_TRAFFIC
    return Absence.NOT_EXPOSED


def _numbers(row: Row, choice: Choice, facts: Facts) -> tuple[dict[Slot, Number], tuple[str, ...]]:
    """Slots of a field by one choice, and the upstream names used; empty where the choice does not fit the page."""
    if choice.needs and not choice.needs(facts):
        return {}, ()
    if choice.constants:
        given = choice.constants(facts)
        return {Slot(row.field, key.model, key.rank, ""): Number((), constant=value) for key, value in given.items()}, _used(choice, facts)
    scale = choice.scale(facts) if choice.scale else 1.0
    if scale is None:
        return {}, ()
    if FIELD[row.field].kind is Kind.HISTOGRAM:
        return _histograms(row.field, choice.parts[0], facts), _used(choice, facts)
    numbers: dict[Slot, Number] = {}
    for part in choice.parts:
        numbers.update(_part(row.field, part, facts, scale))
    owners = [Key(slot.model, slot.rank) for slot in numbers]
    if facts.generation >= choice.oldest:
        ranked = {bool(key.rank) for key in owners}
        owners += [key for key in facts.keys(choice.zero_with) if not ranked or bool(key.rank) in ranked]
    labels = choice.seed or (() if FIELD[row.field].label else ("",))
    for key in dict.fromkeys(owners):
        for label in labels:
            numbers.setdefault(Slot(row.field, key.model, key.rank, label), Number(()))
    return numbers, _used(choice, facts)


def _used(choice: Choice, facts: Facts) -> tuple[str, ...]:
    """Names as the page spells them; those of series that are known and not born yet as the documentation does."""
    names: dict[str, None] = {}
    for source in choice.sources:
        spelled = [facts.entries[name][0].name for name in _sample_names(source.name) if name in facts.entries]
        if spelled:
            name = spelled[0].removesuffix("_bucket") if source.name not in facts.entries else spelled[0]
            names[name] = None
        elif not source.optional:
            names[facts.table.upstream(source.name)] = None
    return tuple(names)


def _sample_names(name: str) -> tuple[str, ...]:
    return name, name + "_bucket"


def _part(field: str, part: Part, facts: Facts, scale: float) -> dict[Slot, Number]:
    """Slots of one part: plus and minus are matched by model, rank and label."""
    plus: dict[tuple[Key, str], list[Group]] = {}
    minus: dict[tuple[Key, str], list[Group]] = {}
    for source in part.plus:
        found = _grouped(field, source, part.label, facts)
        if not found and not source.optional:
            return {}
        for owner, groups in found.items():
            plus.setdefault(owner, []).extend(groups)
    for source in part.minus:
        for owner, groups in _grouped(field, source, part.label, facts).items():
            minus.setdefault(owner, []).extend(groups)
        if not source.optional and source.name not in facts.entries:
            return {}
    return {
        Slot(field, key.model, key.rank, label): Number(tuple(groups), tuple(minus.get((key, label), ())), scale)
        for (key, label), groups in plus.items()
    }


def _grouped(field: str, source: Source, label: str, facts: Facts) -> dict[tuple[Key, str], list[Group]]:
    """Series of a source by owner and slot label, those that repeat one number in one group."""
    found: dict[tuple[Key, str], list[Entry]] = {}
    seen: set[str] = set()
    for entry in facts.chosen(source.name, source.where):
        ours = label
        if source.label:
            theirs = entry.labels.get(source.label, "")
            ours = theirs if source.rename is None else source.rename.get(theirs, source.other)
            if not ours:
                continue
            if len(seen) < VALUES_MOST:
                seen.add(ours)
            elif ours not in seen:
                ours = "other"
        found.setdefault((entry.key, ours), []).append(entry)
    highest = FIELD[field].merge is not Merge.SUM
    return {owner: _groups(entries, facts.table, highest=highest) for owner, entries in found.items()}


def _groups(entries: Iterable[Entry], table: EngineTable, *, highest: bool) -> list[Group]:
    """Series of one owner in groups that count once. A ratio or constant is never summed: then all are one group."""
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for entry in entries:
        apart = () if highest else tuple(pair for pair in entry.labels.items() if pair[0] not in table.repeated)
        groups.setdefault(apart, []).append(entry.position)
    return [tuple(positions) for positions in groups.values()]


def _histograms(field: str, part: Part, facts: Facts) -> dict[Slot, Number]:
    """Slots of one histogram per model and rank. Members with unlike bounds are summed at the bounds that all of them have."""
    source = part.plus[0]
    buckets: dict[Key, dict[float, list[Entry]]] = {}
    for entry in facts.chosen(source.name + "_bucket", source.where):
        bound = _bound(entry.labels.get("le", ""))
        if bound is not None:
            buckets.setdefault(entry.key, {}).setdefault(bound, []).append(entry)
    counts = _by_key(facts.chosen(source.name + "_count", source.where))
    sums = _by_key(facts.chosen(source.name + "_sum", source.where))
    numbers: dict[Slot, Number] = {}
    for key, by_bound in buckets.items():
        if float("inf") not in by_bound:
            if key not in counts:
                continue
            by_bound[float("inf")] = counts[key]
        members = {bound: {_member(entry) for entry in entries} for bound, entries in by_bound.items()}
        everyone = set().union(*members.values())
        for bound in sorted(by_bound):
            if members[bound] == everyone:
                groups = _groups([_without_le(entry) for entry in by_bound[bound]], facts.table, highest=False)
                numbers[Slot(field, key.model, key.rank, "", "bucket", bound)] = Number(tuple(groups))
        if key in sums:
            groups = _groups(sums[key], facts.table, highest=False)
            numbers[Slot(field, key.model, key.rank, "", "sum")] = Number(tuple(groups))
    return numbers


def _by_key(entries: Iterable[Entry]) -> dict[Key, list[Entry]]:
    found: dict[Key, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.key, []).append(entry)
    return found


def _bound(text: str) -> float | None:
    """Bound of a bucket as a number: "1", "1.0" and "1e+00" are one bound. None where it is none: times and lengths are never negative."""
    try:
        bound = float(text)
    except ValueError:
        return None
    return bound if bound >= 0.0 else None  # NaN is not either


def _member(entry: Entry) -> Mapping[str, str] | tuple[tuple[str, str], ...]:
    """Which histogram a bucket belongs to: its labels without the bound."""
    return tuple(pair for pair in sorted(entry.labels.items()) if pair[0] != "le")


def _without_le(entry: Entry) -> Entry:
    return entry._replace(labels={name: value for name, value in entry.labels.items() if name != "le"})
