"""One thread per target: a tick at each interval on the monotonic clock, whatever other targets do.

A tick that takes longer than the interval delays only its own target; the ticks that it slept through are counted as overlapped.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable

log = logging.getLogger("llm_exporter.loop")


def first_offset(name: str, interval: float) -> float:
    """Seconds from the start to a target's first tick: spread by name, so that targets are not hit together, and the same each time."""
    return interval * (zlib.crc32(name.encode()) % 1000) / 1000


class Loop:
    """Calls `tick(now)` every `interval` seconds in a thread of its own.

    Args:
        name: for the thread and the log.
        tick: the work; what it raises is a bug, is logged with its traceback, and the next tick comes all the same.
        interval: seconds.
        count: told ("ok" | "failed" | "overlapped", n).
        offset: seconds until the first tick.
        at_end: called last, in the loop's thread.
    """

    def __init__(
        self,
        name: str,
        tick: Callable[[float], None],
        interval: float,
        count: Callable[[str, int], None],
        *,
        offset: float = 0.0,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._tick = tick
        self._interval = interval
        self._count = count
        self._offset = offset
        self._at_end = at_end
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout: float = 0.0) -> None:
        """Asks the loop to end; waits up to `timeout` seconds. A tick in flight ends by its own deadline."""
        self._stopped = True
        self._wake.set()
        if timeout > 0:
            self._thread.join(timeout)

    def retime(self, interval: float) -> None:
        """Another interval, from now on; a tick in flight is not disturbed."""
        if interval != self._interval:
            self._interval = interval
            self._wake.set()

    @property
    def alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic() + self._offset
        while not self._stopped:
            if self._wake.wait(max(0.0, due - time.monotonic())):
                self._wake.clear()
                due = min(due, time.monotonic() + self._interval)  # a shorter rhythm begins at once
                continue
            try:
                self._tick(time.monotonic())
                self._count("ok", 1)
            except Exception:
                log.exception("bug in %s: this tick is lost, the next one comes", self._name)
                self._count("failed", 1)
            due, missed = next_due(due, time.monotonic(), self._interval)
            if missed:
                self._count("overlapped", missed)
        self._at_end()


def next_due(due: float, now: float, interval: float) -> tuple[float, int]:
    """When the tick after the one due at `due` comes, seen at `now`; and how many ticks were slept through."""
    following = due + interval
    if following > now:
        return following, 0
    missed = int((now - following) // interval) + 1
    return following + missed * interval, missed
