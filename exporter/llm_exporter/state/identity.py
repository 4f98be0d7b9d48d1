"""Is it still the same server? Several servers behind one address, answering in turn, make nonsense of every counter.

Three kinds of proof: an engine that comes back after another was seen; process start times that do; and, where the page has none (SGLang,
vLLM with several processes), falls whose low values go on from the lows of the fall before, and whose highs go on from its highs: two
counters side by side.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Sequence

# So many returns within the memory below prove it; one restart gives none.
RETURNS_THAT_PROVE = 2
MEMORY_SECONDS = 600.0
# After a real restart counters begin near zero; those of another server that has worked for a while do not.
LEAST_SHARE_OF_HIGH = 0.05


class Identity:
    """Memory of who answered. One per target."""

    def __init__(self) -> None:
        self._starts: deque[tuple[float, float]] = deque()  # (seen at, process start time), changes only
        self._engines: deque[tuple[float, str]] = deque()  # (seen at, engine), changes only
        self._returns: deque[float] = deque()
        self._fall: tuple[array[float], array[float]] | None = None  # numbers before and after the last fall

    @property
    def unstable(self) -> bool:
        """Whether several servers were seen to answer in turn."""
        returns = _returns(start for _, start in self._starts), _returns(engine for _, engine in self._engines), len(self._returns)
        return max(returns) >= RETURNS_THAT_PROVE

    def note_start_time(self, at: float, start: float) -> None:
        """Takes the page's process start time, where it has one."""
        self._forget(at)
        if not self._starts or self._starts[-1][1] != start:
            self._starts.append((at, start))

    def note_engine(self, at: float, engine: str) -> None:
        """Takes the engine whose page it is."""
        self._forget(at)
        if not self._engines or self._engines[-1][1] != engine:
            self._engines.append((at, engine))

    def note_restart(self, at: float, before: Sequence[float], after: Sequence[float]) -> None:
        """Takes the cumulative numbers before and after a fall that looks like a restart; same columns in both."""
        self._forget(at)
        fall = (array("d", before), array("d", after))
        if self._fall is not None and len(self._fall[0]) == len(fall[0]):
            grew = _grew(self._fall[0], fall[0]) and _grew(self._fall[1], fall[1])
            if grew and sum(after) >= LEAST_SHARE_OF_HIGH * sum(before):
                self._returns.append(at)
        self._fall = fall

    def _forget(self, at: float) -> None:
        while self._starts and self._starts[0][0] < at - MEMORY_SECONDS:
            self._starts.popleft()
        while self._engines and self._engines[0][0] < at - MEMORY_SECONDS:
            self._engines.popleft()
        while self._returns and self._returns[0] < at - MEMORY_SECONDS:
            self._returns.popleft()


def _returns(changes: Iterable[object]) -> int:
    """How often something came back that had been there before something else."""
    seen: set[object] = set()
    returns = 0
    for one in changes:
        returns += one in seen
        seen.add(one)
    return returns


def _grew(before: Sequence[float], after: Sequence[float]) -> bool:
    return all(b <= a for b, a in zip(before, after, strict=True))
