"""Multi-window, multi-burn-rate alerts: windows as data, factors computed.

In: an objective. Out: the tiers that can fire for it. A burn rate of 1 spends the whole error budget in exactly one period. Source: the
SRE workbook, chapter 5: a tier is the share of the budget whose loss within the long window is worth a call; the short window, a
twelfth of it, makes the alert end soon after the trouble does.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

PERIOD = 30 * 86_400  # seconds in which the budget may be spent
# A tier whose threshold is a larger slow share than this can hardly ever fire, or never: it is refused, and other alerts must cover it.
HIGHEST_SHARE = Decimal("0.8")


class Tier(NamedTuple):
    """One row of the table.

    Attributes:
        name: fast, medium or slow; the end of the alert's name.
        budget_share: share of the period's budget that is lost when the long window is full.
        long, short: windows in seconds.
        hold: `for` in seconds.
        floor: fewest slow requests, and fewest requests that are not probes, in the long window. With an objective of 99 %, met exactly,
            2 to 10 requests an hour give 11 to 25 false calls a month without a floor and none with 5 (simulated).
    """

    name: str
    budget_share: Decimal
    long: int
    short: int
    hold: int
    floor: int

    @property
    def factor(self) -> Decimal:
        """Burn rate at which the alert fires."""
        return self.budget_share * PERIOD / self.long

    def threshold(self, objective: Decimal) -> Decimal:
        """Slow share at which the alert fires.

        Raises:
            ValueError: the share is one that the alert could hardly ever reach.
        """
        if not 0 < objective < 1:
            raise ValueError(f"an objective of {objective} leaves no budget, or nothing to promise; write for example 0.99")
        share = self.factor * (1 - objective)
        if share > HIGHEST_SHARE:
            raise ValueError(
                f"the {self.name} tier fires at {self.factor.normalize():f} times the budget, which is {share:%} of the requests for an "
                f"objective of {objective:%}: it could hardly ever fire, so it is left out"
            )
        return share


TIERS: tuple[Tier, ...] = (
    Tier("fast", Decimal("0.02"), long=3600, short=300, hold=120, floor=5),
    Tier("medium", Decimal("0.05"), long=6 * 3600, short=1800, hold=900, floor=10),
    Tier("slow", Decimal("0.10"), long=3 * 86_400, short=6 * 3600, hold=3600, floor=20),
)
WINDOWS: tuple[int, ...] = tuple(sorted({window for tier in TIERS for window in (tier.long, tier.short)}))


def refusals(objective: Decimal) -> tuple[str, ...]:
    """Why tiers are left out for this objective, a sentence each."""
    found = []
    for tier in TIERS:
        try:
            tier.threshold(objective)
        except ValueError as error:
            found.append(str(error))
    return tuple(found)
