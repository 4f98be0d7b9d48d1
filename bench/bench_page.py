"""`/metrics` with 1, 10 and 100 targets: CPU to render, to compress, and of a whole request. Run: python bench/bench_page.py.

Half of the targets are vLLM, half SGLang, each with captured pages of a server under load. "library" is prometheus_client's encoder on the
same families, measured in turn with ours, so that a busy machine slows both. Medians in milliseconds of CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from werkzeug.test import Client

from llm_exporter.config.model import Target
from llm_exporter.daemon.daemon import Daemon
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.expose.page import Page, compressed
from llm_exporter.expose.web import WebSettings, application
from llm_exporter.sources.engine import Fetched

ENGINES = Path(__file__).parents[1] / "tests" / "fixtures" / "engines"
PLAYED = (
    [f"vllm/vllm-0.32.0-03-during-burst-0{n}.metrics.txt" for n in (4, 5)],
    [f"sglang/0.5.23/real_cpu_retraction_2_load_{n}s.prom" for n in (8, 12)],
)


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """CPU of this thread for one call."""
    times = []
    for _ in range(repeats):
        began = time.thread_time()
        call()
        times.append(time.thread_time() - began)
    return statistics.median(times) * 1e3


def fill(page: Page, targets: int) -> None:
    """Two scrapes of each target, five seconds apart, as of now."""
    now = time.monotonic()
    for n in range(targets):
        pipeline = Pipeline(Target(name=f"target-{n:03d}", url=f"http://10.0.0.{n}:8000"), page, Timing(3600.0, 10.0), time.time)
        for second, name in enumerate(PLAYED[n % 2]):
            pipeline.take(Fetched((ENGINES / name).read_bytes(), "text/plain", 0.01), now - 5.0 + 5.0 * second)


def main() -> None:
    columns = ("targets", "kB", "gzip kB", "render", "library", "gzip", "request", "gzip request")
    print("".join(f"{column:>14}" for column in columns) + f"{'library ÷ render':>18}")
    for targets in (1, 10, 100):
        with TemporaryDirectory() as folder:
            daemon = Daemon(Path(folder) / "none.yml", {})
            fill(daemon.page, targets)
            registry = CollectorRegistry()
            registry.register(daemon.page)
            body = daemon.page.render()[0]
            browser = Client(application(daemon, WebSettings))
            repeats = 60 // targets + 9
            plain = milliseconds(lambda browser=browser: browser.get("/metrics"), repeats)
            packed = milliseconds(lambda browser=browser: browser.get("/metrics", headers={"Accept-Encoding": "gzip"}), repeats)
            render = milliseconds(daemon.page.render, repeats)
            library = milliseconds(lambda registry=registry: generate_latest(registry), 5)
            pack = milliseconds(lambda body=body: compressed(body), repeats)
            sizes = (f"{len(body) / 1e3:.0f}", f"{len(compressed(body)) / 1e3:.0f}")
            row = (str(targets), *sizes, *(f"{value:.2f}" for value in (render, library, pack, plain, packed)))
            print("".join(f"{cell:>14}" for cell in row) + f"{library / render:18.0f}")
            daemon.stop()


if __name__ == "__main__":
    main()
