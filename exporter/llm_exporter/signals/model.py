"""What a signal is, and what it may see.

A `Signal` is declared once, in the module of its family: its metric, the canonical fields it reads, and a pure function. The frame
(`derive.py`) deals with absence, windows and models, so that a formula is only a formula. It answers with an `Outcome`: values, or the
reason why there are none, or values with a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from llm_exporter.config.model import Target
from llm_exporter.metrics import Metric
from llm_exporter.readings import Absence, Kind, Unit
from llm_exporter.state.counters import Merged
from llm_exporter.state.evidence import GpuEvidence, HostEvidence
from llm_exporter.state.store import WINDOWS, EngineStore
from llm_exporter.state.table import HistogramColumns
from llm_exporter.state.window import Window


class Status(StrEnum):
    """Why a signal is absent or doubtful: the values of `llm_signal_status` (CONTRACT 6.2)."""

    ONE_SCRAPE = "one_scrape"
    NO_TRAFFIC = "no_traffic"
    LOW_N = "low_n"
    NOT_SUPPORTED = "not_supported"
    NOT_EXPOSED = "not_exposed"
    FEATURE_OFF = "feature_off"
    STALE = "stale"
    SKEWED = "skewed"
    NEEDS_GPU = "needs_gpu"
    THRESHOLD_NOT_AN_EDGE = "threshold_not_an_edge"


class Scope(StrEnum):
    """Whose labels a signal carries: the target's alone, or target, engine and model."""

    TARGET = "target"
    MODEL = "model"


SCOPE_LABELS: Mapping[Scope, tuple[str, ...]] = {Scope.TARGET: ("target",), Scope.MODEL: ("target", "engine", "model")}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a derivation gives.

    values: label values (of the signal's own labels, in order) → value; empty where nothing is known.
    status: why there are no values, or what is doubtful about them; None where all is well.
    """

    values: Mapping[tuple[str, ...], float]
    status: Status | None = None


def known(value: float, doubt: Status | None = None) -> Outcome:
    """A signal without own labels."""
    return Outcome({(): value}, doubt)


def unknown(status: Status) -> Outcome:
    """Nothing to publish, and why."""
    return Outcome({}, status)


NOTHING = Outcome({})  # nothing to publish, and nothing to say about it: the signal does not apply here


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict as it is published at a tick.

    Attributes:
        cause: one of `bottleneck.CAUSES`. confidence: None where the verdict is unknown.
        scores: cause → score. evidence: (cause, evidence) → membership.
        starved: None where it cannot be told. gap: of this tick. gaps: window name → mean gap.
        missing, hint, why: words for people.
    """

    cause: str
    confidence: float | None
    scores: Mapping[str, float]
    evidence: Mapping[tuple[str, ...], float]
    starved: bool | None
    gap: float | None
    gaps: Mapping[str, float]
    missing: tuple[str, ...] = ()
    hint: str = ""
    why: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model of one target at one tick: newest published numbers and windows."""

    target: TargetView
    model: str
    merged: Merged
    _windows: dict[str, Window] = field(default_factory=dict)

    def value(self, name: str, label: str = "") -> float | None:
        """Newest published value of a scalar field; None where it is absent."""
        position = self.merged.table.scalars.get((self.model, name), {}).get(label)
        return None if position is None else self.merged.published[position]

    def values(self, name: str) -> dict[str, float]:
        """Newest published values of a scalar field by its label."""
        return {label: self.merged.published[at] for label, at in self.merged.table.scalars.get((self.model, name), {}).items()}

    def columns(self, name: str) -> HistogramColumns | None:
        """Where the histogram stands in `merged.published`."""
        return self.merged.table.histograms.get((self.model, name))

    def window(self, name: str) -> Window:
        """The window "1m" or "5m" that ends now."""
        if name not in self._windows:
            self._windows[name] = self.target.store.window(self.model, name, dict(WINDOWS)[name])
        return self._windows[name]

    def absence(self, name: str) -> Absence | None:
        """None where the field is there; else why not."""
        if self.merged.table.has(self.model, name):
            return None
        return self.merged.table.absent.get(name, Absence.NOT_EXPOSED)


@dataclass(frozen=True, slots=True)
class TargetView:
    """One target at one tick: all that a signal may read.

    Attributes:
        config: the target's configuration.
        at: monotonic seconds of the tick.
        store: memory of the engine.
        fresh: whether the newest page is good enough to speak (the scrape succeeded and its own timestamps are not old).
        state: loading, ready, sleeping or unknown.
        stall_after: seconds of stillness that make a stall.
        gpu, host: evidence of the last 30 seconds; None where there is no such source for this target.
        foreign_memory: bytes of its GPUs' memory held by processes that belong to no target; None where not known.
        gpu_works: whether the GPU showed real work in the last seconds; None where not known.
        missing: sources that could not be had, in words for people.
        decision: what the verdict's memory says at this tick; None before it was asked.
    """

    config: Target
    at: float
    store: EngineStore
    fresh: bool
    state: str
    stall_after: float = 30.0
    gpu: GpuEvidence | None = None
    host: HostEvidence | None = None
    foreign_memory: float | None = None
    gpu_works: bool | None = None
    missing: tuple[str, ...] = ()
    decision: Decision | None = None

    @property
    def models(self) -> tuple[ModelView, ...]:
        """A view per model on the newest page; none while the page is not fresh."""
        merged = self.store.latest
        if merged is None or not self.fresh:
            return ()
        # a page of which nothing is understood still has one, nameless model: it says of every signal why it is missing
        return tuple(ModelView(self, model, merged) for model in merged.table.models or ("",))


ModelDerivation = Callable[[ModelView], Outcome]
WindowDerivation = Callable[[ModelView, Window], Outcome]
TargetDerivation = Callable[[TargetView], Outcome]


@dataclass(frozen=True, slots=True)
class Signal:
    """One derived signal, declared once.

    Attributes:
        name: metric name with unit suffix.
        unit: checked against the name by a test.
        help: one sentence.
        reads: canonical fields without which there is no value; the frame answers for their absence.
        uses: further fields that it takes where they are.
        metric: the published metric that this signal is.
        of_window, of_model, of_target: exactly one of them, the derivation; it also decides scope and the label `window`.
        labels: own labels, beside those of the scope and `window`.
        kind: gauge, or counter where the value only grows.
        bound: in words, what bounds the number of series per target.
    """

    name: str
    unit: Unit
    help: str
    reads: tuple[str, ...] = ()
    of_window: WindowDerivation | None = None
    of_model: ModelDerivation | None = None
    of_target: TargetDerivation | None = None
    labels: tuple[str, ...] = ()
    kind: Kind = Kind.GAUGE
    bound: str = ""
    uses: tuple[str, ...] = ()
    metric: Metric = field(init=False)

    def __post_init__(self) -> None:
        given = [d for d in (self.of_window, self.of_model, self.of_target) if d is not None]
        if len(given) != 1:
            raise ValueError(f"{self.name}: declare exactly one of of_window, of_model, of_target")
        labels = SCOPE_LABELS[self.scope] + self.labels + (("window",) if self.windowed else ())
        object.__setattr__(self, "metric", Metric(self.name, self.kind, self.unit, self.help, labels, self.bound))

    @property
    def scope(self) -> Scope:
        """Target or model."""
        return Scope.TARGET if self.of_target is not None else Scope.MODEL

    @property
    def windowed(self) -> bool:
        """Whether the signal has the label `window`."""
        return self.of_window is not None
