"""Between which moments bytes came, where the reader was in time, had no core, or was stopped."""

from __future__ import annotations

import socket

import pytest

from llm_exporter.sources.arrival import Arrival, Wait, Waiter, place


@pytest.mark.parametrize(
    ("wait", "stamped_at", "now", "arrival"),
    [
        # in time: the first byte woke the thread, and the kernel's time is that of the only packet
        (Wait(9.9998, 10.0, 10.0106, 0.02, 0.0), 10.0105, 10.0107, Arrival(10.0105, 10.0105, 0.0)),
        # no core for 20 ms: woken at 10.0104, the last packet came 15 ms later
        (Wait(9.9998, 10.0, 10.0304, 0.02, 0.02), 10.0254, 10.0306, Arrival(10.0104, 10.0254, 0.0)),
        # the slice ended at 10.02, then no core for 15 ms, in which the bytes came
        (Wait(9.9998, 10.0, 10.0351, 0.02, 0.015), 10.033, 10.0352, Arrival(10.033, 10.033, 0.0129)),
        # no core for 39 ms before it asked: the bytes were there already, and the first may have come at any moment since the last read
        (Wait(9.961, 10.0, 10.00001, 0.02, 0.0), 9.999, 10.0001, Arrival(9.999, 9.999, 0.038)),
        # it asked, lost its core at once, and never slept
        (Wait(9.9999, 10.0, 10.02, 0.02, 0.02), 10.01, 10.0201, Arrival(10.0, 10.01, 0.0001)),
        # stopped for 270 ms: the first packet may have come at any moment
        (Wait(9.9998, 10.0, 10.27, 0.02, 0.0), 10.19, 10.2701, Arrival(10.0, 10.19, 0.19)),
        (Wait(9.9998, 10.0, 10.27, 0.02, 0.0), 10.0002, 10.2701, Arrival(10.0, 10.0002, 0.0002)),
        # no stamps: this process's own clock
        (Wait(9.9998, 10.0, 10.0006, 0.02, 0.0), None, 10.0007, Arrival(10.0006, 10.0007, 0.0)),
        # the wall clock was set meanwhile: stamps outside of the wait are not believed
        (Wait(9.9998, 10.0, 10.0006, 0.02, 0.0), 9.5, 10.0007, Arrival(10.0006, 10.0007, 0.0)),
        (Wait(9.9998, 10.0, 10.0006, 0.02, 0.0), 3610.0, 10.0007, Arrival(10.0006, 10.0007, 0.0)),
        # woken at 10.0104, but it may have waited up to 4.5 ms for the interpreter before it saw so
        (Wait(9.9998, 10.0, 10.0104, 0.02, 0.0, False, 0.0045), 10.0106, 10.0107, Arrival(10.0104, 10.0106, 0.0045)),
        # 5 ms without a core, some of them before it slept: the bytes may have come as much later
        (Wait(9.9998, 10.0, 10.0154, 0.02, 0.005, True), 10.0150, 10.0155, Arrival(10.0104, 10.0150, 0.0046)),
    ],
)
def test_place(wait: Wait, stamped_at: float | None, now: float, arrival: Arrival) -> None:
    assert place(wait, stamped_at, now) == pytest.approx(arrival)


def test_a_slice_that_ends_without_bytes_moves_the_moment_at_which_nothing_had_come() -> None:
    ours, theirs = socket.socketpair()
    # (clock) end, asked, ended of a slice without bytes; asked and ended of the next one
    moments = iter([0.0, 0.0, 0.0202, 0.0203, 0.0204])

    def clock() -> float:
        moment = next(moments)
        if moment == 0.0203:
            theirs.sendall(b"x")
        return moment

    with ours, theirs:
        waiter = Waiter(ours, -0.5, clock)
        found = waiter.wait(5.0)
        waiter.close()
    assert (found.asked_at, found.ended_at) == (0.0203, 0.0204)
    assert found.empty_at == pytest.approx(0.0202, abs=0.02)  # less what this machine kept the thread waiting for a core
    assert found.empty_at >= 0.0


def test_what_was_emptied_is_the_beginning_of_the_next_wait() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiter = Waiter(ours, 1.0, iter([5.0, 5.0, 5.0001]).__next__)
        waiter.emptied(4.0)
        theirs.sendall(b"x")
        assert waiter.wait(1.0).empty_at == 4.0
        waiter.close()


def test_the_slice_is_a_share_of_the_time_waited() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x")
        for waited, milliseconds in ((0.01, 20), (1.0, 100), (60.0, 250)):
            moments = iter([waited, waited, waited + 0.001])
            waiter = Waiter(ours, 0.0, lambda: next(moments))  # noqa: B023  # used up within this round
            assert waiter.wait(5.0).slice_seconds == pytest.approx(milliseconds / 1e3)
            waiter.close()


def test_nothing_within_the_time_is_a_timeout() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiter = Waiter(ours, 0.0)
        with pytest.raises(TimeoutError):
            waiter.wait(0.01)
        waiter.close()
        waiter.close()
