"""Several servers behind one address are told from restarts, with start times and without."""

from __future__ import annotations

import pytest

from llm_exporter.state.store import EngineStore
from readings_made import layout, reading, scalar

SHAPE = layout([scalar("generation_tokens"), scalar("prompt_tokens"), scalar("requests_finished", label="stop")])


def played(*pages: tuple[float, float, float]) -> EngineStore:
    store = EngineStore()
    for at, values in enumerate(pages):
        store.add(reading(SHAPE, values), 5.0 * at)
    return store


def test_two_servers_in_turn_without_start_times() -> None:
    a = [(1000.0 + i, 500.0 + i, 20.0) for i in range(5)]
    b = [(100.0 + i, 50.0 + i, 8.0) for i in range(5)]
    store = played(*(page for pair in zip(a, b, strict=True) for page in pair))
    assert store.identity_unstable
    assert store.counted.restarts < 5, "once it is known, falls are no restarts"


@pytest.mark.parametrize(
    "pages",
    [
        [(1000.0, 500.0, 20.0), (3.0, 1.0, 0.0), (400.0, 200.0, 9.0), (2.0, 1.0, 0.0), (900.0, 300.0, 19.0), (1.0, 0.0, 0.0)],
        [(1000.0, 500.0, 20.0), (3.0, 1.0, 0.0), (1400.0, 600.0, 29.0), (5.0, 2.0, 0.0), (1900.0, 700.0, 39.0), (9.0, 3.0, 0.0)],
    ],
    ids=["crash loop", "crash loop that gets further each time"],
)
def test_a_crash_loop_is_restarts(pages: list[tuple[float, float, float]]) -> None:
    store = played(*pages)
    assert not store.identity_unstable
    assert store.counted.restarts == 3


@pytest.mark.parametrize(
    ("engines", "unstable"),
    [
        (["vllm", "sglang"] * 3, True),
        (["vllm", "vllm", "sglang", "sglang"] * 2, True),
        (["vllm"] * 5 + ["sglang"] * 5, False),  # a move, and
        (["vllm"] * 3 + ["sglang"] * 3 + ["vllm"] * 3, False),  # its way back
    ],
    ids=["in turn", "in turn by twos", "moved", "moved back"],
)
def test_two_engines_in_turn_are_two_servers(engines: list[str], unstable: bool) -> None:
    store = EngineStore()
    for at, engine in enumerate(engines):
        store.add(reading(SHAPE, (1.0 + at, 1.0, 1.0), engine=engine), 5.0 * at)
    assert store.identity_unstable is unstable
