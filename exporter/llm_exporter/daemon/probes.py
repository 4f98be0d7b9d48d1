"""Probes in the daemon: which module runs where and when, what the engine looks like to them, and `/probe`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from llm_exporter.config.crontab import next_fire
from llm_exporter.config.model import Config, ProbeModule, Target
from llm_exporter.config.secrets import credentials_headers
from llm_exporter.config.urls import admits, base_of
from llm_exporter.daemon.fleet import Fleet
from llm_exporter.daemon.loop import first_offset
from llm_exporter.daemon.pipeline import Pipeline
from llm_exporter.daemon.probe_health import ProbeHealth
from llm_exporter.daemon.schedule import At, Every, Job
from llm_exporter.errors import UsageError
from llm_exporter.expose import probes
from llm_exporter.expose.page import Page
from llm_exporter.probing.manners import EngineView
from llm_exporter.probing.pool import ProbePool, ProbeProcessLost
from llm_exporter.probing.results import ResultStore
from llm_exporter.probing.run import Outcome, ProbeTarget
from llm_exporter.probing.runner import ProbeRunner
from llm_exporter.sources.probe import TlsSettings

log = logging.getLogger("llm_exporter.probes")

OWNER = "probes"
# Interval probes start up to this share of their interval off, so that targets are not probed in step.
JITTER_SHARE = 0.1
# First probes come once the first pages are in, not after a whole interval, and spread over targets; so are those by crontab.
SETTLE_SECONDS = 3.0
SPREAD_SECONDS = 15.0


def probe_target(target: Target) -> ProbeTarget:
    """Address, credentials and TLS of a configured target, for a probe."""
    tls = target.tls_config
    settings = TlsSettings()
    if tls is not None:
        settings = TlsSettings(
            ca=tls.ca,
            ca_file=str(tls.ca_file) if tls.ca_file else None,
            cert_file=str(tls.cert_file) if tls.cert_file else None,
            key_file=str(tls.key_file) if tls.key_file else None,
            server_name=tls.server_name,
            insecure_skip_verify=tls.insecure_skip_verify,
            min_version=tls.min_version,
            max_version=tls.max_version,
        )
    return ProbeTarget(target.name, target.url, lambda: credentials_headers(target), settings)


def engine_view(pipeline: Pipeline, now: float) -> EngineView:
    """What the last page says about the engine, for the manners of probing; nothing where it is too old at `now`, monotonic seconds."""
    status = pipeline.status
    view = pipeline.view
    good = view is not None and now <= view.at + (status.duration_seconds or 0.0) + pipeline.timing.good_for
    models = view.models if view is not None and good else ()
    if not models:
        return EngineView(state=status.state, engine="" if status.engine == "unknown" else status.engine)
    first = models[0]

    def total(field: str) -> float | None:
        found = [model.value(field) for model in models]
        known = [value for value in found if value is not None]
        return sum(known) if len(known) == len(found) else None

    context = first.value("context_tokens_limit") or pipeline.target.limits.context_tokens
    return EngineView(
        state=status.state,
        engine=status.engine,
        model=first.model,
        requests_running=total("requests_running"),
        requests_waiting=total("requests_waiting"),
        context_tokens=int(context) if context else None,
    )


class Probes:
    """All probes of the daemon. The probe process starts with the first probe that is configured."""

    def __init__(self, page: Page, fleet: Fleet) -> None:
        self._page = page
        self._fleet = fleet
        self._pool = ProbePool()
        self.store = ResultStore()
        self._health = ProbeHealth()
        self._runner = ProbeRunner(self._pool, self.store, tell=self._health.note)
        self._modules: Mapping[str, ProbeModule] = {}
        self._targets: Mapping[str, Target] = {}
        self._admitted: tuple[str, ...] = ()

    def apply(self, config: Config, targets: Iterable[Target]) -> dict[str, Job]:
        """Takes over the configuration; returns the jobs to schedule."""
        self._modules = config.probe_modules
        self._targets = {target.name: target for target in targets}
        self._admitted = tuple(config.web.allow_probe_urls)
        wanted = {(t.name, name): self._modules[name] for t in self._targets.values() for name in t.probes if name in self._modules}
        self._runner.keep_only(wanted, {target.name: target.url for target in self._targets.values()})
        self._health.keep_only({(target, name): self._targets[target].url for target, name in wanted})
        self.publish()
        if wanted:
            self._pool.start()
        return {
            f"probe {target} {name}": Job(
                "probe",
                self._when(f"{target} {name}", module),
                self._work(target, name),
                settings=(module, self._targets[target].url),
                lane="probes",
            )
            for (target, name), module in wanted.items()
        }

    def _when(self, name: str, module: ProbeModule) -> Every | At:
        if module.interval is not None:
            return Every(
                module.interval,
                module.interval * JITTER_SHARE,
                first=SETTLE_SECONDS + first_offset(name, min(module.interval, SPREAD_SECONDS)),
            )
        crontab, timezone = module.schedule or "", module.timezone

        def following(after: datetime) -> datetime:
            return next_fire(crontab, timezone, after)

        return At(following, jitter=SPREAD_SECONDS)

    def _work(self, target: str, module: str) -> Callable[[], None]:
        def run() -> None:
            self._run(target, module)

        return run

    def _run(self, name: str, module_name: str) -> None:
        target, module = self._targets.get(name), self._modules.get(module_name)
        if target is None or module is None:
            return
        try:
            self._runner.run(probe_target(target), module_name, module, time.monotonic(), lambda: self._view(name))
        except ProbeProcessLost as error:  # the exporter ends
            log.debug("%s", error, extra={"target": name, "probe_module": module_name})
        finally:
            self.publish()

    def _view(self, name: str) -> EngineView:
        running = self._fleet.running.get(name)
        return EngineView() if running is None else engine_view(running.pipeline, time.monotonic())

    def publish(self) -> None:
        """Publishes what is known of all probes."""
        self._page.put(OWNER, probes.families(self.store.snapshot()))

    def probe_now(self, target_name: str, module_name: str, timeout: float | None) -> tuple[int, str | Page]:
        """`/probe`: (status, error text or a page of that run's metrics alone)."""
        module = self._modules.get(module_name)
        if module is None:
            return 404, f"no probe module {module_name!r}; configured: {', '.join(self._modules) or 'none'}\n"
        target = self._targets.get(target_name)
        if target is not None:
            asked = probe_target(target)
        elif admits(self._admitted, target_name):
            url = base_of(target_name).text  # however it was spelled
            asked = ProbeTarget(url, url)  # a foreign URL: no credentials go there
        else:
            return 404, f"no target named {target_name!r}, and web.allow_probe_urls does not admit it as a URL\n"
        try:
            outcome: Outcome = self._runner.probe_now(
                asked, module_name, module, time.monotonic(), lambda: self._view(target_name), scrape_timeout_seconds=timeout
            )
        except UsageError as error:
            return 400, f"{error}\n"
        except ProbeProcessLost as error:
            return 503, f"{error}\n"
        if target is not None:
            self.publish()
        page = Page(probes.METRICS, time.monotonic)
        page.put(OWNER, probes.families([outcome.record]))
        return 200, page

    def rows(self, target: str) -> list[dict[str, Any]]:
        """How the probes of a target stand, for the status page and the API."""
        return self._health.rows(target)

    def stop(self) -> None:
        """Ends the probe process."""
        self._pool.close()
