from __future__ import annotations

from itertools import pairwise

import pytest

from fakes.probing import LADDER, Module
from llm_exporter.probing.manners import BackOff, EngineView, TokenLedger, is_heartbeat, reason_to_skip, run_cost


def test_the_daily_ladder_of_the_documentation_costs_357632_tokens() -> None:
    """Worked example s10-budget: 4 lengths, 5 cold, 1 priming, 5 warm with 64 tokens each."""
    assert run_cost([2048, 8192, 16384, 32768], ["cold", "warm"], 5) == 357_632


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (EngineView(state="loading"), "skipped_loading"),
        (EngineView(state="sleeping"), "skipped_sleeping"),
        (EngineView(state="ready", requests_waiting=1), "skipped_busy"),
        (EngineView(state="ready", requests_waiting=0), None),
        (EngineView(state="ready", requests_waiting=None), "skipped_busy"),
        (EngineView(state="unknown"), "skipped_busy"),
    ],
)
def test_state_and_queue_decide(view: EngineView, reason: str | None) -> None:
    assert reason_to_skip(LADDER, view, 0, 357_632) == reason


def test_a_heartbeat_without_max_waiting_is_sent_into_a_full_queue() -> None:
    assert reason_to_skip(Module(), EngineView(state="ready", requests_waiting=500), 0, 64) is None


def test_the_budget_counts_what_this_run_will_cost() -> None:
    view = EngineView(state="ready", requests_waiting=0)
    assert reason_to_skip(LADDER, view, 42_368, 357_632) is None
    assert reason_to_skip(LADDER, view, 42_369, 357_632) == "skipped_budget"


def test_a_ledger_forgets_after_an_hour() -> None:
    ledger = TokenLedger()
    ledger.add(0.0, 100)
    ledger.add(1800.0, 50)
    assert ledger.spent(3599.9) == 150
    assert ledger.spent(3600.0) == 50
    assert ledger.spent(5400.0) == 0


@pytest.mark.parametrize(
    ("module", "yes"),
    [
        (Module(), True),
        (Module(max_tokens=64), True),
        (Module(max_tokens=65), False),
        (Module(prompt_tokens=(64, 128)), False),
        (LADDER, False),
    ],
)
def test_what_a_heartbeat_is(module: Module, yes: bool) -> None:
    assert is_heartbeat(module) is yes


def sent_at(module: Module, turns: int, step: float) -> list[float]:
    """Moments at which a server that always fails is probed, when it is the module's turn each `step` seconds."""
    back_off, moments = BackOff(), []
    for turn in range(turns):
        now = turn * step
        if back_off.ready(now):
            moments.append(now)
            back_off.note(now, module, success=False)
    return moments


def test_a_heartbeat_that_fails_falls_to_once_a_minute_and_no_further() -> None:
    moments = sent_at(Module(interval=10.0), 60, 10.0)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert gaps[:4] == [10, 20, 40, 60]
    assert set(gaps[4:]) == {60}


def test_a_slow_heartbeat_keeps_its_interval() -> None:
    assert sent_at(Module(interval=120.0), 5, 120.0) == [0, 120, 240, 360, 480]


def test_a_costly_module_doubles_its_pause_up_to_four_hours() -> None:
    module = Module(interval=300.0, prompt_tokens=(2048, 8192))
    moments = sent_at(module, 500, 300.0)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert gaps[:4] == [300, 600, 1200, 2400]
    assert max(gaps) == 14_400


def test_a_daily_ladder_is_never_late_for_its_next_day() -> None:
    assert sent_at(LADDER, 4, 86_400.0) == [0, 86_400, 172_800, 259_200]


def test_a_success_ends_the_pause() -> None:
    back_off = BackOff()
    for turn in range(5):
        back_off.note(turn * 60.0, Module(), success=False)
    assert not back_off.ready(250.0)
    back_off.note(300.0, Module(), success=True)
    assert back_off.ready(300.0)
    assert back_off.failures == 0


@pytest.mark.parametrize("cache", [("cold",), ("warm",), ("cold", "warm")])
@pytest.mark.parametrize("repeat", [1, 5])
def test_a_budget_that_the_configuration_admits_admits_one_run(cache: tuple[str, ...], repeat: int) -> None:
    from llm_exporter.config.model import ProbeModule

    settings = {"interval": "1h", "prompt_tokens": [32, 2048], "cache": list(cache), "repeat": repeat}
    module = ProbeModule.model_validate(settings)
    assert module.computed_tokens_per_run == run_cost(module.prompt_tokens, module.cache, module.repeat)
