"""May we probe now? Pure decisions; the clock is passed in.

In: the module's limits, the engine's state, what we spent within the hour, how the last probes went. Out: a reason to skip, or none.
Called by `probing/runner.py` before each run and before each further request of a long one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

HOUR_SECONDS = 3600.0
HEARTBEAT_LONGEST_SECONDS = 60.0  # a heartbeat that backs off further is blind during an incident
LADDER_LONGEST_SECONDS = 4 * HOUR_SECONDS
_MOST_DOUBLINGS = 10
# After a priming request a warm prompt costs the engine about its last, partial block.
WARM_TAIL_TOKENS = 64


class ProbeModule(Protocol):
    """A probe module of the configuration (CONTRACT 4). Durations are seconds; names are the YAML keys."""

    @property
    def interval(self) -> float | None: ...  # noqa: D102
    @property
    def timeout(self) -> float: ...  # noqa: D102
    @property
    def prompt_tokens(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def cache(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def max_tokens(self) -> int: ...  # noqa: D102
    @property
    def repeat(self) -> int: ...  # noqa: D102
    @property
    def endpoint(self) -> str: ...  # noqa: D102
    @property
    def model(self) -> str | None: ...  # noqa: D102
    @property
    def temperature(self) -> float: ...  # noqa: D102
    @property
    def schedule(self) -> str | None: ...  # noqa: D102
    @property
    def max_waiting(self) -> int | None: ...  # noqa: D102
    @property
    def budget_tokens_per_hour(self) -> int | None: ...  # noqa: D102
    @property
    def language(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class EngineView:
    """What the last good page says about the engine that is to be probed.

    Attributes:
        state: loading, ready, sleeping or unknown (no page, or a page of no engine).
        engine: vllm, sglang, or empty.
        model: the first served model, or empty.
        requests_running, requests_waiting: None where not known.
        context_tokens: longest context, where known.
    """

    state: str = "unknown"
    engine: str = ""
    model: str = ""
    requests_running: float | None = None
    requests_waiting: float | None = None
    context_tokens: int | None = None


def reason_to_skip(module: ProbeModule, view: EngineView, spent_tokens: int, cost_tokens: int, *, though_blind: bool = False) -> str | None:
    """The skip that applies, else None. Budget: tokens of all probes of the target within the last hour.

    Who has set `max_waiting` wants no probe to meet users, so a queue that nobody knows counts as full, unless `though_blind`.
    """
    if view.state == "loading":
        return "skipped_loading"
    if view.state == "sleeping":
        return "skipped_sleeping"
    if is_blind(module, view):
        if not though_blind:
            return "skipped_busy"
    elif module.max_waiting is not None and (view.requests_waiting or 0) > module.max_waiting:
        return "skipped_busy"
    if module.budget_tokens_per_hour is not None and spent_tokens + cost_tokens > module.budget_tokens_per_hour:
        return "skipped_budget"
    return None


def is_blind(module: ProbeModule, view: EngineView) -> bool:
    """The module asks for a short queue, and nobody knows how long it is."""
    return module.max_waiting is not None and view.requests_waiting is None


def is_heartbeat(module: ProbeModule) -> bool:
    """An interval module with one length and a short answer: what `/probe` admits."""
    return module.schedule is None and module.interval is not None and len(module.prompt_tokens) == 1 and module.max_tokens <= 64


def run_cost(prompt_tokens: Iterable[int], caches: Iterable[str], repeat: int) -> int:
    """Prompt tokens that one run makes the engine compute: cold ones whole, warm ones once whole and then their tail."""
    kinds = tuple(caches)
    total = 0
    for length in prompt_tokens:
        if "cold" in kinds:
            total += length * repeat
        if "warm" in kinds:
            total += length + min(WARM_TAIL_TOKENS, length) * repeat
    return total


class TokenLedger:
    """Computed prompt tokens that our probes cost one target, within the last hour."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()

    def add(self, now: float, tokens: int) -> None:
        """Spends."""
        self._entries.append((now, tokens))

    def spent(self, now: float) -> int:
        """Tokens of the last hour."""
        while self._entries and self._entries[0][0] <= now - HOUR_SECONDS:
            self._entries.popleft()
        return sum(tokens for _, tokens in self._entries)


class BlindHeartbeats:
    """Lets a heartbeat through now and then while nobody knows how many requests wait.

    Where /metrics is down, the server may be too, and then the heartbeat is what tells. Once a minute it asks, with a single request,
    which no server notices, however long its queue is. What is no heartbeat waits until the queue is known.
    """

    def __init__(self) -> None:
        self._since: float | None = None

    def queue_is_known(self) -> None:
        """The next time it is not, the minute begins anew: one lost page lets nothing through."""
        self._since = None

    def may_send(self, now: float, module: ProbeModule) -> bool:
        """Called once for each run that does not know the queue."""
        if not is_heartbeat(module):
            return False
        if self._since is None:
            self._since = now
        pause = max(module.interval or 0.0, HEARTBEAT_LONGEST_SECONDS)
        if now - self._since < pause - 0.5 * min(module.interval or 0.0, pause):  # the schedule's jitter must not cost a whole turn
            return False
        self._since = now
        return True


class BackOff:
    """Waits longer after each failure in a row, and starts over after a success.

    A heartbeat is sent at its interval or once a minute, whichever is rarer; everything else doubles its pause up to four hours.
    """

    def __init__(self) -> None:
        self.failures = 0
        self._until = float("-inf")

    def note(self, now: float, module: ProbeModule, *, success: bool) -> None:
        """A run has ended at `now`."""
        self.failures = 0 if success else self.failures + 1
        if success:
            self._until = float("-inf")
            return
        step = module.interval or HOUR_SECONDS
        pause = step * 2 ** min(self.failures - 1, _MOST_DOUBLINGS)
        longest = max(step, HEARTBEAT_LONGEST_SECONDS) if is_heartbeat(module) else max(step, LADDER_LONGEST_SECONDS)
        # A schedule fires a little early or late; half a step of grace keeps it from losing a whole turn.
        self._until = now + min(pause, longest) - 0.5 * min(step, longest)

    def ready(self, now: float) -> bool:
        """No pause is running."""
        return now >= self._until
