"""The table of remedies: every rule of the design has a situation in which it holds, and one close by in which it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.signals.bottleneck import CAUSES
from llm_exporter.signals.evidence import Evidence
from llm_exporter.signals.remedies import MOST, REMEDIES, advise
from llm_exporter.signals.remedies_model import CHECKED, Flag, Symptoms, flag_lines, release_of
from llm_exporter.signals.remedies_words import EVIDENCE_WORDS, MEANINGS

BY_KEY = {row.key: row for row in REMEDIES}
QUEUE = {"queue_share": 0.8, "kv_usage": 0.3}


def symptoms(cause: str = "none", engine: str = "vllm", evidence: dict[str, Any] | None = None, **known: Any) -> Symptoms:
    return Symptoms(engine=engine, cause=cause, evidence=Evidence(seconds=30.0, work=1.0, **(evidence or {})), **known)


# (rule of the design, key, symptoms under which it holds, symptoms close by under which it does not)
HOLDS = [
    (1, "frontend", symptoms("frontend"), symptoms("decode_memory", evidence={"api_share": 0.5, "api_seconds": 0.3, "api_hot": 0.9})),
    (1, "frontend", symptoms("none", evidence={"api_share": 0.5, "api_seconds": 0.3, "api_hot": 0.9}), symptoms("none", evidence={"api_share": 0.5, "api_seconds": 0.3, "api_hot": 0.1})),
    (2, "cpu_quota", symptoms("host_starved", evidence={"cfs": 0.9}), symptoms("host_starved", evidence={"cfs": 0.0})),
    (3, "cpu_contention", symptoms("host_starved", evidence={"cfs": 0.0, "run_delay": 0.4}), symptoms("host_starved", evidence={"cfs": 0.9, "run_delay": 0.4})),
    (3, "cpu_contention", symptoms("host_starved", evidence={"psi": 0.5}), symptoms("decode_memory", evidence={"psi": 0.5})),
    (2, "cpu_quota", symptoms("unknown", evidence={"cfs": 0.9}), symptoms("unknown", evidence={"cfs": 0.9, "busy": 0.9, "busy_from": "nvml"})),
    (3, "cpu_contention", symptoms("unknown", evidence={"run_delay": 0.68}), symptoms("unknown", evidence={"run_delay": 0.68, "busy": 0.9, "busy_from": "nvml"})),
    (3, "cpu_contention", symptoms("unknown", evidence={"run_delay": 0.68}), symptoms("unknown", evidence={"psi": 0.9, "run_delay": 0.0})),
    (4, "scheduler", symptoms("host_starved", evidence={"run_delay": 0.0}), symptoms("host_starved", evidence={"run_delay": 0.5})),
    (5, "launch", symptoms("launch_bound"), symptoms("decode_memory")),
    (5, "launch", symptoms("none", engine="sglang", graphless=0.2), symptoms("none", engine="sglang", graphless=0.01)),
    (6, "batch_cap", symptoms("queue", evidence=QUEUE, running=256.0, running_limit=256.0), symptoms("queue", evidence=QUEUE, running=100.0, running_limit=256.0)),
    (6, "batch_cap", symptoms("queue", evidence=QUEUE), symptoms("prefill_compute", evidence={**QUEUE, "busy": 0.98})),
    (7, "admission", symptoms("queue", "sglang", QUEUE, running=50.0, running_limit=256.0), symptoms("queue", "vllm", QUEUE, running=50.0, running_limit=256.0)),
    (8, "kv_full", symptoms("kv_cache"), symptoms("queue", evidence={"kv_usage": 0.95, "preemptions": 0.0})),
    (9, "stutter", symptoms(inter_token_mean=0.02, inter_token_p99=0.3, inter_token_gaps=5000.0, prefill_rate=100.0), symptoms(inter_token_mean=0.02, inter_token_p99=0.3, inter_token_gaps=500.0, prefill_rate=100.0)),
    (9, "stutter", symptoms(inter_token_mean=0.02, inter_token_p99=0.3, inter_token_gaps=5000.0, prefill_rate=100.0), symptoms(inter_token_mean=0.1, inter_token_p99=0.3, inter_token_gaps=5000.0, prefill_rate=100.0)),
    (10, "slow_prefill", symptoms(prefill=1.0, probe_prefill=0.2, running=8.0), symptoms(prefill=0.3, probe_prefill=0.2, running=8.0)),
    (11, "prefill_bound", symptoms("prefill_compute"), symptoms("decode_memory")),
    (12, "prefixes", symptoms("prefill_compute", prompt_tokens_mean=4000.0, hit_ratio=0.01), symptoms("prefill_compute", prompt_tokens_mean=4000.0, hit_ratio=0.6)),
    (12, "prefixes", symptoms("queue", prompt_tokens_mean=4000.0, cache_on=False), symptoms("queue", prompt_tokens_mean=100.0, cache_on=False)),
    (13, "cache_small", symptoms("prefill_compute", prompt_tokens_mean=4000.0, hit_ratio=0.3, evicted=1e6), symptoms("prefill_compute", prompt_tokens_mean=4000.0, hit_ratio=0.3, evicted=0.0)),
    (14, "communication", symptoms("communication"), symptoms("none", evidence={"gpus": 1, "imbalance": 0.9})),
    (14, "communication", symptoms("decode_memory", evidence={"gpus": 4, "imbalance": 0.3}), symptoms("decode_memory", evidence={"gpus": 4, "imbalance": 0.1})),
    (15, "throttled", symptoms("throttled"), symptoms("prefill_compute", throttle_reasons={"sw_power_cap": 1.0})),
    (16, "deferred", symptoms(deferred=3.0, waiting=0.0), symptoms(deferred=3.0, waiting=5.0)),
    (17, "rejected", symptoms(rejected=1.0), symptoms(rejected=0.0, server_errors=0.0)),
    (17, "rejected", symptoms(server_errors=2.0), symptoms()),
    (18, "grammar", symptoms(engine="sglang", deferred=2.0), symptoms(engine="sglang", deferred=0.0)),
    (19, "restarted", symptoms(restarts=1.0), symptoms(restarts=0.0)),
    (20, "network", symptoms(client_ttft=2.0, ttft=0.3, frontend=0.01), symptoms(client_ttft=0.4, ttft=0.3, frontend=0.01)),
    (20, "network", symptoms(client_ttft=2.0, ttft=0.3, frontend=0.01), symptoms(client_ttft=2.0, ttft=0.3, frontend=0.2)),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "key", "there", "near"), HOLDS, ids=[f"{rule}-{key}" for rule, key, _, _ in HOLDS])
def test_a_rule_holds_where_it_should_and_not_close_by(rule: int, key: str, there: Symptoms, near: Symptoms) -> None:
    assert BY_KEY[key].strength(there) > 0
    assert BY_KEY[key].strength(near) == 0
    assert key in [row.key for row in advise(there, most=20)]


def test_all_twenty_rules_of_the_design_are_there() -> None:
    assert {rule for rule, *_ in HOLDS} == set(range(1, 21))


def test_keys_are_unique_and_every_verdict_has_a_remedy() -> None:
    assert len(BY_KEY) == len(REMEDIES)
    explained = {cause for row in REMEDIES for cause in row.verdicts}
    assert explained == set(CAUSES) - {"none", "unknown"}


@pytest.mark.parametrize("cause", [cause for cause in CAUSES if cause not in ("none", "unknown")])
def test_a_verdict_alone_brings_advice(cause: str) -> None:
    assert advise(symptoms(cause)), cause


def test_a_queue_beside_free_cache_is_a_cap_and_any_other_is_load() -> None:
    assert [row.key for row in advise(symptoms("queue", evidence=QUEUE))] == ["batch_cap", "overload"]
    assert [row.key for row in advise(symptoms("queue", evidence={**QUEUE, "kv_usage": 0.8}))] == ["overload"]


def test_nothing_known_brings_nothing() -> None:
    assert advise(Symptoms()) == []
    assert advise(symptoms("none")) == []


def test_what_makes_everything_else_look_bad_comes_first() -> None:
    """Order of the design: throttling, quota, contention, deferred, refusals; then by strength."""
    many = symptoms("host_starved", evidence={"cfs": 0.9, "run_delay": 0.9}, rejected=3.0)
    assert [row.key for row in advise(many, most=20)][:2] == ["cpu_quota", "rejected"]
    assert next(row.key for row in advise(replace(many, cause="throttled"), most=20)) == "throttled"
    assert len(advise(replace(many, deferred=4.0, waiting=0.0, restarts=2.0, graphless=0.9))) == MOST


def test_evidence_is_told_with_numbers_and_without_what_is_unknown() -> None:
    row = next(
        row for row in advise(symptoms("host_starved", evidence={"cfs": 0.98, "busy": 0.4}, cores_available=2.0)) if row.key == "cpu_quota"
    )
    assert row.because == ("throttled periods 98 %", "GPU idle with work there 60 %", "CPUs available 2")
    blind = next(row for row in advise(symptoms("host_starved", evidence={"cfs": 0.98})) if row.key == "cpu_quota")
    assert blind.because == ("throttled periods 98 %",)


def flags_of(engine: str, version: str, cause: str, key: str) -> str:
    return "\n".join(next(row for row in advise(symptoms(cause, engine, {"run_delay": 0.0, "cfs": 0.0}), version) if row.key == key).flags)


@pytest.mark.parametrize(
    ("engine", "version", "cause", "key", "there", "gone"),
    [
        ("vllm", "0.32.0", "launch_bound", "launch", "--max-cudagraph-capture-size", "--cuda-graph-sizes"),
        ("vllm", "0.10.2", "launch_bound", "launch", "--cuda-graph-sizes", "--max-cudagraph-capture-size"),
        ("vllm", "0.22.0", "host_starved", "scheduler", "drop --no-async-scheduling", "before"),
        ("vllm", "0.11.0", "host_starved", "scheduler", "--async-scheduling", "--no-async-scheduling"),
        ("sglang", "0.5.23", "launch_bound", "launch", "--cuda-graph-max-bs-decode", "--enforce-eager"),
        ("sglang", "", "host_starved", "scheduler", "--disable-overlap-schedule", "--async-scheduling"),
    ],
)
def test_flags_follow_engine_and_release(engine: str, version: str, cause: str, key: str, there: str, gone: str) -> None:
    text = flags_of(engine, version, cause, key)
    assert there in text
    assert gone not in text


def test_a_flag_that_a_release_lacks_is_not_advised_and_an_unknown_release_is_told_the_condition() -> None:
    flag = (Flag("--numa-bind", since="0.20"),)
    assert flag_lines(flag, "0.19.1") == ()
    assert flag_lines(flag, "0.20.0rc1") == ("--numa-bind",)
    assert flag_lines(flag, "") == ("--numa-bind (from 0.20 on)",)
    renamed = (Flag("--new", since="0.12", older="--old", note="costs"),)
    assert flag_lines(renamed, "0.11.1") == ("--old – costs",)
    assert flag_lines(renamed, "") == ("--new (from 0.12 on; before: --old) – costs",)


@pytest.mark.parametrize(
    ("text", "release"), [("0.10.2rc1.dev3+cu128", (0, 10, 2)), ("v0.5.23", (0, 5, 23)), ("1", (1,)), ("", None), ("dev", None)]
)
def test_release(text: str, release: tuple[int, ...] | None) -> None:
    assert release_of(text) == release


def test_text_is_for_people() -> None:
    for row in REMEDIES:
        assert all(text.endswith(".") for text in (row.symptom, row.why, row.action)), row.key
        assert not row.cause.endswith("."), row.key
        assert set(row.flags) <= set(CHECKED), row.key
        for flags in row.flags.values():
            assert all("--" in flag.change for flag in flags), row.key
    assert set(MEANINGS) == set(CAUSES)
    assert all(EVIDENCE_WORDS.values())


number = st.one_of(st.none(), st.floats(0, 1e9))
ratio = st.one_of(st.none(), st.floats(0, 1))


@given(
    st.sampled_from(CAUSES), st.sampled_from(["vllm", "sglang", ""]), st.sampled_from(["", "0.9.0", "0.32.0", "junk"]),
    st.fixed_dictionaries(dict.fromkeys(("cfs", "run_delay", "psi", "kv_usage", "queue_share", "api_share", "busy", "sm", "imbalance"), ratio)),
    st.fixed_dictionaries(dict.fromkeys(("ttft", "queue", "prefill", "frontend", "waiting", "deferred", "running", "running_limit", "rejected", "evicted", "restarts", "graphless", "hit_ratio", "prompt_tokens_mean", "client_ttft", "probe_prefill"), number)),
)  # fmt: skip
def test_whatever_is_known_the_advice_is_well_formed(
    cause: str, engine: str, version: str, evidence: dict[str, Any], known: dict[str, Any]
) -> None:
    found = advise(symptoms(cause, engine, evidence, **known), version)
    assert len(found) <= MOST
    for row in found:
        assert 0 < row.strength <= 1
        assert all(line and "None" not in line and "nan" not in line for line in (*row.because, *row.flags))
