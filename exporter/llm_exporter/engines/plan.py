"""Draft → `Plan`: the numbers of a reading in order, as one gather and a few sums over the values of a page.

`normalise.py` builds one per kind of page and uses it for every page of that kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

from llm_exporter.engines.compile import Draft, Group, Number
from llm_exporter.readings import FIELD, Absence, Layout, Slot
from llm_exporter.sources.exposition import Series


class Plan(NamedTuple):
    """What to do with the values of the series that concern us.

    Attributes:
        engine: whose page it is.
        layout: of the readings.
        gather: values (the page's, then constants) → one per slot, right where the slot is one series.
        inputs: values → all that are used, for the check.
        constants: behind the page's values.
        sums: (slot position, number) of the slots that are made of several series.
        histograms: [start, stop) of the buckets of each histogram.
        draft: where it came from.
        series: those that concern us, in the page's order.
        without: the plans that leave out given positions, because impossible values stood there.
    """

    engine: str
    layout: Layout
    gather: Callable[[Sequence[float]], tuple[float, ...]]
    inputs: Callable[[Sequence[float]], tuple[float, ...]]
    constants: list[float]
    sums: tuple[tuple[int, Number], ...]
    histograms: tuple[tuple[int, int], ...]
    draft: Draft
    series: tuple[Series, ...]
    without: dict[frozenset[int], Plan]


def build_plan(engine: str, draft: Draft, series: tuple[Series, ...], layout: Layout) -> Plan:
    """Put the numbers of a draft in the order of the layout's slots."""
    constants: list[float] = []
    places: list[int] = []
    sums: list[tuple[int, Number]] = []
    for at, number in enumerate(draft.numbers.values()):
        position = number.direct
        if position is None:
            position = len(series) + len(constants)
            constants.append(number.constant)
            if number.plus or number.minus:
                sums.append((at, number))
        places.append(position)
    runs = _bucket_runs(layout.slots)
    return Plan(engine, layout, getter(places), getter(positions(draft)), constants, tuple(sums), runs, draft, series, {})


def positions(draft: Draft) -> list[int]:
    """Every position of the page that is used, once."""
    return list(dict.fromkeys(at for number in draft.numbers.values() for group in number.plus + number.minus for at in group))


def getter(positions: Sequence[int]) -> Callable[[Sequence[float]], tuple[float, ...]]:
    """A fast gather that always answers a tuple."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: tuple(values[at] for at in positions)


def _bucket_runs(slots: Sequence[Slot]) -> tuple[tuple[int, int], ...]:
    """Where the buckets of each histogram stand."""
    runs: list[tuple[int, int]] = []
    for at, slot in enumerate(slots):
        if slot.part != "bucket":
            continue
        before = slots[at - 1] if at else None
        if runs and before is not None and before.part == "bucket" and before[:4] == slot[:4]:
            runs[-1] = runs[-1][0], at + 1
        else:
            runs.append((at, at + 1))
    return tuple(runs)


def excluded(draft: Draft, bad: frozenset[int]) -> Draft:
    """The draft without impossible values: repeated ranks are left to the good ones, else the field goes for that model and rank."""
    numbers: dict[Slot, Number] = {}
    lost: set[tuple[str, str, str]] = set()
    for slot, number in draft.numbers.items():
        plus = _good_groups(number.plus, bad)
        minus = _good_groups(number.minus, bad)
        if all(plus) and all(minus):
            numbers[slot] = number._replace(plus=plus, minus=minus)
        else:
            lost.add((slot.field, slot.model, slot.rank))
    numbers = {slot: number for slot, number in numbers.items() if (slot.field, slot.model, slot.rank) not in lost}
    left = {slot.field for slot in numbers}
    absent = {name: draft.absent.get(name, Absence.NOT_EXPOSED) for name in FIELD if name not in left}
    return Draft(numbers, {name: names for name, names in draft.sources.items() if name in left}, absent)


def _good_groups(groups: tuple[Group, ...], bad: frozenset[int]) -> tuple[Group, ...]:
    return tuple(tuple(at for at in group if at not in bad) for group in groups)
