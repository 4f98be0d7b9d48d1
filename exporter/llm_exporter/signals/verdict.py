"""From judgements to what is published: a verdict changes when two ticks agree, starvation needs several decisions in a row.

One `VerdictKeeper` per target, fed once per tick with a fresh view; it is the only memory among the signals, and is passed in.
"""

from __future__ import annotations

from collections import deque

from llm_exporter.signals.bottleneck import Judgement, judge
from llm_exporter.signals.evidence import gather
from llm_exporter.signals.model import Decision, TargetView
from llm_exporter.signals.ramps import SCORE_LIMIT
from llm_exporter.state.store import WINDOWS
from llm_exporter.state.window import LATENESS_SECONDS

# A verdict is published when this many ticks in a row agree.
AGREEING_TICKS = 2
# Starvation: decisions this far apart (CONTRACT 6.2); on after so many for it, off after so many clearly against it.
DECISION_SECONDS = 10.0
ENTER_AFTER = 3
LEAVE_AFTER = 4
LEAVE_SCORE = 0.4


class Hysteresis:
    """Turns a sequence of yes-or-no decisions with scores into a state that does not flap (SIGNALS 4.3).

    On after `enter` decisions for it in a row; off after `leave` in a row whose own score is below `low`.
    """

    def __init__(self, enter: int = ENTER_AFTER, leave: int = LEAVE_AFTER, low: float = LEAVE_SCORE) -> None:
        self.on = False
        self._enter, self._leave, self._low = enter, leave, low
        self._for = self._against = 0

    def decide(self, *, positive: bool, score: float) -> bool:
        """Takes a decision; returns the state after it."""
        self._for = self._for + 1 if positive else 0
        self._against = self._against + 1 if score < self._low else 0
        if not self.on and self._for >= self._enter:
            self.on, self._against = True, 0
        elif self.on and self._against >= self._leave:
            self.on = False
        return self.on


class VerdictKeeper:
    """Memory of the verdict of one target."""

    def __init__(self) -> None:
        self._published = "unknown"
        self._candidate = ""
        self._confidence: float | None = None
        self._agreed = 0
        self._starved = Hysteresis()
        self._decided_at: float | None = None
        self._gaps: deque[tuple[float, float]] = deque()

    def reset(self) -> None:
        """Forgets everything: the engine restarted, or its page went away."""
        self.__init__()  # type: ignore[misc]

    def decide(self, view: TargetView) -> Decision | None:
        """The decision for this tick; None without a fresh page."""
        if not view.fresh or view.store.latest is None:
            self.reset()
            return None
        return self.take(judge(gather(view)), view.at)

    def take(self, judgement: Judgement, at: float) -> Decision:
        """Takes one judgement of monotonic time `at`."""
        self._agreed = self._agreed + 1 if judgement.cause == self._candidate else 1
        self._candidate = judgement.cause
        if self._agreed >= AGREEING_TICKS:
            self._published = judgement.cause
        if judgement.cause == self._published:
            self._confidence = judgement.confidence
        starved = self._starvation(judgement, at)
        return Decision(
            cause=self._published,
            confidence=None if self._published == "unknown" else self._confidence,
            scores={cause: score.weight for cause, score in judgement.scores.items() if score.coverage > 0},
            evidence={(cause, name): member for cause, score in judgement.scores.items() for name, member in score.evidence.items()},
            starved=starved,
            gap=judgement.gap,
            gaps=self._mean_gaps(judgement.gap, at),
            missing=judgement.missing,
            hint=judgement.hint,
            why=judgement.causes,
        )

    def _starvation(self, judgement: Judgement, at: float) -> bool | None:
        if judgement.gap is None:
            self._starved, self._decided_at = Hysteresis(), None
            return None
        due = self._decided_at is None or at - self._decided_at >= DECISION_SECONDS - LATENESS_SECONDS
        if due and judgement.confidence is not None:
            self._decided_at = at
            score = judgement.scores["host_starved"].value
            self._starved.decide(positive=judgement.cause == "host_starved" and score >= SCORE_LIMIT, score=score)
        return self._starved.on

    def _mean_gaps(self, gap: float | None, at: float) -> dict[str, float]:
        if gap is not None:
            self._gaps.append((at, gap))
        longest = max(seconds for _, seconds in WINDOWS)
        while self._gaps and self._gaps[0][0] < at - longest - LATENESS_SECONDS:
            self._gaps.popleft()
        means = {}
        for name, seconds in WINDOWS:
            found = [value for when, value in self._gaps if when >= at - seconds - LATENESS_SECONDS]
            if found and gap is not None:
                means[name] = sum(found) / len(found)
        return means
