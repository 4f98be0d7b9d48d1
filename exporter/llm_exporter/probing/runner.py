"""Runs the probes of the daemon: one run of a module against a target, with all manners; what the scheduler's jobs and `/probe` call.

In: a target, a module, the clock, a view of the engine. Out: an `Outcome`; what was seen goes into the `ResultStore`.
Nothing here waits for a lock, a budget or a pause: whoever may not probe now gets that as the answer.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from llm_exporter.errors import FetchError, UsageError
from llm_exporter.probing.calls import CHAT, call_of
from llm_exporter.probing.manners import (
    BackOff,
    EngineView,
    ProbeModule,
    TokenLedger,
    is_heartbeat,
    reason_to_skip,
    run_cost,
)
from llm_exporter.probing.pool import Prober
from llm_exporter.probing.prompts import PromptMaker, TokenScale
from llm_exporter.probing.results import ResultStore
from llm_exporter.sources.probe import ProbeReading, TlsSettings
from llm_exporter.sources.probe_record import ProbeRecord

_CONTEXT_MARGIN_TOKENS = 32  # the chat template's own tokens, and our estimate's error
_LISTING_SECONDS = 5.0
_MOST_STATES, _STATES_DROPPED = 2048, 64
# As in blackbox_exporter: so much before Prometheus gives up, the answer must be under way.
SCRAPE_TIMEOUT_MARGIN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ProbeTarget:
    """Where to probe. `headers` is asked before each run, so that a rotated token is used; it is never logged."""

    name: str
    url: str
    headers: Callable[[], Mapping[str, str]] = field(default=dict, repr=False)
    tls: TlsSettings = field(default_factory=TlsSettings)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to.

    Attributes:
        result: of the run, or why there was none.
        sent: this call sent requests. False with a result of the past: it was young enough, or the target rests after failures.
        record: of the last run that was sent, alone; `/probe` publishes it.
        detail: a sentence for people.
    """

    result: str
    sent: bool
    record: ProbeRecord
    detail: str = ""


@dataclass(slots=True)
class _State:
    """What the runner remembers of one target."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    ledger: TokenLedger = field(default_factory=TokenLedger)
    scale: TokenScale = field(default_factory=TokenScale)
    back_off: dict[str, BackOff] = field(default_factory=dict)
    last_run_at: dict[str, float] = field(default_factory=dict)
    model: str = ""


@dataclass(frozen=True, slots=True)
class _Tools:
    """What every run needs."""

    prober: Prober
    store: ResultStore
    maker: PromptMaker
    clock: Callable[[], float]
    wall: Callable[[], float]

    def record(self, target: ProbeTarget, module_name: str) -> ProbeRecord:
        return self.store.last_run(target.name, module_name)

    def skip(self, target: ProbeTarget, module_name: str, result: str, detail: str, *, noted: bool) -> Outcome:
        """The answer to a run that is not sent. One that `/probe` asked for shows in its own answer only, not on the page."""
        if noted:
            self.store.note_skip(target.name, module_name, result)
        return Outcome(result, sent=False, record=replace(self.record(target, module_name), last_result=result), detail=detail)


class ProbeRunner:
    """Shared by the scheduler and `/probe`, so that both see the same locks, budgets and pauses.

    Args:
        prober: the probe process.
        store: where results go.
        clock: monotonic seconds, for what happens during a run.
        wall: unix seconds, for timestamps.
    """

    def __init__(
        self,
        prober: Prober,
        store: ResultStore,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        language: str = "en",
    ) -> None:
        self.store = store
        self._tools = _Tools(prober, store, PromptMaker(language), clock, wall)
        self._states: dict[str, _State] = {}
        self._configured: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def keep_only(self, wanted: Mapping[tuple[str, str], ProbeModule]) -> None:
        """After a reload: what is configured, by (target name, module name). The rest is forgotten."""
        names = {name for name, _ in wanted}
        with self._lock:
            self._configured = frozenset(names)
            self._states = {name: state for name, state in self._states.items() if name in names}
        self.store.keep_only(wanted)

    def run(
        self,
        target: ProbeTarget,
        module_name: str,
        module: ProbeModule,
        now: float,
        view: EngineView | Callable[[], EngineView],
        *,
        timeout_seconds: float | None = None,
        noted: bool = True,
    ) -> Outcome:
        """One run, or the reason why not. Takes as long as its requests do.

        `now` is monotonic seconds. A callable `view` is asked again before each further request of a long run. `timeout_seconds`
        shortens the module's timeout. A skip is published unless `noted` is off.

        Raises:
            ProbeProcessLost: the probe process cannot be used.
        """
        look = view if callable(view) else lambda: view
        state = self._state(target.name)
        self.store.register(target.name, module_name, module)
        if not state.lock.acquire(blocking=False):
            return self._tools.skip(target, module_name, "skipped_busy", "another probe of this target is running", noted=noted)
        try:
            back_off = state.back_off.setdefault(module_name, BackOff())
            if not back_off.ready(now):
                return self._past(target, module_name, f"resting after {back_off.failures} failures in a row")
            run = _Run(self._tools, target, module_name, module, state, look, timeout_seconds or module.timeout, noted)
            outcome = run.carry_out(now)
            if outcome.sent:
                ended = self._tools.clock()
                state.last_run_at[module_name] = ended
                back_off.note(ended, module, success=outcome.result == "success")
            return outcome
        finally:
            state.lock.release()

    def probe_now(
        self,
        target: ProbeTarget,
        module_name: str,
        module: ProbeModule,
        now: float,
        view: EngineView | Callable[[], EngineView],
        *,
        scrape_timeout_seconds: float | None = None,
    ) -> Outcome:
        """What `/probe` answers (CONTRACT 5): a run now, the last run where it is young, or a skip. Never waits for another probe.

        Raises:
            UsageError: the module is none that `/probe` admits, or the scrape's timeout leaves no time.
        """
        if not is_heartbeat(module):
            raise UsageError(
                f"module {module_name!r}: /probe runs interval modules with one prompt length and max_tokens of at most 64 only;"
                " let the scheduler run this one"
            )
        timeout = module.timeout
        if scrape_timeout_seconds is not None:
            timeout = min(timeout, scrape_timeout_seconds - SCRAPE_TIMEOUT_MARGIN_SECONDS)
            if timeout <= 0:
                raise UsageError(f"a scrape timeout of {scrape_timeout_seconds:g} s leaves no time for a probe")
        last = self._state(target.name).last_run_at.get(module_name)
        if last is not None and module.interval is not None and now - last < module.interval / 2:
            return self._past(target, module_name, "the last run is young enough")
        return self.run(target, module_name, module, now, view, timeout_seconds=timeout, noted=False)

    def _state(self, name: str) -> _State:
        with self._lock:
            if name not in self._states and len(self._states) >= _MOST_STATES:  # URLs that /probe was asked for, all idle now
                idle = [known for known, state in self._states.items() if known not in self._configured and not state.lock.locked()]
                for known in idle[:_STATES_DROPPED]:
                    del self._states[known]
            return self._states.setdefault(name, _State())

    def _past(self, target: ProbeTarget, module_name: str, detail: str) -> Outcome:
        record = self._tools.record(target, module_name)
        return Outcome(record.last_result, sent=False, record=record, detail=detail)


class _Run:
    """One run of one module, while the target's lock is held."""

    def __init__(
        self,
        tools: _Tools,
        target: ProbeTarget,
        module_name: str,
        module: ProbeModule,
        state: _State,
        look: Callable[[], EngineView],
        timeout_seconds: float,
        noted: bool,
    ) -> None:
        self._tools, self._target, self._module_name, self._module = tools, target, module_name, module
        self._state, self._look, self._timeout = state, look, timeout_seconds
        self._headers = dict(target.headers())
        self._primed: str | None = None
        self._noted = noted

    def carry_out(self, now: float) -> Outcome:
        """All requests of the module, shuffled; stops at the first skip or failure."""
        self._tools.store.begin_run(self._target.name, self._module_name)
        view = self._look()
        lengths = self._lengths(view)
        cost = run_cost(lengths.values(), self._module.cache, self._module.repeat)
        skip = reason_to_skip(self._module, view, self._state.ledger.spent(now), cost)
        if skip is not None:
            return self._tools.skip(self._target, self._module_name, skip, _why(skip, view), noted=self._noted)
        try:
            model = self._model(view)
        except FetchError as error:
            return self._failed_before(error)
        if model is None:
            detail = "neither the metrics page nor /v1/models says what this server is; set the module's model or the target's engine"
            return self._tools.skip(self._target, self._module_name, "skipped_unknown_engine", detail, noted=self._noted)
        steps = [(length, cache) for length in lengths for cache in self._module.cache for _ in range(self._module.repeat)]
        random.shuffle(steps)
        for number, (length, cache) in enumerate(steps):
            if number:
                skip = reason_to_skip(self._module, self._look(), 0, 0)
                if skip is not None:
                    return self._end("success", skip, f"stopped after {number} of {len(steps)} requests")
            reading = self._measure(lengths[length], cache, model, view)
            self._tools.store.note_reading(self._target.name, self._module_name, length, cache, reading)
            if not reading.success:
                return self._end(reading.result, None, reading.detail)
        return self._end("success", None, "")

    def _lengths(self, view: EngineView) -> dict[int, int]:
        """Configured length → length that fits the model's context."""
        room = None if view.context_tokens is None else view.context_tokens - self._module.max_tokens - _CONTEXT_MARGIN_TOKENS
        return {length: length if room is None else max(1, min(length, room)) for length in self._module.prompt_tokens}

    def _model(self, view: EngineView) -> str | None:
        """The module's model, else the first that the server lists; None where nothing says that this is an inference server.

        Raises:
            FetchError: the server cannot be reached.
        """
        chosen = self._module.model or view.model or self._state.model
        if chosen:
            return chosen
        try:
            timeout = min(self._timeout, _LISTING_SECONDS)
            names, _ = self._tools.prober.list_models(self._target.url, self._headers, self._target.tls, timeout)
        except FetchError as error:
            if not error.reason.startswith("http_"):
                raise
            names = []
        if names:
            self._state.model = names[0]
            return names[0]
        return "default" if view.engine in ("vllm", "sglang") else None

    def _measure(self, tokens: int, cache: str, model: str, view: EngineView) -> ProbeReading:
        characters = self._state.scale.characters(tokens)
        maker = self._tools.maker
        if cache != "warm":
            return self._send(maker.cold(characters), model, view)
        prompt = maker.warm(characters, f"{self._target.name} {self._module_name}")
        # Another prompt in between may have pushed it out of the cache, so each warm measurement follows its own priming at once.
        primer = self._send(prompt, model, view, tail_only=self._primed == prompt)
        self._primed = prompt
        return self._send(prompt, model, view, tail_only=True) if primer.success else primer

    def _send(self, prompt: str, model: str, view: EngineView, *, tail_only: bool = False) -> ProbeReading:
        """One request, counted whatever becomes of it."""
        tools, state = self._tools, self._state
        call = call_of(
            self._target.url,
            self._module.endpoint or CHAT,
            model=model,
            prompt=prompt,
            max_tokens=self._module.max_tokens,
            temperature=self._module.temperature,
            engine=view.engine,
            headers=self._headers,
            tls=self._target.tls,
            timeout_seconds=self._timeout,
        )
        reading = tools.prober.measure(call)
        if reading.prompt_tokens:
            state.scale.learn(len(prompt), reading.prompt_tokens)
        fixed, slope = state.scale.line()
        tokens = reading.prompt_tokens or (round(fixed + slope * len(prompt)) if reading.request_sent else 0)
        state.ledger.add(tools.clock(), min(tokens, 64) if tail_only else tokens)
        tools.store.note_sent(self._target.name, self._module_name, reading.result, tokens)
        if reading.result in ("http_404", "http_400"):
            state.model = ""  # the server may serve another model now: ask again next time
        return reading

    def _failed_before(self, error: FetchError) -> Outcome:
        """The server could not even be asked for its models: that is a failed probe, and its result says how."""
        reading = ProbeReading(error.reason, detail=error.detail)
        self._tools.store.note_sent(self._target.name, self._module_name, error.reason, 0)
        for length in self._module.prompt_tokens:
            for cache in self._module.cache:
                self._tools.store.note_reading(self._target.name, self._module_name, length, cache, reading)
        return self._end(error.reason, None, error.detail)

    def _end(self, result: str, then: str | None, detail: str) -> Outcome:
        tools, target, name = self._tools, self._target, self._module_name
        tools.store.note_run(target.name, name, result, success=result == "success", ended_at=tools.wall())
        if then is not None:
            tools.store.note_skip(target.name, name, then)
        return Outcome(result, sent=True, record=tools.record(target, name), detail=detail)


def _why(skip: str, view: EngineView) -> str:
    return {
        "skipped_loading": "the engine is loading",
        "skipped_sleeping": "the engine is asleep",
        "skipped_busy": f"{view.requests_waiting:g} requests wait" if view.requests_waiting is not None else "busy",
        "skipped_budget": "the token budget of this hour is spent",
    }.get(skip, skip)
