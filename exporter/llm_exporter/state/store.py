"""What is remembered of one target's engine: the newest numbers, a ring of frames for windows, restarts, anomalies, and identity.

Written by the target's own thread once per tick; everything that others read is replaced as a whole, never changed in place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from llm_exporter.readings import EngineReading
from llm_exporter.state.counters import CounterBook, Merged
from llm_exporter.state.progress import Progress
from llm_exporter.state.window import LATENESS_SECONDS, Frame, Window, frames_within

# The longest window (5m) and a little; older frames leave the ring.
RING_SECONDS = 300.0 + 2 * LATENESS_SECONDS
WINDOWS: tuple[tuple[str, float], ...] = (("1m", 60.0), ("5m", 300.0))

# An address behind which several servers answer in turn shows start times that come back. So many returns within the memory below prove it.
RETURNS_THAT_PROVE = 2
IDENTITY_MEMORY_SECONDS = 600.0


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
        self._identities: deque[tuple[float, float]] = deque()  # (seen at, process start time), changes only

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
        merged, changes = self._book.add(reading)
        self._note_identity(reading, at)
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

    def window(self, model: str, name: str, seconds: float) -> Window:
        """The window of one model that ends with the newest frame. Needs a frame."""
        return Window(frames_within(self.frames, seconds), model, name)

    @property
    def identity_unstable(self) -> bool:
        """Whether several servers answer under this address in turn: process start times come back after others were seen."""
        seen: set[float] = set()
        returns = 0
        for _, start in self._identities:
            returns += start in seen
            seen.add(start)
        return returns >= RETURNS_THAT_PROVE

    def _note_identity(self, reading: EngineReading, at: float) -> None:
        while self._identities and self._identities[0][0] < at - IDENTITY_MEMORY_SECONDS:
            self._identities.popleft()
        starts = [v for slot, v in zip(reading.layout.slots, reading.values, strict=True) if slot.field == "process_start_time"]
        if starts and (not self._identities or self._identities[-1][1] != starts[0]):
            self._identities.append((at, starts[0]))


def _impossible(before: Frame, now: Frame) -> int:
    """Models for which the prefix cache gained more hits than lookups between two scrapes."""
    found = 0
    for model in now.table.models:
        step = Window((before, now), model)
        hits, queried = step.increase("prefix_cache_hit_tokens"), step.increase("prefix_cache_queried_tokens")
        found += hits is not None and queried is not None and hits > queried
    return found
