"""The probe metrics of CONTRACT 6.3: declarations, closed sets, absence."""

from __future__ import annotations

import pytest

from llm_exporter.expose.probes import METRICS, families
from llm_exporter.metrics import HistogramSample, Sample
from llm_exporter.readings import Kind
from llm_exporter.sources.probe import SENT_RESULTS, SKIPS, ProbeReading
from llm_exporter.sources.probe_record import TTFT_BOUNDS, ProbeCell, ProbeRecord

NAMES = """llm_probe_success llm_probe_last_result llm_probe_connect_seconds llm_probe_first_chunk_seconds
llm_probe_time_to_first_token_seconds llm_probe_time_to_first_content_seconds llm_probe_duration_seconds llm_probe_completion_tokens
llm_probe_prompt_tokens llm_probe_received_completion_tokens_total llm_probe_time_to_first_token_distribution_seconds llm_probe_stream_buffered llm_probe_requests_total
llm_probe_sent_prompt_tokens_total llm_probe_network_overhead_seconds llm_probe_last_run_timestamp_seconds""".split()  # noqa: SIM905


def published(record: ProbeRecord) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        family.metric.name: {sample.labels: sample.value for sample in family.samples if isinstance(sample, Sample)}
        for family in families([record])
    }


def test_every_metric_of_the_contract_is_declared_once() -> None:
    names = [metric.name for metric in METRICS]
    assert set(NAMES) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_carry_their_unit_and_help_is_a_sentence(metric: object) -> None:
    from llm_exporter.metrics import Metric

    assert isinstance(metric, Metric)
    stem = metric.name.removesuffix("_total")
    assert (metric.kind is Kind.COUNTER) == (metric.name != stem)
    assert stem.endswith(metric.unit.value)
    assert metric.help.endswith(".")
    assert metric.labels[:2] == ("target", "module")
    assert metric.bound


def test_before_the_first_run_only_counters_and_the_histogram_stand_at_zero() -> None:
    cell = ProbeCell(64, "cold", None, [0.0] * len(TTFT_BOUNDS), 0.0)
    page = published(ProbeRecord("t", "m", cells=(cell,)))
    assert set(page) == {
        "llm_probe_requests_total",
        "llm_probe_sent_prompt_tokens_total",
        "llm_probe_received_completion_tokens_total",
        "llm_probe_time_to_first_token_distribution_seconds",
    }
    assert page["llm_probe_requests_total"] == {("t", "m", result): 0.0 for result in SENT_RESULTS}


def test_last_result_has_one_series_per_possible_value_and_the_codes_seen() -> None:
    page = published(ProbeRecord("t", "m", last_result="skipped_busy", results={"http_503": 2}))
    values = page["llm_probe_last_result"]
    assert {labels[2] for labels in values} == {*SENT_RESULTS, *SKIPS, "http_503"}
    assert [labels[2] for labels, value in values.items() if value == 1.0] == ["skipped_busy"]


def test_a_server_that_answers_with_ever_new_codes_makes_no_more_than_a_few_series() -> None:
    results = {"success": 3, **{f"http_{code}": 1 for code in range(400, 420)}, "http_1795988067103": 5, "http_099": 1}
    page = published(ProbeRecord("t", "m", last_result="http_419", results=results))
    codes = {labels[2]: value for labels, value in page["llm_probe_requests_total"].items() if labels[2].startswith("http_")}
    assert codes == {**{f"http_{code}": 1.0 for code in range(400, 416)}, "http_other": 4.0 + 5.0 + 1.0}
    assert sum(page["llm_probe_requests_total"].values()) == sum(results.values())
    last = {labels[2]: value for labels, value in page["llm_probe_last_result"].items()}
    assert [name for name, value in last.items() if value] == ["http_other"]
    assert sum(name.startswith("http_") for name in last) == 17


def test_a_code_keeps_its_label_when_others_follow() -> None:
    first = {f"http_{code}": 1 for code in range(500, 516)}
    before = published(ProbeRecord("t", "m", last_result="http_500", results=first))["llm_probe_requests_total"]
    after = published(ProbeRecord("t", "m", last_result="http_404", results={**first, "http_404": 7}))["llm_probe_requests_total"]
    assert {labels: after[labels] for labels in before} == before


def test_a_request_that_nobody_timed_has_no_duration() -> None:
    def page(seconds: float) -> dict[str, dict[tuple[str, ...], float]]:
        cell = ProbeCell(64, "cold", ProbeReading("connect", duration_seconds=seconds), [0.0] * len(TTFT_BOUNDS), 0.0)
        return published(ProbeRecord("t", "m", last_result="connect", success=False, cells=(cell,)))

    assert "llm_probe_duration_seconds" not in page(0.0)
    assert page(2e-5)["llm_probe_duration_seconds"] == {("t", "m", "64", "cold"): 2e-5}


def test_a_token_that_was_read_late_has_an_error_and_no_time() -> None:
    last = ProbeReading("success", ttft_error_seconds=0.8, duration_seconds=1.0)
    page = published(ProbeRecord("t", "m", cells=(ProbeCell(64, "cold", last, [0.0] * len(TTFT_BOUNDS), 0.0),)))
    assert page["llm_probe_time_to_first_token_error_seconds"] == {("t", "m", "64", "cold"): 0.8}
    assert "llm_probe_time_to_first_token_seconds" not in page


def test_a_histogram_is_cumulative_with_its_sum() -> None:
    cumulative = [float(bound >= 0.3) for bound in TTFT_BOUNDS]
    record = ProbeRecord("t", "m", cells=(ProbeCell(64, "warm", ProbeReading("success"), cumulative, 0.28),))
    (family,) = [family for family in families([record]) if family.metric.kind is Kind.HISTOGRAM]
    (sample,) = family.samples
    assert isinstance(sample, HistogramSample)
    assert (sample.labels, sample.sum, sample.cumulative[-1]) == (("t", "m", "64", "warm"), 0.28, 1.0)
    assert list(TTFT_BOUNDS) == sorted(TTFT_BOUNDS)
    assert {0.1, 1.0, 10.0, 20.0, 40.0, 80.0} <= set(TTFT_BOUNDS)
