"""Does the prefix cache hit? Verdicts on made-up cold and warm times. Ceilings: worked example s2-block-ceiling."""

from __future__ import annotations

import pytest

from fakes.ladders import cell_of, ladder_of
from llm_exporter.probing.document import fit_of
from llm_exporter.probing.ladder import Cell
from llm_exporter.probing.prefix_cache import CacheRow, cache_rows

NOISE = (0.98, 0.99, 1.0, 1.01, 1.02)


def times(centre: float, noise: tuple[float, ...] = NOISE) -> list[float]:
    return [centre * factor for factor in noise]


def cold_law(tokens: int) -> float:
    return 0.03 + 1e-4 * tokens


def rows_of(
    warm: dict[int, float], block: str | None = "16", noise: tuple[float, ...] = NOISE, cached: int | None = None, samples: int = 5
) -> list[CacheRow]:
    """Cold times follow a law; warm ones are given by length."""
    cells: list[Cell] = []
    for tokens, seconds in warm.items():
        cells.append(cell_of(tokens, "cold", times(cold_law(tokens), noise)[:samples], counted=tokens))
        cells.append(cell_of(tokens, "warm", times(seconds, noise)[:samples], counted=tokens, cached=cached))
    ladder = ladder_of(*cells, conditions={} if block is None else {"kv_cache_block_tokens": block})
    return cache_rows(ladder, fit_of(ladder))


@pytest.mark.parametrize(("tokens", "block", "ceiling"), [(1000, "16", 0.992), (64, "16", 0.75), (64, "128", 0.0), (128, "128", 0.0)])
def test_s2_block_ceiling(tokens: int, block: str, ceiling: float) -> None:
    (row,) = rows_of({tokens: 0.03}, block)
    assert row.as_json()["hit_ceiling_ratio"] == pytest.approx(ceiling)


def test_a_prompt_shorter_than_a_block_cannot_hit_whatever_the_noise_says() -> None:
    short, whole, _ = rows_of({64: 0.0178, 128: 0.05, 1024: 0.13}, "128")
    assert (
        short.text()
        == "prefix cache at 64 tokens: cannot hit: 64 tokens are shorter than one block of 128; warm ÷ cold = 0.49 (0.48 to 0.50) has another reason"
    )
    assert short.as_json()["verdict"] == "cannot_hit"
    assert "128 tokens are as long as one block of 128" in whole.text()


def test_hits_come_with_an_interval_and_what_they_save() -> None:
    row = rows_of({2048: 0.06, 4096: 0.12, 8192: 0.18})[1]
    assert row.real is True
    assert row.lower is not None
    assert row.upper is not None
    assert row.lower < row.ratio < row.upper
    assert row.text().startswith("prefix cache at 4096 tokens: hits: warm ÷ cold = 0.27 (0.27 to 0.28), ")
    assert "% of the prefill saved" in row.text()
    assert row.as_json()["effectiveness_ratio"] == pytest.approx(1 - (0.12 - 0.03) / (cold_law(4096) - 0.03), abs=0.02)


def test_an_uncertain_overhead_makes_the_saving_a_range() -> None:
    noise = (0.7, 0.85, 1.0, 1.15, 1.3)
    row = rows_of({256: 0.035, 512: 0.045, 1024: 0.06}, noise=noise)[1]
    assert row.saved is not None
    assert row.saved[0] + 0.1 < row.saved[2]
    assert f"{row.saved[0] * 100:.0f} % to {row.saved[2] * 100:.0f} % of the prefill saved" in row.text()


def test_a_cache_that_does_not_hit_is_a_finding_where_most_of_the_prompt_could() -> None:
    lengths = (2048, 4096, 8192)
    for row in rows_of({tokens: cold_law(tokens) for tokens in lengths}):
        assert (row.real, row.verdict, row.finding) == (False, "does_not_hit", True)
        assert row.text().endswith("the prefix cache does not hit here")
        assert row.as_json()["effectiveness_ratio"] is None
    small = rows_of({tokens: cold_law(tokens) for tokens in (200, 2048, 4096)}, "128")[0]
    assert small.ceiling == pytest.approx(0.64)
    unknown = rows_of({tokens: cold_law(tokens) for tokens in lengths}, None)[0]
    assert (unknown.verdict, unknown.finding) == ("does_not_hit", False)


def test_noise_is_no_verdict() -> None:
    noise = (0.5, 0.8, 1.0, 1.3, 1.9)
    row = rows_of({tokens: cold_law(tokens) for tokens in (64, 128, 256)}, noise=noise)[0]
    assert (row.verdict, row.finding) == ("unknown", False)
    assert "cannot be seen here" in row.text()
    assert "saved" not in row.text()


def test_a_fixed_part_that_is_uncertain_makes_no_finding_of_a_prompt_whose_prefill_may_cost_nothing() -> None:
    """The fit of two lengths says that most of a short prompt is prefill, but hardly knows: a hit could save next to nothing."""
    wild = (0.4, 0.7, 1.0, 1.3, 1.6)
    cells = [
        cell_of(64, "cold", times(0.03), counted=64),
        cell_of(64, "warm", times(0.03), counted=64),
        cell_of(128, "cold", times(0.04, wild), counted=128),
    ]
    ladder = ladder_of(*cells, conditions={"kv_cache_block_tokens": "16"})
    fit = fit_of(ladder)
    assert fit is not None
    low, high = fit.intervals["fixed_seconds"]
    assert low < 0.03 - 0.005 < high
    (row,) = cache_rows(ladder, fit)
    assert (row.verdict, row.finding) == ("unknown", False)


def test_the_servers_own_count_of_cached_tokens_outweighs_times_that_are_alike() -> None:
    row = rows_of({tokens: cold_law(tokens) for tokens in (2048, 4096, 8192)}, cached=2032)[0]
    assert row.verdict == "unknown"
    assert "the server counts 2032 tokens out of the cache" in row.text()


def test_too_few_samples_give_no_verdict() -> None:
    row = rows_of({2048: 0.03, 4096: 0.03}, samples=3)[0]
    assert (row.real, row.lower, row.verdict) == (None, None, "unknown")
    assert "too few samples" in row.text()


def test_warm_that_is_slower_is_not_the_caches_doing() -> None:
    row = rows_of({2048: 0.6, 4096: 0.9})[0]
    assert row.verdict == "unknown"
    assert "later warm than cold" in row.text()


def test_a_server_with_one_length_has_no_fit_and_still_an_answer() -> None:
    (row,) = rows_of({2048: cold_law(2048)})
    assert "it does not hit, or a hit saves less than" in row.text()
    (row,) = rows_of({2048: 0.05}, block="x²")
    assert (row.verdict, row.ceiling) == ("hits", None)
