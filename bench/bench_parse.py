"""Cost of a page: bytes → Page, against prometheus_client's parser, and Page → EngineReading. Run: python bench/bench_parse.py.

Pages are captured ones from tests/fixtures. "repeat" is the daemon's case, the next page of the same server; "moved" alternates pages
with other series; "first" is a parser that has seen nothing. Medians of CPU time in milliseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from llm_exporter.engines.normalise import Normaliser
from llm_exporter.sources.exposition import PageParser

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "engines"
PAIRS = {
    "vLLM on an H200, loaded": ("vllm/h200-mid-decode_heavy/t004.prom", "vllm/h200-mid-decode_heavy/t006.prom"),
    "vLLM 0.32 burst": ("vllm/vllm-0.32.0-03-during-burst-04.metrics.txt", "vllm/vllm-0.32.0-03-during-burst-05.metrics.txt"),
    "vLLM 0.32, two API servers": (
        "vllm/vllm-0.32.0-apiservers2-02-during-03.metrics.txt",
        "vllm/vllm-0.32.0-apiservers2-02-during-04.metrics.txt",
    ),
    "SGLang 0.5.23, loaded": ("sglang/0.5.23/real_cpu_retraction_2_load_8s.prom", "sglang/0.5.23/real_cpu_retraction_2_load_12s.prom"),
    "SGLang, new series each time": (
        "sglang/0.5.23/real_cpu_dp2_allsched_2_load_a.prom",
        "sglang/0.5.23/real_cpu_dp2_allsched_5_idle_33s.prom",
    ),
}


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of one call."""
    times = []
    for _ in range(repeats):
        began = time.process_time()
        call()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def measure(first: bytes, second: bytes, other: bytes) -> dict[str, float]:
    parser, normaliser = PageParser(), Normaliser()
    pages = [parser.parse(first), parser.parse(second)]
    moving = PageParser()
    turns = iter(range(10**9))

    def repeat() -> None:
        parser.parse(second if next(turns) % 2 else first)

    def moved() -> None:
        moving.parse(other if next(turns) % 2 else first)

    return {
        "library": milliseconds(lambda: list(text_string_to_metric_families(first.decode())), 15),
        "first": milliseconds(lambda: PageParser().parse(first), 15),
        "moved": milliseconds(moved, 100),
        "repeat": milliseconds(repeat, 400),
        "compile": milliseconds(lambda: Normaliser().read(pages[0]), 15),
        "read": milliseconds(lambda: normaliser.read(pages[next(turns) % 2]), 400),
    }


def main() -> None:
    columns = ("library", "first", "moved", "repeat", "compile", "read")
    print(f"{'page':30}{'kB':>6}" + "".join(f"{name:>9}" for name in columns) + f"{'library ÷ repeat':>18}")
    for name, (first, second) in PAIRS.items():
        one, two = (FIXTURES / first).read_bytes(), (FIXTURES / second).read_bytes()
        cut = one[: one.rindex(b"\n# HELP") + 1]  # one family less
        times = measure(one, two, cut)
        row = "".join(f"{times[column]:9.3f}" for column in columns)
        print(f"{name:30}{len(one) / 1000:6.0f}{row}{times['library'] / times['repeat']:18.0f}")


if __name__ == "__main__":
    main()
