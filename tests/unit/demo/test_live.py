"""Simulations in real time: the model follows the clock, costs little, and leaves no thread behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from llm_exporter.demo.live import Pacer, Ticket
from llm_exporter.demo.request import Request
from llm_exporter.demo.scenarios import SCENARIOS
from llm_exporter.demo.simulation import Simulation


@pytest.fixture
def pacer() -> Iterator[Pacer]:
    made = Pacer([Simulation("vllm", SCENARIOS["healthy"]), Simulation("sglang", SCENARIOS["healthy"])], speed=5.0)
    made.start()
    yield made
    made.stop()


def test_the_models_follow_the_clock_at_the_asked_speed(pacer: Pacer) -> None:
    time.sleep(0.6)
    with pacer.lock:
        shown = [simulation.now for simulation in pacer.simulations]
    assert all(2.0 < now < pacer.now() + 0.01 for now in shown)


def test_both_models_cost_a_small_part_of_a_core(pacer: Pacer) -> None:
    began, cpu = time.monotonic(), time.process_time()
    time.sleep(1.0)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    assert share < 0.6  # at five times the speed of the clock; measured 0.12, that is 0.025 in the demo


def test_a_request_from_outside_is_told_of_every_token_and_of_its_end(pacer: Pacer) -> None:
    ticket = Ticket()
    simulation = pacer.simulations[0]
    pacer.submit(simulation, Request(100, 5), ticket)
    told = [ticket.events.get(timeout=5.0) for _ in range(6)]
    pacer.leave(simulation, ticket)
    assert [event.kind for event in told] == ["token"] * 5 + ["finish"]
    assert [event.at for event in told] == sorted(event.at for event in told)


def test_a_request_that_leaves_is_dropped(pacer: Pacer) -> None:
    ticket = Ticket()
    simulation = pacer.simulations[1]
    pacer.submit(simulation, Request(100, 100_000), ticket)
    assert ticket.events.get(timeout=5.0).kind == "token"
    pacer.leave(simulation, ticket)
    with pacer.lock:
        assert ticket.request not in simulation.engine.running
    assert ticket.request.state == "aborted"


def test_no_thread_is_left_behind(pacer: Pacer) -> None:
    mine = next(thread for thread in threading.enumerate() if thread.name == "demo-pacer")
    pacer.stop()
    assert not mine.is_alive()
