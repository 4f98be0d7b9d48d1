"""`llm-exporter demo`: everything on simulated engines, with a page to look at. Needs no GPU, no network and no Prometheus."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import click

from llm_exporter.daemon.demonstration import Demonstration
from llm_exporter.daemon.logs import set_up
from llm_exporter.daemon.server import HttpServer
from llm_exporter.demo.scenarios import SCENARIOS
from llm_exporter.expose.web import application


@click.command("demo", help="Show everything on a simulated vLLM and a simulated SGLang server with GPUs; needs no GPU.")
@click.option("--web.listen-address", "address", default="127.0.0.1:9880", show_default=True, help="Address to listen on.")
@click.option(
    "--scenario", "name", default="tour", show_default=True, type=click.Choice(list(SCENARIOS)), help="What happens to the servers."
)
@click.option("--duration", type=click.FloatRange(min=0.1), help="End after so many seconds; without it, on Ctrl-C.")
@click.option("--log.level", "level", default="error", show_default=True, type=click.Choice(["debug", "info", "warn", "error"]))
def command(address: str, name: str, duration: float | None, level: str) -> None:
    """Runs until a signal or the duration ends it."""
    set_up(level, "logfmt")
    scenario = SCENARIOS[name]
    demonstration = Demonstration([scenario])
    server = HttpServer(application(demonstration.daemon, demonstration.daemon.web_settings), address, threads=16)
    ended = threading.Event()

    def on_end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, on_end)
    signal.signal(signal.SIGINT, on_end)
    demonstration.start()
    try:
        server.start()
        shown = address if not address.startswith(":") else f"127.0.0.1{address}"
        host, _, port = shown.rpartition(":")
        click.echo(f"llm-exporter demo: scenario {scenario.name}: {scenario.summary}")
        click.echo(f"\n  Open  http://{host}:{server.port if port == '0' else port}/\n")
        for target, engine in demonstration.servers.items():
            click.echo(f"  {target}: simulated server at {engine.url}/metrics")
        click.echo("\n  What to look at:")
        for line in scenario.look_at:
            click.echo(f"  - {line}")
        click.echo("\n  The engines, GPUs and host are simulated (docs/simulation.md); the exporter is the real one. Ctrl-C ends.")
        ended.wait(duration)
        server.stop()
    finally:
        demonstration.stop()
