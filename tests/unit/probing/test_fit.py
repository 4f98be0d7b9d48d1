"""Worked examples s10-* and s2-probe-*, and when the quadratic part is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from llm_exporter.cli.probe import fit_lines
from llm_exporter.probing.fit import (
    attention_share,
    cache_effectiveness,
    coefficients,
    crossover_tokens,
    expected_crossover_tokens,
    fit_ttft,
)
from llm_exporter.probing.statistics import relative_mad, shift, trimmed_mean

LENGTHS = [2048, 8192, 16384, 32768]
EXACT = [0.0828777216, 0.2616435456, 0.5469741824, 1.2786967296]


def test_s10_fit() -> None:
    assert coefficients(LENGTHS, EXACT) == pytest.approx((0.03, 2.5e-5, 4.0e-10), abs=1e-9)
    fit = fit_ttft([(n, [t] * 5) for n, t in zip(LENGTHS, EXACT, strict=True)])
    assert fit is not None
    assert fit.fixed_seconds == pytest.approx(0.03, abs=1e-9)
    assert fit.per_token_seconds == pytest.approx(2.5e-5, abs=1e-9)
    assert fit.per_token_squared_seconds == pytest.approx(4.0e-10, rel=1e-6)
    assert fit.predict(16384) == pytest.approx(EXACT[2])


def test_s10_attention_share_and_crossover() -> None:
    assert attention_share(32768, 2.5e-5, 4.0e-10) == pytest.approx(0.3440, abs=1e-4)
    assert crossover_tokens(2.5e-5, 4.0e-10) == pytest.approx(62500.0)
    assert expected_crossover_tokens(8.0e9, 32, 32, 128) == pytest.approx(61035.2, abs=0.1)


def test_s10_trimmed() -> None:
    assert trimmed_mean([0.40, 0.41, 0.42, 0.43, 2.0]) == pytest.approx(0.42)


def test_s2_probe_effective_and_broken() -> None:
    assert cache_effectiveness(0.46, 0.08, 0.03) == pytest.approx(0.8837, abs=1e-4)
    assert cache_effectiveness(0.46, 0.45, 0.03) == pytest.approx(0.0233, abs=1e-4)
    assert cache_effectiveness(0.03, 0.03, 0.03) is None


def noisy(fixed: float, linear: float, squared: float, noise: float, seed: int) -> list[tuple[float, list[float]]]:
    chance = random.Random(seed)
    return [(n, [(fixed + linear * n + squared * n * n) * (1 + chance.gauss(0, noise)) for _ in range(5)]) for n in LENGTHS]


def test_a_straight_line_gets_no_quadratic_part() -> None:
    refused = 0
    for seed in range(10):
        fit = fit_ttft(noisy(0.05, 3e-5, 0.0, 0.03, seed))
        assert fit is not None
        refused += fit.per_token_squared_seconds is None
        if fit.per_token_squared_seconds is None:
            assert "interval reaches 0" in fit.note
            assert set(fit.intervals) == {"fixed_seconds", "per_token_seconds"}
    assert refused >= 8


def test_a_clear_curve_keeps_it_and_the_interval_holds_the_truth() -> None:
    held = 0
    for seed in range(10):
        fit = fit_ttft(noisy(0.03, 2.5e-5, 8e-10, 0.01, seed))
        assert fit is not None
        assert fit.per_token_squared_seconds is not None
        low, high = fit.intervals["per_token_squared_seconds"]
        held += low <= 8e-10 <= high
    assert held >= 7


@pytest.mark.slow
def test_without_a_quadratic_part_the_intervals_hold_what_a_small_one_would_do() -> None:
    """A curve that cannot be seen bends the straight line: its own interval would hold the truth in hardly any run."""
    lengths, truth = (2048, 4096, 8192, 16384, 32768), {"fixed_seconds": 0.03, "per_token_seconds": 2.5e-5}
    chance = np.random.default_rng(3)
    held, refused = dict.fromkeys(truth, 0), 0
    for _ in range(40):
        rows = [(n, list((0.03 + 2.5e-5 * n + 1e-10 * n * n) * np.exp(chance.normal(0, 0.03, 5)))) for n in lengths]
        fit = fit_ttft(rows)
        assert fit is not None
        refused += fit.per_token_squared_seconds is None
        for name, value in truth.items():
            low, high = fit.intervals[name]
            held[name] += low <= value <= high
    assert refused >= 10  # else nothing was tested
    assert min(held.values()) >= 36


def test_a_part_that_the_others_explain_away_is_not_0() -> None:
    """Three lengths of a real SGLang on a CPU, steeper than any straight part allows: 0 (0 to 0) would look exact, and is not."""
    fit = fit_ttft([(69, [0.03, 0.031, 0.029] * 2), (1017, [0.235, 0.233, 0.237] * 2), (2081, [1.01, 1.0, 1.02] * 2)])
    assert fit is not None
    assert fit.unseen == {"per_token_seconds"}
    assert fit.as_json()["per_token_seconds"] is None
    assert set(fit.as_json()["intervals"]) == {"fixed_seconds", "per_token_squared_seconds"}
    assert "per token cannot be told beside the other parts" in fit_lines(fit)[0]


def test_two_lengths_have_no_quadratic_part_and_one_has_no_fit() -> None:
    fit = fit_ttft([(100, [0.1]), (200, [0.2])])
    assert fit is not None
    assert (fit.per_token_squared_seconds, fit.note) == (None, "two lengths cannot show one")
    assert fit_ttft([(100, [0.1, 0.2])]) is None
    assert fit_ttft([(100, []), (200, [0.1])]) is None


def test_spread_marks_a_contended_run() -> None:
    fit = fit_ttft([(100, [0.1, 0.15, 0.2]), (200, [0.2, 0.2, 0.2])])
    assert fit is not None
    assert fit.contended
    assert relative_mad([1.0, 1.0, 1.0, 9.0]) == 0.0


def test_shift_is_robust_to_one_outlier() -> None:
    assert shift([1, 1, 1, 1, 50], [2, 2, 2, 2, 2]) == pytest.approx(1.0)
