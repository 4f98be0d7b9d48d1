"""Arrivals: the asked rate, bursts, the shape of a day, and changes that take effect at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llm_exporter.demo.request import Request
from llm_exporter.demo.traffic import Load, PoissonTraffic


def arrivals(load: Load, seconds: float, seed: int = 1) -> tuple[list[float], list[Request]]:
    traffic = PoissonTraffic(load, block_tokens=16, context_tokens=32768, seed=seed)
    times, requests = [], []
    while traffic.next_at < seconds:
        times.append(traffic.next_at)
        requests.append(traffic.draw())
    return times, requests


def test_the_mean_rate_is_the_asked_one() -> None:
    times, _ = arrivals(Load(rate=20.0), 200.0)
    assert len(times) == pytest.approx(4000, rel=0.05)
    assert times == sorted(times)


def test_bursts_come_when_and_as_strong_as_asked() -> None:
    times, _ = arrivals(Load(rate=5.0, burst_every=20.0, burst_seconds=2.0, burst_factor=10.0), 400.0)
    inside = sum(1 for at in times if at % 20.0 < 2.0)
    assert inside == pytest.approx(20 * 2 * 50, rel=0.1)
    assert len(times) - inside == pytest.approx(20 * 18 * 5, rel=0.1)


def test_a_day_has_a_quiet_and_a_busy_half() -> None:
    times, _ = arrivals(Load(rate=20.0, day_seconds=100.0, day_depth=0.8), 1000.0)
    night = sum(1 for at in times if at % 100.0 < 10 or at % 100.0 > 90)
    noon = sum(1 for at in times if 40 < at % 100.0 < 60)
    assert noon > 3 * night


def test_a_change_takes_effect_at_once_and_zero_is_silence() -> None:
    traffic = PoissonTraffic(Load(rate=0.0), block_tokens=16, context_tokens=4096, seed=1)
    assert traffic.next_at == float("inf")
    traffic.change(Load(rate=1000.0), 50.0)
    assert 50.0 < traffic.next_at < 50.2
    traffic.change(Load(rate=0.0), 51.0)
    assert traffic.next_at == float("inf")


def test_lengths_fit_the_context_and_keys_never_cover_the_last_token() -> None:
    load = Load(rate=50.0, prompt_tokens=2000, output_tokens=900, spread=1.0, conversations=0.5)
    traffic = PoissonTraffic(load, block_tokens=16, context_tokens=4096, seed=2)
    for _ in range(2000):
        request = traffic.draw()
        assert request.prompt_tokens > 0
        assert request.prompt_tokens + request.output_tokens <= 4096
        assert len(request.keys) * 16 < request.prompt_tokens
        assert request.output_tokens <= request.max_tokens


def test_the_shares_are_those_asked_for() -> None:
    load = Load(rate=50.0, stop_share=0.7, abort_share=0.2, streaming_share=0.9)
    _, requests = arrivals(load, 60.0)
    count = len(requests)
    assert sum(request.finish_reason == "stop" for request in requests) / count == pytest.approx(0.7, abs=0.04)
    assert sum(request.abort_at is not None for request in requests) / count == pytest.approx(0.2, abs=0.04)
    assert sum(request.streaming for request in requests) / count == pytest.approx(0.9, abs=0.04)


def test_the_same_seed_gives_the_same_requests() -> None:
    first, second = arrivals(Load(rate=9.0), 30.0, seed=5), arrivals(Load(rate=9.0), 30.0, seed=5)
    assert first[0] == second[0]
    assert [request.keys for request in first[1]] == [request.keys for request in second[1]]
    assert arrivals(replace(Load(rate=9.0)), 30.0, seed=6)[0] != first[0]
