"""When did bytes arrive, where this process may have been the late one?

In: a socket. Out: a `Wait` that ended with the socket readable, and by `place` an `Arrival`: between which moments the bytes read came.
`sources/wire.py` is the only caller.

The kernel stamps each packet, but joins packets that nobody fetches, and keeps the last one's time alone. So a reader that woke late sees
many tokens at the moment of the last of them. What tells is how long the reader itself did not run: the scheduler counts for each thread
how long it was ready and had no core (`/proc/thread-self/schedstat`, second field) and how often it waited for something else, such as the
interpreter; and a wait that lasts longer than it was asked to shows a process that was stopped. Waits are cut into slices for that.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

# Linux. recvmsg then tells when the kernel received the last packet of what it returns (TCP since Linux 4.13).
SO_TIMESTAMPNS = getattr(socket, "SO_TIMESTAMPNS", 35)
_STAMP = struct.Struct("@qq")
# A slice of the wait is this share of the time waited so far, within these bounds.
_SLICE_SHARE = 0.1
_SLICE_SECONDS = (0.02, 0.25)
_SLACK_SECONDS = 0.001  # what a timer may be late on a machine that is not
_EARLY_SECONDS = 0.0001  # what our reading of the clocks takes away
_BRACKETS = 8
_INTERVAL_SLACK = 1.5  # timers are late
_RUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)
_SLEPT_SECONDS = 0.0001  # a call that returns sooner did not sleep


def _switches() -> tuple[int, int]:
    """How often this thread gave up its core to wait for something, and how often it was taken away."""
    used = resource.getrusage(_RUSAGE_THREAD)
    return used.ru_nvcsw, used.ru_nivcsw


def stamp_of(ancillary: Iterable[tuple[int, int, bytes]]) -> int | None:
    """The kernel's receive time out of what `recvmsg` gives beside the bytes, nanoseconds of the wall clock; None where it gave none."""
    for level, kind, value in ancillary:
        if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(value) == _STAMP.size:
            whole, part = _STAMP.unpack(value)
            return int(whole * 10**9 + part)
    return None


def wall_offset_ns() -> int:
    """Wall clock less monotonic clock, nanoseconds. Both run at one rate, so it holds until somebody sets the wall clock.

    A thread can lose the interpreter between two readings of a clock, so the narrowest of several brackets counts.
    """
    brackets = []
    for _ in range(_BRACKETS):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        brackets.append((after - before, wall - (before + after) // 2))
    return min(brackets)[1]


class Wait(NamedTuple):
    """The last slice of a wait. Monotonic seconds.

    Attributes:
        empty_at: nothing had arrived yet.
        asked_at: the thread asked the kernel to be woken.
        ended_at: the thread ran again, and bytes were there.
        slice_seconds: how long it had asked to wait at most.
        without_core: how long after `asked_at` it was ready to run and had no core.
        preempted: it lost its core without having asked for a wait: some of `without_core` may lie before the bytes came.
        waits_for_others: seconds, at most, in which it waited for the interpreter that other threads held.
    """

    empty_at: float
    asked_at: float
    ended_at: float
    slice_seconds: float
    without_core: float
    preempted: bool = False
    waits_for_others: float = 0.0


class Arrival(NamedTuple):
    """When the bytes of one read came. Monotonic seconds.

    Attributes:
        first_at: the first of them, as well as can be told.
        last_at: the last of them; the kernel's time where it gives one.
        error: how far `first_at` may be off.
    """

    first_at: float
    last_at: float
    error: float


def place(wait: Wait, stamped_at: float | None, now: float) -> Arrival:
    """Between which moments the bytes came that were read at `now`, right after `wait`.

    Args:
        wait: how the thread waited for them.
        stamped_at: the kernel's time of the last packet; None where it gave none. Outside of the wait it is not believed: then the
            wall clock, on which it is given, was set meanwhile.
        now: monotonic seconds, as all moments here.
    """
    last_at = now
    if stamped_at is not None and wait.empty_at - _SLACK_SECONDS <= stamped_at <= now:
        last_at = stamped_at
    slept = wait.ended_at - wait.asked_at - wait.without_core
    if slept < _SLEPT_SECONDS:  # the bytes were there before the thread asked
        first_at, earliest = wait.asked_at, wait.empty_at
    elif slept < wait.slice_seconds - _EARLY_SECONDS:  # the first of them woke the thread: timers are late, never early
        first_at = max(wait.asked_at, wait.ended_at - wait.without_core)
        earliest = max(wait.asked_at, first_at - wait.waits_for_others)
    elif slept <= wait.slice_seconds + _SLACK_SECONDS:  # the end of the slice may have, and they came while it had no core
        first_at, earliest = wait.ended_at, wait.ended_at - wait.without_core
    else:  # the process was stopped, or the whole machine stood still: they may have come at any moment
        return Arrival(min(wait.asked_at, last_at), last_at, max(0.0, last_at - wait.asked_at))
    first_at = min(first_at, last_at)
    later = min(wait.without_core, last_at - first_at) if wait.preempted else 0.0
    return Arrival(first_at, last_at, max(0.0, first_at - earliest, later))


class Waiter:
    """Waits until one socket can be read.

    Args:
        since: from when the time waited so far is counted, monotonic seconds; nothing had arrived then.
    """

    def __init__(self, sock: socket.socket, since: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._poll, self._clock = select.poll(), clock
        self._poll.register(sock, select.POLLIN)
        self._schedstat: int | None = None
        with contextlib.suppress(OSError):  # no Linux, or a kernel without scheduler statistics
            self._schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self.restart(since)

    def restart(self, since: float) -> None:
        """Counts the time waited from `since`, when nothing had arrived."""
        self._since = self._empty_at = since

    def emptied(self, at: float) -> None:
        """All that had arrived at the moment `at` has been read."""
        self._empty_at = at

    def close(self) -> None:
        """Gives the file back."""
        if self._schedstat is not None:
            os.close(self._schedstat)
            self._schedstat = None

    def wait(self, seconds: float) -> Wait:
        """Until there is something to read. To be called by the thread that made this object.

        Raises:
            TimeoutError: nothing came within `seconds`.
        """
        end = self._clock() + seconds
        while True:
            before, switches = self._without_core(), _switches()
            asked = self._clock()
            if asked >= end:
                raise TimeoutError
            shortest, longest = _SLICE_SECONDS
            wanted = min(end - asked, max(shortest, min(longest, (asked - self._since) * _SLICE_SHARE)))
            milliseconds = math.ceil(wanted * 1e3)  # poll knows no shorter ones
            ready = self._poll.poll(milliseconds)
            ended = self._clock()
            without_core = self._without_core() - before
            if ready:
                # one wait is for the bytes; each further one is for the interpreter, and lasts as long as its switch interval at most
                own, forced = (later - earlier for earlier, later in zip(switches, _switches(), strict=True))
                for_others = max(0, own - 1) * sys.getswitchinterval() * _INTERVAL_SLACK
                return Wait(self._empty_at, asked, ended, milliseconds / 1e3, without_core, forced > 0, for_others)
            # the kernel looked when the slice was over; what came while this thread waited to run again is found by the next one
            self._empty_at = min(ended, asked + milliseconds / 1e3)

    def _without_core(self) -> float:
        """Seconds in which this thread was ready and had no core, since it began."""
        if self._schedstat is None:
            return 0.0
        return int(os.pread(self._schedstat, 96, 0).split()[1]) / 1e9
