"""Simulated servers, the real exporter on real HTTP, Prometheus with our rules, Alertmanager with our configuration, and a web hook.

All scenarios are played at once, each server a target of its own. The models and the exporter run in real time, since the exporter's own
windows are made for it; the rules run SCALE times as fast, by `generate alerts --time-scale`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from e2e.alerts import programs
from e2e.alerts.plays import GONE
from e2e.alerts.programs import Prometheus, Sink
from e2e.alerts.relay import Relay
from llm_exporter.daemon.demonstration import ENGINES, Demonstration
from llm_exporter.daemon.server import HttpServer
from llm_exporter.demo.scenarios import Scenario
from llm_exporter.expose.web import application

SCALE = 20
# Prometheus' usual 15 s, so that R (four scrapes, one minute) holds four scrapes on the fast clock too.
SCRAPE_MS = 15_000 // SCALE

HEAD = """\
global: {{scrape_interval: 1s, scrape_timeout: 20s}}
stall: {{after: {stall_after}s}}
probe_modules:
  short: {{interval: 10s, timeout: 8s, prompt_tokens: 64, max_tokens: 8, cache: cold}}
  ladder: {{interval: 60s, timeout: 20s, prompt_tokens: [256, 1024], max_tokens: 8, cache: [cold, warm]}}
targets:
"""
TARGET = """\
  - name: {name}
    url: {url}
    service: {service}
    labels: {{team: search}}
    probes: {probes}
    gpus: [{gpu}]
    gpu_cost_per_hour: 2.5
"""
SLO = "    slos: [{name: ttft, metric: time_to_first_token, threshold: 1s, objective: 0.99}]\n"
TAIL = """\
gpu: {{expected_count: {gpus}}}
generate:
  alert_labels: [team]
  runbook_base_url: https://runbooks.example.com
  grafana_url: https://grafana.example.com
"""


class Cast(Demonstration):
    """The servers of a play.

    Args:
        scenarios: played on both engines.
        alone: scenarios that are played on the simulated vLLM only.
        promised: names of the targets that have an SLO. A page for a burnt budget mutes the tickets of the same target, so both ways are
            seen only if some targets promise nothing.
    """

    def __init__(
        self, scenarios: Sequence[Scenario], alone: Sequence[Scenario] = (), promised: Sequence[str] = (), stall_after: int = 15
    ) -> None:
        self._alone = tuple(alone)
        self._promised = frozenset(promised)
        self._stall_after = stall_after
        self.relays: dict[str, Relay] = {}
        super().__init__(scenarios, ENGINES)

    def pairs(self, scenarios: Sequence[Scenario], engines: Sequence[str]) -> list[tuple[Scenario, str]]:
        return [*super().pairs(scenarios, engines), *((scenario, "vllm") for scenario in self._alone)]

    def config_text(self) -> str:
        self.relays = {name: Relay(server.url) for name, server in self.servers.items() if self.simulations[name].scenario is GONE}
        targets = [
            TARGET.format(
                name=name,
                url=self.relays[name].url if name in self.relays else server.url,
                service=self.simulations[name].scenario.name,
                gpu=number,
                probes="[short, ladder]" if name == "vllm-healthy" else "[short]",
            )
            + (SLO if name in self._promised else "")
            for number, (name, server) in enumerate(self.servers.items())
        ]
        return HEAD.format(stall_after=self._stall_after) + "".join(targets) + TAIL.format(gpus=len(targets))


@dataclass
class Stage:
    """A play under way: `began` is unix time of the models' second 0."""

    cast: Cast
    sink: Sink
    prometheus: Prometheus
    rules: Path
    began: float

    @property
    def second(self) -> float:
        """Seconds since the models began."""
        return time.time() - self.began

    def wait(self, second: float) -> None:
        """Until that second of the play."""
        while (left := second - self.second) > 0:
            time.sleep(min(left, 0.5))


def generated_rules(config: Path, folder: Path) -> Path:
    """What `llm-exporter generate alerts --time-scale` writes for this configuration."""
    command = [sys.executable, "-m", "llm_exporter", "generate", "alerts", "--config.file", str(config)]
    done = subprocess.run(
        [*command, "--time-scale", str(SCALE), "--out", str(folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    rules = folder / "rules"
    rules.mkdir()
    for name in ("recording.yml", "alerts.yml"):
        shutil.copy(folder / "alerts" / name, rules / name)
    return rules


@contextmanager
def play(cast: Cast, folder: Path, *, prometheus: str, alertmanager: str) -> Iterator[Stage]:
    """Everything, from start to end."""
    with ExitStack() as running:
        server = HttpServer(application(cast.daemon, cast.daemon.web_settings), "127.0.0.1:0", threads=16)
        server.start()
        running.callback(server.stop)
        sink = Sink()
        running.callback(sink.close)
        rules = generated_rules(cast.config_file, folder)
        manager = running.enter_context(programs.alertmanager(alertmanager, folder, sink.url, SCALE))
        database = running.enter_context(
            programs.prometheus(prometheus, folder, rules, exporter=server.port, alertmanager=manager, interval_ms=SCRAPE_MS)
        )
        running.callback(cast.stop)
        cast.start()
        began = time.time() - cast.pacer.now()
        sink.began = time.monotonic() - cast.pacer.now()
        yield Stage(cast, sink, database, rules, began)
