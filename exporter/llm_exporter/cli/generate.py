"""`llm-exporter generate`: dashboards, alert rules and documents, written or compared."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path

import click

from llm_exporter.config.load import load_config
from llm_exporter.errors import UsageError
from llm_exporter.generate.artefacts import Producer, alert_artefacts, collect, drift, runbook_artefacts, write
from llm_exporter.generate.notes import notes_of
from llm_exporter.generate.settings import RuleSettings, settings_of
from llm_exporter.signals.review_records import RECORDS

KINDS = ("dashboards", "alerts", "docs", "all")


def _scale(_: click.Context, __: click.Parameter, text: str) -> Decimal:
    try:
        scale = Decimal(text)
    except InvalidOperation:
        scale = Decimal(0)
    if not scale.is_finite() or scale < 1:
        raise click.BadParameter(f"{text!r} must be a number of at least 1")
    return scale


@click.command("generate", help="Write dashboards, alert rules and documents; with --check, say what on disk is out of date.")
@click.argument("kind", type=click.Choice(KINDS))
@click.option("--config.file", "config_file", type=click.Path(path_type=Path), help="Adds its targets, SLOs, intervals and links.")
@click.option("--out", default=".", show_default=True, type=click.Path(path_type=Path, file_okay=False), help="Root of what is written.")
@click.option("--check", is_flag=True, help="Write nothing; print a diff and exit with 1 where a file differs.")
@click.option("--time-scale", default="1", callback=_scale, help="Divide every window, `for` and interval of the rules by this number.")
def command(kind: str, config_file: Path | None, out: Path, check: bool, time_scale: Decimal) -> int:
    """Writes or compares; the exit code says whether all was up to date."""
    config = load_config(config_file, os.environ) if config_file is not None else None
    settings = settings_of(config, time_scale)
    artefacts = collect(producers(kind, settings, out))
    if kind in ("alerts", "all") and config is not None:
        for note in notes_of(config):
            click.echo(f"note: {note}", err=True)
    if check:
        differences = drift(artefacts, out)
        for difference in differences:
            click.echo(difference)
        if differences:
            click.echo(f"{len(differences)} of {len(artefacts)} files are out of date; run llm-exporter generate {kind}", err=True)
        return 1 if differences else 0
    for path in write(artefacts, out):
        click.echo(f"wrote {out / path}")
    return 0


def producers(kind: str, settings: RuleSettings, root: Path) -> list[Producer]:
    """Who makes the artefacts of this kind."""
    found: list[Producer] = []
    if kind in ("alerts", "all"):
        found.append(lambda: alert_artefacts(settings, RECORDS))
    if kind in ("dashboards", "all"):
        found.append(lambda: _dashboards(settings))
    if kind in ("docs", "all"):
        found += [runbook_artefacts, _reference, lambda: _readme(root)]
    return found


def _dashboards(settings: RuleSettings) -> Mapping[str, str]:
    """Imported when they are needed: grafanalib is heavy."""
    try:
        module = importlib.import_module("llm_exporter.generate.dashboards")
    except ModuleNotFoundError as error:
        if error.name != "llm_exporter.generate.dashboards":
            raise
        raise UsageError("this installation has no dashboards to make") from error
    made: Mapping[str, str] = module.dashboard_artefacts(settings)
    return made


def _reference() -> Mapping[str, str]:
    """docs/metrics.md, commands.md, configuration.md and the example; the command line alone knows every room's declarations."""
    from llm_exporter import telemetry
    from llm_exporter.cli.reference import PATH, commands_markdown
    from llm_exporter.config.describe import documents
    from llm_exporter.expose import hardware, probes, targets
    from llm_exporter.generate.reference import metrics_markdown
    from llm_exporter.report import directory

    others = (
        ("Targets", (targets.info_metric(()), *targets.METRICS)),
        ("Probes", probes.METRICS),
        ("GPUs, host and the exporter's sources", hardware.METRICS),
        ("The exporter itself", (*telemetry.METRICS, directory.LAST_SUCCESS)),
    )
    return {**documents(), "docs/metrics.md": metrics_markdown(others), PATH: commands_markdown()}


def _readme(root: Path) -> Mapping[str, str]:
    """README with its table of signals renewed; nothing where there is no README (an installation, not a checkout)."""
    from llm_exporter.generate.reference import with_signals_table

    readme = root / "README.md"
    return {"README.md": with_signals_table(readme.read_text(encoding="utf-8"))} if readme.is_file() else {}
