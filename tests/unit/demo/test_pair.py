"""The pair of the demo: targets to scrape, readings to hand to the exporter, truth beside them; and what it costs."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator

import pytest

from llm_exporter.demo.pair import Pair
from llm_exporter.demo.scenarios import SCENARIOS


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(SCENARIOS["healthy"], speed=5.0)
    made.start()
    yield made
    made.stop()


def test_the_pair_serves_two_engines_and_their_hardware(pair: Pair) -> None:
    time.sleep(0.6)
    assert [(member.name, member.engine) for member in pair.members] == [("chat", "vllm"), ("search", "sglang")]
    for member, prefix in zip(pair.members, ("vllm:", "sglang:"), strict=True):
        assert member.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(f"{member.url}/metrics", timeout=10) as answer:
            assert prefix in answer.read().decode()
    pair.gpu_readings(1.0)
    time.sleep(0.4)
    gpus = pair.gpu_readings(2.0)
    assert [(gpu.gpu, gpu.at) for gpu in gpus] == [("0", 2.0), ("1", 2.0)]
    assert len({gpu.uuid for gpu in gpus}) == 2
    assert all(gpu.graphics_active_ratio for gpu in gpus)
    host = pair.host_reading("search", 2.0)
    assert host.target == "search"
    assert host.processes is not None
    assert {process.role for process in host.processes} == {"api_server", "scheduler", "detokenizer"}
    held = {process.pid for gpu in gpus for process in gpu.processes or ()}
    assert held & {process.pid for process in host.processes}
    phase = pair.phase("chat")
    assert phase is not None
    assert "none" in phase.causes
    assert pair.truth("chat", 3.0).first_tokens_per_second > 0
    with pytest.raises(KeyError):
        pair.host_reading("nobody", 2.0)


def test_nothing_is_left_behind(pair: Pair) -> None:
    names = {thread.name for thread in threading.enumerate()}
    assert "demo-pacer" in names
    pair.stop()
    assert not {thread.name for thread in threading.enumerate() if thread.name.startswith("demo-")}


def test_five_seconds_of_both_servers_cost_a_small_part_of_a_core(pair: Pair) -> None:
    began, cpu = time.monotonic(), time.process_time()
    time.sleep(1.0)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    assert share < 0.6  # at five times the speed of the clock; measured 0.12, that is 0.025 in the demo
