"""Laws of memory that hold whatever a server does: restarts of all or some ranks, ranks that vanish and return, edges that change, gaps.

A machine plays a server with data-parallel ranks and knows what really happened; the store sees only the pages.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from llm_exporter.readings import EngineReading, Layout, Slot
from llm_exporter.state.counters import Merged
from llm_exporter.state.store import WINDOWS, EngineStore
from readings_made import INF, histogram, scalar
from strategies import edges, gains, pauses

# Enough counters that a restart is no torn read; all of them stand above zero before one may happen.
COUNTERS = ("generation_tokens", "prompt_tokens", "preemptions", "steps")
TTFT = "time_to_first_token"


class Server(RuleBasedStateMachine):
    """Ranks with counters and one histogram each. `store` is scraped after every rule."""

    def __init__(self) -> None:
        super().__init__()
        self.store = EngineStore()
        self.at = 0.0
        self.raw: dict[str, dict[Slot, float]] = {}
        self.present: set[str] = set()
        self.layouts: dict[tuple[Slot, ...], Layout] = {}
        self.restarts = 0
        self.partial = False  # whether only some ranks have restarted or vanished since all did
        self.gained: dict[str, float] = defaultdict(float)  # what really happened, by field, since the first scrape
        self.seen: list[tuple[float, Merged]] = []
        self.edges: list[float] = []

    # -- the server --------------------------------------------------------------------------------------------------------------

    @initialize(ranks=st.integers(1, 3), bounds=edges)
    def start(self, ranks: int, bounds: list[float]) -> None:
        self.edges = bounds
        for rank in map(str, range(ranks)):
            self.raw[rank] = self.fresh(rank)
            self.present.add(rank)
        self.scrape()

    def fresh(self, rank: str) -> dict[Slot, float]:
        """A rank that has done a little, so that a later fall is seen."""
        slots = [*(scalar(field, rank=rank) for field in COUNTERS), *histogram(TTFT, [*self.edges, INF], rank=rank)]
        return dict.fromkeys(slots, 1.0)

    def scrape(self) -> None:
        slots = tuple(slot for rank in sorted(self.present) for slot in self.raw[rank])
        layout = self.layouts.setdefault(slots, Layout(slots, {}, {}))
        values = [value for rank in sorted(self.present) for value in self.raw[rank].values()]
        merged = self.store.add(EngineReading("vllm", layout, values), self.at)
        self.seen.append((self.at, merged))

    def work(self, rank: str, n: int) -> None:
        for slot in self.raw[rank]:
            self.raw[rank][slot] += n
            if slot.part == "value":
                self.gained[slot.field] += n

    @rule(pause=pauses, n=gains, data=st.data())
    def works(self, pause: float, n: int, data: st.DataObject) -> None:
        self.at += pause
        self.work(data.draw(st.sampled_from(sorted(self.present))), n)
        self.scrape()

    @rule(pause=pauses)
    def idles(self, pause: float) -> None:
        self.at += pause
        self.scrape()

    def fall_is_visible(self) -> bool:
        """A counter that restarts at the value it had looks as if nothing had happened."""
        return all(value > 1 for slots in self.raw.values() for value in slots.values())

    def restart(self, ranks: set[str]) -> None:
        for rank in ranks:
            self.work(rank, 10)  # before it falls: unseen by any scrape, so nothing can count it
            for slot in self.raw[rank]:
                if slot.part == "value":
                    self.gained[slot.field] -= 10
            self.raw[rank] = self.fresh(rank)
            for field in COUNTERS:
                self.gained[field] += 1.0
        self.restarts += 1
        self.scrape()

    @precondition(lambda self: self.fall_is_visible())
    @rule(pause=pauses)
    def restarts_whole(self, pause: float) -> None:
        self.at += pause
        self.present = set(self.raw)
        self.restart(set(self.raw))
        self.partial = False

    @precondition(lambda self: len(self.present) > 1 and self.fall_is_visible())
    @rule(pause=pauses, data=st.data())
    def restarts_in_part(self, pause: float, data: st.DataObject) -> None:
        self.at += pause
        self.partial = True
        self.restart({data.draw(st.sampled_from(sorted(self.present)))})

    @precondition(lambda self: len(self.present) > 1)
    @rule(pause=pauses, data=st.data())
    def a_rank_vanishes(self, pause: float, data: st.DataObject) -> None:
        self.at += pause
        self.present.discard(data.draw(st.sampled_from(sorted(self.present))))
        self.partial = True
        self.scrape()

    @precondition(lambda self: len(self.present) < len(self.raw))
    @rule(pause=pauses, n=gains)
    def ranks_come_back(self, pause: float, n: int) -> None:
        self.at += pause
        for rank in set(self.raw) - self.present:
            self.work(rank, n)
        self.present = set(self.raw)
        self.scrape()

    @rule(pause=st.floats(0.5, 30.0), bounds=edges)
    def edges_change(self, pause: float, bounds: list[float]) -> None:
        """As a reconfigured frontend would: the counters go on, the histogram's buckets are others."""
        self.at += pause
        self.edges = bounds
        for rank, slots in self.raw.items():
            count = slots[Slot(TTFT, "m", rank, "", "bucket", INF)]
            kept = {slot: value for slot, value in slots.items() if slot.field != TTFT}
            self.raw[rank] = kept | dict.fromkeys(histogram(TTFT, [*bounds, INF], rank=rank), count)
        self.scrape()

    # -- the laws ----------------------------------------------------------------------------------------------------------------

    def unwrapped(self, merged: Merged, field: str) -> float:
        return merged.unwrapped[merged.table.scalars["m", field][""]]

    @invariant()
    def unwrapped_numbers_are_what_really_happened(self) -> None:
        if not self.seen:
            return
        (_, first), (_, last) = self.seen[0], self.seen[-1]
        for field in COUNTERS:
            gained = self.unwrapped(last, field) - self.unwrapped(first, field)
            if self.present == set(self.raw):  # what a rank that is away does meanwhile is seen when it is back
                assert math.isclose(gained, self.gained[field], rel_tol=1e-9, abs_tol=1e-6), field
            if len(self.seen) > 1:
                assert self.unwrapped(last, field) >= self.unwrapped(self.seen[-2][1], field), "unwrapped never falls"

    @invariant()
    def published_numbers_are_the_engines_own(self) -> None:
        if self.seen and not self.partial:
            merged = self.seen[-1][1]
            for field in COUNTERS:
                own = sum(self.raw[rank][scalar(field, rank=rank)] for rank in self.raw)
                assert math.isclose(merged.published[merged.table.scalars["m", field][""]], own, rel_tol=1e-9)

    @invariant()
    def every_restart_is_counted_once(self) -> None:
        assert self.store.counted.restarts == self.restarts
        assert self.store.counted.anomalies == 0

    @invariant()
    def windows_never_lose(self) -> None:
        if not self.seen:
            return
        for name, seconds in WINDOWS:
            window = self.store.window("m", name, seconds)
            assert window.seconds <= seconds + 0.5
            for field in COUNTERS:
                increase = window.increase(field)
                assert increase is not None
                assert increase >= 0
            gained = window.histogram(TTFT)
            if gained is not None:
                assert list(gained.cumulative) == sorted(gained.cumulative)
                assert gained.cumulative[0] >= 0
                assert gained.bounds == (*self.edges, INF)
                quantiles = [gained.quantile(q) for q in (0.1, 0.5, 0.9, 0.99)]
                values = [quantile.value for quantile in quantiles if quantile is not None]
                assert values == sorted(values), "quantiles ascend"
                assert all(0 <= value <= self.edges[-1] for value in values)

    @invariant()
    def deltas_add_up(self) -> None:
        frames = self.store.frames
        if len(frames) > 1:
            whole = self.store.window("m", "", math.inf).increase("generation_tokens")
            column = [frame.numbers[frame.table.scalars["m", "generation_tokens"][""]] for frame in frames]
            steps = sum(later - earlier for earlier, later in pairwise(column))
            assert whole is not None
            assert math.isclose(whole, steps, rel_tol=1e-9, abs_tol=1e-6)


Server.TestCase.settings = settings(max_examples=60, stateful_step_count=20, phases=[Phase.explicit, Phase.generate])
TestServer = Server.TestCase
