"""One run of a module against a target: its requests, and a result whatever becomes of them.

In: target, module, a view of the engine, what is remembered of the address. Out: an `Outcome`; what was seen goes into the `ResultStore`.
Called by `probing/runner.py` while it holds the server's lock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from llm_exporter.errors import FetchError, SourceError
from llm_exporter.probing.addresses import Place
from llm_exporter.probing.calls import CHAT, call_of
from llm_exporter.probing.manners import EngineView, ProbeModule, TokenLedger, reason_to_skip, run_cost
from llm_exporter.probing.pool import Prober
from llm_exporter.probing.prompts import PromptMaker
from llm_exporter.probing.results import ResultStore
from llm_exporter.sources.probe import ProbeReading, TlsSettings
from llm_exporter.sources.probe_record import ProbeRecord
from llm_exporter.sources.server_words import for_people

_CONTEXT_MARGIN_TOKENS = 32  # the chat template's own tokens, and our estimate's error
_LISTING_SECONDS = 5.0


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
        detail: a sentence for people; what the server said may be in it, what we sent as credentials never.
    """

    result: str
    sent: bool
    record: ProbeRecord
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every run needs."""

    prober: Prober
    store: ResultStore
    maker: PromptMaker
    clock: Callable[[], float]
    wall: Callable[[], float]


class Run:
    """One run of one module.

    Args:
        place: what is remembered of the address.
        ledger: tokens spent on the server within the hour.
        look: the engine as it is now.
        timeout_seconds: of each request.
        noted: a skip shows on the page. One that `/probe` asked for shows in its own answer only.
    """

    def __init__(
        self,
        tools: Tools,
        target: ProbeTarget,
        module_name: str,
        module: ProbeModule,
        *,
        place: Place,
        ledger: TokenLedger,
        look: Callable[[], EngineView],
        timeout_seconds: float,
        noted: bool,
    ) -> None:
        self._tools, self._target, self._module_name, self._module = tools, target, module_name, module
        self._place, self._ledger, self._look = place, ledger, look
        self._timeout, self._noted = timeout_seconds, noted
        self._headers: dict[str, str] = {}
        self._primed: str | None = None
        self._recording = tools.store.begin_run(target.name, module_name)
        self._began = tools.clock()

    def carry_out(self, now: float) -> Outcome:
        """All requests of the module, shuffled; stops at the first skip or failure."""
        view = self._look()
        lengths = self._lengths(view)
        cost = run_cost(lengths.values(), self._module.cache, self._module.repeat)
        skip = reason_to_skip(self._module, view, self._ledger.spent(now), cost)
        if skip is not None:
            return self._skipped(skip, _why(skip, view))
        try:
            self._headers = dict(self._target.headers())
        except SourceError as error:  # a file of credentials: nothing could be sent
            return self.failed("connect", f"credentials: {error.detail or error.reason}")
        try:
            model = self._model(view)
        except FetchError as error:
            return self.failed(error.reason, error.detail)
        if model is None:
            detail = "neither the metrics page nor /v1/models says what this server is; set the module's model or the target's engine"
            return self._skipped("skipped_unknown_engine", detail)
        steps = [(length, cache) for length in lengths for cache in self._module.cache for _ in range(self._module.repeat)]
        random.shuffle(steps)
        for number, (length, cache) in enumerate(steps):
            if number:
                skip = reason_to_skip(self._module, self._look(), 0, 0)
                if skip is not None:
                    return self._end("success", skip, f"stopped after {number} of {len(steps)} requests")
            reading = self._measure(lengths[length], cache, model, view)
            self._recording.reading(length, cache, reading)
            if not reading.success:
                return self._end(reading.result, None, for_people(reading.detail, self._headers))
        return self._end("success", None, "")

    def failed(self, result: str, detail: str) -> Outcome:
        """The run failed before it had a reading: the server cannot be asked for its models, or the exporter has a bug.

        That is a failed probe like any other, so that no page goes on to show the success of an earlier one.
        """
        reading = ProbeReading(result, detail=detail, duration_seconds=self._tools.clock() - self._began)
        self._recording.sent(result, 0)
        for length in self._module.prompt_tokens:
            for cache in self._module.cache:
                self._recording.reading(length, cache, reading)
        return self._end(result, None, for_people(detail, self._headers))

    def _lengths(self, view: EngineView) -> dict[int, int]:
        """Configured length → length that fits the model's context."""
        room = None if view.context_tokens is None else view.context_tokens - self._module.max_tokens - _CONTEXT_MARGIN_TOKENS
        return {length: length if room is None else max(1, min(length, room)) for length in self._module.prompt_tokens}

    def _model(self, view: EngineView) -> str | None:
        """The module's model, else the first that the server lists; None where nothing says that this is an inference server.

        Raises:
            FetchError: the server cannot be reached.
        """
        chosen = self._module.model or view.model or self._place.model
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
            self._place.model = names[0]
            return names[0]
        return "default" if view.engine in ("vllm", "sglang") else None

    def _measure(self, tokens: int, cache: str, model: str, view: EngineView) -> ProbeReading:
        characters = self._place.scale.characters(tokens)
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
        reading = self._tools.prober.measure(call)
        scale = self._place.scale
        if reading.prompt_tokens:
            scale.learn(len(prompt), reading.prompt_tokens)
        fixed, slope = scale.line()
        tokens = reading.prompt_tokens or (round(fixed + slope * len(prompt)) if reading.request_sent else 0)
        self._ledger.add(self._tools.clock(), min(tokens, 64) if tail_only else tokens)
        self._recording.sent(reading.result, tokens)
        if reading.result in ("http_404", "http_400"):
            self._place.model = ""  # the server may serve another model now: ask again next time
        return reading

    def _skipped(self, result: str, detail: str) -> Outcome:
        if self._noted:
            self._recording.skipped(result)
        return Outcome(result, sent=False, record=replace(self._recording.record(), last_result=result), detail=detail)

    def _end(self, result: str, then: str | None, detail: str) -> Outcome:
        self._recording.ended(result, success=result == "success", ended_at=self._tools.wall())
        if then is not None:
            self._recording.skipped(then)
        return Outcome(result, sent=True, record=self._recording.record(), detail=detail)


def _why(skip: str, view: EngineView) -> str:
    return {
        "skipped_loading": "the engine is loading",
        "skipped_sleeping": "the engine is asleep",
        "skipped_busy": f"{view.requests_waiting:g} requests wait" if view.requests_waiting is not None else "busy",
        "skipped_budget": "the token budget of this hour is spent",
    }.get(skip, skip)
