"""Simulations in real time: one thread moves all models along with the clock, and requests from outside enter them.

The thread sleeps until the next event while a request from outside is there, so that its tokens come at the right
moment; else it looks in 20 times a second, which is cheap.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from llm_exporter.demo.hardware import Hardware
from llm_exporter.demo.protocol import Call
from llm_exporter.demo.request import Request
from llm_exporter.demo.simulation import Simulation
from llm_exporter.demo.text import block_keys

_LAZY_SECONDS = 0.05
_FINEST_SECONDS = 0.0005


class Event(NamedTuple):
    """What happened to a request from outside.

    Attributes:
        kind: token, finish, abort or reject.
        at: when the front end sends it, seconds of the model's clock.
    """

    kind: str
    tokens: int
    at: float


class Ticket:
    """A request from outside, as the HTTP handler holds it."""

    __slots__ = ("events", "request")

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.request: Request

    def tell(self, kind: str, tokens: int, at: float) -> None:
        """The model's sink; called under the lock, so it only hands over."""
        self.events.put(Event(kind, tokens, at))


class Pacer:
    """Moves simulations along with the clock.

    Args:
        simulations: all start at their time 0 when `start` is called.
        speed: model seconds per second; above 1 only for trying things out.

    Attributes:
        lock: held while a model moves or a page is made.
    """

    def __init__(self, simulations: Sequence[Simulation], *, speed: float = 1.0) -> None:
        self.simulations = tuple(simulations)
        self.lock = threading.Lock()
        self._speed = speed
        self._began_at = time.monotonic()
        self._guests = 0
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="demo-pacer", daemon=True)

    def start(self) -> None:
        """Begin: the models' time 0 is now."""
        self._began_at = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def now(self) -> float:
        """The models' clock."""
        return (time.monotonic() - self._began_at) * self._speed

    def sleep_until(self, at: float) -> None:
        """Sleep until the models' clock shows `at`."""
        seconds = (at - self.now()) / self._speed
        if seconds > 0:
            time.sleep(seconds)

    def _run(self) -> None:
        while not self._stopped:
            soonest = float("inf")
            for simulation in self.simulations:
                with self.lock:
                    simulation.advance(self.now())
                    soonest = min(soonest, simulation.engine.next_event_at())
            pause = _LAZY_SECONDS
            if self._guests:
                pause = min(pause, max(_FINEST_SECONDS, (soonest - self.now()) / self._speed))
            if self._wake.wait(pause):
                self._wake.clear()

    def submit(self, simulation: Simulation, request: Request, ticket: Ticket) -> None:
        """A request from outside arrives now; its events come to the ticket. `leave` must follow."""
        ticket.request = request
        request.sink = ticket.tell
        with self.lock:
            self._guests += 1
            simulation.advance(self.now())
            simulation.engine.submit(request)
        self._wake.set()

    def leave(self, simulation: Simulation, ticket: Ticket) -> None:
        """The handler is done with a request, or its client has gone: then the engine drops it."""
        with self.lock:
            self._guests -= 1
            simulation.advance(self.now())
            simulation.engine.abort(ticket.request)

    def metrics_text(self, simulation: Simulation) -> str:
        """The page as it stands now."""
        with self.lock:
            simulation.advance(self.now())
            return simulation.metrics_text()


def request_of(call: Call, hardware: Hardware) -> Request:
    """The model's request for a checked call."""
    keys = block_keys(call.tokens, hardware.block_tokens)
    return Request(
        len(call.tokens),
        call.output_tokens,
        keys=keys,
        max_tokens=call.max_tokens,
        streaming=call.stream,
        route=call.route,
    )


def learn(call: Call, request: Request) -> None:
    """What SGLang's /generate tells about a request, as far as it is known."""
    call.cached_tokens = request.hit_tokens or 0
    call.queue_seconds = (request.scheduled_at or request.queued_at) - request.queued_at
    call.retractions = request.preemptions
