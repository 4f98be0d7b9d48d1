from __future__ import annotations

import random

import pytest

from llm_exporter.cli.compare import unlike
from llm_exporter.probing.compare import Difference, difference, sentence


def samples(centre: float, spread: float, count: int, seed: int) -> list[float]:
    chance = random.Random(seed)
    return [centre * (1 + chance.gauss(0, spread)) for _ in range(count)]


def test_a_large_shift_is_real_with_its_interval() -> None:
    row = difference(2048, "cold", samples(0.2, 0.02, 5, 1), samples(0.3, 0.02, 5, 2))
    assert row is not None
    assert row.real
    assert row.lower is not None
    assert row.upper is not None
    assert row.lower <= 0.1 <= row.upper
    assert row.ratio == pytest.approx(1.5, rel=0.05)


def test_the_same_server_is_rarely_called_different() -> None:
    wrong = sum(
        row.real
        for seed in range(200)
        if (row := difference(2048, "cold", samples(0.2, 0.05, 5, seed), samples(0.2, 0.05, 5, 1000 + seed))) is not None
    )
    assert wrong <= 16  # 5 % of 200 are 10


def test_too_few_samples_are_never_real() -> None:
    row = difference(2048, "cold", [0.1] * 3, [0.9] * 3)
    assert row is not None
    assert (row.real, row.lower, row.p_value) == (False, None, None)


def test_nothing_measured_is_no_difference() -> None:
    assert difference(2048, "cold", [], [0.1]) is None


def row_of(tokens: int, shift: float, ratio: float, *, real: bool) -> Difference:
    return Difference(tokens, "cold", shift, shift - 0.01, shift + 0.01, ratio, 0.01 if real else 0.5, real)


def test_the_sentence_says_what_is_real_and_where() -> None:
    text = sentence(
        "A", "B", [row_of(2048, -0.02, 0.9, real=True), row_of(8192, -0.08, 0.8, real=True), row_of(16384, 0.01, 1.01, real=False)]
    )
    assert text == (
        "B differs from A: its first token comes 20 ms to 80 ms (10 % to 20 %) sooner at 2048 cold, 8192 cold."
        " At the other 1 of 3 points chance explains the difference."
    )


def test_the_sentence_for_no_difference_and_for_too_few_samples() -> None:
    assert "No real difference between A and B" in sentence("A", "B", [row_of(2048, 0.001, 1.0, real=False)])
    assert "Too few samples" in sentence("A", "B", [Difference(1, "cold", 0.1, None, None, 1.1, None, False)])
    assert "Nothing can be compared" in sentence("A", "B", [])


def test_what_differs_begins_with_engine_version_and_model() -> None:
    one = {"engine": "vllm", "engine_version": "0.22.0", "model": "llama", "conditions": {"gpu": None, "cache": ["cold"]}}
    two = {"engine": "sglang", "engine_version": None, "model": "qwen", "conditions": {"gpu": "H200", "cache": ["cold"]}}
    assert unlike([one, two]) == [
        "not the same: engine vllm against sglang",
        "not the same: engine version 0.22.0 against not known",
        "not the same: model llama against qwen",
        "not the same: gpu not known against H200",
    ]
    assert unlike([one, one]) == []
