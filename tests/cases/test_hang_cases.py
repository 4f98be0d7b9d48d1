"""Field cases HANG-*: pages and NVML together, through the GPU reader and the pipeline, on a clock of the test's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fakes.nvml import FakeNvml
from llm_exporter.config.model import Target
from llm_exporter.daemon.hardware_view import hardware_view
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared, label_names
from llm_exporter.expose import hardware
from llm_exporter.expose.page import Page
from llm_exporter.metrics import Sample
from llm_exporter.recording import read_recording
from llm_exporter.sources.nvml import NvmlReader
from llm_exporter.state.hardware import HardwareState

CASES = Path(__file__).parents[1] / "fixtures" / "cases"
SECONDS = 90
# the scrape interval is the user's, the page's own step is 15 s
INTERVALS = (1, 2, 4, 5, 10, 15)


class Tick(NamedTuple):
    at: int
    values: dict[tuple[str, ...], float]  # (metric, values of its labels) → value

    def one(self, metric: str) -> float | None:
        found = [value for key, value in self.values.items() if key[0] == metric]
        assert len(found) <= 1
        return found[0] if found else None

    @property
    def cause(self) -> str:
        return next(key[-1] for key, value in self.values.items() if key[0] == "llm_bottleneck_verdict" and value == 1)


def play(case: str, interval: int) -> Iterator[Tick]:
    """What stands on the exporter's page after each scrape; NVML is read once a second."""
    now = 0.0
    nvml = FakeNvml(CASES / case / "nvml.json", lambda: now)
    reader, state = NvmlReader(load=lambda: nvml, proc=Path("/nowhere")), HardwareState()
    target = Target(name="chat", url="http://engine.invalid", gpus=(0,))
    state.configure({target.name: target.gpus})
    page = Page(declared(), lambda: now)
    pipeline = Pipeline(
        target,
        page,
        Timing(float(interval), 10.0, 30.0),
        lambda: now,
        label_names([target]),
        hardware=lambda at, seconds: hardware_view(state, target.name, at, seconds),
    )
    moments = read_recording(CASES / case).moments
    for second in range(SECONDS + 1):
        now = float(second)
        state.add_gpus(reader.tick(now))
        if second % interval:
            continue
        pipeline.take([moment.scraped for moment in moments if moment.second <= now][-1], now)
        page.put("machine", hardware.families(state, now))
        values = {
            (metric.name, *sample.labels): sample.value
            for metric, samples in page.families()
            for sample in samples
            if isinstance(sample, Sample)
        }
        yield Tick(second, values)


def checks(case: str) -> dict[str, dict[str, object]]:
    return {check["signal"]: check for check in json.loads((CASES / case / "expect.json").read_text())["checks"]}


def second(by: object) -> int:
    return int(str(by).removeprefix("t"))


@pytest.mark.parametrize("interval", INTERVALS)
def test_hang_01_a_spinning_kernel_is_a_stall_whatever_utilisation_says(interval: int) -> None:
    ticks = list(play("HANG-01", interval))
    assert ticks[0].values["llm_signal_status", "chat", "gpu_starved", "", "one_scrape"] == 1, (
        "the GPU is there: it is the second page that lacks"
    )
    by = second(checks("HANG-01")["engine_stalled"]["by"])
    assert all(tick.one("llm_engine_stalled") == 1 for tick in ticks if tick.at >= by)
    assert ticks[0].one("llm_engine_stalled") == 0
    assert ticks[-1].cause == "stalled"
    assert ticks[-1].one("llm_gpu_utilization_ratio") == 1, "shown as it is read, though no proof of work"


@pytest.mark.parametrize("interval", INTERVALS)
def test_hang_04_idle_is_neither_a_stall_nor_starvation(interval: int) -> None:
    for tick in play("HANG-04", interval):
        assert tick.one("llm_engine_stalled") == 0
        assert tick.one("llm_gpu_starved") in (0, None)
    assert tick.one("llm_gpu_starved") == 0
    assert tick.cause == "idle"


@pytest.mark.parametrize("interval", INTERVALS)
def test_hang_05_a_python_process_that_feeds_the_gpu_too_slowly(interval: int) -> None:
    ticks = list(play("HANG-05", interval))
    by = second(checks("HANG-05")["gpu_starved"]["by"])
    assert all(tick.one("llm_gpu_starved") == 1 for tick in ticks if tick.at >= by)
    assert ticks[-1].cause == "host_starved"


@pytest.mark.parametrize("interval", INTERVALS)
def test_hang_07_little_traffic_is_no_starvation(interval: int) -> None:
    for tick in play("HANG-07", interval):
        assert tick.one("llm_gpu_starved") in (0, None)
        assert tick.at <= 36 or tick.cause == "none", "a page that is renewed every 15 s is no stall either, once its beat is known"
    assert tick.one("llm_gpu_starved") == 0
