"""Laws that the model must keep whatever the load: every request ends once, tokens and blocks are conserved, Little's law."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from llm_exporter.demo.hardware import PRESETS, Conditions, Hardware
from llm_exporter.demo.model import Engine
from llm_exporter.demo.request import ENDED, Observer, Request, State, Step
from llm_exporter.demo.scheduling import SglangEngine, VllmEngine
from llm_exporter.demo.traffic import Load, PoissonTraffic
from llm_exporter.demo.truth import TruthLog

ENGINES = [(VllmEngine, "h200-8b"), (SglangEngine, "h100-8b"), (VllmEngine, "cpu-tiny-vllm"), (SglangEngine, "cpu-tiny-sglang")]
IDS = [f"{engine.__name__}-{hardware}" for engine, hardware in ENGINES]
LOADS = {
    "chat": Load(rate=6.0, abort_share=0.1, patience=1.0),
    "tight": Load(rate=5.0, prompt_tokens=900, output_tokens=700, prefix_tokens=64, spread=0.4, abort_share=0.05, patience=6.0),
    "bursts": Load(rate=4.0, burst_every=10.0, burst_seconds=1.0, burst_factor=12.0, prefix_tokens=320),
}


class Watcher(Observer):
    """Follows every request and checks the engine's invariants after every step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests: list[Request] = []
        self.ends: Counter[int] = Counter()
        self.tokens: Counter[int] = Counter()
        self.computed = self.gap_tokens = self.steps = self.preemptions = self.most_running = 0
        self.highest_usage = 0.0
        self.last_step_at = -1.0
        engine.observers.append(self)

    def arrived(self, request: Request, now: float) -> None:
        self.requests.append(request)

    def first_token(self, request: Request, now: float) -> None:
        assert request.arrived_at <= request.queued_at <= request.scheduled_at <= now
        self.tokens[request.identity] += 1

    def gaps(self, seconds: float, count: int) -> None:
        assert seconds >= 0
        assert count > 0
        self.gap_tokens += count

    def finished(self, request: Request, now: float) -> None:
        self.ends[request.identity] += 1
        assert request.generated == request.output_tokens
        assert request.last_token_at == now
        assert request.finished_at >= now

    def aborted(self, request: Request, now: float, before: State) -> None:
        self.ends[request.identity] += 1

    def rejected(self, request: Request, now: float, in_stream: bool) -> None:
        self.ends[request.identity] += 1

    def preempted(self, request: Request, now: float, generated: int) -> None:
        self.preemptions += 1

    def step_ended(self, step: Step, now: float) -> None:
        engine, pool = self.engine, self.engine.pool
        self.steps += 1
        assert now > self.last_step_at
        self.last_step_at = now
        self.computed += step.prefill_tokens
        assert step.gpu_seconds <= step.seconds + 1e-12
        assert 0 <= pool.in_use <= pool.in_use + pool.cached <= pool.capacity
        self.most_running = max(self.most_running, len(engine.running))
        self.highest_usage = max(self.highest_usage, pool.in_use / pool.capacity)
        if self.steps % 7:
            return  # what follows is slow
        held = {key for request in engine.running for key in request.taken}
        assert pool.in_use == len(held) + sum(request.plain for request in engine.running)
        decoding = [request for request in engine.running if request.state is State.DECODE]
        assert engine.decoding == len(decoding)
        assert engine.context == sum(request.target + engine.decode_steps - request.joined for request in decoding)
        assert len(engine.running) <= engine.hardware.max_running
        for request in decoding:
            blocks = len(request.taken) + request.plain
            assert blocks * engine.hardware.block_tokens >= request.target + engine.decode_steps - request.joined


def engine_of(
    kind: type[Engine], hardware: str | Hardware, load: Load, *, seed: int = 3, queue_limit: int | None = None
) -> tuple[Engine, Watcher, TruthLog]:
    preset = PRESETS[hardware] if isinstance(hardware, str) else hardware
    if preset.gpus == 0:
        load = replace(load, rate=load.rate / 8, prompt_tokens=120, output_tokens=60, prefix_tokens=256)
    traffic = PoissonTraffic(load, block_tokens=preset.block_tokens, context_tokens=preset.context_tokens, seed=seed)
    engine = kind(preset, Conditions(), traffic, queue_limit=queue_limit)
    return engine, Watcher(engine), TruthLog(engine)


def drain(engine: Engine, until: float) -> None:
    """No new requests; let the rest end."""
    engine.traffic = None
    engine.advance(until)


@pytest.mark.parametrize(("kind", "hardware"), ENGINES, ids=IDS)
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_every_request_ends_once_and_tokens_are_conserved(kind: type[Engine], hardware: str, load: Load) -> None:
    preset = PRESETS[hardware]
    if load is LOADS["tight"] and preset.gpus:
        preset = replace(preset, kv_blocks=3000)
    engine, seen, truth = engine_of(kind, preset, load)
    engine.advance(30.0)
    drain(engine, 400.0)
    assert len(seen.requests) > 10
    assert all(request.state in ENDED for request in seen.requests)
    assert set(seen.ends.values()) == {1}
    assert len(seen.ends) == len(seen.requests)
    assert (len(engine.running), len(engine.waiting), engine.decoding, engine.context, engine.pool.in_use) == (0, 0, 0, 0, 0)
    finished = [request for request in seen.requests if request.state is State.FINISHED]
    assert sum(request.generated for request in finished) <= truth.total["generated_tokens"]
    aborted_tokens = sum(request.generated for request in seen.requests if request.state is State.ABORTED)
    assert truth.total["generated_tokens"] == sum(request.generated for request in finished) + aborted_tokens
    if not seen.preemptions and not aborted_tokens and all(r.state is State.FINISHED for r in seen.requests):
        hits = sum(request.hit_tokens or 0 for request in finished)
        assert seen.computed + hits == sum(request.prompt_tokens for request in finished)


@pytest.mark.parametrize(("kind", "hardware"), ENGINES[:2], ids=IDS[:2])
def test_tokens_in_are_tokens_computed_plus_tokens_cached(kind: type[Engine], hardware: str) -> None:
    engine, seen, truth = engine_of(kind, hardware, replace(LOADS["chat"], abort_share=0.0))
    engine.advance(60.0)
    drain(engine, 200.0)
    assert seen.preemptions == 0
    prompt = sum(request.prompt_tokens for request in seen.requests)
    hits = sum(request.hit_tokens or 0 for request in seen.requests)
    assert hits > 0
    assert seen.computed + hits == prompt == truth.total["prompt_tokens"]
    assert truth.total["generated_tokens"] == sum(request.output_tokens for request in seen.requests)


@pytest.mark.parametrize(("kind", "hardware"), ENGINES[:2], ids=IDS[:2])
def test_littles_law_holds(kind: type[Engine], hardware: str) -> None:
    engine, _, truth = engine_of(kind, replace(PRESETS[hardware], max_running=12), Load(rate=7.0, abort_share=0.0))
    for second in range(1, 301):
        engine.advance(float(second))
        truth.sample(float(second))
    true = truth.window(60.0, 300.0)
    assert true.waiting > 0.3
    assert true.started_queue_time is not None
    assert true.waiting == pytest.approx(true.first_tokens_per_second * true.started_queue_time, rel=0.1, abs=0.05)
    assert true.prefill_time is not None
    assert true.decode_time is not None
    assert true.running == pytest.approx(true.finished_per_second * (true.prefill_time + true.decode_time), rel=0.1)


@pytest.mark.parametrize(("kind", "hardware"), ENGINES[:2], ids=IDS[:2])
def test_requests_are_thrown_back_only_when_the_cache_is_full(kind: type[Engine], hardware: str) -> None:
    _, calm, _ = run(kind, PRESETS[hardware], LOADS["chat"])
    assert calm.preemptions == 0
    assert calm.highest_usage < 0.5
    pressed = Load(rate=4.0, prompt_tokens=500, output_tokens=1200, prefix_tokens=0, conversations=0.0, spread=0.2, stop_share=0.0)
    _, tight, _ = run(kind, replace(PRESETS[hardware], kv_blocks=1500), pressed)
    assert tight.preemptions > 0
    assert tight.highest_usage > 0.97


def run(kind: type[Engine], hardware: Hardware, load: Load, seconds: float = 60.0) -> tuple[Engine, Watcher, TruthLog]:
    engine, seen, truth = engine_of(kind, hardware, load)
    engine.advance(seconds)
    return engine, seen, truth


@pytest.mark.parametrize(("kind", "hardware"), ENGINES[:2], ids=IDS[:2])
def test_a_request_thrown_back_computes_again_and_still_gives_every_token_once(kind: type[Engine], hardware: str) -> None:
    load = Load(rate=3.0, prompt_tokens=500, output_tokens=1200, prefix_tokens=0, conversations=0.0, spread=0.2, stop_share=0.0)
    engine, seen, truth = engine_of(kind, replace(PRESETS[hardware], kv_blocks=1500), replace(load, abort_share=0.0))
    engine.advance(60.0)
    drain(engine, 2000.0)
    again = [request for request in seen.requests if request.preemptions]
    assert again
    assert all(request.generated == request.output_tokens for request in again)
    assert truth.total["generated_tokens"] == sum(request.output_tokens for request in seen.requests)
    prompt = sum(request.prompt_tokens - (request.hit_tokens or 0) for request in seen.requests)
    assert seen.computed > prompt


@pytest.mark.parametrize(("kind", "hardware"), ENGINES[:2], ids=IDS[:2])
def test_the_clock_may_be_cut_into_any_pieces(kind: type[Engine], hardware: str) -> None:
    whole, _, truth = engine_of(kind, hardware, LOADS["bursts"])
    whole.advance(30.0)
    pieces, _, other = engine_of(kind, hardware, LOADS["bursts"])
    at = 0.0
    while at < 30.0:
        at = min(30.0, at + 0.037)
        pieces.advance(at)
    assert truth.total == other.total


def test_another_seed_is_another_run() -> None:
    first = run(VllmEngine, PRESETS["h200-8b"], LOADS["chat"])[2]
    engine, _, second = engine_of(VllmEngine, "h200-8b", LOADS["chat"], seed=4)
    engine.advance(60.0)
    assert first.total["prompt_tokens"] != second.total["prompt_tokens"]


@pytest.mark.parametrize(("kind", "hardware"), ENGINES[:2], ids=IDS[:2])
def test_a_shared_prefix_hits_as_often_as_its_length_says(kind: type[Engine], hardware: str) -> None:
    load = Load(rate=8.0, prompt_tokens=200, spread=0.01, prefixes=2, prefix_tokens=800, conversations=0.0, abort_share=0.0)
    engine, _, truth = engine_of(kind, hardware, load)
    for second in range(1, 61):
        engine.advance(float(second))
        truth.sample(float(second))
    true = truth.window(20.0, 60.0)
    assert true.hit_ratio == pytest.approx(0.8, abs=0.01)
    salted = engine_of(kind, hardware, replace(load, salted=True))
    salted[0].advance(60.0)
    assert salted[2].total["hit_tokens"] == 0


def test_a_conversation_finds_its_own_history() -> None:
    load = Load(rate=2.0, prefix_tokens=0, conversations=1.0, output_tokens=300, abort_share=0.0)
    _, _, truth = run(VllmEngine, PRESETS["h200-8b"], load)
    assert truth.total["hit_tokens"] > 0.3 * truth.total["queried_tokens"]


def test_a_full_queue_refuses_and_says_so() -> None:
    load = Load(rate=20.0, prompt_tokens=2000, prefix_tokens=0, conversations=0.0, abort_share=0.0)
    engine, seen, truth = engine_of(VllmEngine, replace(PRESETS["h200-8b"], max_running=4), load, queue_limit=5)
    engine.advance(20.0)
    assert truth.total["rejected"] > 50
    assert len(engine.waiting) <= 5 + 1
    drain(engine, 200.0)
    assert set(seen.ends.values()) == {1}


def test_a_hung_engine_does_nothing_and_goes_on_when_it_wakes() -> None:
    engine, seen, truth = engine_of(VllmEngine, "h200-8b", replace(LOADS["chat"], abort_share=0.0))
    engine.advance(10.0)
    engine.hang()
    before = dict(truth.total)
    engine.advance(40.0)
    after = dict(truth.total)
    assert after["arrived"] > before["arrived"] + 100
    for name in ("steps", "generated_tokens", "finished", "scheduled", "first_tokens"):
        assert after[name] == before[name], name
    engine.wake()
    drain(engine, 200.0)
    assert set(seen.ends.values()) == {1}
    assert len(seen.ends) == len(seen.requests)


@pytest.mark.parametrize(("kind", "hardware"), ENGINES[:2], ids=IDS[:2])
def test_a_cpu_quota_leaves_gaps_on_the_gpu(kind: type[Engine], hardware: str) -> None:
    engine, _, truth = engine_of(kind, hardware, LOADS["chat"])
    for second in range(1, 41):
        if second == 21:
            engine.conditions.quota_cores = 0.5
        engine.advance(float(second))
        truth.sample(float(second))
    healthy, starved = truth.window(5.0, 20.0), truth.window(22.0, 40.0)
    assert healthy.gap_ratio < 0.1
    assert starved.gap_ratio > 0.4
    assert starved.throttled_ratio > 0.4


def test_a_noisy_neighbour_leaves_gaps_too() -> None:
    engine, _, truth = engine_of(VllmEngine, "h200-8b", LOADS["chat"])
    engine.conditions.run_delay = 0.6
    for second in range(1, 31):
        engine.advance(float(second))
        truth.sample(float(second))
    assert truth.window(5.0, 30.0).gap_ratio > 0.15


def test_a_slow_front_end_shows_in_ttft_alone() -> None:
    engine, _, truth = engine_of(VllmEngine, "h200-8b", LOADS["chat"])
    engine.conditions.tokenise_factor = 28.0
    for second in range(1, 61):
        engine.advance(float(second))
        truth.sample(float(second))
    true = truth.window(10.0, 60.0)
    assert true.frontend_time is not None
    assert true.frontend_time > 0.15
    assert true.started_queue_time is not None
    assert true.started_queue_time < 0.02
    assert true.prefill_time is not None
    assert true.prefill_time < 0.1
