"""The classifier on the worked examples of the design (section 4), and on what must hold whatever the numbers are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.signals.bottleneck import CAUSES, FORMULAS, TROUBLE, judge
from llm_exporter.signals.evidence import ENGINE_ROLES, Evidence, _hot
from llm_exporter.signals.ramps import RAMPS
from llm_exporter.signals.verdict import Hysteresis, VerdictKeeper
from llm_exporter.state.evidence import HostEvidence, HotThread

EXAMPLES: Mapping[str, dict[str, Any]] = {
    e["id"]: e for e in yaml.safe_load((Path(__file__).parents[2] / "fixtures" / "signals" / "examples.yaml").read_text())["examples"]
}
OURS = {
    "compute_bound": "prefill_compute",
    "memory_bound": "decode_memory",
    "comm_bound": "communication",
    "mixed": "none",
    "busy_unresolved": "unknown",
}
WHY = {
    "cfs": "cfs_throttling",
    "psi": "cpu_pressure",
    "api": "frontend_share",
    "rundelay": "run_delay",
    "hot": "hot_thread",
    "stage": "scheduler_stages",
}


def evidence(x: Mapping[str, float]) -> Evidence:
    busy, origin = next(((x[k], o) for k, o in (("fwd", "forward_timer"), ("gr", "gpm"), ("util", "nvml")) if k in x), (None, ""))
    return Evidence(
        seconds=30.0,
        work=x["work"],
        busy=busy,
        busy_from=origin,
        sm=x.get("sm"),
        tensor=x.get("tensor"),
        dram=x.get("dram"),
        power=x.get("power"),
        clock=x.get("clk"),
        throttled=x.get("thr"),
        nvlink=x.get("nvl"),
        gpus=int(x.get("tp", 1)),
        run_delay=x.get("rundelay"),
        cfs=x.get("cfs"),
        psi=x.get("psi"),
        hot=x.get("hot"),
        api_share=x.get("api"),
        stage=x.get("stage"),
    )


@pytest.mark.parametrize("name", [name for name, e in EXAMPLES.items() if e["fn"] == "classify"])
def test_worked_example(name: str) -> None:
    example = EXAMPLES[name]
    expect = example["expect"]
    got = judge(evidence(example["args"]["x"]))
    state = OURS.get(expect["state"], expect["state"])
    assert got.cause == state
    if "score" in expect:
        assert got.scores[state].value == pytest.approx(expect["score"], abs=0.002)
    if "confidence" in expect:
        assert got.confidence == pytest.approx(expect["confidence"], abs=0.002)
    if "gap" in expect:
        assert got.gap == pytest.approx(expect["gap"], abs=0.002)
    if "causes" in expect:
        assert set(got.causes) == {WHY[cause] for cause in expect["causes"]}
    if "hint" in expect:
        assert got.hint == expect["hint"]


def test_hysteresis_example() -> None:
    example = EXAMPLES["s4-hysteresis"]
    keeper = Hysteresis()
    got = [keeper.decide(positive=state == "host_starved", score=own) for state, own in example["args"]["seq"]]
    assert got == [state == "host_starved" for state in example["expect"]]


HEALTHY_DECODE = Evidence(
    seconds=30, work=1.0, busy=0.97, busy_from="gpm", sm=0.8, tensor=0.15, dram=0.65, power=0.7, clock=1.0, throttled=0.0, gpus=1,
    run_delay=0.0, cfs=0.0, psi=0.0, hot=1.0, api_hot=0.6, api_share=0.5, api_seconds=0.06, queue_share=0.0, waiting_share=0.0,
    kv_usage=0.5, preemptions=0.0,
)  # fmt: skip


def with_(base: Evidence, **changes: Any) -> Evidence:
    return Evidence(**{**{f: getattr(base, f) for f in base.__slots__}, **changes})


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "decode_memory"),
        ({"hot": 1.0}, "decode_memory"),  # a spinning thread alone proves nothing
        ({"kv_usage": 0.97}, "decode_memory"),  # a full cache without queue and preemptions is good use
        ({"kv_usage": 0.97, "waiting_share": 0.9, "preemptions": 0.1}, "kv_cache"),
        ({"queue_share": 0.8, "waiting_share": 1.0}, "queue"),
        ({"tensor": 0.8, "dram": 0.2, "power": 0.95, "queue_share": 0.8, "waiting_share": 1.0}, "prefill_compute"),
        ({"busy": 0.4, "power": 0.3}, "host_starved"),
        ({"busy": 0.4, "power": 0.3, "queue_share": 0.9, "waiting_share": 1.0}, "host_starved"),  # the queue is its effect
        ({"busy": 0.80, "run_delay": 0.5}, "host_starved"),  # a small gap with the engine's thread waiting for a core
        ({"busy": 0.95, "run_delay": 0.5}, "decode_memory"),  # waiting without a gap costs nothing
        ({"work": 0.5, "busy": 0.5, "api_share": 0.85, "api_seconds": 0.6, "api_hot": 0.8}, "frontend"),
        ({"work": 0.5, "busy": 0.5, "api_share": 0.85, "api_seconds": 0.6, "api_hot": 0.05}, "none"),
        ({"work": 0.4, "busy": 0.4}, "none"),  # one request a second
        ({"still_seconds": 12.0, "gpu_works": False, "busy": 0.3}, "stalled"),
        ({"still_seconds": 12.0, "gpu_works": True}, "decode_memory"),  # a long prefill
        ({"still_seconds": 31.0, "gpu_works": None}, "stalled"),
        ({"throttled": 0.9, "clock": 0.6}, "throttled"),
        ({"foreign_memory": 5e9}, "foreign_process"),
        ({"foreign_memory": 5e8}, "decode_memory"),  # an idle CUDA context
    ],
)
def test_situation(changes: dict[str, Any], cause: str) -> None:
    assert judge(with_(HEALTHY_DECODE, **changes)).cause == cause


def test_without_a_gpu_only_the_engines_own_causes_are_named() -> None:
    blind = {"busy": None, "busy_from": "", "sm": None, "tensor": None, "dram": None, "power": None, "clock": None, "throttled": None}
    assert judge(with_(HEALTHY_DECODE, **blind)).cause == "unknown"
    assert judge(with_(HEALTHY_DECODE, **blind, missing=("readings of the GPU (no_devices)",))).missing == (
        "readings of the GPU (no_devices)",
    )
    queued = judge(with_(HEALTHY_DECODE, **blind, queue_share=0.9, waiting_share=1.0))
    assert queued.cause == "queue"
    assert queued.confidence is not None
    assert queued.confidence <= 0.5


def test_less_than_ten_seconds_of_readings_say_nothing() -> None:
    assert judge(with_(HEALTHY_DECODE, seconds=9.9)).cause == "unknown"
    short, full = judge(with_(HEALTHY_DECODE, seconds=15.0)), judge(HEALTHY_DECODE)
    assert short.confidence is not None
    assert full.confidence is not None
    assert short.confidence == pytest.approx(full.confidence / 2)


ratio = st.one_of(st.none(), st.floats(0, 1))


@given(
    st.builds(
        Evidence,
        seconds=st.floats(0, 30), work=ratio, busy=ratio, busy_from=st.sampled_from(["gpm", "nvml", "forward_timer"]), sm=ratio, tensor=ratio,
        dram=ratio, power=ratio, clock=ratio, throttled=ratio, nvlink=ratio, imbalance=ratio, gpus=st.integers(0, 8), run_delay=ratio, cfs=ratio,
        psi=ratio, hot=ratio, api_hot=ratio, api_share=ratio, api_seconds=st.one_of(st.none(), st.floats(0, 100)), stage=ratio,
        queue_share=ratio, waiting_share=ratio, kv_usage=ratio, preemptions=ratio, foreign_memory=st.one_of(st.none(), st.floats(0, 1e12)), still_seconds=st.floats(0, 100),
        gpu_works=st.one_of(st.none(), st.booleans()),
    )
)  # fmt: skip
def test_whatever_comes_in_the_verdict_is_one_of_the_causes_and_numbers_are_shares(x: Evidence) -> None:
    got = judge(x)
    assert got.cause in CAUSES
    assert got.confidence is None or 0 <= got.confidence <= 1
    for score in got.scores.values():
        assert 0 <= score.value <= 1
        assert 0 <= score.coverage <= 1
        assert all(0 <= member <= 1 for member in score.evidence.values())
    if x.gap is not None and x.gap <= RAMPS["gap_with_cause"].low:
        assert got.cause != "host_starved", "no gap, no starvation"


def test_every_cause_has_one_formula_and_a_kind() -> None:
    assert set(FORMULAS) == set(CAUSES) - {"none", "unknown"}
    assert set(TROUBLE) < set(FORMULAS)


def test_a_verdict_changes_when_two_ticks_agree() -> None:
    keeper = VerdictKeeper()
    decode, queue = judge(HEALTHY_DECODE), judge(with_(HEALTHY_DECODE, queue_share=0.8, waiting_share=1.0))
    published = [keeper.take(j, 5.0 * i).cause for i, j in enumerate([decode, decode, queue, decode, queue, queue])]
    assert published == ["unknown", "decode_memory", "decode_memory", "decode_memory", "decode_memory", "queue"]


def test_starvation_needs_three_decisions_ten_seconds_apart_and_leaves_after_four() -> None:
    keeper = VerdictKeeper()
    starved, fine = judge(with_(HEALTHY_DECODE, busy=0.4, power=0.3)), judge(HEALTHY_DECODE)
    on = [keeper.take(starved, at).starved for at in (0.0, 5.0, 10.0, 15.0, 20.0)]
    assert on == [False, False, False, False, True]
    off = [keeper.take(fine, at).starved for at in (30.0, 35.0, 40.0, 50.0, 60.0)]
    assert off == [True, True, True, True, False]


def test_without_a_gpu_starvation_is_unknown_and_not_off() -> None:
    keeper = VerdictKeeper()
    assert keeper.take(judge(with_(HEALTHY_DECODE, busy=None)), 0.0).starved is None


def test_a_hot_thread_without_any_reading_of_the_gpu_is_no_score_of_launch_bound() -> None:
    judgement = judge(Evidence(seconds=30.0, work=1.0, hot=1.0))
    assert judgement.scores["launch_bound"].coverage == 0
    decision = VerdictKeeper().take(judgement, 0.0)
    assert "launch_bound" not in decision.scores
    assert not [pair for pair in decision.evidence if pair[0] == "launch_bound"]


def test_a_score_with_little_of_its_evidence_is_published_as_it_counts() -> None:
    judgement = judge(Evidence(seconds=30.0, work=1.0, busy=1.0, busy_from="nvml", power=0.2, hot=1.0, gpus=1))
    assert judgement.scores["launch_bound"].value == 1.0
    assert VerdictKeeper().take(judgement, 0.0).scores["launch_bound"] == pytest.approx(0.4)


@pytest.mark.parametrize(("role", "thread", "hot"), [(ENGINE_ROLES[0], 0.066, 0.066), ("other", 0.066, 0.066), ("other", None, 1.0)])
def test_the_hottest_thread_is_the_one_that_is_seen_and_the_pages_process_only_where_none_is(
    role: str, thread: float | None, hot: float
) -> None:
    """A page counts the CPU of a whole process: it says nothing about a thread that can be looked at."""

    class Busy:
        seconds = 10.0

        def increases(self, field: str) -> dict[str, float]:
            return {"": 25.0} if field == "scheduler_cpu_seconds" else {}

    one = None if thread is None else HotThread(role, "t", thread, None)
    host = HostEvidence(hot={} if one is None else {role: one}, hottest=one)
    assert _hot(host, ENGINE_ROLES, [Busy()], ("scheduler_cpu_seconds",)) == hot  # type: ignore[list-item]


def test_a_server_that_is_short_of_cpu_shows_it_even_where_no_gpu_can_be_read() -> None:
    """Seen on a real SGLang on CPU that was pinned to a share of one core (docs/verification/diagnose.md)."""
    judgement = judge(Evidence(seconds=30.0, work=1.0, run_delay=0.69, psi=0.57, hot=0.31, waiting_share=1.0, kv_usage=0.67))
    assert judgement.cause == "unknown"
    score = judgement.scores["host_starved"]
    assert (score.value, score.coverage) == (0.0, 0.0), "whether the GPU waits is unknown: no score"
    assert score.evidence["run_delay"] == 1.0
