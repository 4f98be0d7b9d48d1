"""The formulas give the worked examples (sections 6 to 8 of the design)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from llm_exporter.report import statistics as s

EXAMPLES = yaml.safe_load((Path(__file__).parents[2] / "fixtures" / "signals" / "examples.yaml").read_text())["examples"]


def array(values: list[float]) -> np.ndarray:
    return np.array(values, dtype=float)


def theil_sen(y: list[float]) -> dict[str, float]:
    slope, intercept, lower, upper = s.theil_sen(np.arange(len(y), dtype=float), array(y))
    assert lower <= slope <= upper
    return {"slope": slope, "intercept": intercept}


def sustainable(load: list[float], bad: list[float], slo: float) -> dict[str, Any]:
    found = s.crossing(array(load), s.isotonic(array(bad)), slo)
    return {"value": found.value, "censored": found.censored}


def split_cost(total_usd: float, pre_share: float, pre_tokens: float, gen_tokens: float) -> dict[str, float | None]:
    prompt, generated = s.split_cost(total_usd, pre_share, pre_tokens, gen_tokens)
    return {"usd_per_m_uncached_in": prompt, "usd_per_m_out": generated}


def gpu_hours(total: float, idle: float, starved: float, throttled: float) -> dict[str, float]:
    useful, waste = s.useful_hours(total, idle, starved, throttled)
    return {"useful": useful, "waste_share": waste}


FORMULAS: dict[str, Callable[..., Any]] = {
    "theil_sen": theil_sen,
    "weeks_to": lambda cap, now, slope_day: s.weeks_until(cap, now, slope_day),
    "pav": lambda y: s.isotonic(array(y)).tolist(),
    "sustainable": sustainable,
    "usl": lambda n, lam, sigma, kappa: s.usl(n, lam, sigma, kappa),
    "usl_peak": lambda sigma, kappa: s.usl_peak(sigma, kappa),
    "headroom": lambda peak, cap: s.headroom(peak, cap),
    "headroom_n1": lambda peak, cap, n: s.headroom_after_loss(peak, cap, n),
    "cost_per_mtok": lambda gpus, usd_h, hours, tokens: s.cost_per_million(gpus, usd_h, hours, tokens),
    "split_cost": split_cost,
    "work_units": lambda pre, gen, a, b: s.work(pre, gen, a, b),
    "gpu_hours": gpu_hours,
    "hodges_lehmann": lambda a, b: s.hodges_lehmann(array(a), array(b)),
    "eff_n": lambda n, r1: s.effective_n(n, r1),
    "classic_quantile": lambda q, bounds, cum: s.quantile(q, array(bounds), array(cum)),
    "quality": lambda q, bounds, cum: s.quantile_quality(q, array(bounds), array(cum)),
    "budget_left": lambda bad, total, slo: s.budget_left(bad, total, slo),
    "preempt_waste": lambda d_pre, mean_ctx, prefill_tokens: s.wasted_by_preemption(d_pre, mean_ctx, prefill_tokens),
}
USED = [example for example in EXAMPLES if example["fn"] in FORMULAS]


def test_every_example_of_the_review_is_used() -> None:
    assert {example["id"] for example in EXAMPLES if example["section"] == 8} <= {example["id"] for example in USED}


def agrees(found: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(agrees(found[key], value, tolerance) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(agrees(a, b, tolerance) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, float | int) and not isinstance(expected, bool) and math.isfinite(expected):
        return abs(found - expected) <= tolerance
    return bool(found == expected)


@pytest.mark.parametrize("example", USED, ids=lambda example: example["id"])
def test_a_formula_gives_the_worked_example(example: dict[str, Any]) -> None:
    found = FORMULAS[example["fn"]](**example["args"])
    assert agrees(found, example["expect"], example.get("tol", 0.0)), found


def test_a_load_that_breaks_at_once_has_no_capacity() -> None:
    assert s.crossing(array([1, 2]), array([0.02, 0.05]), 0.99) == s.Crossing(None, censored=True)


def test_neighbours_that_resemble_each_other_weaken_a_test() -> None:
    random = np.random.default_rng(3)
    before, after = random.normal(0, 1, 60), random.normal(0.5, 1, 60)
    plain, correlated = s.rank_test(before, after), s.rank_test(before, after, 0.6)
    assert plain < 0.05 < correlated * 5
    assert correlated > plain


def test_lag_one_is_never_negative_and_bounded() -> None:
    assert s.lag_one(array([1, -1, 1, -1, 1, -1])) == 0.0
    assert s.lag_one(np.zeros(10)) == 0.0
    assert 0 < s.lag_one(np.arange(30.0)) <= 0.9


def test_quantiles_of_rows_leave_out_what_is_empty_or_unknown() -> None:
    bounds = array([1.0, 2.5, math.inf])
    rows = array([[950, 995, 1000], [0, 0, 0], [math.nan, 1, 1]])
    found = s.quantiles_by_row(0.99, bounds, rows)
    assert found[0] == pytest.approx(2.3333, abs=1e-4)
    assert np.isnan(found[1:]).all()
