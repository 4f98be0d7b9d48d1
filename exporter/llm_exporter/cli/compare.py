"""`llm-exporter compare URL_A URL_B …`: the same ladder on several servers, interleaved, and whether the difference is real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from llm_exporter.cli.measuring import (
    Settings,
    check_plot_file,
    connect,
    measure,
    milliseconds,
    options,
    print_conditions,
    report_console,
    runs_table,
)
from llm_exporter.errors import UsageError
from llm_exporter.probing.compare import Difference, differences, sentence
from llm_exporter.probing.document import fit_of, probe_document


@click.command("compare")
@click.argument("urls", nargs=-1, required=True, metavar="URL_A URL_B …")
@options
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), metavar="F.png", help="Draw all ladders into a file.")
def command(urls: tuple[str, ...], as_json: bool, plot_file: Path | None, **flags: Any) -> None:
    """Measure several servers side by side; each is compared with the first.

    All get prompts of the same words (only the opening differs, so that they cannot warm each other), back to back and in random order.
    """
    if len(urls) < 2:
        raise UsageError("compare needs two URLs at least")
    settings = Settings(**flags)
    check_plot_file(plot_file)
    notes = Console(stderr=True)
    ladders = measure([connect(url, settings) for url in urls], settings, notes)
    documents = [probe_document(ladder, settings.gpu) for ladder in ladders]
    first, others = ladders[0], ladders[1:]
    found = [(other, differences(first, other)) for other in others]
    if plot_file is not None:
        from llm_exporter.probing.plot import plot_documents  # matplotlib takes a second to import

        plot_documents(documents, [fit_of(ladder) for ladder in ladders], plot_file)
        notes.print(f"drawn: {plot_file}", highlight=False)
    sentences = [sentence(first.server.url, other.server.url, rows) for other, rows in found]
    if as_json:
        lines = [{"url_a": first.server.url, "url_b": other.server.url, **row.as_json()} for other, rows in found for row in rows]
        document = {"servers": documents, "differences": lines, "conclusions": sentences}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    console = report_console()
    for document in documents:
        print_conditions(console, document)
        console.print(runs_table(document))
    for text in unlike(documents):
        console.print(f"[yellow]{text}[/]", highlight=False)
    for (other, rows), text in zip(found, sentences, strict=True):
        console.print(f"[bold]{other.server.url} against {first.server.url}[/]", highlight=False)
        console.print(differences_table(rows))
        console.print(text, highlight=False)


def differences_table(rows: list[Difference]) -> Table:
    """Shift with interval per point."""
    table = Table("tokens", "cache", "shift ms", "95 % interval ms", "second ÷ first", "real")
    for row in rows:
        interval = "-" if row.lower is None else f"{milliseconds(row.lower)} to {milliseconds(row.upper)}"
        table.add_row(
            str(row.prompt_tokens),
            row.cache,
            f"{row.ttft_shift_seconds * 1000:+.1f}",
            interval,
            f"{row.ratio:.3f}",
            "yes" if row.real else "no",
        )
    return table


# What is served and by whom comes before the conditions: it says most about a difference.
_WHO = ("engine", "engine_version", "model")


def unlike(documents: list[dict[str, Any]]) -> list[str]:
    """In what the servers differ, engine and model first: a reader must know them before believing a speed-up."""
    lines = []
    stated = [{**{name: document[name] for name in _WHO}, **document["conditions"]} for document in documents]
    for name in stated[0]:
        values = [one.get(name) for one in stated]
        if any(value != values[0] for value in values):
            name = name.replace("_", " ") if name in _WHO else name
            lines.append(f"not the same: {name} " + " against ".join("not known" if value is None else str(value) for value in values))
    return lines
