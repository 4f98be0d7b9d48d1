"""`check config F` and `check web-config W`: validate a file, say what it holds, warn of what looks wrong.

Problems are a `ConfigError`, which `main` prints, exit code 2.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from llm_exporter.config.discovery import Discovery
from llm_exporter.config.durations import format_duration
from llm_exporter.config.load import load
from llm_exporter.config.model import Config, ProbeModule

_FILE = click.Path(path_type=Path)


@click.group()
def command() -> None:
    """Validate a configuration or web configuration file."""


@command.command("config")
@click.argument("file", type=_FILE)
def check_config(file: Path) -> None:
    """Validate the configuration FILE; problems name file, line, key, value and remedy."""
    loaded = load(file, os.environ)
    for line in summary(loaded.config):
        click.echo(line)
    for warning in loaded.warnings:
        click.echo(f"warning: {warning}", err=True)
    files_only = loaded.config.model_copy(update={"http_sd_configs": ()})  # a check contacts nobody
    for problem in Discovery(files_only).refresh(0).problems:
        click.echo(f"warning: {problem.source}: {problem.reason}: {problem.detail}", err=True)
    click.echo(f"{file} is valid")


@command.command("web-config")
@click.argument("file", type=_FILE)
def check_web_config(file: Path) -> None:
    """Validate the web configuration FILE (TLS, users, headers of the exporter's own server)."""
    from llm_exporter.expose.webconfig import load_web_config

    load_web_config(file)
    click.echo(f"{file} is valid")


def summary(config: Config) -> list[str]:
    """What a configuration holds, a line each."""
    targets = ", ".join(target.name for target in config.targets[:10]) + (", …" if len(config.targets) > 10 else "")
    lines = [
        f"scrape every {format_duration(config.global_.scrape_interval)}, timeout {format_duration(config.global_.scrape_timeout)}",
        f"targets: {len(config.targets)}" + (f" ({targets})" if targets else ""),
    ]
    if config.file_sd_configs or config.http_sd_configs:
        lines.append(f"discovery: {len(config.file_sd_configs)} file_sd_configs, {len(config.http_sd_configs)} http_sd_configs")
    if config.probe_modules:
        lines.append("probe modules: " + ", ".join(f"{name} ({_when(module)})" for name, module in config.probe_modules.items()))
    slos = sum(len(target.slos) for target in config.targets)
    if slos:
        lines.append(f"SLOs: {slos}")
    if config.report:
        report = config.report
        lines.append(f"review: {f'{report.schedule} {report.timezone}' if report.schedule else 'by command only'}, in {report.directory}")
    return lines


def _when(module: ProbeModule) -> str:
    if module.interval is not None:
        return f"every {format_duration(module.interval)}"
    return f"{module.schedule} {module.timezone}"
