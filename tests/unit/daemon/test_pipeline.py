"""One target from page to page: failures, ages, engines that change or are unknown, and memory that stays flat."""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from golden.recordings import SGLANG, VLLM
from llm_exporter.config.model import Target
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.expose.page import Page
from llm_exporter.signals.derive import METRICS, PERSISTENT
from llm_exporter.sources.engine import Failed, Fetched

VLLM_PAGES = [path.read_bytes() for _, path in VLLM]
SGLANG_PAGES = [path.read_bytes() for _, path in SGLANG]
ENGINE_METRICS = {metric.name for metric in METRICS} - PERSISTENT
REASONS = (
    "refused",
    "timeout",
    "connection_closed",
    "dns",
    "tls",
    "tls_verify",
    "http_401",
    "http_500",
    "redirect",
    "too_large",
    "truncated",
)


def good(body: bytes, seconds: float = 0.0) -> Fetched:
    return Fetched(body, "text/plain; version=0.0.4", seconds)


def bad(reason: str) -> Failed:
    return Failed(reason, "what happened", "", 0.5)


class Desk:
    """A page on a clock of our own, and pipelines that publish on it."""

    def __init__(self, timing: Timing | None = None) -> None:
        self.now = 0.0
        self.page = Page(declared(), lambda: self.now)
        self.timing = timing or Timing(5.0, 10.0)

    def pipeline(self, name: str = "t", engine: str = "auto", lives: Callable[[], bool | None] = lambda: None) -> Pipeline:
        target = Target(name=name, url=f"http://{name}.invalid", engine=engine)
        return Pipeline(target, self.page, self.timing, lambda: 1e9 + self.now, process_lives=lives)

    def play(self, pipeline: Pipeline, *scrapes: Fetched | Failed, every: float = 5.0) -> None:
        for scraped in scrapes:
            pipeline.take(scraped, self.now)
            self.now += every
        self.now -= every

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        families = list(text_string_to_metric_families(self.page.render()[0].decode()))
        assert {f.name for f in families} == {
            f.name for f in openmetrics_families(self.page.render("application/openmetrics-text")[0].decode())
        }
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}

    def of(self, name: str, **labels: str) -> list[float]:
        return [value for (found, pairs), value in self.samples().items() if found == name and labels.items() <= dict(pairs).items()]

    def engine_series(self, target: str = "t") -> set[str]:
        """Names of published series that speak of the engine's present."""
        names = {name for name, labels in self.samples() if dict(labels).get("target") == target}
        stems = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in names}
        return (names | stems) & ENGINE_METRICS


# -- when a scrape fails -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", REASONS)
def test_a_failed_scrape_takes_the_engines_series_and_leaves_all_others(reason: str) -> None:
    desk = Desk()
    pipeline = desk.pipeline()
    desk.play(pipeline, good(VLLM_PAGES[0]), good(VLLM_PAGES[1]))
    assert desk.engine_series()
    desk.play(pipeline, bad(reason))
    assert desk.engine_series() == set()
    assert desk.of("llm_target_up", target="t") == [0.0]
    assert desk.of("llm_target_down_reason", reason=reason) == [1.0]
    assert desk.of("llm_engine_restarts_total") == [0.0]
    assert desk.of("llm_input_anomalies_total") == [0.0]
    assert desk.of("llm_target_info", engine="vllm") == [1.0], "who it was is still known"
    assert desk.of("llm_signal_status", signal="requests_running", status="stale") == [1.0]
    assert desk.of("llm_target_last_scrape_timestamp_seconds") == [1e9 + 5.0], "of the last good scrape"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", ""),
        (b"<!DOCTYPE html><html>", "not_metrics"),
        (VLLM_PAGES[1][:-40], "parse"),
        (VLLM_PAGES[1] + b'vllm:num_requests_running{engine="0",model_name="tiny"} 1\n', "parse"),
        (VLLM_PAGES[1].replace(b"# HELP", b"\xff\xfe", 1), "not_metrics"),
    ],
    ids=["empty", "html", "cut", "twice", "binary"],
)
def test_a_page_that_cannot_be_read_is_refused_whole(body: bytes, reason: str) -> None:
    desk = Desk()
    pipeline = desk.pipeline()
    desk.play(pipeline, good(VLLM_PAGES[0]), good(body))
    assert desk.engine_series() == set()
    assert desk.of("llm_target_up") == [0.0 if reason else 1.0]
    assert [labels for name, labels in desk.samples() if name == "llm_target_down_reason"] == (
        [(("reason", reason), ("target", "t"))] if reason else []
    )


def test_windows_reach_over_a_gap() -> None:
    desk = Desk()
    pipeline = desk.pipeline()
    desk.play(pipeline, good(VLLM_PAGES[1]), bad("timeout"), bad("timeout"), good(VLLM_PAGES[9]))
    # 39 tokens before the gap, 19239 after it, 15 seconds
    assert desk.of("llm_generation_tokens_per_second", window="1m") == [(19239 - 39) / 15]
    assert desk.of("llm_engine_restarts_total") == [0.0]


@pytest.mark.parametrize(
    ("reason", "lives", "state"),
    [
        ("http_503", None, "loading"),
        ("refused", True, "loading"),
        ("refused", False, "unknown"),
        ("refused", None, "unknown"),
        ("timeout", True, "unknown"),
        ("http_500", True, "unknown"),
    ],
)
def test_state_without_a_page(reason: str, lives: bool | None, state: str) -> None:
    desk = Desk()
    desk.play(desk.pipeline(lives=lambda: lives), good(VLLM_PAGES[0]), bad(reason))
    states = {name: desk.of("llm_engine_state", state=name) for name in ("loading", "ready", "sleeping", "unknown")}
    assert states == {name: [float(name == state)] for name in states}


def test_the_page_is_whole_when_every_target_fails() -> None:
    desk = Desk()
    for n, reason in enumerate(REASONS):
        desk.play(desk.pipeline(f"t{n}"), bad(reason))
    up = desk.of("llm_target_up")
    assert up == [0.0] * len(REASONS)
    assert len(desk.of("llm_target_info", engine="unknown")) == len(REASONS)
    assert len(desk.of("llm_engine_state", state="unknown")) == len(REASONS)


# -- age ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "timeout", "limit"), [(5.0, 10.0, 10.0), (30.0, 10.0, 60.0), (1.0, 30.0, 30.0)])
def test_series_go_when_the_last_good_page_is_too_old(interval: float, timeout: float, limit: float) -> None:
    desk = Desk(Timing(interval, timeout))
    desk.play(desk.pipeline(), good(VLLM_PAGES[0]))
    desk.now = limit
    assert desk.engine_series()
    desk.now = limit + 0.001
    assert desk.engine_series() == set()
    assert desk.of("llm_target_up") == [1.0], "the last scrape did succeed"
    assert desk.of("llm_engine_restarts_total") == [0.0]


def test_a_slow_answer_is_as_old_as_its_last_byte() -> None:
    desk = Desk(Timing(5.0, 10.0))
    desk.play(desk.pipeline(), good(VLLM_PAGES[0], seconds=9.9))
    desk.now = 19.0
    assert desk.engine_series(), "or a server that takes 10 s would hardly ever be seen"
    desk.now = 19.91
    assert desk.engine_series() == set()


def test_a_page_with_old_timestamps_is_stale() -> None:
    desk = Desk()
    stamp = f" {int((1e9 - 301) * 1000)}\n".encode()
    old = b'vllm:num_requests_running{engine="0",model_name="m"} 2.0'
    desk.play(desk.pipeline(), good(old + stamp))
    assert desk.of("llm_target_up") == [1.0]
    assert desk.engine_series() == set()
    assert desk.of("llm_signal_status", signal="requests_running", status="stale") == [1.0]


# -- who answers ------------------------------------------------------------------------------------------------------------------


def test_a_page_without_an_engine_is_up_and_unknown_with_a_reason() -> None:
    desk = Desk()
    pipeline = desk.pipeline()
    desk.play(pipeline, good(b"# TYPE go_goroutines gauge\ngo_goroutines 8\n"))
    assert (pipeline.status.up, pipeline.status.engine, pipeline.status.reason) == (True, "unknown", "no_engine_metrics")
    assert pipeline.status.hint
    assert desk.of("llm_target_info", engine="unknown") == [1.0]
    assert desk.engine_series() == set()


def test_the_configured_engine_is_held_to() -> None:
    desk = Desk()
    pipeline = desk.pipeline(engine="sglang")
    desk.play(pipeline, good(VLLM_PAGES[0]))
    assert (pipeline.status.up, pipeline.status.engine, pipeline.status.reason) == (True, "unknown", "no_engine_metrics")
    assert "vllm" in pipeline.status.detail


def test_another_engine_under_the_address_starts_windows_anew() -> None:
    desk = Desk()
    desk.play(desk.pipeline(), good(VLLM_PAGES[0]), good(VLLM_PAGES[8]), good(SGLANG_PAGES[8]))
    assert desk.of("llm_target_info", engine="sglang") == [1.0]
    assert not [labels for _, labels in desk.samples() if dict(labels).get("engine") == "vllm"]
    assert desk.of("llm_generation_tokens_per_second", window="1m") == []
    assert desk.of("llm_signal_status", signal="generation_tokens_per_second", window="1m", status="one_scrape") == [1.0]


def test_several_models_on_a_page_are_kept_apart() -> None:
    page = """
vllm:num_requests_running{{engine="0",model_name="a"}} 1
vllm:num_requests_running{{engine="0",model_name="b"}} 2
vllm:generation_tokens_total{{engine="0",model_name="a"}} {a}
vllm:generation_tokens_total{{engine="0",model_name="b"}} {b}
"""
    desk = Desk()
    desk.play(desk.pipeline(), good(page.format(a=10, b=100).encode()), good(page.format(a=20, b=300).encode()))
    assert desk.of("llm_requests_running", model="a") + desk.of("llm_requests_running", model="b") == [1.0, 2.0]
    rates = [desk.of("llm_generation_tokens_per_second", model=model, window="1m") for model in ("a", "b")]
    assert rates == [[2.0], [40.0]]


# -- counters that start at 0 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "series"),
    [
        (
            VLLM_PAGES[0],
            {
                "llm_requests_finished_total": {"outcome": ("stop", "length", "abort", "error", "other")},
                "llm_http_responses_total": {"code": ("2xx", "4xx", "5xx")},
            },
        ),
        (
            SGLANG_PAGES[0],
            {"llm_requests_finished_total": {"outcome": ("other", "abort")}, "llm_http_responses_total": {"code": ("2xx", "4xx", "5xx")}},
        ),
    ],
    ids=["vllm", "sglang"],
)
def test_counters_over_closed_sets_are_complete_from_the_first_page(body: bytes, series: dict[str, dict[str, tuple[str, ...]]]) -> None:
    desk = Desk()
    desk.play(desk.pipeline(), good(body))
    for name, ((label, values),) in ((name, tuple(labels.items())) for name, labels in series.items()):
        assert {value: len(desk.of(name, **{label: value})) for value in values} == dict.fromkeys(values, 1)
        assert sum(len(desk.of(name, **{label: value})) for value in values) == len(desk.of(name)), f"{name} has values outside its set"
    assert desk.of("llm_engine_restarts_total") == desk.of("llm_input_anomalies_total") == [0.0]


def test_before_the_first_good_page_there_are_no_counters_of_the_engine() -> None:
    desk = Desk()
    desk.play(desk.pipeline(), bad("refused"))
    assert desk.of("llm_engine_restarts_total") == []
    assert desk.engine_series() == set()


# -- impossible input -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", [b"NaN", b"+Inf", b"-Inf", b"-5"])
def test_impossible_numbers_are_counted_and_never_shown(word: bytes) -> None:
    desk = Desk()
    line = b'vllm:generation_tokens_total{engine="0",model_name="tiny"} '
    before, _, after = VLLM_PAGES[8].partition(line)
    torn = before + line + word + after[after.index(b"\n") :]
    pipeline = desk.pipeline()
    desk.play(pipeline, good(VLLM_PAGES[7]), good(torn))
    assert desk.of("llm_input_anomalies_total") == [1.0]
    assert desk.of("llm_generation_tokens_total") == []
    assert desk.of("llm_requests_running") == [6.0], "the rest of the page is good"
    desk.play(pipeline, good(VLLM_PAGES[9]))
    assert desk.of("llm_generation_tokens_total") == [19239.0]
    assert desk.of("llm_engine_restarts_total") == [0.0]
    assert all(value == value for value in desk.samples().values())  # NaN alone differs from itself


# -- memory -----------------------------------------------------------------------------------------------------------------------


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_an_hour_of_ticks_with_faults_leaves_memory_flat() -> None:
    desk = Desk()
    vllm, sglang = desk.pipeline("v"), desk.pipeline("s")
    faults = [bad("timeout"), bad("http_503"), good(b"<html>"), good(VLLM_PAGES[2][:-30]), good(b"go_goroutines 8\n")]
    fault = itertools.cycle(faults)
    # pages that stay for a while and move on; going back to the first one is a restart
    played = ([page for page in pages for _ in range(6)] for pages in (VLLM_PAGES[2:9], SGLANG_PAGES[8:10]))
    pages = list(zip((vllm, sglang), map(itertools.cycle, played), strict=True))

    def ticks(count: int) -> tuple[int, int]:
        for n in range(count):
            for pipeline, played in pages:
                pipeline.take(next(fault) if n % 11 == 10 else good(next(played)), desk.now)
            desk.now += 5.0
        desk.page.render()
        gc.collect()
        return sys.getallocatedblocks(), rss_bytes()

    ticks(120)  # the ring of windows is full, every shape is known
    blocks, rss = ticks(360)
    blocks_later, rss_later = ticks(360)
    assert blocks_later < blocks * 1.01, f"{blocks_later - blocks} more blocks in half an hour"
    assert rss_later < rss + 4 * 2**20, f"{(rss_later - rss) / 2**20:.1f} MiB more in half an hour"
    assert vllm.store.counted.restarts > 0


# -- what nobody expected ----------------------------------------------------------------------------------------------------------


def test_a_bug_in_reading_shows_as_a_target_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    pipeline = desk.pipeline()
    desk.play(pipeline, good(VLLM_PAGES[0]), good(VLLM_PAGES[1]))

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pipeline._normaliser, "read", broken)
    with pytest.raises(ZeroDivisionError):
        desk.play(pipeline, good(VLLM_PAGES[2]))
    assert desk.engine_series() == set()
    assert desk.of("llm_target_up") == [0.0]
    assert desk.of("llm_target_down_reason", reason="parse") == [1.0]


def test_each_kind_of_impossible_input_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    page = b'vllm:num_requests_running{engine="0",model_name="m"} %s\n'
    desk.play(desk.pipeline(), *(good(page % value) for value in (b"1", b"-1", b"-1", b"NaN", b"-1")))
    said = [record.getMessage() for record in caplog.records if "impossible" in record.getMessage()]
    assert [text.rpartition(": ")[2] for text in said] == ["1 negative", "1 not_finite"]
    assert desk.of("llm_input_anomalies_total") == [4.0]
