"""Field cases NAME, HIT, RST, LBL, HIS: the right values of `expect.json`, checked on the exporter's own page after a replay.

The neutral signal names of the cases are mapped once, below.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llm_exporter.config.model import Config
from llm_exporter.daemon.replaying import Replay
from llm_exporter.recording import Recording, read_recording
from llm_exporter.sources.engine import Failed

CASES = Path(__file__).parents[1] / "fixtures" / "cases"

# neutral name → (our metric, labels that pick the sample)
NAMES: dict[str, tuple[str, dict[str, str]]] = {
    "ttft_p50_seconds": ("llm_time_to_first_token_quantile_seconds", {"q": "0.5", "window": "1m"}),
    "ttft_p90_seconds": ("llm_time_to_first_token_quantile_seconds", {"q": "0.9", "window": "1m"}),
    "ttft_p99_seconds": ("llm_time_to_first_token_quantile_seconds", {"q": "0.99", "window": "1m"}),
    "ttft_count_window": ("llm_first_tokens_in_window", {"window": "1m"}),
    "queue_time_mean_seconds": ("llm_request_phase_mean_seconds", {"phase": "queue", "window": "1m"}),
    "prefill_time_mean_seconds": ("llm_request_phase_mean_seconds", {"phase": "prefill", "window": "1m"}),
    "decode_time_mean_seconds": ("llm_request_phase_mean_seconds", {"phase": "decode", "window": "1m"}),
    "frontend_overhead_mean_seconds": ("llm_request_phase_mean_seconds", {"phase": "frontend", "window": "1m"}),
    "prefill_share": ("llm_prefill_time_share_ratio", {"method": "request_time", "window": "1m"}),
    "prefix_hit_ratio": ("llm_prefix_cache_hit_ratio", {"window": "1m"}),
    "engine_restarts_total": ("llm_engine_restarts_total", {}),
    "anomalies_total": ("llm_input_anomalies_total", {}),
    "generation_tokens_per_second": ("llm_generation_tokens_per_second", {"window": "1m"}),
    "prompt_tokens_per_second": ("llm_prompt_tokens_per_second", {"window": "1m"}),
    "requests_running": ("llm_requests_running", {}),
    "requests_waiting": ("llm_requests_waiting", {}),
    "kv_usage_ratio": ("llm_kv_cache_usage_ratio", {}),
    "kv_usage_ratio_max": ("llm_kv_cache_usage_ratio", {}),
    "kv_usage_ratio_mean": ("llm_kv_cache_usage_mean_ratio", {}),
    "scrape_up": ("llm_target_up", {}),
}
# Timestamps of the exporter itself are no values of the engine.
OWN_TIMES = ("_timestamp_seconds",)


class Seen:
    """The exporter's page, read with the reference parser."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def find(self, name: str, **labels: str) -> list[float]:
        return [s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items()]

    def one(self, name: str, **labels: str) -> float | None:
        found = self.find(name, **labels)
        assert len(found) <= 1, f"{name}{labels} stands there {len(found)} times"
        return found[0] if found else None


def folders(case: str) -> list[Path]:
    root = CASES / case
    return sorted({path.parent for path in root.rglob("t*.prom")})


def seen_at(recording: Recording, upto: float) -> Seen:
    played = Replay([recording], Config())
    for moment in recording.moments:
        if moment.second <= upto:
            played.step(moment, recording.name)
    return Seen(played.page.render()[0].decode())


def seen(folder: Path) -> Seen:
    played = Replay([read_recording(folder)], Config())
    return Seen(played.run().render()[0].decode())


def check(page: Seen, expected: dict[str, object]) -> None:
    signal = expected["signal"]
    if signal == "own_exposition":
        if "no_match" in expected:
            assert str(expected["no_match"]) not in page.text
        if "max_value" in expected:
            big = [s for s in page.samples if s.value > float(str(expected["max_value"])) and not s.name.endswith(OWN_TIMES)]
            assert not big
        return
    metric, labels = NAMES[str(signal)]
    value = page.one(metric, **labels)
    if value is None:
        assert expected.get("absent") or expected.get("or_absent"), f"{signal} is absent"
        return
    assert not expected.get("absent"), f"{signal} must be absent, is {value}"
    if "value" in expected:
        assert value == pytest.approx(expected["value"], abs=float(str(expected.get("tol", 1e-9)))), signal
    assert value >= float(str(expected.get("min", "-inf")))
    assert value <= float(str(expected.get("max", "inf")))


# checks of other rooms (alerts, generated files, engine kind, series over time) have tests of their own, here or there
ELSEWHERE = ("alert:", "generated_files", "engine_kind", "own_series_count")
# NAME-01, NAME-05, LBL-02, LBL-03, RST-04 and RST-08 have tests of their own below
PLAIN = (
    *("NAME-03", "NAME-06"),
    *("HIT-01", "HIT-02", "HIT-03", "HIT-04", "HIT-06", "HIT-08"),
    *("RST-01", "RST-05", "RST-07"),
    *("LBL-01", "LBL-04"),
    *("HIS-01", "HIS-03", "HIS-04", "HIS-06", "HIS-07", "HIS-08", "HIS-09", "HIS-10"),
)


def plain_checks() -> list[tuple[str, dict[str, object]]]:
    return [
        (case, check)
        for case in PLAIN
        for check in json.loads((CASES / case / "expect.json").read_text())["checks"]
        if not str(check["signal"]).startswith(ELSEWHERE)
    ]


@pytest.mark.parametrize(("case", "expected"), plain_checks(), ids=lambda p: p if isinstance(p, str) else str(p["signal"]))
def test_case_gives_the_right_value(case: str, expected: dict[str, object]) -> None:
    for folder in folders(case):
        check(seen(folder), expected)


def test_his_01_a_saturated_p99_is_marked_and_a_p50_is_not() -> None:
    page = seen(CASES / "HIS-01")
    assert page.one("llm_time_to_first_token_quantile_saturated", q="0.99", window="1m") == 1
    assert page.one("llm_time_to_first_token_quantile_saturated", q="0.5", window="1m") == 0
    assert page.one("llm_time_to_first_token_quantile_error_seconds", q="0.99", window="1m") is None


def test_hit_02_says_why_there_is_no_ratio() -> None:
    assert seen(CASES / "HIT-02").one("llm_signal_status", signal="prefix_cache_hit_ratio", window="1m", status="no_traffic") == 1


@pytest.mark.parametrize("folder", ["v0.8", "v0.10", "v0.11"])
def test_name_01_kv_usage_keeps_one_value_through_the_rename(folder: str) -> None:
    assert seen(CASES / "NAME-01" / folder).one("llm_kv_cache_usage_ratio") == pytest.approx(0.37)


@pytest.mark.parametrize("folder", ["wrapper", "empty"])
def test_name_05_a_page_without_engine_is_up_and_unknown(folder: str) -> None:
    page = seen(CASES / "NAME-05" / folder)
    assert page.one("llm_target_up") == 1
    assert page.one("llm_target_info", engine="unknown") == 1
    assert page.one("llm_engine_state", state="unknown") == 1
    assert page.one("llm_requests_running") is None
    assert page.one("llm_prefix_cache_hit_ratio", window="1m") is None


@pytest.mark.parametrize(("folder", "running", "waiting"), [("tp8", 12, 1), ("dp2tp2", 12, 2)])
def test_lbl_02_ranks_are_counted_once(folder: str, running: float, waiting: float) -> None:
    page = seen(CASES / "LBL-02" / folder)
    assert page.one("llm_requests_running") == running
    assert page.one("llm_requests_waiting") == waiting
    assert 'pid="' not in page.text


def test_lbl_02_data_parallel_ranks_are_shown_apart() -> None:
    page = seen(CASES / "LBL-02" / "dp2tp2")
    assert page.one("llm_rank_requests_running", rank="0") == 5
    assert page.one("llm_rank_requests_running", rank="1") == 7


def test_lbl_03_hostile_model_names_survive_the_round_trip() -> None:
    page = seen(CASES / "LBL-03")
    names = json.loads((CASES / "LBL-03" / "labels.json").read_text())
    assert {s.labels["model"]: s.value for s in page.samples if s.name == "llm_requests_running"} == dict(
        zip(names, range(1, 6), strict=True)
    )


def test_lbl_04_adapter_lists_do_not_make_series() -> None:
    recording = read_recording(CASES / "LBL-04")
    counts = []
    for moment in recording.moments[1:]:
        page = seen_at(recording, moment.second)
        counts.append(len(page.samples))
        assert not [s for s in page.samples if s.value > 1e9 and not s.name.endswith(OWN_TIMES)]
    assert len(set(counts)) == 1


def test_rst_04_one_scrape_gives_no_rate_two_do() -> None:
    recording = read_recording(CASES / "RST-04")
    first, second = seen_at(recording, 0), seen_at(recording, 15)
    assert first.one("llm_generation_tokens_per_second", window="1m") is None
    assert first.one("llm_signal_status", signal="generation_tokens_per_second", window="1m", status="one_scrape") == 1
    assert second.one("llm_generation_tokens_per_second", window="1m") == pytest.approx(10)


def test_rst_08_old_values_go_and_come_back_without_a_restart() -> None:
    recording = read_recording(CASES / "RST-08")
    played = Replay([recording], Config())
    good = recording.moments[0]
    played.step(good, recording.name)
    assert Seen(played.page.render()[0].decode()).one("llm_requests_running") == 7
    played.step(good._replace(second=15.0, scraped=Failed("refused", "", "", 0.0)), recording.name)
    down = Seen(played.page.render()[0].decode())
    assert down.one("llm_target_up") == 0
    assert down.one("llm_target_down_reason", reason="refused") == 1
    assert down.one("llm_requests_running") is None
    assert down.one("llm_signal_status", signal="requests_running", status="stale") == 1
    played.step(good._replace(second=30.0), recording.name)
    again = Seen(played.page.render()[0].decode())
    assert again.one("llm_requests_running") == 7
    assert again.one("llm_target_down_reason", reason="refused") is None


def test_a_page_that_is_not_renewed_leaves_even_when_no_failure_is_noticed() -> None:
    recording = read_recording(CASES / "RST-08")
    played = Replay([recording], Config())
    played.step(recording.moments[0], recording.name)
    played.now = 60.0
    page = Seen(played.page.render()[0].decode())
    assert page.one("llm_requests_running") is None
    assert page.one("llm_engine_restarts_total") == 0
