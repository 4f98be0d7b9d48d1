"""Every panel's query against Debian's Prometheus that scrapes a recorded page of both engines through two exporters.

Two exporters with the same targets, one with a label of its own, are how a high-availability pair looks: no join may become many-to-many.
What the demo fills is the end-to-end test's affair.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from llm_exporter.generate.artefacts import alert_artefacts, write
from llm_exporter.generate.dashboards import PanelQuery, queries, rendered
from llm_exporter.generate.dashboards_model import Needs
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.signals.review_records import RECORDS

PAGE = (Path(__file__).parents[2] / "golden" / "metrics.prom").read_bytes()
RECORDED = "target_model:llm_generation_tokens:rate5m"
SECONDS = 40


class Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture(scope="module")
def exporter() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.fixture(scope="module")
def address(prometheus: str, exporter: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus that has scraped and evaluated for some seconds."""
    folder = tmp_path_factory.mktemp("prometheus")
    write(alert_artefacts(RuleSettings(scale=Decimal(20)), RECORDS), folder)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "alerts" / "recording.yml"), str(folder / "alerts" / "alerts.yml")],
        "scrape_configs": [
            {"job_name": "llm-exporter", "static_configs": [{"targets": [exporter]}]},
            {"job_name": "second", "static_configs": [{"targets": [exporter], "labels": {"cluster": "b"}}]},
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{listener.getsockname()[1]}"
    words = [prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address={listen}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SECONDS
        while len(ask(listen, RECORDED)) < 4:  # two targets through two exporters, scraped twice and evaluated
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
            time.sleep(0.3)
        yield listen
    finally:
        process.terminate()
        process.wait(15)


def ask(listen: str, query: str) -> list[Any]:
    """The answer; [] while Prometheus is not there. Raises AssertionError for a query that cannot be evaluated."""
    url = f"http://{listen}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 503:  # still starting
                return []
            raise AssertionError(f"{query}\n{error.read().decode()}") from None
    except (urllib.error.URLError, ConnectionError):
        return []


def results(listen: str, query: PanelQuery) -> int:
    texts = {rendered(query.query, target=target, rate_interval="5s", time_range="30s") for target in ("chat", "code")}
    return sum(len(ask(listen, text)) for text in texts)


@pytest.mark.slow
def test_every_query_can_be_evaluated_with_two_exporters(address: str) -> None:
    found = {query: results(address, query) for query in queries()}
    # what the page holds as it stands: targets and exporter; rates of a page that stands still are 0 or absent
    filled = {(query.board, query.panel) for query, number in found.items() if number}
    wanted = {(query.board, query.panel) for query in queries() if query.needs is Needs.TARGET}
    assert wanted - filled <= {("llm-target", "Evidence"), ("llm-target", "Confidence")}, "nothing speaks for a cause on a still page"
