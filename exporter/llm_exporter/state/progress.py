"""Does the engine still move? When it last made progress, and whether it has work; judged scrape by scrape.

In a hang the gauges of both engines freeze at their last values, and `/health` stays green. What tells is that nothing moves: no token, no
step, no finished request, no change of KV use. Work is what the engine itself last reported, corrected by what still tells the truth.
"""

from __future__ import annotations

from collections import deque

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
# Times of stillness that are remembered; a window holds few, since each is seen by two scrapes at least.
_STANDS_KEPT = 32


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


class Progress:
    """Memory of the last movement of one target.

    Attributes:
        moved_at: monotonic time of the last scrape that showed movement, or of the first.
        work_since: since when every scrape has shown work; None while there is none.
    """

    def __init__(self) -> None:
        self.moved_at: float | None = None
        self.work_since: float | None = None
        self._stood: deque[tuple[float, float]] = deque(maxlen=_STANDS_KEPT)  # (end, seconds)

    def note(self, before: Frame | None, now: Frame) -> None:
        """Takes the newest frame."""
        if before is None or self.moved_at is None or moved(before, now):
            if before is not None and (stood := self.still_seconds(before.at)) > 0:
                self._stood.append((before.at, stood))
            self.moved_at = now.at
        if not has_work(before, now):
            self.work_since = None
        elif self.work_since is None:
            self.work_since = now.at

    def stood_seconds(self, since: float) -> float:
        """The longest stillness with work that ended after `since` and is over; 0 without any."""
        return max((seconds for end, seconds in self._stood if end >= since), default=0.0)

    def still_seconds(self, at: float) -> float:
        """How long nothing has moved although there was work all the time; 0 without work."""
        if self.moved_at is None or self.work_since is None:
            return 0.0
        return max(0.0, at - max(self.moved_at, self.work_since))
