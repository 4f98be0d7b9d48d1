"""Does the engine still move? When it last made progress, and whether it has work; judged scrape by scrape.

In a hang the gauges of both engines freeze at their last values, and `/health` stays green. What tells is that nothing moves: no token, no
step, no finished request, no change of KV use. Work is what the engine itself last reported, corrected by what still tells the truth.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from llm_exporter.state.window import Frame, Window

# Counters that grow only while the engine computes.
MOVING_COUNTERS = (
    "generation_tokens",
    "first_tokens",
    "prompt_tokens",
    "steps",
    "realtime_tokens",
    "prefill_effective_tokens",
    "requests_finished",
    "forward_execution_seconds",
)
MOVING_HISTOGRAMS = ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
# Gauges that the scheduler sets: a change proves that it runs. A chunked prefill shows in KV use before any token does.
MOVING_GAUGES = ("kv_cache_usage", "requests_running")
# Movements are remembered for longer than any window of evidence.
_KEPT_SECONDS = 60.0
# After a hang the output is missing: less than this share of the pace at other times. A page that is only renewed more seldom than it is
# scraped brings all of it at once.
_LOST_OUTPUT = 1 / 3


def moved(before: Frame, now: Frame) -> bool:
    """Whether anything of any model moved between two scrapes."""
    for model in now.table.models:
        step = Window((before, now), model)
        if any((step.increase(field) or 0.0) > 0 for field in MOVING_COUNTERS):
            return True
        if any(gained.count > 0 for field in MOVING_HISTOGRAMS if (gained := step.histogram(field)) is not None):
            return True
        for field in MOVING_GAUGES:
            values = [value for _, value in step.gauge(field)]
            if len(values) == 2 and values[0] != values[1]:
                return True
    return False


def has_work(before: Frame | None, now: Frame) -> bool:
    """Whether requests are in the engine, as far as its page can be believed.

    SGLang's gauges may keep the last batch for half a minute after it ended: requests at its HTTP routes, where it shows them, and a
    scheduler that books idle time overrule them.
    """
    active = _sum(now, "http_requests_active")
    if active is not None and active == 0:
        return False
    if before is not None and any(
        (Window((before, now), model).increase("scheduler_idle_seconds") or 0.0) > 0 for model in now.table.models
    ):
        return False
    counts = [_sum(now, field) for field in ("requests_running", "requests_waiting_capacity")]
    if active is not None:
        counts.append(active)
    return any(count is not None and count > 0 for count in counts)


def _sum(frame: Frame, field: str) -> float | None:
    found = [
        sum(frame.numbers[position] for position in by_label.values())
        for (_, name), by_label in frame.table.scalars.items()
        if name == field
    ]
    return sum(found) if found else None


class _Movement(NamedTuple):
    """A scrape that showed movement: the stillness before it, its end, and what came out over both that and the step itself.

    `whole` is False for the first one that was seen: how long it had been in the making is not known.
    """

    stood_until: float
    stood: float
    seconds: float
    tokens: float
    whole: bool


def _output(before: Frame, now: Frame) -> float:
    return sum(Window((before, now), model).increase("generation_tokens") or 0.0 for model in now.table.models)


class Progress:
    """Memory of the last movements of one target.

    Attributes:
        moved_at: monotonic time of the last scrape that showed movement, or of the first.
        work_since: since when every scrape has shown work; None while there is none.
    """

    def __init__(self) -> None:
        self.moved_at: float | None = None
        self.work_since: float | None = None
        self._movements: deque[_Movement] = deque()
        self._seen = False

    def note(self, before: Frame | None, now: Frame) -> None:
        """Takes the newest frame."""
        if before is None or self.moved_at is None or moved(before, now):
            if before is not None:
                stood = self.still_seconds(before.at)
                self._movements.append(_Movement(before.at, stood, stood + now.at - before.at, _output(before, now), self._seen))
                self._seen = True
                while self._movements and now.at - self._movements[0].stood_until > _KEPT_SECONDS:
                    self._movements.popleft()
            self.moved_at = now.at
        if not has_work(before, now):
            self.work_since = None
        elif self.work_since is None:
            self.work_since = now.at

    def stood_seconds(self, since: float) -> float:
        """The longest stillness with work that ended after `since` and is over; 0 without any, or where no output was lost by it."""
        return max((one.stood for one in self._stands(since) if not self._kept_pace(one)), default=0.0)

    def beat_seconds(self, since: float) -> float:
        """The longest time between two movements after `since` that cost no output: how seldom the page is renewed. 0: at each scrape."""
        return max((one.seconds for one in self._stands(since) if self._kept_pace(one)), default=0.0)

    def _stands(self, since: float) -> list[_Movement]:
        return [one for one in self._movements if one.stood > 0 and one.stood_until >= since]

    def still_seconds(self, at: float) -> float:
        """How long nothing has moved although there was work all the time; 0 without work."""
        if self.moved_at is None or self.work_since is None:
            return 0.0
        return max(0.0, at - max(self.moved_at, self.work_since))

    def _kept_pace(self, one: _Movement) -> bool:
        """Whether as much came out over this stillness and the step after it as at other times. Without other times nobody knows: no."""
        pace = one.tokens / one.seconds
        others = [other for other in self._movements if other is not one]
        for known in (others, [other for other in others if other.whole]):
            seconds, tokens = sum(other.seconds for other in known), sum(other.tokens for other in known)
            if seconds > 0 and pace > 0 and pace >= _LOST_OUTPUT * tokens / seconds:
                return True
        return False
