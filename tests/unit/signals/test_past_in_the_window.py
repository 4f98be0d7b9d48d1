"""What lies in the window but is over: a hang that ended, a GPU that idled while its server loaded. Neither is a slow host."""

from __future__ import annotations

import pytest

from llm_exporter.daemon.hardware_view import hardware_view
from llm_exporter.hardware import GpuReading, GpuTick, SourceState
from llm_exporter.signals.bottleneck import judge
from llm_exporter.signals.evidence import Evidence
from llm_exporter.state.hardware import HardwareState
from llm_exporter.state.store import EngineStore
from readings_made import of, scalar

UP = {"nvml": SourceState(True), "gpm": SourceState(True)}
RUNNING, TOKENS = scalar("requests_running"), scalar("generation_tokens")


def store_of(*scrapes: tuple[float, float, float]) -> EngineStore:
    """(second, running requests, generated tokens) of each scrape."""
    store = EngineStore()
    for at, running, tokens in scrapes:
        store.add(of({RUNNING: running, TOKENS: tokens}), at)
    return store


def test_the_longest_hang_that_is_over_is_remembered_for_the_window() -> None:
    store = store_of((0, 4, 10), (2, 4, 20), (4, 4, 20), (20, 4, 20), (22, 4, 40), (24, 4, 40), (26, 4, 60))
    assert store.progress.still_seconds(26) == 0
    assert store.progress.stood_seconds(0) == 18
    assert store.progress.stood_seconds(20) == 18, "a hang that ends with the window still counts"
    assert store.progress.stood_seconds(21) == 0, "the short pause after it lost nothing: the page took two scrapes to show 20 tokens"
    assert store.progress.beat_seconds(21) == 4
    assert store.progress.stood_seconds(25) == 0


def test_a_page_that_is_renewed_more_seldom_than_it_is_scraped_is_no_hang() -> None:
    store = store_of(*((at, 4, 100 * (at // 15)) for at in range(0, 61, 5)))
    assert store.progress.stood_seconds(30) == 0
    assert store.progress.beat_seconds(30) == 15
    assert store.progress.still_seconds(60) == 0


def test_the_first_movement_may_have_been_long_in_the_making() -> None:
    """The exporter starts a second before the page is renewed."""
    store = store_of(*((at, 4, 100 * ((at + 14) // 15)) for at in range(50)))
    assert store.progress.stood_seconds(20) == 0
    assert store.progress.beat_seconds(20) == 15


def test_the_first_stand_has_nothing_to_be_compared_with_and_counts() -> None:
    store = store_of(*((at, 4, 100 * (at // 15)) for at in range(0, 16, 5)))
    assert store.progress.stood_seconds(0) == 10
    assert store.progress.beat_seconds(0) == 0


def test_an_idle_time_is_no_hang() -> None:
    store = store_of((0, 1, 10), (2, 0, 20), (4, 0, 20), (20, 0, 20), (22, 1, 40))
    assert store.progress.stood_seconds(0) == 0


@pytest.mark.parametrize(("stood", "cause"), [(0.0, "host_starved"), (2.0, "host_starved"), (60.0, "none")])
def test_the_gap_of_a_hang_that_is_over_is_not_the_hosts(stood: float, cause: str) -> None:
    after = Evidence(
        seconds=30.0,
        work=1.0,
        busy=0.4,
        busy_from="gpm",
        sm=0.3,
        tensor=0.1,
        dram=0.2,
        power=0.3,
        hot=1.0,
        gpus=1,
        gpu_works=True,
        stood_seconds=stood,
    )
    assert judge(after).cause == cause


def test_the_gpu_is_asked_no_further_back_than_the_engine() -> None:
    """Twenty seconds of loading with an idle GPU, then ten seconds of full work."""
    state = HardwareState()
    state.configure({"chat": (0,)})
    for second in range(31):
        reading = GpuReading(at=float(second), gpu="0", uuid="GPU-0", graphics_active_ratio=0.0 if second <= 20 else 0.95)
        state.add_gpus(GpuTick(float(second), (reading,), UP))
    whole, part = (hardware_view(state, "chat", 30.0, seconds).gpu for seconds in (30.0, 10.0))
    assert whole is not None
    assert part is not None
    assert part.graphics == pytest.approx(0.95)
    assert whole.graphics == pytest.approx(0.95 / 3)


def test_the_span_of_the_frames_is_what_the_evidence_rests_on() -> None:
    assert EngineStore().span_seconds(30.0) == 0
    assert store_of((100, 1, 0)).span_seconds(30.0) == 0
    assert store_of((100, 1, 0), (110, 1, 5)).span_seconds(30.0) == 10
    assert store_of((60, 1, 0), (100, 1, 0), (110, 1, 5)).span_seconds(30.0) == 10
