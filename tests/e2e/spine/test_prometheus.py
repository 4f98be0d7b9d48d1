"""Debian's Prometheus scrapes a running exporter that watches both engines: every line is taken, and nothing is complained about."""

from __future__ import annotations

import json
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from e2e.spine.running import Exporter, player, until
from fakes.servers import FakeServer
from golden.recordings import SGLANG, VLLM

# Words of Prometheus' log that mean it dropped samples of ours.
COMPLAINTS = ("out of order", "out-of-order", "duplicate", "append failed", "Append failed", "different value", "too old")
CONFIG = """
global: {{scrape_interval: 200ms, scrape_timeout: 2s}}
targets:
  - {{name: chat, url: "{vllm}", slos: [{{name: ttft, metric: time_to_first_token, threshold: 1s, objective: 0.99}}]}}
  - {{name: code, url: "{sglang}"}}
gpu: {{enabled: false}}
host: {{enabled: false}}
"""
# Prometheus asks for OpenMetrics. The text format goes through a server in between, since Debian's release cannot be told to ask for it.
SCRAPES = """
global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}
scrape_configs:
  - {{job_name: openmetrics, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}
  - {{job_name: text, static_configs: [{{targets: ["127.0.0.1:{text_port}"]}}]}}
"""
TEXT = "text/plain; version=0.0.4"


def ask(port: int, query: str) -> dict[str, float]:
    """job → value of an instant query; empty while Prometheus is starting."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(query)}", timeout=5) as answer:
            result = json.loads(answer.read())["data"]["result"]
    except (URLError, ConnectionError, TimeoutError):
        return {}
    return {row["metric"].get("job", ""): float(row["value"][1]) for row in result}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@pytest.mark.slow
def test_debians_prometheus_takes_every_line(tmp_path: Path, prometheus: str) -> None:
    config, scrapes, log = tmp_path / "llm-exporter.yml", tmp_path / "prometheus.yml", tmp_path / "prometheus.log"
    port = free_port()
    with ExitStack() as running:
        vllm, sglang = (running.enter_context(player(path for _, path in pages)) for pages in (VLLM, SGLANG))
        config.write_text(CONFIG.format(vllm=vllm.url, sglang=sglang.url))
        with Exporter(config) as exporter:
            until(lambda: len(vllm.requests) > len(VLLM) and len(sglang.requests) > len(SGLANG), 20, what="all pages played")
            in_between = running.enter_context(
                FakeServer(lambda talk, _: talk.answer(exporter.get(Accept=TEXT).encode(), content_type=TEXT))
            )
            scrapes.write_text(SCRAPES.format(port=exporter.port, text_port=in_between.port))
            command = [
                prometheus,
                f"--config.file={scrapes}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as server:
                try:
                    both = {"openmetrics": 1.0, "text": 1.0}
                    until(lambda: ask(port, "up") == both, 20, what="up == 1")
                    until(lambda: min(ask(port, "count_over_time(up[1m])").values(), default=0) >= 3, 20, what="three scrapes")
                    lines = sum(not line.startswith("#") for line in exporter.get().splitlines())
                    until(lambda: ask(port, "scrape_samples_scraped") == dict.fromkeys(both, lines), 10, what=f"{lines} samples scraped")
                    assert ask(port, "min_over_time(up[1m])") == both
                    assert exporter.get(Accept=in_between.requests[0].headers["accept"]).endswith("\n# EOF\n"), "it asks for OpenMetrics"
                    # what it stored is what the page says, under the page's names
                    stored = ask(port, 'sum by (job) (llm_generation_tokens_total{engine="vllm"})')
                    assert stored == dict.fromkeys(both, 25867.0)
                    assert ask(port, 'count by (job) (llm_time_to_first_token_seconds_bucket{le="+Inf"})') == dict.fromkeys(both, 2.0)
                finally:
                    server.terminate()
                    server.wait(20)
    said = log.read_text()
    assert not [line for line in said.splitlines() if any(word in line for word in COMPLAINTS)]
