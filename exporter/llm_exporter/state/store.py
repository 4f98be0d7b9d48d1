"""What is remembered of one target's engine: the newest numbers, a ring of frames for windows, restarts, anomalies, and identity.

Written by the target's own thread once per tick; everything that others read is replaced as a whole, never changed in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from llm_exporter.readings import EngineReading
from llm_exporter.state.counters import CounterBook, Merged
from llm_exporter.state.identity import Identity
from llm_exporter.state.progress import Progress
from llm_exporter.state.window import LATENESS_SECONDS, Frame, Window, frames_within

# The longest window (5m) and a little; older frames leave the ring.
RING_SECONDS = 300.0 + 2 * LATENESS_SECONDS
WINDOWS: tuple[tuple[str, float], ...] = (("1m", 60.0), ("5m", 300.0))


class Counted(NamedTuple):
    """Counters of the store itself since the exporter started."""

    restarts: int
    anomalies: int


class EngineStore:
    """Memory of one target for as long as its engine and address stay the same. Not thread-safe: one writer, its own readers."""

    def __init__(self) -> None:
        self.engine = ""
        self.latest: Merged | None = None
        self.latest_at: float | None = None
        self.counted = Counted(0, 0)
        self.started_at: float | None = None  # monotonic time of the last restart that was seen
        self.progress = Progress()
        self._book = CounterBook()
        self._frames: deque[Frame] = deque()
        self._identity = Identity()

    @property
    def frames(self) -> Sequence[Frame]:
        """All frames in memory, oldest first."""
        return tuple(self._frames)

    def add(self, reading: EngineReading, at: float) -> Merged:
        """Takes a good reading of monotonic time `at`; returns its merged numbers."""
        if reading.engine != self.engine:
            # another engine under this address: nothing of the old one can be compared with it
            self.engine = reading.engine
            self._book = CounterBook()
            self._frames.clear()
            self.progress = Progress()
        self._identity.note_engine(at, reading.engine)
        merged, changes = self._book.add(reading)
        self._note_identity(reading, self.latest, merged, at, restarted=changes.restarted)
        frame = Frame(at, merged.table, merged.unwrapped)
        anomalies = changes.anomalies + (_impossible(self._frames[-1], frame) if self._frames else 0)
        restarted = changes.restarted and not self.identity_unstable
        self.counted = Counted(self.counted.restarts + restarted, self.counted.anomalies + anomalies)
        if changes.restarted:
            self.started_at = at
        self.progress.note(self._frames[-1] if self._frames else None, frame)
        self._frames.append(frame)
        while self._frames and self._frames[0].at < at - RING_SECONDS:
            self._frames.popleft()
        self.latest, self.latest_at = merged, at
        return merged

    def span_seconds(self, seconds: float) -> float:
        """How much of the last `seconds` the frames cover; 0 with fewer than two."""
        if not self.frames:
            return 0.0
        within = frames_within(self.frames, seconds)
        return within[-1].at - within[0].at

    def window(self, model: str, name: str, seconds: float) -> Window:
        """The window of one model that ends with the newest frame. Needs a frame."""
        return Window(frames_within(self.frames, seconds), model, name)

    @property
    def identity_unstable(self) -> bool:
        """Whether several servers answer under this address in turn."""
        return self._identity.unstable

    def _note_identity(self, reading: EngineReading, before: Merged | None, merged: Merged, at: float, *, restarted: bool) -> None:
        starts = [v for slot, v in zip(reading.layout.slots, reading.values, strict=True) if slot.field == "process_start_time"]
        if starts:
            self._identity.note_start_time(at, starts[0])
        elif restarted and before is not None and before.table is merged.table:
            columns = [i for i, column in enumerate(merged.table.columns) if column.cumulative]
            self._identity.note_restart(at, [before.published[i] for i in columns], [merged.published[i] for i in columns])


def _impossible(before: Frame, now: Frame) -> int:
    """Models for which the prefix cache gained more hits than lookups between two scrapes."""
    found = 0
    for model in now.table.models:
        step = Window((before, now), model)
        hits, queried = step.increase("prefix_cache_hit_tokens"), step.increase("prefix_cache_queried_tokens")
        found += hits is not None and queried is not None and hits > queried
    return found
