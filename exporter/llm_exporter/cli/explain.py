"""`llm-exporter explain SIGNAL`: where one value comes from and where it goes, with what stands there now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from llm_exporter.config.discovery import Discovery
from llm_exporter.config.load import load_config
from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.clients import client_for
from llm_exporter.daemon.documents import signals_document
from llm_exporter.daemon.explaining import Use, alerts_of, counters_of, derivation_of, metric_named, panels_of, signal_of
from llm_exporter.daemon.logs import set_up
from llm_exporter.daemon.machine import OWNER, Machine
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared, label_names
from llm_exporter.daemon.trace import FIELDS_OF, trace
from llm_exporter.errors import LlmExporterError, UsageError
from llm_exporter.expose.page import Page
from llm_exporter.metrics import Metric
from llm_exporter.readings import FIELD
from llm_exporter.sources.engine import scrape
from llm_exporter.wording import plain_number

# Two scrapes make a window; this far apart even a slow server has moved.
APART_SECONDS = 5.0
USES_SHOWN = 12


@click.command("explain")
@click.argument("signal")
@click.option("--config.file", "config_file", required=True, type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--target", "name", help="Only this target. Default: all of them.")
@click.option("--apart", default=APART_SECONDS, show_default=True, type=click.FloatRange(min=0.1), help="Seconds between the two scrapes.")
def command(signal: str, config_file: Path, name: str | None, apart: float) -> int:
    """Show the path of one value: raw line, canonical field, signal, metric, panel, alert.

    SIGNAL is a metric's name, with or without llm_. The targets are scraped twice, so that windows exist.
    """
    set_up("error", "logfmt")
    metric = metric_named(signal)
    config = load_config(config_file, os.environ)
    targets = chosen(Discovery(config).refresh(time.monotonic()).targets, name)
    rows, readable = live_rows(metric, config, targets, apart)
    click.echo("\n".join([*_declaration(metric), "", *rows, "", *_uses(metric, config)]))
    return 0 if readable else 1


def chosen(targets: Sequence[Target], name: str | None) -> list[Target]:
    """The targets to scrape. Raises: UsageError."""
    if name is None:
        if not targets:
            raise UsageError("the configuration has no targets; add some under `targets`")
        return list(targets)
    found = [target for target in targets if target.name == name]
    if not found:
        raise UsageError(f"--target: there is no {name!r}; there are {', '.join(target.name for target in targets) or 'none'}")
    return found


def live_rows(
    metric: Metric, config: Config, targets: Sequence[Target], apart: float, sleep: Callable[[float], None] = time.sleep
) -> tuple[list[str], bool]:
    """Lines about every target, from two scrapes; and whether any of them could be read."""
    page = Page(declared(), time.monotonic)
    machine = Machine(page, lambda *_: None)
    timing = Timing(max(config.global_.scrape_interval, 2 * apart), config.global_.scrape_timeout, config.stall.after)
    labels = label_names(targets)
    pipelines = [
        Pipeline(target, page, timing, time.time, labels, hardware=lambda now, seconds, name=target.name: machine.view(name, now, seconds))  # type: ignore[misc]
        for target in targets
    ]
    clients = [client_for(target) for target in targets]
    machine.apply(config, targets)
    try:
        for round_number in range(2):
            if round_number:
                sleep(apart)
            for pipeline, client in zip(pipelines, clients, strict=True):
                path = pipeline.target.metrics_path
                pipeline.take(scrape(client, path, timeout=timing.timeout, clock=time.monotonic), time.monotonic())
        machine.publish(time.monotonic())
        if "target" not in metric.labels:
            return _machine_rows(metric, page), True
        lines = [line for pipeline in pipelines for line in _target_rows(metric, pipeline, page)]
        return lines, any(pipeline.status.up for pipeline in pipelines)
    finally:
        machine.stop()
        for client in clients:
            client.close()


def _declaration(metric: Metric) -> list[str]:
    unit = f", {metric.unit.value}" if metric.unit.value else ""
    lines = [f"{metric.name}  ({metric.kind.value}{unit}; labels {', '.join(metric.labels) or 'none'})", f"  {metric.help}"]
    signal = signal_of(metric)
    fields = FIELDS_OF.get(metric.name, ())
    if signal is None and not fields:
        return [*lines, "  It comes from this machine or from the exporter itself, not from an engine's page."]
    lines.append("  Derived from" if signal is not None else "  Published as the engine gives it, from")
    for name in fields:
        needed = "" if signal is None or name in signal.reads else " (where it is there)"
        lines.append(f"    {name}{needed}: {FIELD[name].help}")
    return lines


def _target_rows(metric: Metric, pipeline: Pipeline, page: Page) -> list[str]:
    status = pipeline.status
    engine = status.engine if status.engine != "unknown" else "unknown engine"
    lines = [f"target {pipeline.target.name}: {engine}" + ("" if status.up else f", down: {status.reason} {status.detail}".rstrip())]
    rows = trace(pipeline, page, metric.name)
    rows += [row for row in trace(pipeline, page, "llm_signal_status") if row["metric"] == metric.name]
    if not rows:
        return [*lines, "  nothing is published under this name now" + (f" ({status.hint})" if status.hint else "")]
    lines += [f"  raw line  {line}" for line in dict.fromkeys(line for row in rows for line in row["lines"])]
    lines += [f"  field     {field}" for field in dict.fromkeys(field for row in rows for field in row["fields"])]
    signal = signal_of(metric)
    lines.append("  signal    " + ("none: published as it stands" if signal is None else derivation_of(signal)))
    there = {row["labels"].get("window") for row in rows if row["value"] is not None}
    return lines + [f"  metric    {_shown(row, 'doubtful' if row['labels'].get('window') in there else 'absent')}" for row in rows]


def _shown(row: dict[str, Any], lack: str = "absent") -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in row["labels"].items())
    name = f"{row['metric']}{{{labels}}}" if labels else row["metric"]
    value = row["value"]
    return f"{name} {f'{lack}: ' + row['status'] if value is None else plain_number(value) if isinstance(value, float) else value}"


def _machine_rows(metric: Metric, page: Page) -> list[str]:
    rows = [row for row in signals_document(page.of(OWNER)) if row["metric"] == metric.name]
    if not rows:
        return ["nothing is published under this name now: see llm_exporter_source_down_reason"]
    return [f"  metric    {_shown({**row, 'status': ''})}" for row in rows]


def _uses(metric: Metric, config: Config) -> list[str]:
    lines = []
    readers: tuple[tuple[str, Callable[[Metric], list[Use]]], ...] = (("panel", panels_of), ("alert", lambda read: alerts_of(read, config)))
    for word, look_up in readers:
        try:
            found = look_up(metric)
        except LlmExporterError as error:
            lines.append(f"{word}: {error}")
            continue
        if not found:
            lines.append(f"{word}: none reads it" + ("" if not counters_of(metric) else "; the counters that it is made of are read by"))
            found = [use for counter in counters_of(metric) for use in look_up(counter)]
        for use in found[:USES_SHOWN]:
            through = f" through {use.through}" if use.through else ""
            role = f", {use.role}" if use.role else ""
            lines.append(f"{word}: {use.where}{role}{through}")
        if len(found) > USES_SHOWN:
            lines.append(f"{word}: and {len(found) - USES_SHOWN} more")
    return lines
