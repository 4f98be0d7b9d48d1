"""`llm-exporter serve`: the daemon."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

import click

from llm_exporter import __version__
from llm_exporter.daemon.daemon import Daemon
from llm_exporter.daemon.ending import Signals
from llm_exporter.daemon.logs import set_up
from llm_exporter.daemon.server import HttpServer
from llm_exporter.errors import ConfigError
from llm_exporter.expose.web import application

log = logging.getLogger("llm_exporter.serve")


@click.command("serve", help="Run the exporter. SIGHUP reloads the configuration, SIGTERM ends.")
@click.option("--config.file", "config_file", required=True, type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--web.listen-address", "address", default=":9880", show_default=True, help="Address to listen on.")
@click.option("--web.config.file", "web_config", type=click.Path(path_type=Path), help="TLS and users, exporter-toolkit format.")
@click.option("--log.level", "level", default="info", show_default=True, type=click.Choice(["debug", "info", "warn", "error"]))
@click.option("--log.format", "form", default="logfmt", show_default=True, type=click.Choice(["logfmt", "json"]))
def command(config_file: Path, address: str, web_config: Path | None, level: str, form: str) -> None:
    """Runs until a signal ends it."""
    set_up(level, form)
    signals = Signals()
    signals.watch()
    daemon = Daemon(config_file)
    daemon.start()
    app = application(daemon, daemon.web_settings)
    server = HttpServer(app, address, threads=daemon.web_settings().max_requests, web_config=web_config)
    server.start()
    log.info("llm-exporter %s listens on port %d", __version__, server.port)
    while signals.reload_or_end():
        with suppress(ConfigError):  # logged where it failed
            daemon.reload()
    log.info("ending")
    server.stop()
    daemon.stop()
    signals.stopped()
