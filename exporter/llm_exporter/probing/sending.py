"""Sends the requests of one run: within its budget and its time, each of them counted.

In: prompts. Out: a `ProbeReading` for each, or `Stop` where the next request must not be sent. Called by `probing/run.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llm_exporter.probing.addresses import Place
from llm_exporter.probing.calls import CHAT, call_of
from llm_exporter.probing.manners import WARM_TAIL_TOKENS, ProbeModule, TokenLedger
from llm_exporter.probing.pool import Prober
from llm_exporter.probing.prompts import TokenScale, is_possible
from llm_exporter.probing.results import Recording
from llm_exporter.sources.probe import ProbeReading, TlsSettings

_CACHED_SHARE = 0.6  # of the time that a prompt took when it was computed


class Stop(Exception):  # no error: the run ends early
    """The next request is not sent.

    Attributes:
        skip: the reason as the page has it; None where the time of the call is over.
        detail: a sentence for people.
    """

    def __init__(self, skip: str | None, detail: str) -> None:
        super().__init__(detail)
        self.skip, self.detail = skip, detail


@dataclass(slots=True)
class Budget:
    """Tokens that the run may still make the server compute.

    Before each request it is asked for what that will cost at least; afterwards the ledger gets what it did cost. Most of a request must
    fit, not all of it: a budget of exactly one run would otherwise lose its last request to rounding. So the hour's budget is never
    exceeded by more than one request.
    """

    module: ProbeModule
    ledger: TokenLedger
    clock: Callable[[], float]
    tells_cached: bool = False  # the server has said how much of a prompt it had cached

    def ask(self, tokens: int) -> None:
        """Raises `Stop` where so many tokens are too many."""
        limit = self.module.budget_tokens_per_hour
        spent = self.ledger.spent(self.clock())
        if limit is not None and spent + tokens / 2 > limit:
            raise Stop("skipped_budget", f"{spent} of {limit} prompt tokens of this hour are spent, {tokens} more are too many")

    def charge(self, prompt: str, reading: ProbeReading, scale: TokenScale, computed_in: float | None = None) -> None:
        """What the server computed: its own count less what it says it had cached; our estimate where it tells nothing that can be true.

        Args:
            prompt: what was sent.
            reading: of it.
            scale: of the server's tokenizer.
            computed_in: TTFT in seconds when the same prompt was computed. One that comes much sooner was cached, though nobody says so.
        """
        told = reading.prompt_tokens
        self.tells_cached |= reading.cached_tokens is not None
        if told is not None and is_possible(len(prompt), told):
            tokens = told
        elif reading.request_sent:
            tokens = scale.tokens(len(prompt))
        else:
            return
        ttft = reading.time_to_first_token_seconds
        if reading.cached_tokens is not None:
            tokens -= min(tokens, reading.cached_tokens)
        elif computed_in is not None and ttft is not None and ttft < _CACHED_SHARE * computed_in:
            tokens = min(tokens, WARM_TAIL_TOKENS)
        self.ledger.add(self.clock(), tokens)


@dataclass(slots=True)
class Allowance:
    """Time that is left for a run.

    Attributes:
        timeout_seconds: of each request.
        until: moment on `clock` by which all of them must have ended; None: no such moment.
        longest_seconds: of the run's requests so far.
    """

    timeout_seconds: float
    clock: Callable[[], float]
    until: float | None = None
    longest_seconds: float = 0.0

    @property
    def left(self) -> float:
        """Seconds for the next request; 0 or less where none are left."""
        return self.timeout_seconds if self.until is None else min(self.timeout_seconds, self.until - self.clock())

    def take(self) -> float:
        """Seconds for the next request. Raises `Stop` where one like those before would not end in time."""
        left = self.left
        if left <= 0 or (left < self.timeout_seconds and left < self.longest_seconds):
            raise Stop(None, "the time of the call is over")
        return left


@dataclass(slots=True)
class Sender:
    """The requests of one run."""

    prober: Prober
    url: str
    tls: TlsSettings
    module: ProbeModule
    place: Place
    recording: Recording
    budget: Budget
    time: Allowance
    model: str = ""
    engine: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    requests: int = 0

    def send(self, prompt: str, computed_in: float | None = None) -> ProbeReading:
        """One request, counted whatever becomes of it; `computed_in` as in `Budget.charge`.

        Raises:
            Stop: no time is left for it; or it was cut off for want of time, after others had succeeded, and so says nothing of the server.
        """
        seconds = self.time.take()
        call = call_of(
            self.url,
            self.module.endpoint or CHAT,
            model=self.model,
            prompt=prompt,
            max_tokens=self.module.max_tokens,
            temperature=self.module.temperature,
            engine=self.engine,
            headers=self.headers,
            tls=self.tls,
            timeout_seconds=seconds,
        )
        began = self.time.clock()
        reading = self.prober.measure(call)
        self.time.longest_seconds = max(self.time.longest_seconds, self.time.clock() - began)
        self._count(prompt, reading, computed_in)
        if reading.result == "timeout" and seconds < self.time.timeout_seconds and self.requests > 1:
            raise Stop(None, "the time of the call is over")
        return reading

    def _count(self, prompt: str, reading: ProbeReading, computed_in: float | None) -> None:
        self.requests += 1
        scale = self.place.scale(self.module.language)
        if reading.prompt_tokens:
            scale.learn(len(prompt), reading.prompt_tokens)
        self.budget.charge(prompt, reading, scale, computed_in)
        tokens = reading.prompt_tokens or (scale.tokens(len(prompt)) if reading.request_sent else 0)
        self.recording.sent(reading.result, tokens, reading.completion_tokens or 0)
        if reading.result in ("http_404", "http_400"):
            self.place.listed, self.place.model, self.place.context_tokens = False, "", None  # perhaps another model now: ask again
