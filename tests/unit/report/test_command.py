"""The command `report`: usage, exit codes, credentials, webhook."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llm_exporter.cli.report import _connection, command
from llm_exporter.config.load import load_config
from llm_exporter.errors import FetchError, LlmExporterError, SourceError, UsageError
from llm_exporter.report.webhook import post_summary

CONFIG = """
targets: [{name: a, url: "http://127.0.0.1:1", gpu_count: 4, gpu_cost_per_hour: 2}]
report:
  timezone: Europe/Berlin
  prometheus:
    url: http://prometheus.example:9090/prom
    matchers: 'cluster="a"'
    authorization: {credentials_file: token}
    headers: {X-Scope-OrgID: team}
"""


@contextmanager
def receiver(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    seen: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/s3cret", seen
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def fails(*arguments: str) -> LlmExporterError:
    outcome = CliRunner().invoke(command, list(arguments))
    assert isinstance(outcome.exception, LlmExporterError), outcome.output
    return outcome.exception


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give --prometheus.url"),
        (["--prometheus.url", "prometheus:9090"], "give http:// or https://"),
        (["--prometheus.url", "http://127.0.0.1:9", "--range", "soon"], "--range 'soon'"),
        (["--prometheus.url", "http://127.0.0.1:9", "--range", "0s"], "is empty"),
        (["--prometheus.url", "http://127.0.0.1:9", "--range", "1m"], "shorter than the step"),
        (["--prometheus.url", "http://127.0.0.1:9", "--end", "yesterday"], "is no time"),
        (["--prometheus.url", "http://127.0.0.1:9", "--end", "2026-11-23T08:00:00"], "no time zone"),
        (["--prometheus.url", "http://127.0.0.1:9", "--end", "2199-01-01T00:00:00Z"], "in the future"),
        (["--prometheus.url", "http://127.0.0.1:9", "--start", "2026-11-23T08:00:00Z", "--end", "2026-11-22T08:00:00Z"], "is empty"),
        (["--prometheus.url", "http://127.0.0.1:9", "--timezone", "Berlin"], "is no time zone"),
    ],
)
def test_wrong_usage_is_told_with_its_remedy(arguments: list[str], words: str) -> None:
    error = fails(*arguments)
    assert isinstance(error, UsageError)
    assert words in str(error)


def test_a_server_that_is_down_is_a_failure_with_a_hint(tmp_path: Path) -> None:
    with receiver() as (url, _):
        pass
    error = fails("--prometheus.url", url.removesuffix("/s3cret"), "--out", str(tmp_path / "out"), "--quiet")
    assert isinstance(error, SourceError)
    assert "is Prometheus running there" in str(error)


def test_the_configured_credentials_go_to_the_configured_address_only(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "c.yaml").write_text(CONFIG)
    config = load_config(tmp_path / "c.yaml", {})
    own = _connection(None, config)
    assert own.url == "http://prometheus.example:9090/prom"
    assert own.headers == {"X-Scope-OrgID": "team", "Authorization": "Bearer s3cret"}
    assert own.matchers == 'cluster="a"'
    other = _connection("http://other.example:9090", config)
    assert other.headers == {}
    assert other.matchers == 'cluster="a"'


def test_a_configuration_without_a_server_says_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("targets: []\n")
    assert "report.prometheus.url" in str(fails("--config.file", str(tmp_path / "c.yaml")))


def test_the_webhook_gets_text_and_window() -> None:
    with receiver() as (url, seen):
        post_summary(url, "x" * 9000, {"start": "a"})
    assert seen[0]["window"] == {"start": "a"}
    assert len(seen[0]["text"]) <= 3500
    assert seen[0]["text"].endswith("…")


def test_a_webhook_that_refuses_is_told_without_its_address() -> None:
    with receiver(403) as (url, _), pytest.raises(FetchError) as refused:
        post_summary(url, "x", {})
    with pytest.raises(FetchError) as down:
        post_summary(url, "x", {})
    with pytest.raises(FetchError) as wrong:
        post_summary("s3cret", "x", {})
    assert refused.value.reason == "http_403"
    for caught in (refused, down, wrong):
        assert "s3cret" not in str(caught.value) + caught.value.hint
