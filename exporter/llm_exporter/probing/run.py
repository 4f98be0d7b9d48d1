"""One run of a module against a target: its requests, and a result whatever becomes of them.

In: target, module, a view of the engine, what is remembered of the address. Out: an `Outcome`; what was seen goes into the `ResultStore`.
Called by `probing/runner.py` while it holds the server's lock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_exporter.errors import FetchError, SourceError
from llm_exporter.probing.addresses import Place
from llm_exporter.probing.manners import (
    WARM_TAIL_TOKENS,
    BlindHeartbeats,
    EngineView,
    ProbeModule,
    TokenLedger,
    is_blind,
    reason_to_skip,
    run_cost,
)
from llm_exporter.probing.pool import Prober
from llm_exporter.probing.prompts import MOST_LESSONS, PromptMaker, longest_prompt
from llm_exporter.probing.results import ResultStore
from llm_exporter.probing.sending import Allowance, Budget, Sender, Stop
from llm_exporter.sources.probe import ProbeReading, TlsSettings
from llm_exporter.sources.probe_record import ProbeRecord
from llm_exporter.sources.server_words import for_people

_LISTING_SECONDS = 5.0
# A tokenizer that is not known yet is met with short prompts first: a long one of the wrong length costs much and says nothing.
_TEACHING_TOKENS = (64, 1024)
_BLIND = "max_waiting is set, and how many requests wait is not known: no fresh metrics page tells it"


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
        resting: nothing was sent, since the target rests after failures.
        advice: what the operator should know although nothing failed: something that is configured cannot be done. Empty mostly.
    """

    result: str
    sent: bool
    record: ProbeRecord
    detail: str = ""
    advice: str = ""
    resting: bool = False


@dataclass(frozen=True, slots=True)
class Tools:
    """What every run needs."""

    prober: Prober
    store: ResultStore
    clock: Callable[[], float]
    wall: Callable[[], float]


class Run:
    """One run of one module.

    Args:
        place: what is remembered of the address.
        ledger: tokens spent on the server within the hour.
        look: the engine as it is now.
        until: monotonic seconds by which the run must have ended; None: each request has the module's timeout, and that is all.
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
        until: float | None,
        noted: bool,
    ) -> None:
        self._tools, self._target, self._module_name, self._module = tools, target, module_name, module
        self._place, self._ledger, self._look, self._noted = place, ledger, look, noted
        self._scale, self._maker = place.scale(module.language), PromptMaker(module.language)
        self._recording = tools.store.begin_run(target.name, module_name)
        self._began = tools.clock()
        self._advice = ""
        self._warm: dict[int, str] = {}
        self._computed_in: dict[int, float | None] = {}  # TTFT of each warm prompt's first priming
        self._sender = Sender(
            tools.prober,
            target.url,
            target.tls,
            module,
            place,
            self._recording,
            Budget(module, ledger, tools.clock),
            Allowance(module.timeout, tools.clock, until),
        )

    def carry_out(self, now: float) -> Outcome:
        """All requests of the module, shuffled; stops at the first skip or failure, and when its time is over."""
        view = self._look()
        cost = run_cost(self._fitting(view.context_tokens), self._module.cache, self._module.repeat)
        skip = reason_to_skip(self._module, view, self._ledger.spent(now), cost, though_blind=self._may_go_blind(now, view))
        if skip is not None:
            return self._skipped(skip, self._why(skip, view))
        try:
            self._sender.headers = dict(self._target.headers())
        except SourceError as error:  # a file of credentials: nothing could be sent
            return self.failed("connect", f"credentials: {error.detail or error.reason}")
        try:
            self._ask_for_facts(view)
        except FetchError as error:
            return self.failed(error.reason, error.detail)
        model = self._module.model or view.model or self._place.model or ("default" if view.engine in ("vllm", "sglang") else "")
        if not model:
            detail = "neither the metrics page nor /v1/models says what this server is; set the module's model or the target's engine"
            return self._skipped("skipped_unknown_engine", detail)
        lengths = self._fitting(view.context_tokens or self._place.context_tokens)
        self._leave_out(lengths, view)
        if not lengths:
            return self._skipped("skipped_context", self._advice)
        self._sender.model, self._sender.engine = model, view.engine
        return self._measure_all(lengths)

    def failed(self, result: str, detail: str) -> Outcome:
        """The run failed before it had a reading: the server cannot be asked for its models, or the exporter has a bug.

        That is a failed probe like any other, so that no page goes on to show the success of an earlier one.
        """
        reading = ProbeReading(result, detail=detail, duration_seconds=self._tools.clock() - self._began)
        self._recording.sent(result, 0, 0)
        for length in self._module.prompt_tokens:
            for cache in self._module.cache:
                self._recording.reading(length, cache, reading)
        return self._end(result, None, detail)

    # -- before the first request --------------------------------------------------------------------------------------------------

    def _may_go_blind(self, now: float, view: EngineView) -> bool:
        blind = self._place.blind.setdefault(self._module_name, BlindHeartbeats())
        if is_blind(self._module, view):
            self._advice = _BLIND
            return blind.may_send(now, self._module)
        blind.queue_is_known()
        return False

    def _ask_for_facts(self, view: EngineView) -> None:
        """Asks `/v1/models` for what the page does not tell: the model, and for long prompts the context.

        Raises:
            FetchError: nothing else says what to ask for, and the server cannot be reached.
        """
        has_model = bool(self._module.model or view.model or self._place.model)
        needs_context = view.context_tokens is None and max(self._module.prompt_tokens) > _TEACHING_TOKENS[-1]
        if has_model and (self._place.listed or not needs_context):
            return
        timeout = min(self._sender.time.left, _LISTING_SECONDS)
        if timeout <= 0:
            return
        try:
            names, context = self._tools.prober.list_models(self._target.url, self._sender.headers, self._target.tls, timeout)
        except FetchError as error:
            if not error.reason.startswith("http_") and not has_model:
                raise
            return
        if names:
            self._place.model = self._place.model or names[0]
            asked = self._module.model or view.model or names[0]
            self._place.listed, self._place.context_tokens = True, context if asked == names[0] else None

    def _fitting(self, context_tokens: int | None) -> list[int]:
        """The configured lengths that the model's context holds."""
        lengths = self._module.prompt_tokens
        limit = max(lengths) if context_tokens is None else longest_prompt(context_tokens, self._module.max_tokens)
        return [length for length in lengths if length <= limit]

    def _leave_out(self, kept: Sequence[int], view: EngineView) -> None:
        """No series is labelled with a length that the server never gets."""
        left_out = sorted(set(self._module.prompt_tokens) - set(kept))
        self._recording.leave_out(left_out)
        context = view.context_tokens or self._place.context_tokens
        if left_out and context is not None:
            limit = max(0, longest_prompt(context, self._module.max_tokens))
            self._advice = (
                f"prompt_tokens {', '.join(map(str, left_out))} left out: the model's context of {context} tokens holds prompts of up to"
                f" {limit} beside {self._module.max_tokens} tokens of output and a margin"
            )

    # -- requests ------------------------------------------------------------------------------------------------------------------

    def _measure_all(self, lengths: Sequence[int]) -> Outcome:
        steps = [(length, cache) for length in lengths for cache in self._module.cache for _ in range(self._module.repeat)]
        random.shuffle(steps)
        done = 0
        try:
            if not self._scale.learned and max(lengths) > _TEACHING_TOKENS[-1]:
                for tokens in _TEACHING_TOKENS:
                    _, lesson = self._send(tokens, self._maker.cold, tokens)
                    if not lesson.success:
                        return self._end(lesson.result, None, lesson.detail)
            for length, cache in steps:
                reading = self._measure(length, cache)
                self._recording.reading(length, cache, reading)
                done += 1
                if not reading.success:
                    return self._end(reading.result, None, reading.detail)
        except Stop as stop:
            if stop.skip == "skipped_budget" and "warm" in self._module.cache and not self._sender.budget.tells_cached:
                self._advice = (
                    "budget_tokens_per_hour ends the run early: the server does not say how much of a warm prompt it had cached, so those"
                    " that came no sooner than when they were computed are counted whole; vLLM tells with --enable-prompt-tokens-details,"
                    " SGLang with --enable-cache-report"
                )
            if self._sender.requests == 0:
                return self.failed("timeout", stop.detail) if stop.skip is None else self._skipped(stop.skip, stop.detail)
            return self._end("success", stop.skip, f"stopped after {done} of {len(steps)} measurements: {stop.detail}")
        return self._end("success", None, "")

    def _measure(self, tokens: int, cache: str) -> ProbeReading:
        if cache != "warm":
            return self._of_length(tokens, self._maker.cold, tokens)[1]
        key = f"{self._target.name} {self._module_name}"
        tail = min(WARM_TAIL_TOKENS, tokens)
        # The run's first warm prompt of a length serves all of it: one that follows the scale's last decimal would be computed anew.
        known = self._warm.get(tokens)
        cost = (tokens if known is None else tail) + tail
        prompt, primer = self._of_length(tokens, lambda characters: known or self._maker.warm(characters, key), cost)
        if not primer.success:
            return primer
        if known is None:
            self._computed_in[tokens] = primer.time_to_first_token_seconds
        self._warm[tokens] = prompt
        # Another prompt in between may have pushed it out of the cache, so each warm measurement follows its own priming at once.
        self._sender.budget.ask(tail)
        return self._sender.send(prompt, self._computed_in[tokens])

    def _of_length(self, tokens: int, text_of: Callable[[int], str], cost: int) -> tuple[str, ProbeReading]:
        """(prompt, reading) of a request of so many tokens. One that turns out to be of another length was a lesson, and is made again."""
        for _ in range(MOST_LESSONS):
            prompt, reading = self._send(tokens, text_of, cost)
            if not (reading.success and self._scale.missed(tokens, reading.prompt_tokens)):
                return prompt, reading
        return self._send(tokens, text_of, cost)

    def _send(self, tokens: int, text_of: Callable[[int], str], cost: int) -> tuple[str, ProbeReading]:
        """One request, if manners still allow it. `cost`: tokens, with those of a request that is to follow at once."""
        if self._sender.requests:
            view = self._look()
            skip = reason_to_skip(self._module, view, 0, 0)
            if skip is not None:
                raise Stop(skip, self._why(skip, view))
        self._sender.budget.ask(cost)
        prompt = text_of(self._scale.characters(tokens))
        return prompt, self._sender.send(prompt, self._computed_in.get(tokens) if prompt == self._warm.get(tokens) else None)

    # -- ends ----------------------------------------------------------------------------------------------------------------------

    def _skipped(self, result: str, detail: str) -> Outcome:
        if self._noted:
            self._recording.skipped(result)
        record = replace(self._recording.record(), last_result=result)
        return Outcome(result, sent=False, record=record, detail=detail, advice=self._advice)

    def _end(self, result: str, then: str | None, detail: str) -> Outcome:
        self._recording.ended(result, success=result == "success", ended_at=self._tools.wall())
        if then is not None:
            self._recording.skipped(then)
        detail = for_people(detail, self._sender.headers)
        return Outcome(result, sent=True, record=self._recording.record(), detail=detail, advice=self._advice)

    def _why(self, skip: str, view: EngineView) -> str:
        if skip == "skipped_busy" and is_blind(self._module, view):
            self._advice = _BLIND
            return _BLIND
        return {
            "skipped_loading": "the engine is loading",
            "skipped_sleeping": "the engine is asleep",
            "skipped_busy": f"{view.requests_waiting or 0:g} requests wait",
            "skipped_budget": "the token budget of this hour is spent",
        }.get(skip, skip)
