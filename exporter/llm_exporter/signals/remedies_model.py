"""What a remedy is: a symptom that can be recognised in numbers, its likely cause in words, and what to change on which engine and release.

In: `Symptoms`, a flat set of numbers. Out: `Advice`, ranked. The table is `remedies.py`; `remedies_symptoms.py` fills `Symptoms` from a live
server, and anybody else (a review of a week, a runbook) may fill it from elsewhere: what is not known stays None and matches nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llm_exporter.signals.evidence import Evidence

Release = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptoms:
    """Everything that a remedy may look at; None where it is not known.

    Attributes:
        cause: the verdict. why: what keeps the host from feeding the GPU, strongest first. evidence: its numbers.
        ttft, queue, prefill, frontend: mean seconds. inter_token_mean, inter_token_p99: seconds, over `inter_token_gaps` gaps.
        prompt_tokens_mean: of finished requests. prefill_rate: computed prompt tokens per second.
        waiting, deferred, running, running_limit, disaggregated: requests, newest reading.
        rejected, server_errors, evicted, restarts: how many in the window.
        graphless: share of decode passes outside CUDA graphs. hit_ratio: by tokens. cache_on: whether the prefix cache is enabled.
        throttle_reasons: reason → share of readings.
        cores_available: CPUs that the server may use.
        client_ttft, probe_prefill: of our probe, seconds, for prompts like the users'.
    """

    engine: str = ""
    cause: str = "unknown"
    why: tuple[str, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    ttft: float | None = None
    queue: float | None = None
    prefill: float | None = None
    frontend: float | None = None
    inter_token_mean: float | None = None
    inter_token_p99: float | None = None
    inter_token_gaps: float | None = None
    prompt_tokens_mean: float | None = None
    prefill_rate: float | None = None
    waiting: float | None = None
    deferred: float | None = None
    running: float | None = None
    running_limit: float | None = None
    disaggregated: float | None = None
    rejected: float | None = None
    server_errors: float | None = None
    evicted: float | None = None
    restarts: float | None = None
    graphless: float | None = None
    hit_ratio: float | None = None
    cache_on: bool | None = None
    throttle_reasons: Mapping[str, float] = field(default_factory=dict)
    cores_available: float | None = None
    client_ttft: float | None = None
    probe_prefill: float | None = None


@dataclass(frozen=True, slots=True)
class Flag:
    """One change on an engine's command line.

    Attributes:
        change: the flag and the direction, as a person would type or say it.
        since: first release that has it, "" where nobody looked further back than the release in `CHECKED`.
        older: what stood for it before `since`, "" for nothing.
        note: what it costs, or when to leave it.
    """

    change: str
    since: str = ""
    older: str = ""
    note: str = ""


# Releases in whose own argument parsers the flags of the table were looked up.
CHECKED: Mapping[str, str] = {"vllm": "0.32.0", "sglang": "0.5.23"}


@dataclass(frozen=True, slots=True)
class Remedy:
    """One row: how it shows, what is behind it, what to do.

    Attributes:
        key: short name, stable; runbooks and reviews refer to it.
        symptom: what one sees. cause: what is likely behind it. why: the mechanism, for somebody who has not met it before.
        strength: of the symptoms, 0 (does not hold) to 1.
        shows: the evidence with its numbers.
        verdicts: causes of the verdict that it explains.
        action: what to do whatever the engine, first thing first.
        flags: by engine.
        first: rows with a number come before all others, in its order: what makes everything else look bad is looked at first.
        costs: whether something is wrong; False for a state that is as it should be.
    """

    key: str
    symptom: str
    cause: str
    why: str
    strength: Callable[[Symptoms], float]
    shows: Callable[[Symptoms], Sequence[str | None]]
    verdicts: tuple[str, ...] = ()
    action: str = ""
    flags: Mapping[str, tuple[Flag, ...]] = field(default_factory=dict)
    first: int | None = None
    costs: bool = True


@dataclass(frozen=True, slots=True)
class Advice:
    """A remedy that holds, in words for one engine and release."""

    key: str
    symptom: str
    cause: str
    why: str
    strength: float
    because: tuple[str, ...]
    action: str
    flags: tuple[str, ...]


def release_of(version: str) -> Release | None:
    """The leading numbers of a version ("0.10.2rc1.dev3" → (0, 10, 2)); None without any."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def flag_lines(flags: Sequence[Flag], version: str) -> tuple[str, ...]:
    """The flags that a release has, as lines; one of an unknown release keeps its condition in the text."""
    release = release_of(version)
    lines = []
    for flag in flags:
        since = release_of(flag.since)
        old = since is not None and release is not None and release < since
        if old and not flag.older:
            continue
        text = flag.older if old else flag.change
        if not old and since is not None and release is None:
            text += f" (from {flag.since} on" + (f"; before: {flag.older})" if flag.older else ")")
        elif not old and since is None and flag.older:
            text += f" (older releases: {flag.older})"
        lines.append(text + (f" – {flag.note}" if flag.note else ""))
    return tuple(lines)


def advice_of(remedy: Remedy, symptoms: Symptoms, engine: str, version: str) -> Advice:
    """A remedy put into words for one engine and release."""
    because = tuple(line for line in remedy.shows(symptoms) if line)
    flags = flag_lines(remedy.flags.get(engine, ()), version)
    return Advice(remedy.key, remedy.symptom, remedy.cause, remedy.why, remedy.strength(symptoms), because, remedy.action, flags)
