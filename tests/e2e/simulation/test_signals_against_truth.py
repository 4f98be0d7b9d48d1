"""Every scenario on both engines, played on its own clock through the whole pipeline: signals and verdicts against the model's own truth.

What may be apart, and why, stands with each yardstick (`daemon/yardsticks.py`).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from llm_exporter.daemon.rehearsal import SCRAPE_SECONDS, STALL_AFTER, Rehearsal
from llm_exporter.daemon.truth_table import row
from llm_exporter.daemon.yardsticks import (
    ENGINES,
    NAMED_WITHIN_SECONDS,
    QUIET,
    WINDOW_SECONDS,
    YARDSTICKS,
    healed_at,
    is_trouble,
    last_tick,
    named_after,
    recovered_after,
    settled_from,
)
from llm_exporter.demo.scenarios import SCENARIOS, Phase

# Starvation: on after 3 decisions 10 s apart, once the gap is half of the evidence; off after 4, once the evidence is clean (30 s).
STARVED_ON_WITHIN = 60.0
STARVED_OFF_WITHIN = 80.0
STALL_SECONDS_LATE = 10.0

DOCUMENT = Path(__file__).parents[3] / "docs" / "simulation.md"
PLAYS = [pytest.param(name, engine, id=f"{name}-{engine}") for name in SCENARIOS for engine in ENGINES]
# Signals that may be silent at a moment, and what the exporter then has to say of them.
MAY_BE_SILENT = {"decode time": "request_phase_mean_seconds"}


@cache
def played(name: str, engine: str) -> Rehearsal:
    return Rehearsal(SCENARIOS[name], engine).run()


def troubles(play: Rehearsal) -> list[Phase]:
    return [phase for phase in play.phases if is_trouble(phase)]


def values_are_true(play: Rehearsal, engine: str) -> None:
    """At the end of every phase that fills most of a window. A hung engine's page stands still, so there only that is checked."""
    seen = set()
    for phase in (phase for phase in play.phases if phase.end - phase.start >= 0.6 * WINDOW_SECONDS):
        tick = last_tick(play, phase)
        if "stalled" in phase.causes:
            if tick.at - WINDOW_SECONDS >= phase.start:
                assert tick.value("llm_generation_tokens_per_second", "1m") == 0, phase.what
                assert tick.value("llm_time_to_first_token_mean_seconds", "1m") is None, "no first token, no latency"
            continue
        for stick in YARDSTICKS[engine]:
            said, true = stick.signal(play, tick), stick.truth(play, tick)
            where = f"{stick.title} at {tick.at:.0f} s ({phase.what}): signal {said}, truth {true}"
            if true is None or said is None:
                nothing = true is None or play.truth(tick.at - WINDOW_SECONDS, tick.at).first_tokens_per_second == 0
                told = stick.title in MAY_BE_SILENT and tick.value("llm_signal_status", MAY_BE_SILENT[stick.title], "1m", "skewed") == 1
                assert said is None, where
                assert nothing or told, where
                continue
            seen.add(stick.title)
            assert not stick.far(said, true), f"{where}; {stick.because}"
    assert seen >= {stick.title for stick in YARDSTICKS[engine]} - set(MAY_BE_SILENT)


def verdicts_are_right(play: Rehearsal) -> None:
    for phase in play.phases:
        for tick in play.between(settled_from(play, phase), phase.end):
            assert tick.verdict not in phase.never, f"{phase.what}: {tick.verdict} at {tick.at:.0f} s"
    for phase in troubles(play):
        named, recovered = named_after(play, phase), recovered_after(play, phase)
        assert named is not None, phase.what
        assert named <= NAMED_WITHIN_SECONDS, phase.what
        for tick in play.between(phase.start + NAMED_WITHIN_SECONDS, phase.end):
            assert tick.verdict in phase.causes, f"{phase.what}: {tick.verdict} at {tick.at:.0f} s"
        assert recovered is not None, phase.what
        assert recovered <= NAMED_WITHIN_SECONDS, phase.what
    for phase in play.phases:
        if not is_trouble(phase):
            for tick in play.between(max(settled_from(play, phase), 20.0), phase.end):
                assert tick.verdict in QUIET, f"{phase.what}: {tick.verdict} at {tick.at:.0f} s"


def flags_are_right(play: Rehearsal) -> None:
    """The flags of stall and starvation: on in their own trouble, in time, and nowhere else."""
    allowed: dict[str, list[tuple[float, float]]] = {"llm_engine_stalled": [], "llm_gpu_starved": []}
    for phase in troubles(play):
        if "stalled" in phase.causes:
            late = phase.start + STALL_AFTER + STALL_SECONDS_LATE
            assert play.at(late).value("llm_engine_stalled") == 1, "stalled in time"
            assert play.at(phase.start + STALL_AFTER - 1).value("llm_engine_stalled") == 0, "and not before"
            allowed["llm_engine_stalled"].append((phase.start + STALL_AFTER, phase.end + SCRAPE_SECONDS))
        if "host_starved" in phase.causes:
            assert play.at(phase.start + STARVED_ON_WITHIN).value("llm_gpu_starved") == 1
            assert play.at(phase.end + STARVED_OFF_WITHIN).value("llm_gpu_starved") == 0
            allowed["llm_gpu_starved"].append((phase.start, phase.end + STARVED_OFF_WITHIN))
    for flag, times in allowed.items():
        wrong = [t.at for t in play.ticks if t.value(flag) == 1 and not any(start <= t.at <= end for start, end in times)]
        assert not wrong, flag


@pytest.mark.slow
@pytest.mark.parametrize(("name", "engine"), PLAYS)
def test_the_exporter_sees_what_is_true(name: str, engine: str) -> None:
    play = played(name, engine)
    values_are_true(play, engine)
    verdicts_are_right(play)
    flags_are_right(play)
    if name != "tour":
        assert row(play, name, engine) in DOCUMENT.read_text().splitlines(), "run python -m llm_exporter.daemon.truth_table"


@pytest.mark.slow
def test_a_wrong_signal_is_noticed() -> None:
    """The yardsticks are no wider than a mistake: what one scenario says is not true of another."""
    quiet, queue = played("healthy", "vllm"), played("queue", "vllm")
    here, there = last_tick(quiet, quiet.phases[-1]), last_tick(queue, troubles(queue)[0])
    apart = [stick.title for stick in YARDSTICKS["vllm"] if stick.far(stick.signal(queue, there) or 0.0, stick.truth(quiet, here) or 0.0)]
    assert {"queue time", "decode time", "time to first token", "generated tokens/s", "waiting", "running"} <= set(apart)
    assert healed_at(queue, troubles(queue)[0]) > troubles(queue)[0].end, "the queue takes a while to drain"
