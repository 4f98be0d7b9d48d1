"""What an alert is, declared once: rule, annotations, runbook and tests come from it.

A page says that users feel something and somebody must act now; a ticket names a cause that can wait for the day; severity none is for
inhibition alone. `expression` builds the PromQL from `RuleSettings`, so that ranges, objectives and the time scale are never typed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from llm_exporter.generate.boards import Board
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import Threshold


class Severity(StrEnum):
    """What is expected of a person."""

    PAGE = "page"
    TICKET = "ticket"
    NONE = "none"


class Subject(StrEnum):
    """What an alert is about: inhibition speaks of subjects, not of names."""

    DOWN = "down"
    STARTING = "starting"
    STALL = "stall"
    LATENCY = "latency"
    ERRORS = "errors"
    PROBE = "probe"
    CACHE = "cache"
    GPU = "gpu"
    HARDWARE = "hardware"
    SIGNALS = "signals"
    EXPORTER = "exporter"


class Cause(NamedTuple):
    """A likely cause, and the panel (title on a board) that tells it from the others."""

    text: str
    board: Board
    panel: str


class Evidence(NamedTuple):
    """A query that is asked when the alert fires, and how its answer reads.

    Attributes:
        says: words before the answer.
        metric: read through `last_over_time(…[R])`.
        on: labels of the alert that select the series.
        matchers: further matchers as text.
        where: comparison behind the selector.
        show: template of one element, the dot being the element.
        otherwise: words where nothing is found.
    """

    says: str
    metric: str
    on: tuple[str, ...] = ("job", "instance", "target")
    matchers: str = ""
    where: str = ""
    show: str = "{{ . | value | humanize }}"
    otherwise: str = "not known"


class Flags(NamedTuple):
    """What to change on the engine's command line, by engine."""

    vllm: tuple[str, ...] = ()
    sglang: tuple[str, ...] = ()


NO_FLAGS = Flags()


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert.

    Attributes:
        name: on-call may route on it.
        labels: labels that its expression has, beside job and instance.
        summary: template of one line that names who is affected.
        value: template of the value with its unit, and the limit.
        evidence: what is asked when it fires.
        meaning: what users feel.
        confirm: how to make sure, in order.
        causes: likeliest first.
        action: what to do first.
        flags: what to change on the engine.
        board: where the link leads.
        hold: `for` in seconds.
        expression: the rule; empty where the settings leave it nothing to watch.
        thresholds: those that decide.
        blind: what it cannot see.
        info_window: seconds through which `llm_target_info` is looked for, where labels are joined from it; 0 is R.
    """

    name: str
    severity: Severity
    subject: Subject
    labels: tuple[str, ...] = ()
    summary: str
    value: str
    evidence: tuple[Evidence, ...] = ()
    meaning: str
    confirm: tuple[str, ...]
    causes: tuple[Cause, ...]
    action: str
    flags: Flags = NO_FLAGS
    board: Board
    hold: int = 0
    expression: Callable[[RuleSettings], str]
    thresholds: tuple[Threshold, ...] = ()
    blind: str = ""
    info_window: int = 0
