"""`llm-exporter replay`: a recording through the whole pipeline."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from llm_exporter.config.load import load_config
from llm_exporter.config.model import Config
from llm_exporter.daemon.documents import target_document
from llm_exporter.daemon.replaying import replay


@click.command(
    "replay", help="Run recordings (folders of tNNN.prom and tNNN.fail) through the pipeline; print the page as it stood at the end."
)
@click.argument("folders", nargs=-1, required=True, metavar="DIR…", type=click.Path(path_type=Path))
@click.option("--config.file", "config_file", type=click.Path(path_type=Path), help="Lends settings to targets with a folder's name.")
@click.option("--format", "form", default="prom", show_default=True, type=click.Choice(["prom", "json"]))
def command(folders: tuple[Path, ...], config_file: Path | None, form: str) -> None:
    """Prints the page."""
    config = load_config(config_file, os.environ) if config_file is not None else Config()
    played = replay(folders, config)
    if form == "prom":
        body, _ = played.page.render()
        click.echo(body.decode(), nl=False)
    else:
        documents = [target_document(pipeline, played.page, played.now) for pipeline in played.pipelines.values()]
        click.echo(json.dumps({"targets": documents}, indent=2, ensure_ascii=False))
