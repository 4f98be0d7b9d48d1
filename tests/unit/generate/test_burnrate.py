"""The table of burn rates: factors are results, and tiers that cannot fire are refused."""

from __future__ import annotations

from decimal import Decimal

import pytest

from llm_exporter.generate.burnrate import HIGHEST_SHARE, PERIOD, TIERS, refusals

FAST, MEDIUM, SLOW = TIERS


def test_the_factors_of_the_workbook_come_out_exactly() -> None:
    assert [tier.factor for tier in TIERS] == [Decimal("14.4"), Decimal(6), Decimal(1)]


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_the_short_window_is_a_twelfth_of_the_long_one(tier: object) -> None:
    assert tier.long == 12 * tier.short  # type: ignore[attr-defined]


@pytest.mark.parametrize("tier", TIERS, ids=lambda tier: tier.name)
def test_burning_at_the_factor_for_the_long_window_spends_the_share(tier: object) -> None:
    assert tier.factor * tier.long / PERIOD == tier.budget_share  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("objective", "limits"),
    [("0.99", ("0.144", "0.06", "0.01")), ("0.999", ("0.0144", "0.006", "0.001")), ("0.95", ("0.72", "0.3", "0.05"))],
)
def test_limits_are_shares_of_requests_without_noise(objective: str, limits: tuple[str, ...]) -> None:
    assert [tier.threshold(Decimal(objective)) for tier in TIERS] == [Decimal(limit) for limit in limits]


def test_a_limit_that_could_hardly_be_reached_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"the fast tier fires at 14\.4 times the budget.*144.*objective of 90.*left out"):
        FAST.threshold(Decimal("0.9"))
    assert MEDIUM.threshold(Decimal("0.9")) == Decimal("0.6")


def test_the_border_of_refusal_is_inclusive() -> None:
    assert SLOW.threshold(1 - HIGHEST_SHARE) == HIGHEST_SHARE
    with pytest.raises(ValueError, match="left out"):
        SLOW.threshold(1 - HIGHEST_SHARE - Decimal("0.0001"))


@pytest.mark.parametrize(("objective", "refused"), [("0.99", 0), ("0.9", 1), ("0.8", 2), ("0.1", 3)])
def test_refusals_name_each_tier_that_is_left_out(objective: str, refused: int) -> None:
    assert len(refusals(Decimal(objective))) == refused


@pytest.mark.parametrize("objective", ["0", "1", "1.1", "-0.5"])
def test_an_objective_without_budget_is_an_error(objective: str) -> None:
    with pytest.raises(ValueError, match=r"write for example 0\.99"):
        FAST.threshold(Decimal(objective))
