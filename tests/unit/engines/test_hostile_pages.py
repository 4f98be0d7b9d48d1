"""Pages that hold well-formed nonsense: what is read of them is bounded, finite, and the nonsense is counted."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from llm_exporter.engines.compile import VALUES_MOST
from llm_exporter.engines.facts import MODELS_MOST, RANKS_MOST
from llm_exporter.engines.normalise import Normaliser
from llm_exporter.readings import EngineReading
from llm_exporter.sources.exposition import PageParser

TTFT = "vllm:time_to_first_token_seconds"


def read(lines: Iterable[str]) -> EngineReading:
    reading = Normaliser().read(PageParser().parse("\n".join([*lines, ""]).encode()))
    assert reading is not None
    return reading


def running(value: object, *, model: str = "m", rank: object = 0) -> str:
    return f'vllm:num_requests_running{{engine="{rank}",model_name="{model}"}} {value}'


def test_thousands_of_models_are_not_taken_over() -> None:
    reading = read(running(1, model=f"m{number}") for number in range(3000))
    models = {slot.model for slot in reading.layout.slots}
    assert MODELS_MOST <= len(models) <= MODELS_MOST + 1
    assert "m0" in models
    assert reading.anomalies["too_many"] == 3000 - len(models)


def test_thousands_of_ranks_are_not_taken_over() -> None:
    reading = read(running(1, rank=number) for number in range(3000))
    assert RANKS_MOST <= len(reading.layout.ranks) <= RANKS_MOST + 1
    assert reading.anomalies["too_many"] == 3000 - len(reading.layout.ranks)


def test_the_widest_deployment_is_read_whole() -> None:
    reading = read(running(1, rank=number) for number in range(320))
    assert len(reading.layout.ranks) == 320
    assert not reading.anomalies


def test_thousands_of_reasons_are_summed_as_other() -> None:
    name = "vllm:admission_rejections_total"
    reading = read([running(1), *(f'{name}{{engine="0",model_name="m",reason="r{number}"}} 2' for number in range(3000))])
    found = {
        slot.label: value for slot, value in zip(reading.layout.slots, reading.values, strict=True) if slot.field == "requests_rejected"
    }
    assert len(found) == VALUES_MOST + 1
    assert found["other"] == 2.0 * (3000 - VALUES_MOST)
    assert sum(found.values()) == 6000.0


@pytest.mark.parametrize("value", ["1e308", "1.7976931348623157e308", "1e31"])
def test_numbers_whose_sum_would_be_infinite_are_impossible(value: str) -> None:
    reading = read([running(value), running(value, rank=1), 'vllm:prompt_tokens_total{engine="0",model_name="m"} 5'])
    assert all(math.isfinite(number) for number in reading.values)
    assert "requests_running" not in {slot.field for slot in reading.layout.slots}
    assert dict(reading.anomalies) == {"too_large": 2}


def test_kinds_of_nonsense_are_told_apart() -> None:
    reading = read([running("-Inf"), running("NaN", rank=1), running("-1", rank=2), running("1e40", rank=3), running("4", rank=4)])
    assert dict(reading.anomalies) == {"not_finite": 2, "negative": 1, "too_large": 1}


@pytest.mark.parametrize("value", ["5e-324", "3.5"])
def test_a_bucket_holds_whole_requests(value: str) -> None:
    labels = 'engine="0",model_name="m"'
    reading = read([f'{TTFT}_bucket{{{labels},le="1"}} {value}', f'{TTFT}_bucket{{{labels},le="+Inf"}} 4', f"{TTFT}_sum{{{labels}}} 2.5"])
    buckets = [value for slot, value in zip(reading.layout.slots, reading.values, strict=True) if slot.part == "bucket"]
    assert buckets == [math.floor(float(value)), 4.0]
    assert dict(reading.anomalies) == {"broken_counts": 1}


@pytest.mark.parametrize("bound", ["-1", "-Inf", "NaN", "-5e-324", "abc", ""])
def test_a_bound_that_no_time_can_have_is_left_out(bound: str) -> None:
    labels = 'engine="0",model_name="m"'
    counts = ((bound, 1), ("1", 2), ("+Inf", 4))
    reading = read([*(f'{TTFT}_bucket{{{labels},le="{le}"}} {count}' for le, count in counts), f"{TTFT}_sum{{{labels}}} 2.5"])
    assert [slot.le for slot in reading.layout.slots if slot.part == "bucket"] == [1.0, math.inf]
