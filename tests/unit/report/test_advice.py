"""Recommendations: which rows hold, in which order, with which flags."""

from __future__ import annotations

import pytest

from llm_exporter.report.advice import MOST, ROWS, Facts, needed_replicas, recommend

STARVED = Facts(share={"host_starved": 0.2}, hours={"total": 100.0, "idle": 20.0, "starved": 8.0})


def keys(facts: Facts) -> list[str]:
    return [row.key for row in sorted((row for row in ROWS if row.weight(facts) > 0), key=lambda row: -row.weight(facts))]


def test_a_healthy_service_gets_no_advice() -> None:
    facts = Facts(replicas=3, share={"none": 0.7, "idle": 0.3}, hours={"total": 500.0, "idle": 150.0, "reserve": 160.0}, headroom=0.4)
    facts.headroom_lost = 0.1
    assert recommend(facts, "vllm") == []


@pytest.mark.parametrize(("engine", "flag"), [("vllm", "--async-scheduling"), ("sglang", "--disable-overlap-schedule"), ("unknown", "CPU")])
def test_the_flags_are_those_of_the_engine(engine: str, flag: str) -> None:
    (advice,) = recommend(STARVED, engine)
    assert flag in advice["action"]
    assert advice["because"] == ["8.0 GPU-hours spent waiting for the CPU", "20.0 % of the time the verdict was host_starved"]
    assert advice["gain"] == "up to 8 GPU-hours a week"


def test_too_small_outranks_everything_but_a_standstill() -> None:
    facts = Facts(share={"host_starved": 0.2, "queue": 0.3, "stalled": 0.01}, headroom=-0.1, hours=STARVED.hours, kv_p95=0.3)
    assert keys(facts)[0] == "add_now"
    assert {"host_starved", "queue", "stalled"} <= set(keys(facts))
    assert [one["rank"] for one in recommend(facts, "vllm")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("facts", "key"),
    [
        (Facts(headroom=0.3, headroom_lost=-0.2, replicas=2), "add_spare"),
        (Facts(headroom=0.3, weeks=6.0, weeks_lower=4.0), "plan"),
        (Facts(replicas=4, hours={"total": 100.0, "idle": 80.0, "reserve": 25.0}, peak_over_capacity=0.2), "remove"),
        (Facts(regressions=("x is worse",)), "regression"),
        (Facts(hours={"total": 100.0, "throttled": 4.0}), "throttled"),
        (Facts(preemption_rate=0.05, kv_p95=0.97, preemption_waste=0.1), "kv_cache"),
        (Facts(share={"queue": 0.2}, kv_p95=0.4), "queue"),
        (Facts(share={"launch_bound": 0.3}), "launch_bound"),
        (Facts(share={"frontend": 0.1}), "frontend"),
        (Facts(share={"prefill_compute": 0.5}, headroom=0.2, hit_ratio=0.05), "prefill_compute"),
        (Facts(share={"communication": 0.2}), "communication"),
        (Facts(share={"foreign_process": 0.05}), "foreign"),
        (Facts(share={"stalled": 0.01}), "stalled"),
        (Facts(rejected=12.0), "rejected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_row_holds_alone(facts: Facts, key: str) -> None:
    assert keys(facts) == [key]
    for engine in ("vllm", "sglang", "unknown"):
        (advice,) = recommend(facts, engine)
        assert advice["action"]
        assert advice["because"]
        assert advice["gain"]


def test_a_full_cache_is_not_cured_by_more_requests_at_once() -> None:
    assert "queue" not in keys(Facts(share={"queue": 0.4}, kv_p95=0.95))


def test_replicas_are_removed_down_to_the_peak_and_one() -> None:
    assert needed_replicas(Facts(replicas=4, peak_over_capacity=0.3)) == 3
    assert needed_replicas(Facts(replicas=4)) == 4
    assert "remove" not in keys(Facts(replicas=4, hours={"total": 100.0, "idle": 80.0, "reserve": 25.0}))


def test_no_more_than_five() -> None:
    shares = dict.fromkeys(("host_starved", "launch_bound", "frontend", "communication", "foreign_process", "stalled", "throttled"), 0.2)
    assert len(recommend(Facts(share=shares), "vllm")) == MOST
