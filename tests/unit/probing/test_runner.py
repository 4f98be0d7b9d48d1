from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from fakes.probing import LADDER, FakeProber, Module, good, shared, tokens_of
from llm_exporter.errors import FetchError, SourceError, UsageError
from llm_exporter.expose.probes import families
from llm_exporter.metrics import Sample
from llm_exporter.probing.addresses import Addresses
from llm_exporter.probing.manners import EngineView, ProbeModule, run_cost
from llm_exporter.probing.results import ResultStore
from llm_exporter.probing.run import Outcome, ProbeTarget
from llm_exporter.probing.runner import ProbeRunner
from llm_exporter.sources.probe import ProbeReading, TlsSettings

SHORT = Module()
READY = EngineView(state="ready", engine="vllm", model="m", requests_waiting=0)
TARGET = ProbeTarget("chat", "http://127.0.0.1:1", headers=lambda: {"Authorization": "Bearer secret"})


class Bench:
    """A runner on a clock of ours."""

    def __init__(self, prober: FakeProber | None = None) -> None:
        self.prober = prober or FakeProber()
        self.now = 1000.0
        self.store = ResultStore()
        self.runner = ProbeRunner(self.prober, self.store, clock=lambda: self.now, wall=lambda: self.now + 1e9)

    def run(self, module: Module = SHORT, view: EngineView = READY, name: str = "short") -> Outcome:
        return self.runner.run(TARGET, name, module, self.now, view)

    def probe_now(self, module: Module = SHORT, view: EngineView = READY, timeout: float | None = None) -> Outcome:
        return self.runner.probe_now(TARGET, "short", module, self.now, view, scrape_timeout_seconds=timeout)


def values(outcome: Outcome, name: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in families([outcome.record]):
        if family.metric.name == name:
            found = {sample.labels[2:]: float(sample.value) for sample in family.samples if isinstance(sample, Sample)}
    return found


def test_a_run_sends_one_marked_request_and_publishes_it() -> None:
    bench = Bench()
    outcome = bench.run()
    (call,) = bench.prober.calls
    assert (outcome.result, outcome.sent) == ("success", True)
    assert call.headers["User-Agent"].startswith("llm-exporter-probe/")
    assert call.headers["Authorization"] == "Bearer secret"
    assert "x-custom-labels" not in call.headers
    assert values(outcome, "llm_probe_success") == {(): 1.0}
    assert values(outcome, "llm_probe_time_to_first_token_seconds") == {("64", "cold"): 0.2}
    assert values(outcome, "llm_probe_last_run_timestamp_seconds") == {(): 1_000_001_000.0}
    assert values(outcome, "llm_probe_requests_total")[("success",)] == 1.0
    assert values(outcome, "llm_probe_stream_buffered") == {(): 0.0}


def test_sglang_traffic_is_labelled() -> None:
    bench = Bench()
    bench.run(view=EngineView(state="ready", engine="sglang", model="m"))
    assert bench.prober.calls[0].headers["x-custom-labels"] == '{"source": "probe"}'


def test_the_prompt_finds_its_length_and_successive_ones_share_nothing() -> None:
    bench = Bench()
    for _ in range(4):
        outcome = bench.run(Module(prompt_tokens=(256,)))
    assert values(outcome, "llm_probe_prompt_tokens") == {("256", "cold"): pytest.approx(256, abs=2)}
    assert shared(bench.prober.prompts) < 16


def test_what_was_sent_is_counted_by_the_servers_count() -> None:
    bench = Bench()
    for _ in range(3):
        outcome = bench.run()
    by_run = [tokens_of(prompt) for prompt in bench.prober.prompts]
    (kept,) = bench.store.snapshot()
    assert kept.sent_prompt_tokens == sum(by_run)
    assert values(outcome, "llm_probe_sent_prompt_tokens_total") == {(): float(by_run[-1])}


def test_an_answer_holds_its_own_run_alone_and_the_store_holds_all() -> None:
    bench = Bench()
    for _ in range(3):
        outcome = bench.run()
    assert values(outcome, "llm_probe_requests_total")[("success",)] == 1.0
    assert [cell.cumulative[-1] for cell in outcome.record.cells] == [1.0]
    (kept,) = bench.store.snapshot()
    assert kept.results["success"] == 3
    assert [cell.cumulative[-1] for cell in kept.cells] == [3.0]


def test_a_warm_run_primes_first_with_the_same_prompt_and_counts_both() -> None:
    bench = Bench()
    outcome = bench.run(Module(cache=("warm",)))
    first, second = bench.prober.prompts
    assert first == second
    assert values(outcome, "llm_probe_requests_total")[("success",)] == 2.0
    (histogram,) = [family for family in families([outcome.record]) if family.metric.name.endswith("distribution_seconds")]
    assert histogram.samples[0].cumulative[-1] == 1.0  # type: ignore[union-attr]  # the priming is no measurement


def test_a_failure_leaves_no_times_but_the_duration() -> None:
    bench = Bench()
    bench.run()
    bench.prober.answer = lambda _: ProbeReading("timeout", duration_seconds=20.0, request_sent=True)
    outcome = bench.run()
    assert values(outcome, "llm_probe_success") == {(): 0.0}
    assert values(outcome, "llm_probe_duration_seconds") == {("64", "cold"): 20.0}
    assert values(outcome, "llm_probe_time_to_first_token_seconds") == {}
    assert values(outcome, "llm_probe_prompt_tokens") == {}
    assert values(outcome, "llm_probe_stream_buffered") == {}
    assert values(outcome, "llm_probe_last_result")[("timeout",)] == 1.0
    assert values(outcome, "llm_probe_requests_total")[("timeout",)] == 1.0


def test_prompt_tokens_of_a_request_that_timed_out_are_estimated_and_of_one_never_sent_are_none() -> None:
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("timeout", request_sent=True)))
    assert 40 < values(bench.run(), "llm_probe_sent_prompt_tokens_total")[()] < 100
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("connect")))
    assert values(bench.run(), "llm_probe_sent_prompt_tokens_total")[()] == 0.0


@pytest.mark.parametrize(
    ("view", "result"),
    [
        (EngineView(state="loading", engine="vllm"), "skipped_loading"),
        (EngineView(state="sleeping", engine="vllm"), "skipped_sleeping"),
        (EngineView(state="ready", engine="vllm", requests_waiting=3), "skipped_busy"),
    ],
)
def test_a_skip_is_an_answer_and_no_request(view: EngineView, result: str) -> None:
    bench = Bench()
    outcome = bench.run(Module(max_waiting=2), view)
    assert (outcome.result, outcome.sent, bench.prober.calls) == (result, False, [])
    assert values(outcome, "llm_probe_last_result")[(result,)] == 1.0
    assert values(outcome, "llm_probe_success") == {}
    assert set(values(outcome, "llm_probe_requests_total").values()) == {0.0}


def test_a_skip_keeps_what_the_last_run_showed() -> None:
    bench = Bench()
    bench.run()
    outcome = bench.run(view=EngineView(state="loading"))
    assert values(outcome, "llm_probe_success") == {(): 1.0}
    assert values(outcome, "llm_probe_last_result")[("success",)] == 0.0


def test_the_budget_of_the_hour_holds_for_the_target() -> None:
    bench = Bench()
    module = Module(budget_tokens_per_hour=200)
    results = [bench.run(module).result for _ in range(4)]
    assert results == ["success", "success", "skipped_budget", "skipped_budget"]
    assert bench.run(Module(), name="other").result == "success"
    bench.now += 3601
    assert bench.run(module).result == "success"


def test_an_unknown_engine_that_lists_a_model_is_probed() -> None:
    bench = Bench()
    assert bench.run(view=EngineView()).result == "success"
    assert bench.run(view=EngineView()).result == "success"
    assert bench.prober.listings == 1


@pytest.mark.parametrize("models", [[], FetchError("http_404")])
def test_an_unknown_engine_that_lists_none_is_skipped(models: list[str] | FetchError) -> None:
    bench = Bench(FakeProber(models=models))
    assert bench.run(view=EngineView()).result == "skipped_unknown_engine"
    assert bench.prober.calls == []


def test_a_server_that_cannot_be_reached_for_its_models_is_a_failed_probe() -> None:
    outcome = Bench(FakeProber(models=FetchError("connect", "refused"))).run(view=EngineView())
    assert (outcome.result, outcome.sent) == ("connect", True)
    assert values(outcome, "llm_probe_success") == {(): 0.0}
    assert values(outcome, "llm_probe_requests_total")[("connect",)] == 1.0


def test_the_name_of_the_model_is_asked_again_after_a_404() -> None:
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("http_404", request_sent=True)))
    bench.run(view=EngineView())
    bench.now += 60
    bench.run(view=EngineView())
    assert bench.prober.listings == 2


def test_two_probes_of_one_target_never_run_at_once() -> None:
    bench = Bench()
    inside, outside = slow_prober(bench)
    thread = threading.Thread(target=bench.run)
    thread.start()
    assert inside.wait(5)
    assert bench.run(name="other").result == "skipped_busy"
    asked = bench.probe_now()
    assert (asked.result, asked.record.last_result) == ("skipped_busy", "skipped_busy")
    assert bench.runner.store.snapshot("chat", "short")[0].last_result == ""  # what /probe was told is not on the page
    outside.set()
    thread.join()
    assert len(bench.prober.calls) == 1
    assert bench.run(name="other").result == "success"


def test_after_failures_a_target_rests_and_the_last_result_is_the_answer() -> None:
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("connect")))
    for _ in range(3):
        assert bench.run().sent
        bench.now += 60
    bench.now -= 55
    outcome = bench.run()
    assert (outcome.result, outcome.sent) == ("connect", False)


def test_a_target_rests_for_its_own_failures_and_not_for_those_of_another_at_its_address() -> None:
    told: list[tuple[str, bool, str]] = []
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("tls_verify")))
    bench.runner = ProbeRunner(
        bench.prober,
        bench.store,
        clock=lambda: bench.now,
        tell=lambda target, _, outcome: told.append((target.name, outcome.resting, outcome.detail)),
    )
    trusting = ProbeTarget("trusting", TARGET.url, tls=TlsSettings(insecure_skip_verify=True))
    bench.runner.keep_only({("chat", "short"): SHORT, ("trusting", "short"): SHORT}, {"chat": TARGET.url, "trusting": TARGET.url})
    for _ in range(3):
        bench.run()
        bench.now += 60
    bench.now -= 55
    bench.prober.answer = good
    outcome = bench.run()
    assert (outcome.sent, outcome.resting) == (False, True)
    assert told[-1] == ("chat", True, "resting after 3 failures in a row")  # whoever shows the probe's state hears of the rest
    for _ in range(2):
        assert bench.runner.run(trusting, "short", SHORT, bench.now, READY).result == "success"
    assert bench.run().resting  # the success of the other says nothing either


def test_other_tls_settings_end_the_rest() -> None:
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("tls_verify")))
    for _ in range(3):
        bench.run()
        bench.now += 60
    bench.now -= 55
    bench.prober.answer = good
    assert bench.run().resting
    mended = replace(TARGET, tls=TlsSettings(ca_file="ca.pem"))
    assert bench.runner.run(mended, "short", SHORT, bench.now, READY).result == "success"


def test_probe_answers_with_the_last_run_of_the_target_that_was_asked_for() -> None:
    bench = Bench()
    other = ProbeTarget("other", TARGET.url)
    bench.runner.run(other, "short", SHORT, bench.now, READY)
    bench.run()
    bench.now += SHORT.interval or 0.0
    bench.runner.run(other, "short", SHORT, bench.now, READY)
    assert bench.probe_now().sent


def test_a_ladder_measures_each_cell_and_publishes_the_median() -> None:
    ttfts = iter([0.1 + 0.01 * number for number in range(200)])
    bench = Bench(FakeProber(answer=lambda prompt: good(prompt, next(ttfts))))
    outcome = bench.run(replace(LADDER, budget_tokens_per_hour=None))
    # 2 lessons, 20 cold, 20 warm, 20 primings
    assert len(bench.prober.calls) == 62
    assert len(values(outcome, "llm_probe_time_to_first_token_seconds")) == 8
    for family in families([outcome.record]):
        if family.metric.name.endswith("distribution_seconds"):
            assert [sample.cumulative[-1] for sample in family.samples] == [5.0] * 8  # type: ignore[union-attr]


def caching(prompts: list[str]) -> Callable[[str], ProbeReading]:
    """A server that has a prefix cache and tells what it had of a prompt."""

    def answer(prompt: str) -> ProbeReading:
        cached = tokens_of(prompt) // 16 * 16 if prompt in prompts[:-1] else 0
        return replace(good(prompt), cached_tokens=cached)

    return answer


def ledger_of(bench: Bench) -> int:
    return bench.runner._addresses.find("chat", TARGET.url)[0].ledger.spent(bench.now)


def test_a_ladder_fits_into_the_budget_of_the_documentation_and_not_twice_into_it() -> None:
    bench = Bench()
    seen: list[str] = []
    answer = caching(seen)
    bench.prober.answer = lambda prompt: (seen.append(prompt), answer(prompt))[1]  # type: ignore[func-returns-value]
    outcome = bench.run(LADDER)
    assert (outcome.result, outcome.record.last_result, len(bench.prober.calls)) == ("success", "success", 62)
    # 5 cold each; the warm prompt of a length is computed once and then its tail
    assert ledger_of(bench) == pytest.approx(6 * 59_392, rel=0.02)
    assert bench.run(LADDER).result == "skipped_budget"


def test_a_server_that_does_not_tell_what_it_had_cached_costs_no_more_than_the_budget() -> None:
    """It may have no prefix cache: a ladder of 357,632 tokens then makes it compute 890,880."""
    bench = Bench()
    outcome = bench.run(LADDER)
    assert (outcome.result, outcome.record.last_result) == ("success", "skipped_budget")
    assert 400_000 - 33_000 < ledger_of(bench) <= 400_000 + 33_000
    assert ledger_of(bench) == bench.store.snapshot()[0].sent_prompt_tokens
    assert "--enable-prompt-tokens-details" in outcome.advice
    bench.now += 3601
    assert bench.run(LADDER).sent


def test_a_warm_prompt_that_comes_much_sooner_was_cached_though_nobody_says_so() -> None:
    """Most servers do not tell `cached_tokens`: the ladder of the documentation must still fit into its budget."""
    bench = Bench()
    seen: list[str] = []

    def answer(prompt: str) -> ProbeReading:
        known = prompt in seen
        seen.append(prompt)
        return good(prompt, 0.02 if known else 0.01 + 5e-5 * tokens_of(prompt))

    bench.prober.answer = answer
    outcome = bench.run(LADDER)
    assert (outcome.result, outcome.record.last_result, len(bench.prober.calls)) == ("success", "success", 62)
    assert ledger_of(bench) == pytest.approx(6 * 59_392, rel=0.02)


@pytest.mark.parametrize("cache", [("cold",), ("warm",)])
def test_the_budget_is_asked_before_each_request(cache: tuple[str, ...]) -> None:
    """The tokenizer makes four times as many tokens as it did: the run notices after the first request and not at its end."""
    bench = Bench()
    module = Module(prompt_tokens=(1000,), cache=cache, repeat=5, budget_tokens_per_hour=6500)
    bench.run(Module(prompt_tokens=(1000,)), name="other")
    bench.prober.answer = lambda prompt: replace(good(prompt), prompt_tokens=4 * tokens_of(prompt))
    outcome = bench.run(module)
    assert outcome.record.last_result == "skipped_budget"
    largest = max(4 * tokens_of(prompt) for prompt in bench.prober.prompts)
    assert ledger_of(bench) <= 6500 + largest
    assert len(bench.prober.calls) <= 4


@pytest.mark.parametrize("cache", [("cold",), ("warm",), ("cold", "warm")])
def test_a_budget_of_exactly_one_run_lets_all_of_it_through(cache: tuple[str, ...]) -> None:
    bench = Bench()
    seen: list[str] = []
    answer = caching(seen)
    bench.prober.answer = lambda prompt: (seen.append(prompt), answer(prompt))[1]  # type: ignore[func-returns-value]
    module = Module(prompt_tokens=(1000, 500), cache=cache, repeat=4)
    module = replace(module, budget_tokens_per_hour=run_cost(module.prompt_tokens, cache, 4))
    for _ in range(5):
        outcome = bench.run(module)
        assert outcome.record.last_result == "success"
        bench.now += 3601


def test_a_priming_that_took_the_budget_is_not_followed_by_its_measurement() -> None:
    bench = Bench()
    bench.run(Module(prompt_tokens=(1000,)))
    bench.now += 3601
    bench.prober.calls.clear()
    bench.prober.answer = lambda prompt: replace(good(prompt), prompt_tokens=tokens_of(prompt) * 108 // 100)
    outcome = bench.run(Module(prompt_tokens=(1000,), cache=("warm",), budget_tokens_per_hour=1064))
    assert (outcome.record.last_result, len(bench.prober.calls)) == ("skipped_budget", 1)


@pytest.mark.parametrize("counted", [1, 10**9])
def test_a_made_up_count_is_not_what_the_budget_believes(counted: int) -> None:
    bench = Bench(FakeProber(answer=lambda prompt: replace(good(prompt), prompt_tokens=counted)))
    bench.run(Module(prompt_tokens=(1000,)))
    assert ledger_of(bench) == pytest.approx(1000 * len(bench.prober.calls), rel=0.1)


def test_a_ladder_stops_when_users_come() -> None:
    bench = Bench()
    views = iter([READY, READY, READY, EngineView(state="ready", engine="vllm", model="m", requests_waiting=1)])
    outcome = bench.runner.run(TARGET, "ladder", LADDER, bench.now, lambda: next(views))
    assert (outcome.result, outcome.sent, outcome.record.last_result) == ("success", True, "skipped_busy")
    assert 3 <= len(bench.prober.calls) <= 6


def test_a_ladder_that_fails_midway_shows_no_old_values_where_it_did_not_come() -> None:
    bench = Bench()
    bench.run(LADDER)
    bench.now += 7200
    bench.prober.answer = lambda _: ProbeReading("timeout", duration_seconds=1.0, request_sent=True)
    outcome = bench.run(LADDER)
    assert values(outcome, "llm_probe_time_to_first_token_seconds") == {}
    assert len(values(outcome, "llm_probe_duration_seconds")) == 1


SMALL = replace(READY, context_tokens=4096)


def lengths_shown(bench: Bench) -> set[str]:
    return {
        sample.labels[2]
        for family in families(bench.store.snapshot())
        for sample in family.samples
        if "prompt_tokens" in family.metric.labels
    }


def test_a_length_beyond_the_context_is_left_out_with_all_its_series() -> None:
    bench = Bench()
    module = Module(prompt_tokens=(1000, 2000, 4096))
    outcome = bench.run(module, SMALL)
    assert outcome.result == "success"
    assert "prompt_tokens 4096 left out: the model's context of 4096 tokens holds prompts of up to 3918" in outcome.advice
    assert lengths_shown(bench) == {"1000", "2000"}
    assert set(values(outcome, "llm_probe_prompt_tokens")) == {("1000", "cold"), ("2000", "cold")}
    assert max(map(tokens_of, bench.prober.prompts)) < 2100
    bench.now += 60
    assert bench.run(module, replace(READY, context_tokens=32768)).advice == ""
    assert lengths_shown(bench) == {"1000", "2000", "4096"}


def test_where_no_length_fits_nothing_is_sent_and_the_answer_says_why() -> None:
    bench = Bench()
    outcome = bench.run(Module(prompt_tokens=(8192,)), SMALL)
    assert (outcome.result, outcome.sent, bench.prober.calls) == ("skipped_context", False, [])
    assert "up to 3918" in outcome.detail
    assert values(outcome, "llm_probe_last_result")[("skipped_context",)] == 1.0


def strict(context: int, characters_per_token: float, template: int) -> Callable[[str], ProbeReading]:
    """A server with a context, which refuses what is longer."""

    def answer(prompt: str) -> ProbeReading:
        tokens = template + int(len(prompt) / characters_per_token)
        if tokens + 8 > context:
            return ProbeReading("http_400", "maximum context length", request_sent=True)
        return replace(good(prompt), prompt_tokens=tokens)

    return answer


@pytest.mark.parametrize(("characters_per_token", "template"), [(3.9, 36), (2.3, 40), (5.2, 900)])
@pytest.mark.parametrize("told", ["page", "list"])
def test_a_ladder_at_the_full_context_is_never_refused(characters_per_token: float, template: int, told: str) -> None:
    """The page of vLLM does not tell the context; its list of models does."""
    bench = Bench(FakeProber(answer=strict(32768, characters_per_token, template), context_tokens=32768 if told == "list" else None))
    module = Module(interval=None, schedule="0 4 * * *", prompt_tokens=(2048, 31_700, 32_768), cache=("cold", "warm"), repeat=5)
    view = replace(READY, context_tokens=32768 if told == "page" else None)
    for _ in range(3):
        outcome = bench.run(module, view)
        assert outcome.result == "success"
        assert "32768 left out" in outcome.advice
        counted = values(outcome, "llm_probe_prompt_tokens")
        assert counted[("31700", "cold")] == pytest.approx(31_700, rel=0.01)
        assert counted[("2048", "warm")] == pytest.approx(2048, rel=0.05)
        bench.now += 86_400
    assert bench.prober.listings == (told == "list")


def test_no_reading_is_filed_under_a_length_that_it_did_not_have() -> None:
    """From the first measured one on; the lessons are counted as sent."""
    bench = Bench(FakeProber(answer=strict(10**6, 2.3, 40)))
    for number in range(5):
        outcome = bench.run()
        assert values(outcome, "llm_probe_prompt_tokens") == {("64", "cold"): pytest.approx(64, abs=16)}
        assert number or len(bench.prober.calls) > 1
        bench.now += 30
    (record,) = bench.store.snapshot()
    assert record.cells[0].cumulative[-1] == 5
    assert record.results["success"] == len(bench.prober.calls) <= 5 + 3
    assert record.sent_prompt_tokens == sum(40 + int(len(prompt) / 2.3) for prompt in bench.prober.prompts) == ledger_of(bench)


def test_a_long_prompt_is_never_the_first_lesson() -> None:
    bench = Bench(FakeProber(answer=strict(10**6, 1.2, 40)))
    bench.run(Module(prompt_tokens=(32_768,)))
    counts = [40 + int(len(prompt) / 1.2) for prompt in bench.prober.prompts]
    assert len(counts) == 3
    assert max(counts[:2]) < 6000
    assert counts[2] == pytest.approx(32_768, rel=0.02)


def test_a_lesson_of_a_warm_prompt_is_learned_before_it_is_measured() -> None:
    bench = Bench(FakeProber(answer=strict(10**6, 2.3, 40)))
    outcome = bench.run(Module(cache=("warm",), prompt_tokens=(512,)))
    *_, primer, measured = bench.prober.prompts
    assert primer == measured
    assert values(outcome, "llm_probe_prompt_tokens") == {("512", "warm"): pytest.approx(512, rel=0.1)}
    assert len(bench.prober.calls) == 3


def test_a_lesson_that_fails_is_a_failed_run() -> None:
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("timeout", request_sent=True)))
    outcome = bench.run(Module(prompt_tokens=(32_768,)))
    assert (outcome.result, outcome.sent, len(bench.prober.calls)) == ("timeout", True, 1)
    assert values(outcome, "llm_probe_success") == {(): 0.0}


def test_a_module_speaks_its_language_and_tokenizers_are_learned_for_each() -> None:
    bench = Bench()
    bench.run()
    bench.run(Module(language="zh"), name="chinese")
    assert bench.prober.prompts[0].isascii()
    assert not bench.prober.prompts[-1].isascii()
    assert len(bench.prober.prompts[1]) == round(64 * 1.6)  # the guess for Chinese, not what English has taught


UNKNOWN = EngineView()
BLIND = replace(READY, requests_waiting=None)


@pytest.mark.parametrize("view", [UNKNOWN, BLIND], ids=["no page", "a page without queue"])
def test_a_ladder_is_not_sent_into_a_queue_that_nobody_knows(view: EngineView) -> None:
    bench = Bench()
    for _ in range(10):
        outcome = bench.run(LADDER, view)
        assert (outcome.result, outcome.sent) == ("skipped_busy", False)
        assert "how many requests wait is not known" in outcome.detail
        assert outcome.advice == outcome.detail
        bench.now += 86_400
    assert bench.prober.calls == []
    assert values(outcome, "llm_probe_last_result")[("skipped_busy",)] == 1.0


def test_a_ladder_stops_when_the_queue_is_not_known_any_more() -> None:
    bench = Bench()
    outcome = bench.runner.run(TARGET, "ladder", LADDER, bench.now, lambda: BLIND if len(bench.prober.calls) > 5 else READY)
    assert (outcome.result, outcome.record.last_result) == ("success", "skipped_busy")
    assert 5 < len(bench.prober.calls) <= 8


def test_a_heartbeat_that_minds_the_queue_finds_a_dead_server_within_a_minute_and_asks_once_a_minute() -> None:
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("connect"), models=FetchError("connect")))
    module = Module(interval=15.0, max_waiting=0)
    assert bench.run(module).sent  # the queue is known, so it goes
    began, sent = bench.now, []
    for _ in range(40):
        bench.now += 15
        outcome = bench.run(module, UNKNOWN)
        assert "not known" in outcome.advice or "resting" in outcome.detail  # the same each time, so that it is told once
        if outcome.sent:
            sent.append(bench.now - began)
    assert sent[0] <= 75
    assert {later - earlier for earlier, later in pairwise(sent)} == {60}
    assert bench.store.snapshot()[0].success is False


def test_a_page_that_is_lost_now_and_then_lets_no_heartbeat_through() -> None:
    bench = Bench()
    module = Module(interval=30.0, max_waiting=0)
    for turn in range(40):
        bench.now += 30
        assert bench.run(module, UNKNOWN if turn % 2 else replace(READY, requests_waiting=5)).result == "skipped_busy"
    assert bench.prober.calls == []


def test_a_heartbeat_without_max_waiting_needs_no_page() -> None:
    bench = Bench()
    assert [bench.run(SHORT, BLIND).result for _ in range(3)] == ["success"] * 3


def slow_by(bench: Bench, seconds: float) -> Callable[[str], ProbeReading]:
    """Each answer takes so long, or until its deadline."""

    def answer(prompt: str) -> ProbeReading:
        limit = bench.prober.calls[-1].timeout_seconds
        bench.now += min(seconds, limit)
        return good(prompt) if seconds <= limit else ProbeReading("timeout", duration_seconds=limit, request_sent=True)

    return answer


@pytest.mark.parametrize("module", [Module(cache=("warm",)), Module(cache=("cold", "warm"), repeat=3), Module(repeat=100)])
@pytest.mark.parametrize("seconds", [0.3, 0.7, 1.1, 1.6])
def test_probe_now_answers_within_the_scrapes_timeout_whatever_the_module_asks_for(module: Module, seconds: float) -> None:
    bench = Bench()
    bench.prober.answer = slow_by(bench, seconds)
    began = bench.now
    outcome = bench.probe_now(module, timeout=2.5)
    assert bench.now - began <= 2.0 + 1e-6
    assert (outcome.result, outcome.record.success) == ("success", True)
    assert len(bench.prober.calls) == max(1, min(int(2.0 / seconds), len(bench.prober.calls)))
    assert [cell.last is None or cell.last.success for cell in outcome.record.cells] == [True] * len(outcome.record.cells)


def test_what_probe_now_did_not_come_to_is_left_out_and_the_answer_says_so() -> None:
    bench = Bench()
    bench.prober.answer = slow_by(bench, 1.6)
    outcome = bench.probe_now(Module(cache=("warm",)), timeout=2.5)
    assert values(outcome, "llm_probe_time_to_first_token_seconds") == {}
    assert outcome.detail == "stopped after 0 of 1 measurements: the time of the call is over"


def test_a_request_that_had_less_time_than_it_should_is_counted_and_says_nothing_of_the_server() -> None:
    bench = Bench()
    taken = iter([0.5, 9.0])
    bench.prober.answer = lambda prompt: slow_by(bench, next(taken))(prompt)
    outcome = bench.probe_now(Module(repeat=2), timeout=2.5)
    assert (outcome.result, outcome.record.success) == ("success", True)
    assert values(outcome, "llm_probe_requests_total")[("timeout",)] == 1.0
    assert values(outcome, "llm_probe_time_to_first_token_seconds") == {("64", "cold"): 0.2}


def test_a_server_that_does_not_answer_within_the_scrape_is_a_timeout() -> None:
    bench = Bench()
    bench.prober.answer = slow_by(bench, 9.0)
    assert bench.probe_now(timeout=2.5).result == "timeout"


def test_asking_for_the_model_takes_from_the_same_time() -> None:
    bench = Bench()

    def listing(url: str, headers: object, tls: object, timeout_seconds: float) -> tuple[list[str], int | None]:
        assert timeout_seconds == 2.0
        bench.now += 1.5
        return ["m"], None

    bench.prober.list_models = listing  # type: ignore[method-assign,assignment]
    bench.probe_now(view=UNKNOWN, timeout=2.5)
    assert bench.prober.calls[0].timeout_seconds == pytest.approx(0.5)


def test_a_reading_without_a_time_does_not_stand_for_those_that_have_one() -> None:
    times = iter([None, 0.5, 0.3, 0.4, None])
    bench = Bench(FakeProber(answer=lambda prompt: replace(good(prompt), time_to_first_token_seconds=next(times))))
    module = Module(repeat=5)
    assert values(bench.run(module), "llm_probe_time_to_first_token_seconds") == {("64", "cold"): 0.4}
    bench.prober.answer = lambda prompt: replace(good(prompt), time_to_first_token_seconds=None)
    bench.now += 60
    outcome = bench.run(module)
    assert outcome.record.cells[0].last is not None
    assert values(outcome, "llm_probe_time_to_first_token_seconds") == {}


def test_output_tokens_are_counted_with_those_of_primings() -> None:
    bench = Bench()
    assert values(bench.run(Module(cache=("warm",))), "llm_probe_received_completion_tokens_total") == {(): 16.0}
    bench.run(Module(cache=("warm",)))
    assert bench.store.snapshot()[0].completion_tokens == 32


def test_probe_now_answers_the_last_run_while_it_is_young() -> None:
    bench = Bench()
    assert bench.probe_now().sent
    bench.now += 14.9
    young = bench.probe_now()
    assert (young.sent, young.result) == (False, "success")
    bench.now += 0.2
    assert bench.probe_now().sent
    assert len(bench.prober.calls) == 2


def test_probe_now_shares_the_last_run_of_the_scheduler() -> None:
    bench = Bench()
    bench.run()
    bench.now += 10
    assert not bench.probe_now().sent


@pytest.mark.parametrize("module", [LADDER, Module(prompt_tokens=(1, 2)), Module(max_tokens=65)])
def test_probe_now_refuses_costly_modules(module: Module) -> None:
    bench = Bench()
    with pytest.raises(UsageError, match="interval modules"):
        bench.probe_now(module)
    assert bench.prober.calls == []


def test_probe_now_obeys_the_timeout_of_the_scrape() -> None:
    bench = Bench()
    bench.probe_now(timeout=10.0)
    assert bench.prober.calls[0].timeout_seconds == 9.5
    with pytest.raises(UsageError, match="no time"):
        bench.probe_now(timeout=0.5)


def test_after_a_reload_what_is_gone_is_forgotten() -> None:
    bench = Bench()
    bench.run()
    bench.runner.keep_only({("chat", "long"): Module(prompt_tokens=(128,))}, {"chat": TARGET.url})
    (record,) = bench.runner.store.snapshot()
    assert (record.module, record.results, [cell.prompt_tokens for cell in record.cells]) == ("long", {}, [128])


def test_no_secret_is_in_any_outcome() -> None:
    assert "secret" not in repr(Bench().run())
    assert "secret" not in repr(TARGET)


def test_a_url_that_is_no_target_is_in_its_own_answer_only_and_cannot_fill_the_memory() -> None:
    bench = Bench()
    bench.runner.keep_only({("chat", "short"): SHORT}, {"chat": TARGET.url})
    for number in range(300):
        foreign = ProbeTarget(f"http://10.0.0.{number}", f"http://10.0.0.{number}")
        outcome = bench.runner.probe_now(foreign, "short", SHORT, bench.now, READY)
        assert outcome.record.target == foreign.name
    assert [record.target for record in bench.runner.store.snapshot()] == ["chat"]
    assert len(bench.runner.store._entries) <= 257


def slow_prober(bench: Bench) -> tuple[threading.Event, threading.Event]:
    """Probes hang until the second event; the first says that one does."""
    inside, release = threading.Event(), threading.Event()

    def slow(prompt: str) -> ProbeReading:
        inside.set()
        assert release.wait(5)
        return good(prompt)

    bench.prober.answer = slow
    return inside, release


WANTED: dict[tuple[str, str], ProbeModule] = {("chat", "short"): SHORT}
URLS = {"chat": TARGET.url}


def test_a_bug_is_a_failed_run_with_a_pause_and_no_old_success_stays() -> None:
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    bench.run()

    def bug(_: str) -> ProbeReading:
        raise OverflowError("int too large")

    bench.prober.answer = bug
    for _ in range(3):
        bench.now += 60
        with pytest.raises(OverflowError):
            bench.run()
    (record,) = bench.store.snapshot()
    assert (record.success, record.last_result, record.results["truncated"]) == (False, "truncated", 3)
    assert record.cells[0].last is not None
    assert record.cells[0].last.time_to_first_token_seconds is None
    bench.now += 5
    bench.prober.answer = good
    assert not bench.run().sent  # it rests


def test_what_the_child_loses_is_counted_with_its_tokens_and_rests() -> None:
    bench = Bench(
        FakeProber(answer=lambda _: ProbeReading("truncated", "the probe process ended", duration_seconds=3.0, request_sent=True))
    )
    outcome = bench.run()
    assert values(outcome, "llm_probe_success") == {(): 0.0}
    assert values(outcome, "llm_probe_requests_total")[("truncated",)] == 1.0
    assert values(outcome, "llm_probe_sent_prompt_tokens_total")[()] > 40
    for _ in range(2):
        bench.now += 60
        bench.run()
    bench.now += 5
    assert not bench.run().sent


def test_credentials_that_cannot_be_read_are_a_failed_probe() -> None:
    def unreadable() -> dict[str, str]:
        raise SourceError("credentials", "/run/token cannot be read: Permission denied")

    bench = Bench()
    bench.runner.run(TARGET, "short", SHORT, bench.now, READY)
    bench.now += 60
    outcome = bench.runner.run(ProbeTarget("chat", TARGET.url, headers=unreadable), "short", SHORT, bench.now, READY)
    assert (outcome.result, outcome.sent) == ("connect", True)
    assert "/run/token cannot be read" in outcome.detail
    assert values(outcome, "llm_probe_success") == {(): 0.0}
    assert len(bench.prober.calls) == 1


def test_a_server_that_cannot_be_reached_for_its_models_still_has_a_duration() -> None:
    bench = Bench()

    def listing(*_: object) -> tuple[list[str], int | None]:
        bench.now += 2.5
        raise FetchError("timeout")

    bench.prober.list_models = listing  # type: ignore[assignment,method-assign]
    assert values(bench.run(view=EngineView()), "llm_probe_duration_seconds") == {("64", "cold"): 2.5}


@pytest.mark.parametrize("said", ["you sent Bearer secret-token", "bad key secret-token"])
def test_what_a_server_repeats_of_our_credentials_is_not_passed_on(said: str) -> None:
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("in_band_error", said, request_sent=True)))
    target = ProbeTarget("chat", TARGET.url, headers=lambda: {"Authorization": "Bearer secret-token"})
    detail = bench.runner.run(target, "short", SHORT, bench.now, READY).detail
    assert "secret-token" not in detail
    assert "…" in detail


def test_a_target_that_goes_and_comes_back_while_it_is_probed_is_not_probed_twice() -> None:
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    inside, release = slow_prober(bench)
    thread = threading.Thread(target=bench.run)
    thread.start()
    assert inside.wait(5)
    bench.runner.keep_only({}, {})
    bench.runner.keep_only({("again", "short"): SHORT}, {"again": TARGET.url + "/"})
    back = ProbeTarget("again", TARGET.url + "/")
    assert bench.runner.run(back, "short", SHORT, bench.now, READY).result == "skipped_busy"
    release.set()
    thread.join(5)
    assert len(bench.prober.calls) == 1
    (record,) = bench.store.snapshot()
    assert (record.target, record.success, record.results) == ("again", None, {})  # what the old one brought is nobody's
    bench.now += 60
    assert bench.runner.run(back, "short", SHORT, bench.now, READY).sent


def test_budget_and_pause_outlive_a_reload_that_takes_the_target_away() -> None:
    module = Module(budget_tokens_per_hour=200)
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    assert [bench.run(module).result for _ in range(2)] == ["success", "success"]
    bench.runner.keep_only({}, {})
    bench.runner.keep_only(WANTED, URLS)
    assert bench.run(module).result == "skipped_budget"
    bench = Bench(FakeProber(answer=lambda _: ProbeReading("connect")))
    bench.runner.keep_only(WANTED, URLS)
    for _ in range(3):
        assert bench.run().sent
        bench.now += 60
    bench.now -= 55
    bench.runner.keep_only({}, {})
    bench.runner.keep_only(WANTED, URLS)
    outcome = bench.run()
    assert (outcome.result, outcome.sent, outcome.record.success) == ("skipped_busy", False, None)


def test_a_young_run_that_a_reload_has_forgotten_is_no_answer() -> None:
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    bench.run()
    bench.runner.keep_only({}, {})
    bench.runner.keep_only(WANTED, URLS)
    outcome = bench.probe_now()
    assert (outcome.sent, outcome.record.success) == (True, True)


def test_a_target_that_moved_shows_nothing_of_its_old_server_also_of_a_run_that_still_goes_on() -> None:
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    bench.run()
    inside, release = slow_prober(bench)
    bench.now += 60
    thread = threading.Thread(target=bench.run)
    thread.start()
    assert inside.wait(5)
    assert bench.runner.keep_only(WANTED, {"chat": "http://127.0.0.1:2"}) == {"chat"}
    release.set()
    thread.join(5)
    (record,) = bench.store.snapshot()
    assert (record.success, record.last_result, record.results, record.sent_prompt_tokens) == (None, "", {}, 0)
    assert [(cell.last, cell.cumulative[-1]) for cell in record.cells] == [(None, 0)]
    moved = ProbeTarget("chat", "http://127.0.0.1:2")
    assert bench.runner.run(moved, "short", SHORT, bench.now, READY).sent
    assert bench.runner.probe_now(moved, "short", SHORT, bench.now, READY).result == "success"


def test_the_same_address_in_another_spelling_is_no_move() -> None:
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    bench.run()
    assert not bench.runner.keep_only(WANTED, {"chat": "HTTP://127.0.0.1:1/"})
    assert bench.store.snapshot()[0].success


@pytest.mark.parametrize("first", ["http://127.0.0.1:9/ok", "http://127.0.0.1:1/ok"], ids=["foreign", "beside a target"])
def test_urls_of_one_origin_share_one_lock_and_one_budget(first: str) -> None:
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    inside, release = slow_prober(bench)
    module = Module(budget_tokens_per_hour=100)

    def probe(url: str) -> Outcome:
        return bench.runner.probe_now(ProbeTarget(url, url), "short", module, bench.now, READY)

    thread = threading.Thread(target=probe, args=(first,))
    thread.start()
    assert inside.wait(5)
    others = [f"{first}{'/' * number}" for number in range(1, 5)] + [first.replace("/ok", "/other"), first.replace("http", "HTTP")]
    assert {probe(url).result for url in others} == {"skipped_busy"}
    if ":1/" in first:
        assert bench.run().result == "skipped_busy"
    release.set()
    thread.join(5)
    assert len(bench.prober.calls) == 1
    bench.now += 60
    assert probe(others[-2]).result == "skipped_budget"


def test_targets_behind_one_gateway_do_not_wait_for_each_other() -> None:
    bench = Bench()
    urls = {"a": "http://gw/a", "b": "http://gw/b"}
    bench.runner.keep_only({("a", "short"): SHORT, ("b", "short"): SHORT}, urls)
    inside, release = slow_prober(bench)
    thread = threading.Thread(target=bench.runner.run, args=(ProbeTarget("a", urls["a"]), "short", SHORT, bench.now, READY))
    thread.start()
    assert inside.wait(5)
    bench.prober.answer = good  # for whoever comes now
    assert bench.runner.run(ProbeTarget("b", urls["b"]), "short", SHORT, bench.now, READY).sent
    release.set()
    thread.join(5)


def test_a_module_that_a_reload_changed_while_it_ran_gets_no_cell_back() -> None:
    bench = Bench()
    bench.runner.keep_only(WANTED, URLS)
    inside, release = slow_prober(bench)
    thread = threading.Thread(target=bench.run)
    thread.start()
    assert inside.wait(5)
    bench.runner.keep_only({("chat", "short"): Module(prompt_tokens=(128,))}, URLS)
    release.set()
    thread.join(5)
    assert [cell.prompt_tokens for cell in bench.store.snapshot()[0].cells] == [128]


def test_addresses_cannot_fill_the_memory_and_a_lock_that_is_held_is_kept() -> None:
    addresses = Addresses()
    addresses.configure({"chat": "http://chat"})
    chat, _ = addresses.find("chat", "http://chat")
    held, _ = addresses.find("http://held", "http://held")
    with held.lock:
        for number in range(5000):
            addresses.find("x", f"http://h{number}/p")
        assert addresses.find("http://held", "http://held/other")[0] is held
    assert addresses.find("chat", "http://chat")[0] is chat
    assert max(len(addresses._servers), len(addresses._places)) <= 2048
