"""Page → `EngineReading`: which engine it is, and its numbers in canonical words.

What a page's shape allows is worked out once (`compile.py`) and kept on the shape; a further page of that shape costs one gather of
its values, a few sums and the check for impossible input. `sources/engine.py`'s callers and `replay` use one `Normaliser` per target.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from llm_exporter.engines import sglang, vllm
from llm_exporter.engines.compile import Draft, Number, compile_shape
from llm_exporter.engines.facts import concerning
from llm_exporter.engines.plan import Plan, build_plan, excluded, getter, positions
from llm_exporter.engines.tables import EngineTable
from llm_exporter.readings import EngineReading, Layout, Slot
from llm_exporter.sources.exposition import Page, Series, Shape

K = TypeVar("K")
V = TypeVar("V")

TABLES: Mapping[str, EngineTable] = {table.engine: table for table in (vllm.TABLE, sglang.TABLE)}

LARGEST = 1e30
"""No count, time or share of an engine is as large (its estimated operations, at 1e15 a second, are not in thirty million years). Sums and
products of smaller numbers stay finite, so that no page can put NaN or an infinity on ours."""

KEPT = 8
"""Plans and layouts remembered per target, and exclusions per plan: pages may alternate, and one that changes for ever must not fill memory."""


def detect(shape: Shape) -> str | None:
    """Engine whose metric names are on the page, by samples or by TYPE lines; None where there are none."""
    seen = _engine_names(shape)
    return seen.most_common(1)[0][0] if seen else None


def _engine_names(shape: Shape) -> Counter[str]:
    """How many names of each engine are on the page."""
    seen: Counter[str] = Counter()
    for name in {series.name for series in shape.series} | shape.types.keys():
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


class Reader(NamedTuple):
    """How to read pages of one shape: which of their values concern us, what to do with those, how many series were too many."""

    pick: Callable[[Sequence[float]], tuple[float, ...]]
    plan: Plan
    left_out: int


class Normaliser:
    """Reads the pages of one target.

    Args:
        engine: "vllm" or "sglang" where the configuration says so; "auto" looks at each page.
    """

    def __init__(self, engine: str = "auto") -> None:
        self._engine = engine
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._layouts: dict[tuple[object, ...], Layout] = {}
        self._held: dict[Slot, tuple[float, float]] = {}
        self._last: EngineReading | None = None

    def read(self, page: Page, now_unix: float | None = None) -> EngineReading | None:
        """One page in canonical words; None where it has no engine's metrics.

        Args:
            page: as parsed.
            now_unix: wall time in seconds, for the age of pages with timestamps.
        """
        reader = self._reader(page.shape)
        if reader is None:
            return None
        plan = reader.plan
        picked = reader.pick(page.values)
        values = [*picked, *plan.constants]
        anomalies: Counter[str] = Counter(too_many=reader.left_out)
        inputs = plan.inputs(values)
        # a sum, since NaN hides from min and max
        if not sum(inputs) < LARGEST or min(inputs, default=0.0) < 0.0:
            bad = frozenset(at for at in positions(plan.draft) if not 0.0 <= values[at] < LARGEST)
            anomalies["negative"] = sum(values[at] < 0.0 and values[at] != -math.inf for at in bad)
            anomalies["not_finite"] = sum(not math.isfinite(values[at]) for at in bad)
            anomalies["too_large"] = len(bad) - anomalies["negative"] - anomalies["not_finite"]
            plan = self._excluding(plan, bad)
            values = [*picked, *plan.constants]
        numbers = list(plan.gather(values))
        for at, number in plan.sums:
            numbers[at] = self._sum(plan.layout.slots[at], number, values)
        for start, stop in plan.histograms:
            buckets = numbers[start:stop]
            if not all(map(float.is_integer, buckets)):
                anomalies["broken_counts"] += _lower_broken(numbers, start, stop)
                buckets = numbers[start:stop]
            if buckets != sorted(buckets):
                anomalies["falling_buckets"] += _raise_falling(numbers, start, stop)
        age = None if now_unix is None or page.oldest_timestamp is None else now_unix - page.oldest_timestamp
        self._last = EngineReading(plan.engine, plan.layout, numbers, +anomalies, age)
        return self._last

    def trace(self, shape: Shape) -> dict[Slot, tuple[Series, ...]]:
        """The series behind every slot of pages of this shape, for `explain` and `/debug/target/NAME`."""
        reader = self._reader(shape)
        if reader is None:
            return {}
        plan = reader.plan
        return {
            slot: tuple(plan.series[at] for group in number.plus + number.minus for at in group)
            for slot, number in plan.draft.numbers.items()
        }

    def _reader(self, shape: Shape) -> Reader | None:
        if self not in shape.plans:
            seen = _engine_names(shape)
            engine = next((name for name, _ in seen.most_common(1)), "") if self._engine == "auto" else self._engine
            shape.plans[self] = self._make_reader(engine, shape) if seen[engine] else None
        reader: Reader | None = shape.plans[self]
        return reader

    def _make_reader(self, engine: str, shape: Shape) -> Reader:
        """A reader for a new shape; its plan is an old one where the series that concern us are the same."""
        table = TABLES[engine]
        ours, at, left_out = concerning(shape, table)
        key = (engine, ours.series, tuple(ours.types.items()), tuple(ours.helps.items()))
        plan = self._plans.get(key)
        if plan is None:
            draft = compile_shape(ours, table)
            plan = build_plan(engine, draft, ours.series, self._layout(draft))
        _keep(self._plans, key, plan)
        return Reader(getter(at), plan, left_out)

    def _layout(self, draft: Draft) -> Layout:
        """The layout of a draft: an old one where it says the same."""
        key = (tuple(draft.numbers), tuple(draft.sources.items()), tuple(draft.absent.items()))
        layout = self._layouts.get(key) or Layout(tuple(draft.numbers), draft.sources, draft.absent)
        _keep(self._layouts, key, layout)
        return layout

    def _excluding(self, plan: Plan, bad: frozenset[int]) -> Plan:
        """The plan for a page on which the given positions hold impossible values."""
        other = plan.without.get(bad)
        if other is None:
            draft = excluded(plan.draft, bad)
            other = build_plan(plan.engine, draft, plan.series, self._layout(draft))
        _keep(plan.without, bad, other)
        return other

    def _sum(self, slot: Slot, number: Number, values: Sequence[float]) -> float:
        """Value of a slot that several series make up.

        A difference of two counters falls for a moment where upstream books the lesser part first (hits at admission, prompts at the
        first token). Such a fall is no reset: the last value is held until the difference has caught up, unless the greater part fell.
        """
        total = sum(max(values[at] for at in group) for group in number.plus)
        if not number.minus:
            self._held.pop(slot, None)
            return total * number.scale
        value = max(0.0, total - sum(max(values[at] for at in group) for group in number.minus)) * number.scale
        held_total, held = self._held.get(slot) or self._undivided(slot, number.scale)
        if total >= held_total:
            value = max(value, held)
        self._held[slot] = total, value
        return value

    def _undivided(self, slot: Slot, scale: float) -> tuple[float, float]:
        """Total and value of a slot on the page before, where the part to take away was not born yet (SGLang's aborts)."""
        at = self._last.layout.index.get(slot) if self._last is not None else None
        if self._last is None or at is None:
            return math.inf, 0.0
        return self._last.values[at] / scale, self._last.values[at]


def _keep(kept: dict[K, V], key: K, value: V) -> None:
    """Make an entry the youngest one, and forget the oldest beyond KEPT."""
    kept.pop(key, None)
    while len(kept) >= KEPT:
        del kept[next(iter(kept))]
    kept[key] = value


def _lower_broken(numbers: list[float], start: int, stop: int) -> int:
    """Lower each bucket that is no whole number to the next one below: nothing was observed half. Says how many."""
    lowered = 0
    for at in range(start, stop):
        whole = math.floor(numbers[at])
        if numbers[at] != whole:
            numbers[at] = float(whole)
            lowered += 1
    return lowered


def _raise_falling(numbers: list[float], start: int, stop: int) -> int:
    """Raise each bucket below its predecessor to it; says how many."""
    raised = 0
    for at in range(start + 1, stop):
        if numbers[at] < numbers[at - 1]:
            numbers[at] = numbers[at - 1]
            raised += 1
    return raised
