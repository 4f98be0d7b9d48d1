"""The exporter as a whole: configuration, targets, hardware, schedules, and what the HTTP routes ask of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from llm_exporter.config.load import load_config
from llm_exporter.config.model import Config
from llm_exporter.config.render import render_config
from llm_exporter.daemon import documents
from llm_exporter.daemon.fleet import Fleet
from llm_exporter.daemon.pipeline import Timing
from llm_exporter.daemon.published import declared
from llm_exporter.daemon.trace import trace
from llm_exporter.errors import ConfigError
from llm_exporter.expose.page import Page
from llm_exporter.expose.web import WebSettings
from llm_exporter.telemetry import Telemetry

log = logging.getLogger("llm_exporter.daemon")


class Daemon:
    """Runs until stopped. `reload` may be called from any thread.

    Args:
        path: configuration file.
        environ: for `${NAME}`.
    """

    def __init__(self, path: Path, environ: Mapping[str, str] | None = None) -> None:
        self._path = path
        self._environ = os.environ if environ is None else environ
        self.telemetry = Telemetry()
        self.page = Page(declared(), time.monotonic, self.telemetry.registry)
        # every name once: prometheus_client refuses a second declaration when both registries' collectors meet here
        check = CollectorRegistry()
        check.register(self.page)
        self.telemetry.declare_task("scrape")
        self.fleet = Fleet(self.page, self.telemetry.count)
        self.config: Config | None = None
        self._text = ""
        self._reloading = threading.Lock()

    # -- life ----------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Loads the configuration and starts. Raises: ConfigError."""
        self._load()

    def reload(self) -> None:
        """Loads the configuration again. Raises ConfigError and keeps the old one where it is wrong."""
        try:
            self._load()
        except ConfigError as error:
            self.telemetry.reloaded(ok=False)
            log.error("reload failed, the old configuration stays: %s", error)
            raise
        log.info("configuration reloaded", extra={"task": "reload"})

    def stop(self) -> None:
        """Ends everything; waits a few seconds at most."""
        self.fleet.stop(3.0)

    def _load(self) -> None:
        with self._reloading:
            config = load_config(self._path, self._environ)
            text = render_config(self._path.read_text())
            self._apply(config)
            self.config, self._text = config, text
            self.telemetry.reloaded(ok=True)

    def _apply(self, config: Config) -> None:
        timing = Timing(config.global_.scrape_interval, config.global_.scrape_timeout, config.stall.after)
        self.fleet.apply(config.targets, timing)

    # -- what the routes ask ---------------------------------------------------------------------------------------------------------

    def web_settings(self) -> WebSettings:
        """Switches of `web:`, as of now."""
        if self.config is None:
            return WebSettings()
        web = self.config.web
        return WebSettings(web.enable_reload, web.enable_debug, web.max_requests)

    def ready(self) -> bool:
        """Whether a configuration is loaded."""
        return self.config is not None

    def config_text(self) -> str:
        """The configuration as written, secrets hidden."""
        return self._text

    def overview(self) -> list[dict[str, Any]]:
        """A row per target."""
        now = time.monotonic()
        return [documents.overview(running.pipeline, self.page, now) for running in self.fleet.running.values()]

    def target_document(self, name: str) -> dict[str, Any] | None:
        """Everything about one target."""
        running = self.fleet.running.get(name)
        return None if running is None else documents.target_document(running.pipeline, self.page, time.monotonic())

    def trace(self, name: str) -> list[dict[str, Any]] | None:
        """Raw line → canonical field → signal → metric."""
        running = self.fleet.running.get(name)
        return None if running is None else trace(running.pipeline, self.page)

    def probe(self, target: str, module: str, timeout: float | None) -> tuple[int, str | Page]:
        """One probe now."""
        return 404, f"no probe module {module!r} for target {target!r}\n"

    def reports_directory(self) -> Path | None:
        """Where capacity reviews are kept."""
        return None

    def reports(self) -> Sequence[dict[str, Any]]:
        """Rows of the index of reviews."""
        return ()
