"""Debian's Prometheus on generated history: blocks by promtool, a port from the kernel, everything gone afterwards.

In: OpenMetrics text. Out: the base URL of a running server. Used by the end-to-end tests and by bench/bench_report.py.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import requests

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")


def create_blocks(text: Path, data: Path) -> None:
    """Turn OpenMetrics text into blocks of up to 32 days; without that flag promtool makes one block for every two hours."""
    assert PROMTOOL is not None
    subprocess.run(
        [PROMTOOL, "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=768h", "--quiet", str(text), str(data)],
        check=True,
        capture_output=True,
        timeout=600,
    )


@contextlib.contextmanager
def prometheus(data: Path) -> Iterator[str]:
    """A server on these blocks, which scrapes nothing."""
    assert PROMETHEUS is not None
    config = data.parent / "prometheus.yml"
    config.write_text("global: {scrape_interval: 1h}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (data.parent / "prometheus.log").open("w")
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            "--storage.tsdb.retention.time=10y",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_ready(url, process)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=30)
        log.close()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + 60
    while time.monotonic() < give_up_at:
        assert process.poll() is None, "prometheus ended at once"
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{url}/-/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    raise TimeoutError("prometheus did not become ready")
