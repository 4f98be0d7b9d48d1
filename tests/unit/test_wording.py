"""Numbers for people: figures and unit, never an exponent; and the sentences of `probe` that are made of them."""

from __future__ import annotations

import re

import pytest

from llm_exporter.cli.probe import fit_lines
from llm_exporter.probing.fit import Fit
from llm_exporter.wording import harmless, plain_number, plain_seconds, three_figures


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (5.77, "5.77 s"), (8.02e-3, "8.02 ms"), (5770.0, "5770 s"), (0.9997, "1 s"), (0.99949, "999 ms"), (3.456e-6, "3.46 µs"),
        (1.2e-9, "1.2 ns"), (0.0, "0 s"), (4e-12, "0.004 ns"), (-0.25, "-250 ms"),
    ],
)  # fmt: skip
def test_a_time_has_three_figures_and_the_unit_that_suits(seconds: float, text: str) -> None:
    assert plain_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1234567.0, "1234567"), (0.03125, "0.03125"), (1.5e-7, "0.00000015"), (1e20, "1" + "0" * 20), (float("inf"), "inf"), (-0.5, "-0.5")],
)
def test_a_number_is_never_scientific(value: float, text: str) -> None:
    assert plain_number(value) == text


@pytest.mark.parametrize(("value", "text"), [(45612.0, "45600"), (1.2345, "1.23"), (0.0, "0"), (1234.5, "1230")])
def test_a_measured_number_has_three_figures(value: float, text: str) -> None:
    assert three_figures(value) == text


def test_the_fit_of_a_slow_server_reads_plainly_and_shows_the_intervals_it_says_to_trust() -> None:
    intervals = {"fixed_seconds": (4.1, 6.9), "per_token_seconds": (7.5e-3, 9.1e-3), "per_token_squared_seconds": (1e-9, 2e-8)}
    lines = fit_lines(Fit(5.77, 8.02e-3, 1.1e-8, intervals, 0.3, ()))
    assert "fixed overhead 5.77 s (4.1 s to 6.9 s), per token 8.02 ms (7.5 ms to 9.1 ms); in brackets the 95 % intervals" in lines
    assert "per token squared 11 ns (1 ns to 20 ns)" in lines
    assert not re.search(r"\de[+-]\d", " ".join(lines))
    assert lines[-1].endswith("trust the intervals in brackets, not the figures before them")


def test_others_words_keep_their_letters_and_lose_what_moves_a_terminals_cursor() -> None:
    assert harmless("Qwen/Qwen3-8B[awq] 模型 é") == "Qwen/Qwen3-8B[awq] 模型 é"
    assert harmless("a\x1b[31mb\r\n\x9bc\u202ed") == "a\ufffd[31mb\ufffd\ufffd\ufffdc\ufffdd"
