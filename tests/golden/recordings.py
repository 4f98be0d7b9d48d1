"""Captured pages of two real servers in their true order, as recordings for `Replay`.

The captures carry no time; their own counters tell it. The order is that in which no counter falls (not that of the files' names). SGLang's
seconds are those of its scheduler's loop (`scheduler_stage_seconds_total`, all stages, which add up to wall time); vLLM's are engine steps
times the mean gap between tokens while it worked, and a second or two where it did not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llm_exporter.recording import Moment, Recording
from llm_exporter.sources.engine import Fetched

ENGINES = Path(__file__).parents[1] / "fixtures" / "engines"

Pages = Sequence[tuple[int, Path]]  # (second, page)

VLLM: Pages = [
    (second, ENGINES / "vllm" / f"vllm-0.32.0-{name}.metrics.txt")
    for second, name in (
        (0, "01-before-any-request"),
        (2, "02-after-six-streams"),
        (3, "03-during-burst-00"),
        (4, "03-during-burst-01"),
        (5, "03-during-burst-02"),
        (6, "03-during-burst-03"),
        (7, "03-during-burst-04"),
        (8, "03-during-burst-05"),
        (9, "03-during-burst-06"),
        (20, "04-after-burst"),
        (22, "05-after-shared-prefix"),
        (25, "06-after-4-midstream-disconnects"),
        (31, "07-during-burst-after-10-disconnects-while-queued"),
    )
]
SGLANG: Pages = [
    (second, ENGINES / "sglang" / "0.5.23" / f"real_cpu_{name}.prom")
    for second, name in (
        (0, "1_idle_after_start"),
        (3, "3_steady_just_finished"),
        (8, "5_cache_heavy_just_finished"),
        (18, "8_overload_with_client_aborts"),
        (19, "9_overload_just_finished"),
        (20, "10_after_grammar"),
        (53, "11_idle_33s"),
        (65, "12_after_api_abort_and_errors"),
        (104, "2_steady_midload_a"),
        (108, "2_steady_midload_b"),
        (134, "4_cache_heavy_midload_a"),
        (138, "4_cache_heavy_midload_b"),
    )
]


def recorded(name: str, pages: Pages) -> Recording:
    """The pages as a recording of the target `name`."""
    moments = (Moment(float(second), Fetched(path.read_bytes(), "text/plain; version=0.0.4", 0.0)) for second, path in pages)
    return Recording(name, tuple(moments), (), ())
