"""Debian's Prometheus and Alertmanager with our rules and our configuration, and a web hook that takes what they send. Loopback only."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import requests
import yaml

from llm_exporter.generate.alertmanager import alertmanager_document

# Alertmanager's waits are made for people; the rules run SCALE times as fast, so it does as well.
_WAITS = ("group_wait", "group_interval", "repeat_interval")


def free_port() -> int:
    """A port that was free a moment ago: these programs cannot tell which one the kernel gave them."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def until(true: Any, seconds: float, *, what: str) -> None:
    """Waits for a condition; fails after `seconds`."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not true():
        assert time.monotonic() < end, f"{what} did not come true within {seconds} s"
        pause.wait(0.1)


class Notice(NamedTuple):
    """One alert in one notification: seconds since the play began, firing or resolved."""

    at: float
    receiver: str
    status: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def name(self) -> str:
        return self.labels["alertname"]


class Sink:
    """The web hook: every alert of every notification, in order of arrival."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.began = time.monotonic()
        sink = self

        class Hook(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                at = time.monotonic() - sink.began
                # /api/: vmalert, which wants somewhere to put alerts and recorded series; this takes them and forgets them
                payload = {"alerts": []} if self.path.startswith("/api/") else json.loads(body)
                for alert in payload["alerts"]:
                    sink.notices.append(Notice(at, payload["receiver"], alert["status"], alert["labels"], alert["annotations"]))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def of(self, target: str) -> list[Notice]:
        """What was told about one target."""
        return [notice for notice in self.notices if notice.labels.get("target") == target]


def alertmanager_config(hook: str, scale: float) -> str:
    """Our configuration with its waits divided by `scale` and its web hooks at `hook`; all else as it is committed."""
    document = alertmanager_document()
    for route in (document["route"], *document["route"]["routes"]):
        for wait in _WAITS:
            if wait in route:
                route[wait] = f"{max(100, round(1000 * _seconds(route[wait]) / scale))}ms"
    for receiver in document["receivers"]:
        for web_hook in receiver.get("webhook_configs", ()):
            web_hook["url"] = f"{hook}/{receiver['name']}"
    return yaml.safe_dump(document, sort_keys=False)


def _seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]]


PROMETHEUS = """
global: {{scrape_interval: {interval}ms, scrape_timeout: {interval}ms, evaluation_interval: {interval}ms}}
rule_files: [{rules}/*.yml]
alerting:
  alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]
scrape_configs:
  - {{job_name: llm-exporter, static_configs: [{{targets: ["127.0.0.1:{exporter}"]}}]}}
"""


class Prometheus:
    """What a running Prometheus knows."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, query: str, at: float | None = None) -> list[dict[str, Any]]:
        """Result of an instant query; an error of Prometheus is one of the test."""
        answer = requests.post(f"{self.url}/api/v1/query", data={"query": query, **({} if at is None else {"time": at})}, timeout=20).json()
        assert answer["status"] == "success", f"{query}: {answer.get('error')}"
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        groups = requests.get(f"{self.url}/api/v1/rules", timeout=20).json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@contextmanager
def running(command: list[str], log: Path, ready: str, seconds: float = 60) -> Iterator[subprocess.Popen[bytes]]:
    """A program from its being ready to its end."""
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:

            def is_ready() -> bool:
                assert process.poll() is None, log.read_text()[-3000:]
                with suppress(requests.RequestException):
                    return requests.get(ready, timeout=5).status_code == 200
                return False

            until(is_ready, seconds, what=f"{command[0]} ready")
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def alertmanager(program: str, folder: Path, hook: str, scale: float) -> Iterator[int]:
    """Alertmanager with our configuration; its port."""
    port = free_port()
    config = folder / "alertmanager.yml"
    config.write_text(alertmanager_config(hook, scale))
    command = [
        program,
        f"--config.file={config}",
        f"--storage.path={folder / 'alertmanager-data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(command, folder / "alertmanager.log", f"http://127.0.0.1:{port}/-/ready"):
        yield port


@contextmanager
def prometheus(program: str, folder: Path, rules: Path, *, exporter: int, alertmanager: int, interval_ms: int) -> Iterator[Prometheus]:
    """Prometheus with the rules of a folder."""
    port = free_port()
    config = folder / "prometheus.yml"
    config.write_text(PROMETHEUS.format(interval=interval_ms, rules=rules, alertmanager=alertmanager, exporter=exporter))
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'prometheus-data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--rules.alert.resend-delay=3s",
    ]
    with running(command, folder / "prometheus.log", f"http://127.0.0.1:{port}/-/ready"):
        yield Prometheus(f"http://127.0.0.1:{port}")


@contextmanager
def vmalert(program: str, folder: Path, rules: Path, source: str, taken: str) -> Iterator[str]:
    """VictoriaMetrics' vmalert on the same rules, asking the same Prometheus; its URL. What it says is taken at `taken`."""
    port = free_port()
    command = [
        program,
        *(f"-rule={path}" for path in sorted(rules.glob("*.yml"))),
        f"-datasource.url={source}",
        f"-notifier.url={taken}",
        f"-remoteWrite.url={taken}/api",
        f"-httpListenAddr=127.0.0.1:{port}",
    ]
    with running(command, folder / "vmalert.log", f"http://127.0.0.1:{port}/health"):
        yield f"http://127.0.0.1:{port}"
