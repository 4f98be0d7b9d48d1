from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from fakes.ladders import cell_of, ladder_of
from llm_exporter.cli.compare import letters, same, unlike
from llm_exporter.probing.compare import Difference, difference, differences, judged
from llm_exporter.probing.conclusion import conclusion
from llm_exporter.probing.ladder import Plan
from llm_exporter.sources.probe import ProbeReading


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


def points(chance: random.Random, second: float, noise: float) -> list[Difference]:
    """Ten points of five samples each, as the default ladder has, judged together."""
    rows = []
    for number in range(10):
        first, other = ([centre * math.exp(chance.gauss(0, noise)) for _ in range(5)] for centre in (0.2, second))
        row = difference(number, "cold", first, other)
        assert row is not None
        rows.append(row)
    return judged(rows)


@pytest.mark.slow
def test_a_server_against_itself_is_rarely_called_different_at_any_of_ten_points() -> None:
    chance = random.Random(1)
    runs = [points(chance, 0.2, 0.08) for _ in range(200)]
    wrong = sum(any(row.real for row in rows) for rows in runs)
    assert wrong <= 16  # 5 % of 200 are 10, give or take two deviations
    assert sum(any(row.by_itself for row in rows) for rows in runs) > 3 * max(wrong, 5)  # what it would be without the adjustment


def test_a_difference_everywhere_is_still_found() -> None:
    chance = random.Random(2)
    rows = [row for _ in range(50) for row in points(chance, 0.23, 0.05)]
    assert sum(row.real for row in rows) / len(rows) >= 0.85


def test_p_values_are_adjusted_over_all_servers_compared() -> None:
    first = ladder_of(cell_of(64, "cold", [0.100, 0.101, 0.102, 0.103, 0.104]))
    slower = ladder_of(cell_of(64, "cold", [0.110, 0.111, 0.112, 0.113, 0.114]))
    ((alone,),) = differences(first, [slower])
    assert alone.real
    assert alone.p_value_adjusted == alone.p_value
    found = differences(first, [slower] + [first] * 9)
    assert found[0][0].p_value == alone.p_value
    assert found[0][0].p_value_adjusted == pytest.approx(10 * (alone.p_value or 0))
    assert not found[0][0].real
    assert found[0][0].by_itself


def test_requests_that_were_sent_at_once_are_one_sample() -> None:
    """Three samples of four requests each are three, not twelve: they queue behind each other."""
    fast, slow = ([[centre + 0.001 * place for place in range(4)]] * 3 for centre in (0.1, 0.2))
    ((row,),) = differences(ladder_of(cell_of(64, "cold", fast)), [ladder_of(cell_of(64, "cold", slow))])
    assert (row.samples, row.p_value, row.real) == (3, None, False)
    assert row.ttft_shift_seconds == pytest.approx(0.1)


def test_prompts_of_different_counted_lengths_are_not_compared() -> None:
    times = [0.100, 0.101, 0.102, 0.103, 0.104]
    first = ladder_of(cell_of(1932, "cold", times, counted=1887))
    second = ladder_of(cell_of(1932, "cold", [time / 2 for time in times], counted=512))
    ((row,),) = differences(first, [second])
    assert not row.real
    assert not row.by_itself
    assert row.as_json()["reason"] == "the servers counted prompts of 1887 and 512 tokens"
    assert row.as_json()["prompt_tokens_measured"] == [1887, 512]
    text = conclusion("A", "B", [row])
    assert text.startswith("The servers counted different prompt lengths")
    assert "1887 against 512 tokens at 1932 cold (54.1 µs against 99.6 µs per token)" in text
    assert "sooner" not in text


def test_a_count_of_zero_is_no_count() -> None:
    times = [0.100, 0.101, 0.102, 0.103, 0.104]
    ((row,),) = differences(ladder_of(cell_of(64, "cold", times, counted=0)), [ladder_of(cell_of(64, "cold", times, counted=64))])
    assert (row.counted_tokens, row.reason) == (None, "")


def test_counts_that_differ_by_a_few_tokens_are_compared() -> None:
    times = [0.100, 0.101, 0.102, 0.103, 0.104]
    first, second = ladder_of(cell_of(1000, "cold", times, counted=1000)), ladder_of(cell_of(1000, "cold", times, counted=1025))
    assert differences(first, [second])[0][0].reason == ""


def row_of(tokens: int, shift: float, ratio: float, *, real: bool, width: float = 0.01, p: float = 0.5, spread: float = 0.02) -> Difference:
    row = Difference(tokens, "cold", shift, shift - width, shift + width, ratio, 0.001 if real else p, real)
    return replace(row, samples=5, seconds=(0.2, 0.2 * ratio), spread_ratio=spread)


def test_the_conclusion_says_what_is_real_and_where() -> None:
    text = conclusion(
        "A", "B", [row_of(2048, -0.02, 0.9, real=True), row_of(8192, -0.08, 0.8, real=True), row_of(16384, 0.01, 1.01, real=False)]
    )
    assert text == (
        "B differs from A: its first token comes 20 ms to 80 ms (10 % to 20 %) sooner at 2048 cold, 8192 cold."
        " At the other 1 of 3 points chance explains the difference."
    )


def test_no_difference_says_how_large_a_one_could_have_been_seen() -> None:
    rows = [row_of(2048, 0.001, 1.0, real=False, width=0.02), row_of(8192, 0.001, 1.0, real=False, width=0.03)]
    assert conclusion("A", "B", rows) == (
        "No real difference between A and B: chance explains what was seen at all 2 points."
        " A shift below 20 ms to 30 ms (10 % to 15 %) would not have been seen."
    )


def test_contention_is_said() -> None:
    text = conclusion("A", "B", [row_of(2048, 0.001, 1.0, real=False, spread=0.43)])
    assert text.endswith("Samples of one length differ by up to ±43 %: other work ran meanwhile, and hides small differences.")
    assert "other work" not in conclusion("A", "B", [row_of(2048, 0.001, 1.0, real=False, spread=0.15)])


def test_a_point_that_differs_only_by_itself_asks_for_more_samples() -> None:
    rows = [row_of(2048, 0.02, 1.1, real=False, p=0.008), *(row_of(n, 0.001, 1.0, real=False) for n in range(9))]
    text = conclusion("A", "B", rows)
    assert "2048 cold would look different alone, but among 10 points chance brings such a one" in text
    assert "--repeat 10" in text


def test_the_conclusion_for_too_few_samples() -> None:
    assert "Too few samples" in conclusion("A", "B", [Difference(1, "cold", 0.1, None, None, 1.1, None, False)])
    assert "Nothing can be compared" in conclusion("A", "B", [])


def test_samples_that_failed_are_named_and_not_answered_with_more_of_them() -> None:
    times = [0.100, 0.101, 0.102, 0.103, 0.104]
    first, second = cell_of(64, "cold", times), cell_of(64, "cold", times[:2])
    second.samples += [[ProbeReading("timeout")]] * 2 + [[ProbeReading("success", "read late")]]
    other = cell_of(128, "cold", times)
    ((row, fine),) = differences(ladder_of(first, other), [ladder_of(second, other)])
    words = "at 64 cold B has 2 of 5 (2 timeout, 1 without a time)"
    assert conclusion("A", "B", [row]) == f"Too few good samples to tell A and B apart: {words}."
    assert conclusion("A", "B", [row, fine]).startswith(
        "No real difference between A and B: chance explains what was seen at all 1 points."
    )
    assert conclusion("A", "B", [row, fine]).endswith(f" Too few good samples at the other points: {words}.")
    assert differences(ladder_of(second), [ladder_of(second)])[0][0].lost == (("2 of 5 (2 timeout, 1 without a time)",) * 2)
    assert fine.lost == ("", "")


def test_too_few_samples_that_all_came_ask_for_more() -> None:
    cell = cell_of(64, "cold", [0.1, 0.1, 0.1])
    ladder = replace(ladder_of(cell), plan=Plan((64,), repeat=3))
    ((row,),) = differences(ladder, [ladder])
    assert conclusion("A", "B", [row]) == "Too few samples to tell A and B apart: use --repeat 4 or more."


def test_samples_that_were_never_sent_are_named() -> None:
    ladder = ladder_of(cell_of(64, "cold", [0.1, 0.2, 0.3]))
    ((row,),) = differences(ladder, [ladder])
    assert row.lost == ("3 of 5 (2 not sent)",) * 2


def test_a_real_difference_elsewhere_does_not_hide_a_point_that_lost_its_samples() -> None:
    lost = replace(Difference(64, "cold", 0.1, None, None, 1.1, None, False), lost=("", "1 of 5 (4 timeout)"))
    text = conclusion("A", "B", [row_of(2048, -0.02, 0.9, real=True), lost])
    assert text == (
        "B differs from A: its first token comes 20 ms (10 %) sooner at 2048 cold."
        " Too few good samples at the other points: at 64 cold B has 1 of 5 (4 timeout)."
    )


def test_one_url_given_twice_is_said() -> None:
    one, two = {"url": "http://a"}, {"url": "http://b"}
    assert same(["A", "B", "C"], [one, two, one]) == ["A and C are the same URL: any difference is chance"]
    assert same(["A", "B"], [one, two]) == []
    assert [letters(number) for number in (0, 25, 26)] == ["A", "Z", "S27"]


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
