"""Rows about targets: what each is made of, and that hundreds of targets cost a page view once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from golden.recordings import VLLM
from llm_exporter.config.model import Slo, Target
from llm_exporter.daemon.daemon import Daemon
from llm_exporter.daemon.documents import overview, published
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.errors import ConfigError
from llm_exporter.expose.page import Page
from llm_exporter.metrics import Family, Metric, Sample
from llm_exporter.readings import Kind, Unit
from llm_exporter.sources.engine import Fetched

UP = Metric("llm_up", Kind.GAUGE, Unit.FLAG, "Up.", ("target",))
BY_GPU = Metric("llm_gpu_thing", Kind.GAUGE, Unit.COUNT, "Things.", ("gpu", "target"))
OF_NOBODY = Metric("llm_other", Kind.GAUGE, Unit.COUNT, "Others.", ("gpu",))


class CountingPage(Page):
    reads = 0

    def families(self) -> Iterator[Family]:
        self.reads += 1
        return super().families()


def test_each_target_has_its_own_samples_and_the_page_is_read_once() -> None:
    page = CountingPage((UP, BY_GPU, OF_NOBODY), lambda: 0.0)
    page.put("a", [Family(UP, [Sample(("a",), 1.0)])])
    page.put("b", [Family(UP, [Sample(("b",), 0.0)])])
    page.put("gpu", [Family(BY_GPU, [Sample(("0", "b"), 5.0), Sample(("1", "a"), 6.0)]), Family(OF_NOBODY, [Sample(("0",), 1.0)])])
    assert published(page) == {
        "a": [Family(UP, [Sample(("a",), 1.0)]), Family(BY_GPU, [Sample(("1", "a"), 6.0)])],
        "b": [Family(UP, [Sample(("b",), 0.0)]), Family(BY_GPU, [Sample(("0", "b"), 5.0)])],
    }
    assert page.reads == 1


def row_of(*slos: Slo, pages: int = len(VLLM)) -> dict[str, Any]:
    """The row of a vLLM server without readings of GPUs, after its recorded pages."""
    now = 0.0
    page = Page(declared(), lambda: now)
    pipeline = Pipeline(Target(name="t", url="http://t.invalid", slos=slos), page, Timing(5.0, 10.0), lambda: 1e9 + now)
    for number, (_, path) in enumerate(VLLM[:pages]):
        now = 6.0 * number
        pipeline.take(Fetched(path.read_bytes(), "text/plain; version=0.0.4", 0.0), now)
    return overview(pipeline, published(page).get("t", []), now)


def test_latencies_are_numbers_in_seconds_beside_the_words() -> None:
    (model, *_) = row_of()["models"]
    for q, words in zip(("p50", "p95", "p99"), model["shown"]["ttft"], strict=True):
        number = model["time_to_first_token_seconds"][q]
        low, high = number["bucket"]
        assert low <= number["value"] <= high
        assert words.startswith(q.upper())
        assert "±" not in words
        assert "–" in words
        assert isinstance(model["inter_token_latency_seconds"][q], float)


@pytest.mark.parametrize(("threshold", "met"), [(0.001, False), (640.0, True)])
def test_an_objective_says_whether_it_was_met(threshold: float, met: bool) -> None:
    slos = row_of(Slo(name="ttft", metric="time_to_first_token", threshold=threshold, objective=0.99))["slos"]
    assert [slo["met"] for slo in slos] == [met]
    assert slos[0]["objective_ratio"] == 0.99
    assert (slos[0]["good_ratio"] >= 0.99) is met
    assert "objective 99 %" in slos[0]["shown"]


def test_an_objective_without_traffic_in_the_window_is_neither_met_nor_missed() -> None:
    assert row_of(Slo(name="ttft", metric="time_to_first_token", threshold=1.0, objective=0.99), pages=1)["slos"] == []


def test_an_unknown_verdict_says_what_it_waits_for() -> None:
    verdict = row_of()["verdict"]
    assert verdict["cause"] == "unknown"
    assert "GPU" in verdict["why_unknown"]
    assert "10 seconds of readings" in row_of(pages=1)["verdict"]["why_unknown"]


def test_a_failed_reload_is_told_until_one_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "c.yml"
    path.write_text("targets: []\n")
    daemon = Daemon(path, {})
    try:
        daemon.start()
        assert daemon.reload_problem() == ""
        path.write_text("targetz: []\n")
        with pytest.raises(ConfigError):
            daemon.reload()
        assert "targetz" in daemon.reload_problem()
        path.write_text("targets: []\n")
        daemon.reload()
        assert daemon.reload_problem() == ""
    finally:
        daemon.stop()
