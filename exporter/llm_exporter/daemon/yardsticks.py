"""What a rehearsal is measured with: truth, booked at the moment at which each engine books it, and how far off is wrong.

In: a `Rehearsal`. Out: signal, truth and tolerance of each quantity, and the times of a verdict. `truth_table.py` prints them; the tests of
tests/e2e/simulation hold every yardstick on every scenario.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from llm_exporter.daemon.rehearsal import SCRAPE_SECONDS, Rehearsal, Tick
from llm_exporter.demo.scenarios import Phase
from llm_exporter.demo.truth import Truth
from llm_exporter.signals.ramps import EVIDENCE_SECONDS
from llm_exporter.signals.verdict import AGREEING_TICKS

ENGINES = ("vllm", "sglang")
WINDOW = "1m"
WINDOW_SECONDS = 60.0
# A verdict rests on half a minute and needs two ticks that agree; the tick after a change may come one interval late. Until then the past
# may still speak.
SETTLE_SECONDS = EVIDENCE_SECONDS + (AGREEING_TICKS + 1) * SCRAPE_SECONDS
# What the demo promises (`Phase`): named within a minute, and back within a minute.
NAMED_WITHIN_SECONDS = 60.0
QUIET = ("none", "decode_memory")

Read = Callable[[Rehearsal, Tick], float | None]


class Yardstick(NamedTuple):
    """One signal and what is true.

    Attributes:
        title: for people.
        signal: what the exporter says at a tick.
        truth: what the model says about the same time, booked at the moment at which that engine books it.
        relative, absolute: how far they may be apart: `absolute + relative × truth`.
        because: where the distance comes from.
    """

    title: str
    signal: Read
    truth: Read
    relative: float
    absolute: float
    because: str

    def far(self, said: float, true: float) -> bool:
        """Whether they are further apart than they may be."""
        return abs(said - true) > self.absolute + self.relative * abs(true)


def _series(*series: str) -> Read:
    return lambda _, tick: tick.value(*series)


def _window(name: str, *labels: str) -> Read:
    return _series(name, *labels, WINDOW)


def _true(pick: Callable[[Truth], float | None]) -> Read:
    """Of the minute that ends at the tick."""
    return lambda play, tick: pick(play.truth(tick.at - WINDOW_SECONDS, tick.at))


def _true_gap(play: Rehearsal, tick: Tick) -> float:
    """The signal is a mean over the minute of gaps that each look half a minute back: so is this."""
    ticks = play.between(tick.at - WINDOW_SECONDS, tick.at)
    gaps = [play.truth(max(0.0, one.at - EVIDENCE_SECONDS), one.at).gap_ratio for one in ticks if one.at > 0]
    return sum(gaps) / len(gaps)


def _computed_once(true: Truth) -> float | None:
    return None if true.hit_ratio is None else true.prompt_tokens_per_second * (1.0 - true.hit_ratio)


def _preemptions(play: Rehearsal, tick: Tick) -> float | None:
    now, before = tick.value("llm_preemptions_total"), play.at(tick.at - WINDOW_SECONDS).value("llm_preemptions_total")
    return None if now is None else now - (before or 0.0)


_PHASES = "llm_request_phase_mean_seconds"
_QUEUE, _PREFILL, _DECODE = (_window(_PHASES, phase) for phase in ("queue", "prefill", "decode"))
_TTFT = _window("llm_time_to_first_token_mean_seconds")
_HIT = _window("llm_prefix_cache_hit_ratio")
_GAP = _window("llm_gpu_starved_ratio")
_GENERATED = _window("llm_generation_tokens_per_second")
_PROMPT = _window("llm_prompt_tokens_per_second")
_COMPUTED = _window("llm_prefill_tokens_per_second")
_OFFERED = _window("llm_offered_requests_per_second")
_WAITING, _RUNNING = _series("llm_requests_waiting"), _series("llm_requests_running")

_BOTH = (
    Yardstick("GPU gap", _GAP, _true_gap, 0.05, 0.02, "work is known from scrapes and step times, not from every moment"),
    Yardstick("hit ratio", _HIT, _true(lambda true: true.hit_ratio), 0.0, 0.01, "the page books an admission in the step after it"),
    Yardstick("generated tokens/s", _GENERATED, _true(lambda true: true.generation_tokens_per_second), 0.01, 0.5, "a token under way"),
    Yardstick(
        "offered requests/s",
        _OFFERED,
        _true(lambda true: true.arrivals_per_second),
        0.05,
        0.15,
        "requests in the front end; clients that give up",
    ),
    Yardstick("preemptions", _preemptions, _true(lambda true: float(true.preemptions)), 0.0, 0.5, "none: counted by both"),
)
YARDSTICKS = {
    "vllm": (
        Yardstick("queue time", _QUEUE, _true(lambda true: true.queue_time), 0.005, 0.0005, "none: booked when a request finishes"),
        Yardstick("prefill time", _PREFILL, _true(lambda true: true.prefill_time), 0.005, 0.0005, "none: booked when a request finishes"),
        Yardstick("decode time", _DECODE, _true(lambda true: true.decode_time), 0.005, 0.0005, "none: booked when a request finishes"),
        Yardstick("time to first token", _TTFT, _true(lambda true: true.ttft), 0.005, 0.0005, "none: booked at the first token"),
        Yardstick(
            "prompt tokens/s", _PROMPT, _true(lambda true: true.prompt_tokens_per_second), 0.005, 0.5, "none: booked at the first token"
        ),
        Yardstick(
            "computed prompt tokens/s",
            _COMPUTED,
            _true(_computed_once),
            0.04,
            1.0,
            "at the first token, hits at admission; not what is computed again after a preemption",
        ),
        Yardstick("waiting", _WAITING, _true(lambda true: float(true.waiting_end)), 0.05, 3.0, "gauges are those of the last step"),
        Yardstick("running", _RUNNING, _true(lambda true: float(true.running_end)), 0.05, 3.0, "gauges are those of the last step"),
        *_BOTH,
    ),
    "sglang": (
        Yardstick(
            "queue time", _QUEUE, _true(lambda true: true.started_queue_time), 0.01, 0.0005, "none: booked at the first forward pass"
        ),
        Yardstick(
            "prefill time",
            _PREFILL,
            _true(lambda true: true.first_token_prefill_time),
            0.02,
            0.001,
            "none: booked at the first token",
        ),
        Yardstick(
            "decode time",
            _DECODE,
            _true(lambda true: true.decode_time),
            0.1,
            0.02,
            "a difference: whole latency, aborted requests too, less time to first token, of streams",
        ),
        Yardstick("time to first token", _TTFT, _true(lambda true: true.ttft), 0.05, 0.002, "streams only, the truth is of all requests"),
        Yardstick(
            "prompt tokens/s",
            _PROMPT,
            _true(lambda true: true.prompt_tokens_per_second),
            0.02,
            5.0,
            "booked as chunks are computed, the truth at the first token",
        ),
        Yardstick(
            "computed prompt tokens/s",
            _COMPUTED,
            _true(lambda true: true.prefill_tokens_per_second),
            0.005,
            5.0,
            "none: what is computed again after a retraction is in it",
        ),
        Yardstick(
            "waiting",
            _WAITING,
            _true(lambda true: float(true.waiting_end)),
            0.05,
            4.0,
            "gauges are those of the last report, up to 40 decode steps ago",
        ),
        Yardstick(
            "running",
            _RUNNING,
            _true(lambda true: float(true.running_end)),
            0.1,
            6.0,
            "gauges are those of the last report, up to 40 decode steps ago",
        ),
        *_BOTH,
    ),
}


def is_trouble(phase: Phase) -> bool:
    """Whether something is wrong in it."""
    return phase.causes[0] not in QUIET


def named_after(play: Rehearsal, phase: Phase) -> float | None:
    """Seconds from the start of a trouble until the verdict names one of its causes; None if it never does."""
    named = [tick.at for tick in play.between(phase.start, phase.end) if tick.verdict in phase.causes and tick.verdict not in QUIET]
    return named[0] - phase.start if named else None


def healed_at(play: Rehearsal, phase: Phase) -> float:
    """When a trouble is really over: its end, or, if later, the first five seconds in which hardly a request waits."""
    second = phase.end
    while second + 5.0 <= play.ticks[-1].at and play.truth(second, second + 5.0).waiting >= 1.0:
        second += 1.0
    return second


def recovered_after(play: Rehearsal, phase: Phase) -> float | None:
    """Seconds from then until the verdict is quiet; None if it never is."""
    healed = healed_at(play, phase)
    quiet = [tick.at for tick in play.between(healed, play.ticks[-1].at) if tick.verdict in QUIET]
    return quiet[0] - healed if quiet else None


def settled_from(play: Rehearsal, phase: Phase) -> float:
    """From when a phase's `never` holds: the past has left the evidence."""
    before = [healed_at(play, trouble) for trouble in play.phases if is_trouble(trouble) and trouble.end <= phase.start]
    return max(phase.start + (SETTLE_SECONDS if is_trouble(phase) else 0.0), *(healed + SETTLE_SECONDS for healed in before), 0.0)


def last_tick(play: Rehearsal, phase: Phase) -> Tick:
    """The last tick before a phase ends: its window is as full of the phase as it gets."""
    return play.at(phase.end - 1.0)
