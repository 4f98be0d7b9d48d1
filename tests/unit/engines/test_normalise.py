"""Reading a page: ranks, totals, streaming, differences, impossible input, unknown names; the field cases at reading level."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llm_exporter.engines.normalise import Normaliser, detect, missing_engine_hint
from llm_exporter.readings import Absence, EngineReading, Slot
from llm_exporter.sources.exposition import PageParser

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
MODEL = "acme/chat-8b"


class Target:
    """A parser and a normaliser that stay, as in the daemon."""

    def __init__(self, engine: str = "auto") -> None:
        self.parser = PageParser()
        self.normaliser = Normaliser(engine)

    def read(self, page: str | bytes) -> EngineReading:
        reading = self.try_read(page)
        assert reading is not None
        return reading

    def try_read(self, page: str | bytes) -> EngineReading | None:
        return self.normaliser.read(self.parser.parse(page.encode() if isinstance(page, str) else page))


def read(page: str | bytes) -> EngineReading:
    return Target().read(page)


def case(name: str) -> bytes:
    return (CASES / name).read_bytes()


def numbers(reading: EngineReading, field: str) -> dict[tuple[str, str], float]:
    """(rank, label) → value."""
    return {
        (slot.rank, slot.label): value
        for slot, value in zip(reading.layout.slots, reading.values, strict=True)
        if slot.field == field and slot.part == "value"
    }


def buckets(reading: EngineReading, field: str) -> list[tuple[float, float]]:
    """(bound, cumulative count), ranks in order."""
    return [
        (slot.le, value)
        for slot, value in zip(reading.layout.slots, reading.values, strict=True)
        if slot.field == field and slot.part == "bucket"
    ]


# --- field cases -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["v0.8", "v0.10", "v0.11"])
def test_name_01_one_kv_usage_whatever_its_name(release: str) -> None:
    reading = read(case(f"NAME-01/{release}/t000.prom"))
    assert numbers(reading, "kv_cache_usage") == {("0", ""): 0.37}
    assert numbers(reading, "kv_cache_usage_mean") == {("0", ""): 0.37}
    assert numbers(reading, "requests_running") == {("0", ""): 4.0}


@pytest.mark.parametrize("spelling", ["colon", "underscore"])
def test_name_03_both_spellings_of_sglang(spelling: str) -> None:
    target = Target()
    first, second = (target.read(case(f"NAME-03/{spelling}/{page}.prom")) for page in ("t000", "t015"))
    assert first.engine == "sglang"
    assert second.layout is first.layout
    assert numbers(second, "requests_running") == {("", ""): 3.0}
    assert numbers(second, "requests_waiting") == {("", ""): 5.0}
    assert numbers(second, "kv_cache_usage") == {("", ""): 0.41}
    assert numbers(first, "generation_tokens") == {("", ""): 200.0}
    assert numbers(second, "generation_tokens") == {("", ""): 400.0}


def test_name_03_samples_under_headers_of_the_other_spelling() -> None:
    page = "# HELP sglang:num_running_reqs -\n# TYPE sglang:num_running_reqs gauge\n" + 'sglang_num_running_reqs{model_name="m"} 2\n'
    assert numbers(read(page), "requests_running") == {("", ""): 2.0}


@pytest.mark.parametrize("page", ["wrapper", "empty"])
def test_name_05_a_page_without_an_engine(page: str) -> None:
    body = case(f"NAME-05/{page}/t000.prom")
    assert Target().try_read(body) is None
    assert Target("vllm").try_read(body) is None, "a configured engine invents no metrics"
    shape = PageParser().parse(body).shape
    assert detect(shape) is None
    assert missing_engine_hint(shape)


def test_a_configured_engine_is_not_read_from_another_engines_page() -> None:
    page = 'sglang:num_running_reqs{model_name="m"} 2\n'
    assert Target("vllm").try_read(page) is None
    assert Target("sglang").read(page).engine == "sglang"
    assert "sglang" in missing_engine_hint(PageParser().parse(page.encode()).shape)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ('http_requests_total{handler="/v1/models"} 1\n', "--disable-log-stats"),
        ("smg_worker_pool_size 2\n", "router"),
        ("", "--enable-metrics"),
        ("node_load1 1\n", "--enable-metrics"),
    ],
)
def test_the_hint_fits_the_page(page: str, words: str) -> None:
    assert words in missing_engine_hint(PageParser().parse(page.encode()).shape)


@pytest.mark.parametrize("form", ["text", "openmetrics"])
def test_name_06_created_is_never_data(form: str) -> None:
    target = Target()
    for page, tokens in (("t000", 1000.0), ("t015", 1234.0)):
        reading = target.read(case(f"NAME-06/{form}/{page}.prom"))
        assert numbers(reading, "prompt_tokens") == {("0", ""): tokens}
        assert max(reading.values) < 1e9


def test_lbl_01_data_parallel_ranks_stay_apart() -> None:
    reading = read(case("LBL-01/t000.prom"))
    assert numbers(reading, "requests_running") == {("0", ""): 3.0, ("1", ""): 5.0}
    assert numbers(reading, "requests_waiting") == {("0", ""): 0.0, ("1", ""): 2.0}
    assert numbers(reading, "kv_cache_usage") == {("0", ""): 0.2, ("1", ""): 0.6}


def test_lbl_02_tensor_ranks_repeat_and_are_taken_once() -> None:
    assert numbers(read(case("LBL-02/tp8/t000.prom")), "requests_running") == {("0", ""): 12.0}
    assert numbers(read(case("LBL-02/tp8/t000.prom")), "requests_waiting") == {("0", ""): 1.0}
    assert numbers(read(case("LBL-02/dp2tp2/t000.prom")), "requests_running") == {("0", ""): 5.0, ("1", ""): 7.0}
    assert numbers(read(case("LBL-02/dp2tp2/t000.prom")), "requests_waiting") == {("0", ""): 1.0, ("1", ""): 1.0}


def test_lbl_03_several_models_with_difficult_names() -> None:
    reading = read(case("LBL-03/t000.prom"))
    names = json.loads(case("LBL-03/labels.json"))
    running = {
        slot.model: value for slot, value in zip(reading.layout.slots, reading.values, strict=True) if slot.field == "requests_running"
    }
    assert running == dict(zip(names, (1.0, 2.0, 3.0, 4.0, 5.0), strict=True))


def test_lbl_04_lists_of_adapters_change_nothing() -> None:
    target = Target()
    readings = [target.read(case(f"LBL-04/t{second:03}.prom")) for second in (0, 15, 30, 45, 60)]
    assert all(reading.layout is readings[0].layout for reading in readings), "the layout stays although the page's shape changes"
    assert all(max(reading.values) < 1e9 for reading in readings)
    assert len(target.normaliser._plans) == 1, "what does not concern us costs no new plan"


def test_his_06_a_bucket_that_falls_is_raised_and_counted() -> None:
    target = Target()
    assert not target.read(case("HIS-06/t000.prom")).anomalies
    reading = target.read(case("HIS-06/t060.prom"))
    assert buckets(reading, "time_to_first_token") == [(1.0, 50.0), (2.0, 50.0), (5.0, 60.0), (float("inf"), 60.0)]
    assert reading.anomalies == {"falling_buckets": 1}


def test_rst_07_nan_and_inf_that_do_not_concern_us() -> None:
    reading = read(case("RST-07/t000.prom"))
    assert numbers(reading, "kv_cache_usage") == {("", ""): 0.12}
    assert numbers(reading, "requests_running") == {("", ""): 0.0}
    assert not reading.anomalies


def test_hit_03_hits_come_from_counters() -> None:
    target = Target()
    first, second = (target.read(case(f"HIT-03/{page}.prom")) for page in ("t000", "t060"))
    gained = {
        field: numbers(second, field)["", ""] - numbers(first, field)["", ""]
        for field in ("prefix_cache_hit_tokens", "prefix_cache_queried_tokens")
    }
    assert gained == {"prefix_cache_hit_tokens": 6300.0, "prefix_cache_queried_tokens": 10000.0}


# --- impossible input --------------------------------------------------------------------------------------------------------------

RANKS = """vllm:num_requests_running{{engine="0",model_name="m"}} 1
vllm:num_requests_running{{engine="1",model_name="m"}} {}
vllm:prompt_tokens_total{{engine="0",model_name="m"}} {}
vllm:generation_tokens_total{{engine="0",model_name="m"}} 7
"""


@pytest.mark.parametrize(("bad", "kind"), [("NaN", "not_finite"), ("+Inf", "not_finite"), ("-Inf", "not_finite"), ("-3", "negative")])
def test_an_impossible_value_takes_only_its_own_field_and_rank(bad: str, kind: str) -> None:
    target = Target()
    good = target.read(RANKS.format(2, 10))
    reading = target.read(RANKS.format(bad, 10))
    assert numbers(reading, "requests_running") == {("0", ""): 1.0}
    assert numbers(reading, "prompt_tokens") == {("0", ""): 10.0}
    assert numbers(reading, "generation_tokens") == {("0", ""): 7.0}
    assert reading.anomalies == {kind: 1}
    assert target.read(RANKS.format(3, 11)).layout is good.layout, "all is well again"


def test_a_field_that_is_wholly_impossible_is_absent() -> None:
    reading = read(RANKS.format("NaN", "NaN"))
    assert "prompt_tokens" not in reading.layout.sources
    assert reading.layout.absent["prompt_tokens"] is Absence.NOT_EXPOSED
    assert reading.anomalies == {"not_finite": 2}


def test_a_bad_bucket_takes_the_whole_histogram() -> None:
    page = """vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="1"} NaN
vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="+Inf"} 2
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 3
vllm:generation_tokens_total{engine="0",model_name="m"} 7
"""
    reading = read(page)
    assert [slot.field for slot in reading.layout.slots] == ["generation_tokens"]


def test_of_ranks_that_repeat_a_number_the_good_ones_are_enough() -> None:
    page = 'sglang:num_running_reqs{model_name="m",tp_rank="0"} NaN\nsglang:num_running_reqs{model_name="m",tp_rank="1"} 4\n'
    reading = read(page)
    assert numbers(reading, "requests_running") == {("", ""): 4.0}
    assert reading.anomalies == {"not_finite": 1}


def test_the_count_stands_in_for_a_missing_last_bucket() -> None:
    page = """vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="1.0"} 5
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 6
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 3
"""
    assert buckets(read(page), "time_to_first_token") == [(1.0, 5.0), (float("inf"), 6.0)]


def test_members_with_unlike_bounds_are_added_where_they_agree() -> None:
    streamed = [("true", "1.0", 1), ("true", "2.0", 3), ("true", "+Inf", 4)]
    whole = [("false", "1", 10), ("false", "5", 20), ("false", "+Inf", 30)]
    page = "".join(
        f'sglang:e2e_request_latency_seconds_bucket{{model_name="m",is_streaming="{streaming}",le="{bound}"}} {count}\n'
        for streaming, bound, count in streamed + whole
    )
    assert buckets(read(page), "e2e_request_latency") == [(1.0, 11.0), (float("inf"), 34.0)]


# --- labels of SGLang --------------------------------------------------------------------------------------------------------------


def test_the_total_over_priorities_is_not_added_to_its_parts() -> None:
    page = "".join(
        f'sglang:num_queue_reqs{{model_name="m",priority="{priority}"}} {value}\n' for priority, value in (("", 7), ("0", 3), ("1", 4))
    )
    assert numbers(read(page), "requests_waiting") == {("", ""): 7.0}


def test_priorities_without_a_total_are_added() -> None:
    page = "".join(f'sglang:num_queue_reqs{{model_name="m",priority="{priority}"}} {value}\n' for priority, value in (("0", 3), ("1", 4)))
    assert numbers(read(page), "requests_waiting") == {("", ""): 7.0}


def test_the_total_over_cache_sources_is_not_added_to_its_parts() -> None:
    page = 'sglang:prompt_tokens_total{model_name="m"} 100\n' + "".join(
        f'sglang:cached_tokens_total{{model_name="m",cache_source="{source}"}} {value}\n'
        for source, value in (("device", 30), ("host", 10), ("total", 40))
    )
    reading = read(page)
    assert numbers(reading, "prompt_tokens_cached") == {("", ""): 40.0}
    assert numbers(reading, "prompt_tokens_computed") == {("", ""): 60.0}


def test_custom_labels_are_added_up_and_ranks_within_them_once() -> None:
    page = "".join(
        f'sglang:num_running_reqs{{model_name="m",team="{team}",tp_rank="{rank}",pid="{rank}"}} {value}\n'
        for team, value in (("a", 2), ("b", 3))
        for rank in (0, 1)
    )
    assert numbers(read(page), "requests_running") == {("", ""): 5.0}


STREAMS = """sglang:time_to_first_token_seconds_bucket{{model_name="m",is_streaming="{0}",le="+Inf"}} 5
sglang:time_to_first_token_seconds_count{{model_name="m",is_streaming="{0}"}} 5
sglang:time_to_first_token_seconds_sum{{model_name="m",is_streaming="{0}"}} 2.5
sglang:num_requests_total{{model_name="m",is_streaming="{0}"}} 5
"""


def test_only_streams_enter_ttft_where_they_are_told_apart() -> None:
    reading = read(STREAMS.format("false") + STREAMS.format("true").replace(" 5", " 3"))
    assert buckets(reading, "time_to_first_token") == [(float("inf"), 3.0)]
    assert numbers(reading, "first_tokens") == {("", ""): 8.0}
    assert numbers(reading, "requests_finished") == {("", "other"): 8.0}
    reading = read(STREAMS.format("false"))
    assert reading.layout.absent["time_to_first_token"] is Absence.NO_TRAFFIC
    assert reading.layout.absent["inter_token_latency"] is Absence.NO_TRAFFIC


# --- counters that are born late, and differences -----------------------------------------------------------------------------------


def test_counters_of_a_closed_set_start_at_zero() -> None:
    page = '# TYPE http_requests_total counter\nvllm:generation_tokens_total{engine="0",model_name="m"} 0\n'
    reading = read(page)
    assert numbers(reading, "http_responses") == {("", "2xx"): 0.0, ("", "4xx"): 0.0, ("", "5xx"): 0.0}
    assert numbers(reading, "requests_received") == {("", ""): 0.0}
    assert {slot.model for slot in reading.layout.slots} == {"m"}


def test_outcomes_unknown_to_us_are_other() -> None:
    page = "".join(
        f'vllm:request_success_total{{engine="0",model_name="m",finished_reason="{reason}"}} 1\n'
        for reason in ("stop", "repetition", "new")
    )
    assert numbers(read(page), "requests_finished") == {
        ("0", "stop"): 1.0, ("0", "length"): 0.0, ("0", "abort"): 0.0, ("0", "error"): 0.0, ("0", "other"): 2.0,
    }  # fmt: skip


def test_only_inference_routes_count() -> None:
    answers = [
        ("/v1/chat/completions", "2xx", 5),
        ("/v1/completions", "4xx", 2),
        ("/v1/completions", "3xx", 1),
        ("/v1/models", "2xx", 9),
        ("none", "4xx", 3),
    ]
    page = 'vllm:generation_tokens_total{engine="0",model_name="m"} 0\n' + "".join(
        f'http_requests_total{{handler="{handler}",method="POST",status="{status}"}} {count}\n' for handler, status, count in answers
    )
    reading = read(page)
    assert numbers(reading, "http_responses") == {("", "2xx"): 5.0, ("", "4xx"): 2.0, ("", "5xx"): 0.0}
    assert numbers(reading, "requests_received") == {("", ""): 8.0}


HITS = """vllm:prompt_tokens_total{{engine="0",model_name="m"}} {}
vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} 5000
vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {}
"""


def test_computed_tokens_do_not_fall_while_hits_are_ahead_of_their_prompts() -> None:
    target = Target()
    seen = [
        numbers(target.read(HITS.format(prompt, hits)), "prompt_tokens_computed")["0", ""]
        for prompt, hits in [(1000, 0), (1000, 900), (2000, 900), (2500, 900), (100, 40), (200, 90)]
    ]
    assert seen == [1000.0, 1000.0, 1100.0, 1600.0, 60.0, 110.0], "held, caught up, and fallen only with the engine's restart"


def test_a_part_that_is_born_late_makes_no_counter_fall() -> None:
    # SGLang shows aborts from the first one on; until then they were among the finished requests. Captured: real_cpu_8 and _9.
    page = """
sglang:num_running_reqs{{model_name="m"}} 0.0
sglang:num_grammar_queue_reqs{{model_name="m"}} 0.0
sglang:num_requests_total{{is_streaming="false",model_name="m"}} 5.0
sglang:num_requests_total{{is_streaming="true",model_name="m"}} {streamed}
{aborted}"""
    aborts = 'sglang:num_aborted_requests_total{model_name="m"} 6.0\n'
    target = Target()
    seen = [
        numbers(target.read(page.format(streamed=streamed, aborted=aborted)), "requests_finished")["", "other"]
        for streamed, aborted in ((74.0, ""), (74.0, aborts), (79.0, aborts), (84.0, aborts), (2.0, ""), (3.0, aborts))
    ]
    assert seen == [79.0, 79.0, 79.0, 83.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("documentation", "config", "expected"),
    [
        ("in terms of number of queried blocks.", 'block_size="16"', (160.0, 80.0)),
        ("in terms of number of queriedtokens. DEPRECATED", 'block_size="16"', (10.0, 5.0)),
        ("in terms of number of queried blocks.", 'block_size="None"', None),
        ("-", 'block_size="16"', None),
    ],
)
def test_lookups_are_published_in_tokens_or_not_at_all(documentation: str, config: str, expected: tuple[float, float] | None) -> None:
    page = f"""# HELP vllm:gpu_prefix_cache_queries_total GPU prefix cache queries, {documentation}
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{{model_name="m"}} 10
vllm:gpu_prefix_cache_hits_total{{model_name="m"}} 5
vllm:prompt_tokens_total{{model_name="m"}} 12
vllm:cache_config_info{{{config},num_gpu_blocks="None"}} 1
"""
    reading = read(page)
    if expected is None:
        assert reading.layout.absent["prefix_cache_hit_tokens"] is Absence.NOT_SUPPORTED
        assert reading.layout.absent["prompt_tokens_computed"] is Absence.NOT_SUPPORTED
    else:
        assert (numbers(reading, "prefix_cache_queried_tokens")["", ""], numbers(reading, "prefix_cache_hit_tokens")["", ""]) == expected
    assert "kv_cache_capacity_tokens" not in reading.layout.sources


def test_blocks_of_a_data_parallel_server_are_already_a_sum() -> None:
    page = "".join(
        f'vllm:cache_config_info{{engine="{rank}",block_size="16",num_gpu_blocks="2000",enable_prefix_caching="False"}} 1\n'
        f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} 1\n'
        for rank in (0, 1)
    )
    reading = read(page)
    assert numbers(reading, "kv_cache_capacity_tokens") == {("0", ""): 16000.0, ("1", ""): 16000.0}
    assert numbers(reading, "prefix_cache_enabled") == {("0", ""): 0.0, ("1", ""): 0.0}
    assert {slot.model for slot in reading.layout.slots} == {"m"}


# --- what is not understood --------------------------------------------------------------------------------------------------------


def test_a_page_of_the_future_keeps_what_is_understood() -> None:
    page = """vllm:requests_in_batch{engine="0",model_name="m"} 4
vllm:num_requests_waiting{engine="0",model_name="m"} 2
vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 1
"""
    reading = read(page)
    assert numbers(reading, "requests_waiting") == {("0", ""): 2.0}
    assert reading.layout.absent["requests_running"] is Absence.NOT_EXPOSED
    assert reading.layout.absent["time_to_first_token"] is Absence.NOT_EXPOSED
    assert reading.layout.absent["requests_running_limit"] is Absence.NOT_SUPPORTED


def test_a_page_of_which_nothing_is_known_is_still_that_engine() -> None:
    reading = read('vllm:all_new{engine="0",model_name="m"} 4\n')
    assert reading.engine == "vllm"
    assert len(reading.values) == 0
    assert reading.layout.absent["requests_running"] is Absence.NOT_EXPOSED


def test_series_without_a_model_belong_to_the_only_one_or_to_none() -> None:
    process = "process_start_time_seconds 1700000000\n"
    one = read('vllm:num_requests_running{engine="0",model_name="m"} 1\n' + process)
    assert Slot("process_start_time", "m", "", "") in one.layout.index
    two = read("".join(f'vllm:num_requests_running{{engine="0",model_name="{model}"}} 1\n' for model in "mn") + process)
    assert Slot("process_start_time", "", "", "") in two.layout.index
    assert Slot("requests_running", "", "", "") in read("vllm:num_requests_running 1\n").layout.index


def test_the_age_of_a_page_with_timestamps() -> None:
    page = PageParser().parse(b"vllm:num_requests_running 1 1700000000000\n")
    reading = Normaliser().read(page, now_unix=1700000400.0)
    assert reading is not None
    assert reading.page_age_seconds == 400.0


def test_trace_names_the_series_behind_a_slot() -> None:
    target = Target()
    page = target.parser.parse(HITS.format(1000, 400).encode())
    series = target.normaliser.trace(page.shape)[Slot("prompt_tokens_computed", "m", "0", "")]
    assert [one.name for one in series] == ["vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total"]
    assert target.read(HITS.format(1000, 400)).layout.sources["prompt_tokens_computed"] == (
        "vllm:prompt_tokens_total",
        "vllm:prefix_cache_hits_total",
    )
