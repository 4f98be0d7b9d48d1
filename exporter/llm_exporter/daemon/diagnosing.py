"""Watching one server for a while, and what is then known about it: `Watch` and `Diagnosis`.

In: scrapes and hardware views, one `tick` at a time, on the caller's clock. Out: a `Diagnosis` and its JSON document; words and colours are
`cli/diagnose.py`'s. The same pipeline and verdict as the daemon's, so that both say the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from llm_exporter.config.model import Target
from llm_exporter.daemon.hardware_view import HardwareView
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.expose.page import Page
from llm_exporter.signals.evidence import Evidence, gather
from llm_exporter.signals.model import Decision
from llm_exporter.signals.ramps import LEAST_SECONDS
from llm_exporter.signals.remedies import advise
from llm_exporter.signals.remedies_model import Advice
from llm_exporter.signals.remedies_symptoms import WINDOW, phases_of, symptoms_of
from llm_exporter.signals.remedies_words import MEANINGS
from llm_exporter.sources.engine import Failed, Fetched

# What cannot be told without a source, in words: verdicts that need it.
WITHOUT_GPU = (
    "whether the GPU waits for the CPU, and whether prefill, decode, links, heat or a stranger limits it: that takes readings of the GPU"
)
WITHOUT_HOST = "whether the server is short of CPU: that takes readings of its processes, so run this on the server's machine"
WITHOUT_GPM = "how busy the GPU really is: NVML's utilisation over-reads (GPM needs Hopper or newer)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean and quantiles of a latency over the last minute, in seconds; `count` observations. `beyond`: quantiles that are lower bounds."""

    count: float
    mean: float | None
    quantiles: Mapping[str, float]
    beyond: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found.

    Attributes:
        failure: why there is no diagnosis, "" where there is one. hint: what to do about it.
        engine, version, models, state: who was watched.
        seconds: time between first and last scrape; scrapes, failed: how many; restarts: seen.
        cause, confidence, meaning: the verdict; since: seconds after the start at which it was first right without a break.
        history: cause → share of the ticks with enough readings.
        decision, evidence: behind the verdict; None without a good page.
        ttft, inter_token: None without traffic. phases: mean seconds by phase.
        rates: tokens and requests per second over the last minute.
        missing: sources that gave nothing. cannot_tell: what follows from that. notes: anything else a person should know.
    """

    failure: str = ""
    hint: str = ""
    engine: str = "unknown"
    version: str = ""
    models: tuple[str, ...] = ()
    state: str = "unknown"
    seconds: float = 0.0
    scrapes: int = 0
    failed: Mapping[str, int] = field(default_factory=dict)
    restarts: int = 0
    cause: str = "unknown"
    confidence: float | None = None
    since: float | None = None
    history: Mapping[str, float] = field(default_factory=dict)
    decision: Decision | None = None
    evidence: Evidence | None = None
    ttft: Latency | None = None
    inter_token: Latency | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    cannot_tell: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def meaning(self) -> str:
        """The verdict as a sentence."""
        return MEANINGS[self.cause]


class Watch:
    """Watches one server.

    Args:
        target: who; its name is not shown.
        hardware: (monotonic time) → what this machine says about it.
        version: engine → its version, asked once after the first good page; "" where it does not say.
        stall_after: seconds of stillness that make a stall.
        wall: wall clock.
    """

    def __init__(
        self,
        target: Target,
        *,
        hardware: Callable[[float, float], HardwareView] = lambda _, __: HardwareView(
            missing=("readings of the GPU", "the server's processes")
        ),
        version: Callable[[str], str] = lambda _: "",
        stall_after: float = 30.0,
        wall: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._now = 0.0
        self._version = version
        self._asked_at: int | None = None
        self._began: float | None = None
        self._ended = 0.0
        self._causes: list[tuple[float, str]] = []
        self._failed: Counter[str] = Counter()
        self._scrapes = 0
        self._seen_up = False
        page = Page(declared(), lambda: self._now)
        self.pipeline = Pipeline(target, page, Timing(1.0, 5.0, stall_after), wall, hardware=hardware)

    def tick(self, scraped: Fetched | Failed, now: float) -> None:
        """Takes one scrape of monotonic time `now`."""
        self._now = now
        self._began = now if self._began is None else self._began
        self._ended = now
        status = self.pipeline.take(scraped, now)
        self._scrapes += 1
        if not status.up:
            self._failed[status.reason] += 1
            return
        self._seen_up = True
        restarts = self.pipeline.store.counted.restarts
        if status.engine != "unknown" and not status.reason and not status.engine_version and self._asked_at != restarts:
            self._asked_at = restarts  # once per life of the engine: SGLang's answer costs its scheduler a moment
            self.pipeline.status = replace(status, engine_version=self._version(status.engine))
        view = self.pipeline.view
        if view is not None and view.decision is not None and now - self._began >= LEAST_SECONDS:
            self._causes.append((now - self._began, view.decision.cause))

    def diagnosis(self) -> Diagnosis:
        """What is known now."""
        status, view = self.pipeline.status, self.pipeline.view
        begun = self._ended if self._began is None else self._began
        restarts = self.pipeline.store.counted.restarts
        base = Diagnosis(
            engine=status.engine,
            version=status.engine_version,
            state=status.state,
            seconds=self._ended - begun,
            scrapes=self._scrapes,
            failed=dict(self._failed),
            restarts=restarts,
            history=self._history(),
            since=self._since(),
        )
        if not status.up:
            was = "went down while it was watched" if self._seen_up else "cannot be reached"
            return replace(base, failure=f"the server {was}: {status.reason} ({status.detail or 'no details'})", hint=status.hint)
        if status.reason or view is None or view.store.latest is None:
            return replace(base, failure=f"the server answers, but {status.detail or 'its engine is unknown'}", hint=status.hint)
        if not view.fresh or view.decision is None:
            return replace(base, failure="the page's own timestamps are older than five minutes: something in front of it caches it")
        decision, evidence = view.decision, gather(view)
        symptoms = symptoms_of(view, restarts)
        windows = [model.window(WINDOW) for model in view.models]
        span = max((window.seconds for window in windows), default=0.0)
        rates: dict[str, float] = {}
        for name, canonical in (
            ("requests_started", "first_tokens"),
            ("prompt_tokens", "prompt_tokens"),
            ("prefill_tokens", "prompt_tokens_computed"),
            ("generation_tokens", "generation_tokens"),
        ):
            gained = [g for window in windows if (g := window.increase(canonical)) is not None]
            if gained and span > 0:
                rates[name] = sum(gained) / span
        return replace(
            base,
            models=tuple(model.model for model in view.models),
            cause=decision.cause,
            confidence=decision.confidence,
            decision=decision,
            evidence=evidence,
            ttft=self._latency("time_to_first_token"),
            inter_token=self._latency("inter_token_latency"),
            phases=phases_of(view),
            rates=rates,
            missing=tuple(dict.fromkeys(_plain(text) for text in decision.missing)),
            cannot_tell=_cannot_tell(evidence),
            notes=self._notes(decision, evidence),
            advice=tuple(advise(symptoms, status.engine_version)),
        )

    # -- parts -----------------------------------------------------------------------------------------------------------------------

    def _latency(self, name: str) -> Latency | None:
        """The model with most observations stands for the server."""
        assert self.pipeline.view is not None
        gains = [g for m in self.pipeline.view.models if (g := m.window(WINDOW).histogram(name)) is not None and g.count > 0]
        if not gains:
            return None
        most = max(gains, key=lambda g: g.count)
        found = {f"{q:g}": value for q in (0.5, 0.95, 0.99) if (value := most.quantile(q)) is not None}
        beyond = tuple(q for q, value in found.items() if value.saturated)
        return Latency(count=most.count, mean=most.mean, quantiles={q: value.value for q, value in found.items()}, beyond=beyond)

    def _history(self) -> dict[str, float]:
        counts = Counter(cause for _, cause in self._causes)
        return {cause: n / len(self._causes) for cause, n in counts.most_common()}

    def _since(self) -> float | None:
        """From when on the last verdict stood."""
        since = None
        for at, cause in reversed(self._causes):
            if cause != self._causes[-1][1]:
                break
            since = at
        return since

    def _notes(self, decision: Decision, evidence: Evidence) -> tuple[str, ...]:
        notes = []
        restarts = self.pipeline.store.counted.restarts
        if restarts:
            notes.append(f"the engine restarted {'once' if restarts == 1 else f'{restarts} times'} while it was watched: counts start anew")
        if self._failed:
            listed = ", ".join(f"{reason} ×{n}" for reason, n in self._failed.items())
            notes.append(f"{sum(self._failed.values())} of {self._scrapes} scrapes failed: {listed}")
        if self.pipeline.status.state == "sleeping":
            notes.append("the engine sleeps: it takes no requests until it is woken")
        if self.pipeline.status.identity_unstable:
            notes.append("several servers answer under this address in turn: watch one of them directly, or nothing here can be trusted")
        if evidence.seconds < LEAST_SECONDS:
            notes.append(f"only {evidence.seconds:.0f} s of readings in a row: a verdict takes {LEAST_SECONDS:.0f} s at least")
        if evidence.work is not None and evidence.work == 0.0:
            notes.append("no traffic: not one request was worked on in the last half minute")
        changes = [cause for cause in self._history() if cause not in (decision.cause, "unknown")]
        if changes:
            notes.append("earlier in this watch the verdict was " + ", ".join(changes))
        if decision.hint:
            notes.append(f"power draw is {decision.hint.replace('_', ' ')}, as far as that can be read from power alone")
        return tuple(notes)


def _plain(missing: str) -> str:
    """What is missing, as said to somebody who has a command line and no configuration."""
    return missing.replace("(remote)", "(they run on another machine)").replace("(set `gpus`)", "(say it with --gpus)").replace("_", " ")


def _cannot_tell(evidence: Evidence) -> tuple[str, ...]:
    found = []
    if evidence.busy is None:
        found.append(WITHOUT_GPU)
    elif evidence.busy_from == "nvml":
        found.append(WITHOUT_GPM)
    if evidence.run_delay is None and evidence.cfs is None:
        found.append(WITHOUT_HOST)
    return tuple(found)


def document(diagnosis: Diagnosis, url: str) -> dict[str, Any]:
    """The JSON form (docs/diagnose.md). What is not known is null, and nothing else is."""
    decision = diagnosis.decision
    return {
        "url": url,
        "failure": diagnosis.failure or None,
        "hint": diagnosis.hint or None,
        "engine": diagnosis.engine,
        "engine_version": diagnosis.version or None,
        "models": list(diagnosis.models),
        "state": diagnosis.state,
        "watched_seconds": round(diagnosis.seconds, 3),
        "scrapes": diagnosis.scrapes,
        "failed_scrapes": dict(diagnosis.failed),
        "restarts": diagnosis.restarts,
        "verdict": None
        if decision is None
        else {
            "cause": diagnosis.cause,
            "confidence": diagnosis.confidence,
            "meaning": diagnosis.meaning,
            "since_second": diagnosis.since,
            "history": dict(diagnosis.history),
            "because": [{"evidence": name, "ratio": ratio} for name, ratio in because_of(decision)],
            "host_causes": list(decision.why),
            "scores": dict(decision.scores),
            "gpu_starved": decision.starved,
            "gap_ratio": decision.gap,
        },
        "measured": None if diagnosis.evidence is None else _measured(diagnosis.evidence),
        "time_to_first_token": _latency_document(diagnosis.ttft, diagnosis.phases),
        "inter_token_latency": _latency_document(diagnosis.inter_token, None),
        "per_second": dict(diagnosis.rates),
        "missing": list(diagnosis.missing),
        "cannot_tell": list(diagnosis.cannot_tell),
        "notes": list(diagnosis.notes),
        "advice": [{"rank": rank, **asdict(row)} for rank, row in enumerate(diagnosis.advice, 1)],
    }


def because_of(decision: Decision) -> list[tuple[str, float]]:
    """Evidence of the verdict's own cause that speaks for it, strongest first."""
    own = [(name, value) for (cause, name), value in decision.evidence.items() if cause == decision.cause and value > 0]
    return sorted(own, key=lambda pair: -pair[1])


def _measured(evidence: Evidence) -> dict[str, Any]:
    found = {name: getattr(evidence, name) for name in Evidence.__slots__ if name != "missing"}
    return found | {"gap": evidence.gap, "busy_from": evidence.busy_from or None}


def _latency_document(latency: Latency | None, phases: Mapping[str, float] | None) -> dict[str, Any] | None:
    if latency is None:
        return None
    row: dict[str, Any] = {
        "count": latency.count,
        "mean_seconds": latency.mean,
        "quantile_seconds": dict(latency.quantiles),
        "lower_bounds": list(latency.beyond),
    }
    if phases is not None:
        row["phase_mean_seconds"] = {phase: phases[phase] for phase in ("frontend", "queue", "prefill") if phase in phases}
    return row
