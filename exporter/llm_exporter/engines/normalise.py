"""Page → `EngineReading`: which engine it is, and its numbers in canonical words.

What a page's shape allows is worked out once (`compile.py`) and kept on the shape; a further page of that shape costs one gather of
its values, a few sums and the check for impossible input. `sources/engine.py`'s callers and `replay` use one `Normaliser` per target.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from llm_exporter.engines import sglang, vllm
from llm_exporter.engines.compile import Draft, Group, Number, compile_shape
from llm_exporter.engines.tables import EngineTable
from llm_exporter.readings import FIELD, Absence, EngineReading, Layout, Slot
from llm_exporter.sources.exposition import Page, Series, Shape

TABLES: Mapping[str, EngineTable] = {table.engine: table for table in (vllm.TABLE, sglang.TABLE)}

KEPT_LAYOUTS = 8
"""Layouts remembered per target, so that a series that does not concern us (a LoRA list) leaves the layout as it was."""

KEPT_EXCLUSIONS = 8
"""Plans remembered per shape for pages with the same impossible values."""


def detect(shape: Shape) -> str | None:
    """Engine whose metric names are on the page, by samples or by TYPE lines; None where there are none."""
    seen = _engine_names(shape)
    return seen.most_common(1)[0][0] if seen else None


def _engine_names(shape: Shape) -> Counter[str]:
    """How many names of each engine are on the page."""
    seen: Counter[str] = Counter()
    for name in chain((series.name for series in shape.series), shape.types):
        for table in TABLES.values():
            prefix = table.prefix
            if name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in (":", "_"):
                seen[table.engine] += 1
    return seen


def missing_engine_hint(shape: Shape) -> str:
    """What an operator can do about a good page without an engine's metrics (reason no_engine_metrics)."""
    other = detect(shape)
    if other:
        return f"the page is {other}'s: correct the key engine of the target"
    names = {series.name for series in shape.series} | set(shape.types)
    if any(name.startswith(("smg_", "sgl_router_", "vllm_router")) for name in names):
        return "this is a router's page: give the addresses of the engines behind it"
    if not names:
        return f"the page is empty: the engine may still be starting. {sglang.TABLE.hint}"
    handlers = {
        value for series in shape.series if series.name == "http_requests_total" for label, value in series.labels if label == "handler"
    }
    if handlers or "http_request_duration_highr_seconds" in names:
        return vllm.TABLE.hint
    return f"{vllm.TABLE.hint}; {sglang.TABLE.hint}; or another service answers here"


class Plan(NamedTuple):
    """What to do with the values of one shape.

    Attributes:
        engine: whose page it is.
        layout: of the readings.
        gather: values (page's, then constants) → one per slot, right where the slot is one series.
        inputs: values → all that are used, for the check.
        extra: constants behind the page's values.
        sums: (slot position, number) of the slots that are made of several series.
        histograms: [start, stop) of the buckets of each histogram.
        draft: where it came from.
        width: number of series of the page.
        without: the plans that leave out given positions.
    """

    engine: str
    layout: Layout
    gather: Callable[[Sequence[float]], tuple[float, ...]]
    inputs: Callable[[Sequence[float]], tuple[float, ...]]
    extra: list[float]
    sums: tuple[tuple[int, Number], ...]
    histograms: tuple[tuple[int, int], ...]
    draft: Draft
    width: int
    without: dict[frozenset[int], Plan]


class Normaliser:
    """Reads the pages of one target.

    Args:
        engine: "vllm" or "sglang" where the configuration says so; "auto" looks at each page.
    """

    def __init__(self, engine: str = "auto") -> None:
        self._engine = engine
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._held: dict[Slot, tuple[float, float]] = {}

    def read(self, page: Page, now_unix: float | None = None) -> EngineReading | None:
        """One page in canonical words; None where it has no engine's metrics.

        Args:
            page: as parsed.
            now_unix: wall time in seconds, for the age of pages with timestamps.
        """
        plan = self._plan(page.shape)
        if plan is None:
            return None
        values = page.values + plan.extra
        anomalies: Counter[str] = Counter()
        inputs = plan.inputs(values)
        if not math.isfinite(sum(inputs)) or min(inputs, default=0.0) < 0.0:
            bad = frozenset(at for at in _positions(plan.draft) if not 0.0 <= values[at] < math.inf)
            anomalies["negative"] = sum(values[at] < 0.0 and values[at] != -math.inf for at in bad)
            anomalies["not_finite"] = len(bad) - anomalies["negative"]
            plan = self._excluding(plan, bad)
            values = page.values + plan.extra
        numbers = list(plan.gather(values))
        for at, number in plan.sums:
            numbers[at] = self._sum(plan.layout.slots[at], number, values)
        for start, stop in plan.histograms:
            buckets = numbers[start:stop]
            if buckets != sorted(buckets):
                anomalies["falling_buckets"] += _raise_falling(numbers, start, stop)
        age = None if now_unix is None or page.oldest_timestamp is None else now_unix - page.oldest_timestamp
        return EngineReading(plan.engine, plan.layout, numbers, +anomalies, age)

    def trace(self, shape: Shape) -> dict[Slot, tuple[Series, ...]]:
        """The series behind every slot of pages of this shape, for `explain` and `/debug/target/NAME`."""
        plan = self._plan(shape)
        if plan is None:
            return {}
        return {
            slot: tuple(shape.series[at] for group in number.plus + number.minus for at in group)
            for slot, number in plan.draft.numbers.items()
        }

    def _plan(self, shape: Shape) -> Plan | None:
        if self not in shape.plans:
            engine = detect(shape) if self._engine == "auto" else self._engine
            known = engine is not None and _engine_names(shape)[engine] > 0
            shape.plans[self] = self._build(engine, compile_shape(shape, TABLES[engine]), len(shape.series)) if engine and known else None
        plan: Plan | None = shape.plans[self]
        return plan

    def _build(self, engine: str, draft: Draft, width: int) -> Plan:
        """Put the numbers of a draft in order. `width` is the number of series of the page."""
        slots = tuple(draft.numbers)
        extra: list[float] = []
        gather: list[int] = []
        sums: list[tuple[int, Number]] = []
        for at, number in enumerate(draft.numbers.values()):
            position = number.direct
            if position is None:
                position = width + len(extra)
                extra.append(number.constant)
                if number.plus or number.minus:
                    sums.append((at, number))
            gather.append(position)
        return Plan(
            engine,
            self._layout(slots, draft),
            _getter(gather),
            _getter(_positions(draft)),
            extra,
            tuple(sums),
            _bucket_runs(slots),
            draft,
            width,
            {},
        )

    def _layout(self, slots: tuple[Slot, ...], draft: Draft) -> Layout:
        key = (slots, tuple(draft.sources.items()), tuple(draft.absent.items()))
        layout = self._layouts.pop(key, None) or Layout(slots, draft.sources, draft.absent)
        while len(self._layouts) >= KEPT_LAYOUTS:
            del self._layouts[next(iter(self._layouts))]
        self._layouts[key] = layout
        return layout

    def _excluding(self, plan: Plan, bad: frozenset[int]) -> Plan:
        """The plan for a page on which the given positions hold impossible values."""
        if bad not in plan.without:
            if len(plan.without) >= KEPT_EXCLUSIONS:
                plan.without.clear()
            plan.without[bad] = self._build(plan.engine, _excluded(plan.draft, bad), plan.width)
        return plan.without[bad]

    def _sum(self, slot: Slot, number: Number, values: Sequence[float]) -> float:
        """Value of a slot that several series make up.

        A difference of two counters falls for a moment where upstream books the lesser part first (hits at admission, prompts at the
        first token). Such a fall is no reset: the last value is held until the difference has caught up, unless the greater part fell.
        """
        total = sum(max(values[at] for at in group) for group in number.plus)
        if not number.minus:
            return total * number.scale
        value = max(0.0, total - sum(max(values[at] for at in group) for group in number.minus)) * number.scale
        held_total, held = self._held.get(slot, (math.inf, 0.0))
        if total >= held_total:
            value = max(value, held)
        self._held[slot] = total, value
        return value


def _positions(draft: Draft) -> list[int]:
    """Every position of the page that is used, once."""
    return list(dict.fromkeys(at for number in draft.numbers.values() for group in number.plus + number.minus for at in group))


def _getter(positions: Sequence[int]) -> Callable[[Sequence[float]], tuple[float, ...]]:
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


def _raise_falling(numbers: list[float], start: int, stop: int) -> int:
    """Raise each bucket below its predecessor to it; says how many."""
    raised = 0
    for at in range(start + 1, stop):
        if numbers[at] < numbers[at - 1]:
            numbers[at] = numbers[at - 1]
            raised += 1
    return raised


def _excluded(draft: Draft, bad: frozenset[int]) -> Draft:
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
