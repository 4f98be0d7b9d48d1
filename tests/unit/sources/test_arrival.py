"""Between which moments bytes came, where the reader was in time, had no core, or was stopped."""

from __future__ import annotations

import socket

import pytest

from llm_exporter.sources.arrival import Arrival, Wait, Waiter, place


@pytest.mark.parametrize(
    ("wait", "stamped_at", "now", "arrival"),
    [
        # in time: the kernel's time is that of the only packet
        (Wait(10.0, 10.0006, 0.001, 0.0), 10.0005, 10.0007, Arrival(10.0005, 10.0005, 0.0005)),
        # no core for 20 ms: woken at 10.0004, the last packet came 15 ms later
        (Wait(10.0, 10.0204, 0.001, 0.02), 10.0154, 10.0206, Arrival(10.0004, 10.0154, 0.0004)),
        # stopped for 270 ms: the first packet may have come at any moment
        (Wait(10.0, 10.27, 0.001, 0.0), 10.19, 10.2701, Arrival(10.0, 10.19, 0.19)),
        # stopped, but one packet alone: from its own time on nothing is known better, and the last byte's moment is exact
        (Wait(10.0, 10.27, 0.001, 0.0), 10.0002, 10.2701, Arrival(10.0, 10.0002, 0.0002)),
        # no stamps: this process's own clock
        (Wait(10.0, 10.0006, 0.001, 0.0), None, 10.0007, Arrival(10.0006, 10.0007, 0.0006)),
        # the wall clock was set meanwhile: stamps outside of the wait are not believed
        (Wait(10.0, 10.0006, 0.001, 0.0), 9.5, 10.0007, Arrival(10.0006, 10.0007, 0.0006)),
        (Wait(10.0, 10.0006, 0.001, 0.0), 3610.0, 10.0007, Arrival(10.0006, 10.0007, 0.0006)),
        # more without a core than the slice was long: it was waiting before it fell asleep too
        (Wait(10.0, 10.02, 0.001, 0.03), 10.015, 10.0201, Arrival(10.0, 10.015, 0.0)),
    ],
)
def test_place(wait: Wait, stamped_at: float | None, now: float, arrival: Arrival) -> None:
    assert place(wait, stamped_at, now) == pytest.approx(arrival)


def test_the_slice_is_a_share_of_the_time_waited() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x")
        for waited, milliseconds in ((0.01, 1), (1.0, 20), (60.0, 50)):
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
