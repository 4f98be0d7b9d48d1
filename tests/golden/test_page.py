"""The whole page of a vLLM and an SGLang target side by side, from captured pages on a fixed clock; and what others say about it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from golden.recordings import SGLANG, VLLM, recorded
from llm_exporter.config.load import load_config
from llm_exporter.daemon.replaying import Replay
from llm_exporter.expose.page import Page

CONFIG = Path(__file__).parent / "llm-exporter.yml"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def page() -> Page:
    return Replay([recorded("chat", VLLM), recorded("code", SGLANG)], load_config(CONFIG, {})).run()


def test_page_of_both_engines(page: Page, golden: Callable[[str, str], None]) -> None:
    golden("metrics.prom", page.render()[0].decode())


def test_page_of_both_engines_as_openmetrics(page: Page, golden: Callable[[str, str], None]) -> None:
    golden("metrics.openmetrics", page.render(OPENMETRICS)[0].decode())


def test_both_forms_say_the_same(page: Page) -> None:
    text = [s for family in text_string_to_metric_families(page.render()[0].decode()) for s in family.samples]
    other = [s for family in openmetrics_families(page.render(OPENMETRICS)[0].decode()) for s in family.samples]
    assert [(s.name, s.labels, s.value) for s in text] == [(s.name, s.labels, s.value) for s in other]


def test_no_series_stands_there_twice(page: Page) -> None:
    lines = [line.rpartition(" ")[0] for line in page.render()[0].decode().splitlines() if not line.startswith("#")]
    assert len(lines) == len(set(lines))


def test_promtool_finds_nothing(page: Page, promtool: str) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=page.render()[0], capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
