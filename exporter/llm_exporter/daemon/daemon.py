"""The exporter as a whole: configuration, discovery, targets, hardware, probes and reviews, and what the HTTP routes ask of it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from llm_exporter.config.discovery import Discovery, DiscoveryResult
from llm_exporter.config.load import Loaded, load
from llm_exporter.config.model import Config, Target
from llm_exporter.daemon import documents
from llm_exporter.daemon.fleet import Fleet
from llm_exporter.daemon.machine import Machine
from llm_exporter.daemon.pipeline import Timing
from llm_exporter.daemon.probes import Probes
from llm_exporter.daemon.published import declared
from llm_exporter.daemon.reviews import Reviews
from llm_exporter.daemon.schedule import Every, Job, Schedule
from llm_exporter.daemon.trace import trace
from llm_exporter.errors import ConfigError, LlmExporterError
from llm_exporter.expose import hardware
from llm_exporter.expose.page import Page
from llm_exporter.expose.web import WebSettings
from llm_exporter.hardware import SourceState
from llm_exporter.telemetry import Telemetry

log = logging.getLogger("llm_exporter.daemon")

MachineMaker = Callable[[Page, Callable[[str, str, int], None]], Machine]

# How often lists of targets are looked at; each is read when its own refresh_interval has passed.
DISCOVERY_SECONDS = 5.0
# An orchestrator that sent SIGTERM waits; requests in flight get up to two seconds before this (server.py).
STOP_SECONDS = 0.5
TASKS = ("scrape", "gpu", "host", "publish_hardware", "discovery", "probe", "report")


class Daemon:
    """Runs until stopped. `reload` may be called from any thread.

    Args:
        path: configuration file.
        environ: for `${NAME}`.
        machine: makes the reader of GPUs and host; the demo has one of its own.
    """

    def __init__(self, path: Path, environ: Mapping[str, str] | None = None, machine: MachineMaker = Machine) -> None:
        self._path = path
        self._environ = os.environ if environ is None else environ
        self.telemetry = Telemetry()
        self.page = Page(declared(), time.monotonic, self.telemetry.registry)
        # every name once: prometheus_client refuses a second declaration
        CollectorRegistry().register(self.page)
        for task in TASKS:
            self.telemetry.declare_task(task)
        self.machine = machine(self.page, self.telemetry.count)
        self.fleet = Fleet(self.page, self.telemetry.count, machine=self.machine)
        self.probes = Probes(self.page, self.fleet)
        self.reviews = Reviews(self.page, path)
        self._schedule = Schedule(self.telemetry.count)
        self._discovery: Discovery | None = None
        self._found: DiscoveryResult | None = None
        self._refused: tuple[Target, ...] | None = None  # discovered targets that could not be taken over, as last told
        self._loaded: Loaded | None = None
        self._reload_problem = ""
        self._changing = threading.Lock()

    # -- life ----------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Loads the configuration and starts. Raises: ConfigError."""
        self._load()
        self._schedule.start()

    def reload(self) -> None:
        """Loads the configuration again. Raises ConfigError, and nothing else, and keeps the old one where it is wrong."""
        try:
            self._load()
        except ConfigError as error:
            self._note_reload(str(error))
            log.error("reload failed, the old configuration stays: %s", error)
            raise
        except Exception as error:
            problem = f"{self._path}: cannot be taken over: {type(error).__name__}, a bug of the exporter; its log has the traceback"
            self._note_reload(problem)
            log.exception("bug while reloading, the old configuration stays")
            raise ConfigError(problem) from error
        log.info("configuration reloaded", extra={"task": "reload"})

    def _note_reload(self, problem: str) -> None:
        self.telemetry.reloaded(ok=not problem)
        self._reload_problem = problem

    def stop(self) -> None:
        """Ends everything; a scrape that hangs is waited for a moment only, since nothing of it would be kept."""
        self._schedule.stop()
        self.probes.stop()
        self.fleet.stop(STOP_SECONDS)
        self.machine.stop()

    def _load(self) -> None:
        with self._changing:
            loaded = load(self._path, self._environ)
            for warning in loaded.warnings:
                log.warning("%s", warning, extra={"task": "reload"})
            config = loaded.config
            discovery = Discovery(config, before=self._discovery)
            self._apply_or_go_back(config, discovery.refresh(time.monotonic()))
            self._discovery, self._loaded = discovery, loaded
            self._note_reload("")

    def _apply_or_go_back(self, config: Config, found: DiscoveryResult) -> None:
        """Takes over all of it; where that fails, what was in force before is put back, and the error goes on."""
        try:
            self._apply(config, found)
        except Exception:
            if self._loaded is not None and self._found is not None:
                try:
                    self._apply(self._loaded.config, self._found)
                except Exception:
                    log.exception("bug: what was in force before could not be put back whole")
            raise
        self._found = found

    def _apply(self, config: Config, found: DiscoveryResult) -> None:
        self.machine.apply(config, found.targets)
        self.fleet.apply(found.targets, Timing(config.global_.scrape_interval, config.global_.scrape_timeout, config.stall.after))
        jobs = self.probes.apply(config, found.targets) | self.reviews.apply(config.report)
        if config.file_sd_configs or config.http_sd_configs:
            jobs["discovery"] = Job("discovery", Every(DISCOVERY_SECONDS), self.discover, settings=())
        self._schedule.apply(jobs)
        self._publish_discovery(found)

    def discover(self) -> None:
        """Looks at the lists of targets and takes over what changed."""
        with self._changing:
            if self._discovery is None or self._loaded is None:
                return
            before, found = self._found, self._discovery.refresh(time.monotonic())
            if before is not None and before.targets != found.targets:
                try:
                    self._apply_or_go_back(self._loaded.config, found)
                except Exception as error:
                    # the next look tries again, and says it again only where the lists have changed
                    self.page.put("discovery", hardware.source_families({"discovery": SourceState(False, "not_applied")}))
                    if self._refused != found.targets:
                        self._refused = found.targets
                        log.exception("bug: the targets that were discovered cannot be taken over", extra={"source": "discovery"})
                    raise LlmExporterError(f"targets are not taken over: {type(error).__name__}") from error
            self._found, self._refused = found, None
            self._publish_discovery(found)
            told = set() if before is None else set(before.problems)
            for problem in found.problems:
                if problem not in told:
                    log.warning("%s: %s", problem.source, problem.detail, extra={"source": "discovery", "reason": problem.reason})

    def _publish_discovery(self, found: DiscoveryResult) -> None:
        if not found.lists:
            self.page.drop("discovery")
            return
        bad = next((one for one in found.lists if not one.ok), None)
        state = SourceState(True) if bad is None else SourceState(False, bad.reason, bad.detail)
        self.page.put("discovery", hardware.source_families({"discovery": state}))

    # -- what the routes ask ---------------------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config:
        """The configuration in force; the defaults before the first load."""
        return Config() if self._loaded is None else self._loaded.config

    def web_settings(self) -> WebSettings:
        """Switches of `web:`, as of now."""
        web = self.config.web
        return WebSettings(web.enable_reload, web.enable_debug, web.max_requests)

    def ready(self) -> bool:
        """Whether a configuration is loaded."""
        return self._loaded is not None

    def config_text(self) -> str:
        """The configuration as written, secrets hidden."""
        return "" if self._loaded is None else self._loaded.written

    def reload_problem(self) -> str:
        """Why the last reload failed; empty where the file as it was last read is in force."""
        return self._reload_problem

    def overview(self) -> list[dict[str, Any]]:
        """A row per target."""
        now = time.monotonic()
        families = documents.published(self.page)
        return [
            {**documents.overview(running.pipeline, families.get(name, []), now), "probes": self.probes.rows(name)}
            for name, running in self.fleet.running.items()
        ]

    def target_document(self, name: str) -> dict[str, Any] | None:
        """Everything about one target."""
        running = self.fleet.running.get(name)
        if running is None:
            return None
        return {**documents.target_document(running.pipeline, self.page, time.monotonic()), "probes": self.probes.rows(name)}

    def trace(self, name: str) -> list[dict[str, Any]] | None:
        """Raw line → canonical field → signal → metric."""
        running = self.fleet.running.get(name)
        return None if running is None else trace(running.pipeline, self.page)

    def probe(self, target: str, module: str, timeout: float | None) -> tuple[int, str | Page]:
        """One probe now."""
        return self.probes.probe_now(target, module, timeout)

    def reports_directory(self) -> Path | None:
        """Where capacity reviews are kept."""
        return self.reviews.directory

    def reports(self) -> Sequence[dict[str, Any]]:
        """Rows of the index of reviews."""
        return self.reviews.rows()
