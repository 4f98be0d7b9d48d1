"""What the demo and the end-to-end tests play: load, hardware, timed changes, and the verdicts that are right.

A scenario is a declaration for a pair of servers. `Phase` says from when to when a cause is really there; a verdict
should name it within a minute of its start, and be back to what was before within a minute of its end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm_exporter.demo.model import Engine
from llm_exporter.demo.traffic import Load, PoissonTraffic


@dataclass(frozen=True, slots=True)
class Change:
    """At `at` seconds after the start: another load, other conditions, or both. None leaves a thing as it is.

    Attributes:
        conditions: attributes of `Conditions` with their new values.
    """

    at: float
    load: Load | None = None
    conditions: Mapping[str, float | int | None] = field(default_factory=dict)
    hung: bool | None = None

    def apply(self, engine: Engine, traffic: PoissonTraffic) -> None:
        """Make it so."""
        if self.load is not None:
            traffic.change(self.load, engine.now)
        for name, value in self.conditions.items():
            setattr(engine.conditions, name, value)
        if self.hung is not None and self.hung != engine.conditions.hung:
            if self.hung:
                engine.hang()
            else:
                engine.wake()


@dataclass(frozen=True, slots=True)
class Phase:
    """From `start` to `end` one of `causes` is what limits the server; one of `never` would be wrong.

    Both are values of the label `cause` of `llm_bottleneck_verdict`.
    """

    start: float
    end: float
    causes: tuple[str, ...]
    what: str
    never: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """One server of the pair.

    Attributes:
        hardware: name of a preset.
        overrides: attributes of the preset with other values (a smaller KV cache, a lower batch limit).
        load: at the start.
    """

    hardware: str
    load: Load
    changes: tuple[Change, ...] = ()
    phases: tuple[Phase, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    queue_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """A play for one vLLM and one SGLang server.

    Attributes:
        summary: one line for `--help` and the status page.
        look_at: what a person should watch, one sentence each.
        seconds: after this long it has shown all; the servers then stay as they are.
    """

    name: str
    summary: str
    look_at: tuple[str, ...]
    vllm: Side
    sglang: Side
    seconds: float

    def side(self, kind: str) -> Side:
        """The server of that engine."""
        return self.vllm if kind == "vllm" else self.sglang


@dataclass(frozen=True, slots=True)
class _Trouble:
    """What goes wrong for a while. Loads and conditions are given per engine: (vLLM, SGLang).

    `rush`: for so many seconds the load begins at four times its rate, so that the trouble is there at once.
    """

    what: str
    causes: tuple[str, ...]
    never: tuple[str, ...]
    loads: tuple[Load, Load] | None = None
    conditions: tuple[Mapping[str, float | int | None], Mapping[str, float | int | None]] = ({}, {})
    recover: Mapping[str, float | int | None] = field(default_factory=dict)
    hung: bool = False
    rush: float = 0.0


_HARDWARE = ("h200-8b", "h100-8b")
_CALM = (Load(rate=9.0), Load(rate=7.0))
_FINE = ("none", "decode_memory")
_BAD = ("idle", "queue", "kv_cache", "host_starved", "launch_bound", "frontend", "throttled", "foreign_process", "stalled")
_SETTLE = 70.0  # recovery: a queue that grew for minutes drains at its own pace

_LONG_PREFIX = (Load(rate=8.3, prefix_tokens=2200), Load(rate=7.2, prefix_tokens=2200))
_LONG_OUTPUT = Load(
    rate=0.0,
    prompt_tokens=2600,
    prefix_tokens=0,
    conversations=0.0,
    output_tokens=1500,
    spread=0.3,
    stop_share=0.0,
    burst_every=25.0,
    burst_seconds=4.0,
    burst_factor=3.0,
)
_LONG_PROMPT = Load(rate=0.0, prompt_tokens=2000, prefix_tokens=0, conversations=0.0, output_tokens=60)

_TROUBLES: Mapping[str, _Trouble] = {
    "queue": _Trouble(
        "more chat requests than the batch limit lets run: the queue grows",
        ("queue",),
        ("host_starved", "stalled", "kv_cache", "frontend", "idle"),
        (Load(rate=18.6), Load(rate=13.8)),
    ),
    "long-prompts": _Trouble(
        "more long prompts than the GPU can prefill: requests pile up behind the arithmetic",
        ("queue", "prefill_compute"),
        ("host_starved", "stalled", "kv_cache", "frontend", "idle"),
        (replace(_LONG_PROMPT, rate=15.0), replace(_LONG_PROMPT, rate=14.0)),
    ),
    "cache-collapse": _Trouble(
        "a timestamp slipped into the system prompt: the prefix cache stops hitting",
        ("prefill_compute", "queue", "none", "decode_memory"),
        ("host_starved", "stalled", "kv_cache", "frontend", "idle"),
        (replace(_LONG_PREFIX[0], salted=True), replace(_LONG_PREFIX[1], salted=True)),
    ),
    "starved": _Trouble(
        "a CPU quota of half a core: the GPU waits for its host",
        ("host_starved",),
        ("stalled", "launch_bound", "decode_memory", "idle", "kv_cache"),
        (Load(rate=5.0), Load(rate=4.0)),
        ({"quota_cores": 0.5}, {"quota_cores": 0.5}),
        {"quota_cores": None},
    ),
    "starved-frontend": _Trouble(
        "a slow API process: requests wait to be tokenised before the scheduler sees them",
        ("frontend",),
        ("stalled", "queue", "kv_cache", "idle"),
        None,
        ({"tokenise_factor": 21.0}, {"tokenise_factor": 23.0}),
        {"tokenise_factor": 1.0},
    ),
    "kv-pressure": _Trouble(
        "long outputs fill the KV cache: requests are thrown back and computed again",
        ("kv_cache",),
        ("host_starved", "stalled", "frontend", "idle"),
        (replace(_LONG_OUTPUT, rate=1.65), replace(_LONG_OUTPUT, rate=1.2)),
        rush=9.0,
    ),
    "stalled": _Trouble(
        "the engine hangs: /health and /metrics still answer, no token comes",
        ("stalled",),
        ("idle", "none", "host_starved"),
        hung=True,
    ),
}
_SMALL_CACHE = {"kv_blocks": 10000, "max_running": 48}


def _side(kind: int, calm: tuple[Load, Load], plan: Sequence[tuple[float, float, str]], stop: float, overrides: Mapping[str, Any]) -> Side:
    """Ordinary load, with the troubles of `plan` (start, end, name) in it."""
    changes: list[Change] = []
    phases: list[Phase] = []
    quiet_from = 0.0
    for start, end, name in plan:
        trouble = _TROUBLES[name]
        load = trouble.loads[kind] if trouble.loads else None
        # the load before a collapse of the cache must be one that the cache can help
        before = _LONG_PREFIX[kind] if name == "cache-collapse" and len(plan) > 1 else None
        if before is not None:
            changes.append(Change(start - 40.0, load=before))
        first = replace(load, rate=4.0 * load.rate, burst_every=0.0) if load is not None and trouble.rush else load
        changes.append(Change(start, load=first, conditions=trouble.conditions[kind], hung=trouble.hung or None))
        if first is not load:
            changes.append(Change(start + trouble.rush, load=load))
        back = calm[kind] if load is not None else None
        changes.append(Change(end, load=back, conditions=trouble.recover, hung=False if trouble.hung else None))
        phases += [
            Phase(quiet_from, start, _FINE, "ordinary chat load", _BAD),
            Phase(start, end, trouble.causes, trouble.what, trouble.never),
        ]
        quiet_from = end + _SETTLE
    phases.append(Phase(quiet_from, stop, _FINE, "ordinary chat load", _BAD))
    return Side(_HARDWARE[kind], calm[kind], tuple(changes), tuple(phases), overrides)


def _scenario(
    name: str,
    look_at: tuple[str, ...],
    *,
    calm: tuple[Load, Load] = _CALM,
    overrides: Mapping[str, Any] | None = None,
    plan: Sequence[tuple[float, float, str]] = (),
    stop: float = 290.0,
    summary: str = "",
) -> Scenario:
    plan = plan or ((60.0, 180.0, name),)
    sides = [_side(kind, calm, plan, stop, overrides or {}) for kind in (0, 1)]
    if len(plan) == 1:
        start, end, _ = plan[0]
        look_at = (f"Trouble from {start:.0f} s to {end:.0f} s after the start; it is quiet before and after.", *look_at)
    return Scenario(name, summary or _TROUBLES[name].what, look_at, sides[0], sides[1], stop)


def _healthy() -> Scenario:
    phases = (Phase(0.0, 180.0, _FINE, "ordinary chat load", _BAD),)
    return Scenario(
        "healthy",
        "ordinary chat load with bursts and a daily shape; nothing is wrong",
        ("All signals are there and quiet.", "The prefix cache saves more than half of the prompt tokens."),
        Side(_HARDWARE[0], replace(_CALM[0], day_seconds=600.0, day_depth=0.3), (), phases),
        Side(_HARDWARE[1], replace(_CALM[1], burst_every=45.0, burst_seconds=3.0, burst_factor=2.0), (), phases),
        180.0,
    )


def _tour() -> Scenario:
    names = ("long-prompts", "cache-collapse", "starved", "starved-frontend", "kv-pressure", "stalled")
    plan = [(60.0 + 160.0 * turn, (115.0 if name == "stalled" else 135.0) + 160.0 * turn, name) for turn, name in enumerate(names)]
    return _scenario(
        "tour",
        tuple(f"{start:.0f} s to {end:.0f} s: {_TROUBLES[name].what}." for start, end, name in plan),
        plan=plan,
        stop=60.0 + 160.0 * len(names),
        overrides=_SMALL_CACHE,
        summary="all troubles in turn, 75 s each, with a quiet time between them",
    )


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        _healthy(),
        _scenario(
            "queue",
            (
                "Waiting requests, time in the queue and the wait estimate rise; TTFT follows.",
                "Inter-token latency hardly moves.",
            ),
            overrides={"max_running": 24},
        ),
        _scenario(
            "cache-collapse",
            (
                "The hit ratio falls to zero although the prompts look alike.",
                "Computed prompt tokens multiply at the same load.",
            ),
            calm=_LONG_PREFIX,
        ),
        _scenario(
            "starved",
            (
                "The GPU shows gaps while requests run.",
                "cgroup throttling is the evidence; the remedy is CPU, not another GPU.",
            ),
        ),
        _scenario(
            "starved-frontend",
            (
                "TTFT rises while queue and prefill time do not.",
                "The API server's thread is at a full core.",
            ),
        ),
        _scenario(
            "kv-pressure",
            (
                "KV usage at its limit, preemptions, requests that wait for room.",
                "Time to first token grows with the queue behind it.",
            ),
            overrides=_SMALL_CACHE,
        ),
        _scenario(
            "stalled",
            (
                "Counters stand still while requests are there.",
                "llm_engine_stalled turns 1 after stall.after; /health of vLLM still says 200.",
            ),
        ),
        _tour(),
    )
}
