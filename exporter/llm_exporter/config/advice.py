"""Warnings: settings that are valid and yet look wrong.

`load.py` adds file and line; `check config` prints them, the daemon logs them at start and after a reload.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from llm_exporter.config.durations import format_duration
from llm_exporter.config.http_client import HttpClient
from llm_exporter.config.model import Config
from llm_exporter.config.target import TargetDefaults

Advice = tuple[tuple[str | int, ...], str, str]

# Thresholds below or above which an SLO is more likely a slip of the unit than a promise, in seconds.
_USUAL_SECONDS: Mapping[str, tuple[float, float]] = {
    "time_to_first_token": (0.02, 120),
    "inter_token_latency": (0.002, 5),
    "e2e_request_latency": (0.1, 1800),
}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def in_container(environ: Mapping[str, str]) -> bool:
    """Whether this process seems to run in a container (Docker, Podman, Kubernetes)."""
    return "KUBERNETES_SERVICE_HOST" in environ or any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))


def advice(config: Config, *, in_container: bool) -> Iterator[Advice]:
    """What looks wrong: keys that lead to it, what it is, remedy."""
    interval = config.global_.scrape_interval
    if interval > 60:
        yield ("global", "scrape_interval"), "is so long that the window of 1m holds no two scrapes", "use 30s or less"
    if interval < 1:
        yield ("global", "scrape_interval"), "asks each server more than once a second", "use 5s, unless this is a test"
    if config.stall.after < 2 * interval:
        yield ("stall", "after"), "is shorter than two scrapes", f"use {format_duration(4 * interval)} or more"
    if not config.targets and not config.file_sd_configs and not config.http_sd_configs:
        yield ("targets",), "there is nothing to scrape", "add a target"
    yield from _targets(config, in_container)
    yield from _probes(config)
    for label in config.generate.alert_labels if not (config.file_sd_configs or config.http_sd_configs) else ():
        if label not in ("engine", "engine_version", "service") and not any(label in target.labels for target in config.targets):
            yield ("generate", "alert_labels"), f"no target has the label {label}", "add it to the labels of a target"
    if config.report and config.report.prometheus:
        yield from _client(("report", "prometheus"), config.report.prometheus)


def _targets(config: Config, container: bool) -> Iterator[Advice]:
    seen: dict[str, str] = {}
    for position, target in enumerate(config.targets):
        at = ("targets", position)
        url = urlsplit(target.url)
        if container and url.hostname in _LOOPBACK:
            remedy = "use host.docker.internal, the service's name or an address, unless the two share a network namespace"
            yield (*at, "url"), "localhost inside a container is the container itself", remedy
        if url.path.endswith("/v1"):
            yield (*at, "url"), "ends in /v1, below which engines serve no metrics", "remove /v1"
        if url.path.endswith(target.metrics_path):
            yield (*at, "url"), f"ends in {target.metrics_path}, which metrics_path adds again", f"remove {target.metrics_path}"
        if (same := seen.setdefault(target.url_of(target.metrics_path), target.name)) != target.name:
            yield (*at, "url"), f"is that of the target {same}, so the server is scraped twice", "remove one of the two"
        yield from _client(at, target)
        yield from _slos(at, target)
    for position, section in enumerate(config.http_sd_configs):
        yield from _client(("http_sd_configs", position), section)
    for place, defaults in _discovered(config):
        yield from _client(place, defaults)
        yield from _slos(place, defaults)


def _discovered(config: Config) -> Iterator[tuple[tuple[str | int, ...], TargetDefaults]]:
    """The `target` blocks and where they stand."""
    for position, file_sd in enumerate(config.file_sd_configs):
        yield ("file_sd_configs", position, "target"), file_sd.target
    for position, http_sd in enumerate(config.http_sd_configs):
        yield ("http_sd_configs", position, "target"), http_sd.target


def _client(at: tuple[str | int, ...], client: HttpClient) -> Iterator[Advice]:
    tls = client.tls_config
    if tls and tls.insecure_skip_verify:
        yield (*at, "tls_config", "insecure_skip_verify"), "anybody on the way can read and change the answers", "use ca_file instead"
    files: list[tuple[tuple[str, ...], Path | None]] = []
    if client.authorization:
        files.append((("authorization", "credentials_file"), client.authorization.credentials_file))
    if client.basic_auth:
        files.append((("basic_auth", "username_file"), client.basic_auth.username_file))
        files.append((("basic_auth", "password_file"), client.basic_auth.password_file))
    if tls:
        files += [(("tls_config", key), getattr(tls, key)) for key in ("ca_file", "cert_file", "key_file")]
    files += [(("headers", name), path) for name, header in client.headers.items() for path in header.files]
    for below, path in files:
        if path is not None and not path.is_file():
            yield (*at, *below), f"there is no file {path} now", "create it, or correct the path"


def _slos(at: tuple[str | int, ...], target: TargetDefaults) -> Iterator[Advice]:
    for position, slo in enumerate(target.slos):
        low, high = _USUAL_SECONDS[slo.metric]
        if not low <= slo.threshold <= high:
            usual = f"usual are {format_duration(low)} to {format_duration(high)}"
            yield (*at, "slos", position, "threshold"), f"is unusual for {slo.metric}", f"check the unit ({usual})"
        if slo.objective < 0.5 or slo.objective > 0.9999:
            yield (*at, "slos", position, "objective"), "is an unusual share of good requests", "0.9 to 0.999 are usual"


def _probes(config: Config) -> Iterator[Advice]:
    holders = [*config.targets, *(defaults for _, defaults in _discovered(config))]
    used = {probe for holder in holders for probe in holder.probes}
    for name, module in config.probe_modules.items():
        at = ("probe_modules", name)
        if name not in used:
            yield at, "no target names this module, so it never runs by itself", "add it to the probes of a target"
        if module.interval is not None and module.timeout > module.interval:
            yield (*at, "timeout"), "is longer than the interval, so a slow run makes the next one wait", "use a shorter timeout"
