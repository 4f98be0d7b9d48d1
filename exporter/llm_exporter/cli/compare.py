"""`llm-exporter compare URL_A URL_B …`: the same ladder on several servers, interleaved, and whether the difference is real."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from llm_exporter.cli.measured_text import legend, milliseconds, print_conditions, report_console, runs_table, say, untimed_lines
from llm_exporter.cli.measuring import Settings, check_plot_file, connect, measure, options, stated
from llm_exporter.errors import UsageError
from llm_exporter.probing.compare import FEWEST_SAMPLES, Difference, differences
from llm_exporter.probing.conclusion import conclusion
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
    said = stated(settings, len(urls))
    notes = Console(stderr=True)
    if settings.repeat < FEWEST_SAMPLES:
        say(notes, f"With --repeat {settings.repeat} no difference can be called real: it takes {FEWEST_SAMPLES} samples.", "yellow")
    servers = [connect(url, settings) for url in urls]
    ladders, ended = measure(servers, settings, notes)
    documents = [probe_document(ladder, one) for ladder, one in zip(ladders, said, strict=True)]
    names = [letters(number) for number in range(len(ladders))]
    titles = [f"{name} ({server.url})" for name, server in zip(names, servers, strict=True)]
    found = differences(ladders[0], ladders[1:])
    if plot_file is not None:
        from llm_exporter.probing.plot import plot_documents  # matplotlib takes a second to import

        plot_documents(documents, [fit_of(ladder) for ladder in ladders], plot_file, names)
        say(notes, f"drawn: {plot_file}")
    looked_at = sum(len(rows) for rows in found)
    sentences = [conclusion(titles[0], title, rows, looked_at) for title, rows in zip(titles[1:], found, strict=True)]
    if as_json:
        lines = [
            {"url_a": servers[0].url, "url_b": other.url, **row.as_json()}
            for other, rows in zip(servers[1:], found, strict=True)
            for row in rows
        ]
        told = None if ended is None else str(ended)
        document = {"servers": documents, "differences": lines, "conclusions": sentences, "ended_early": told}
        click.echo(json.dumps(document, indent=2, allow_nan=False))
    else:
        _show(names, documents, list(zip(titles, [[], *found], ["", *sentences], strict=True)))
    if ended is not None:
        raise ended


def _show(names: Sequence[str], documents: list[dict[str, Any]], compared: Sequence[tuple[str, list[Difference], str]]) -> None:
    """`compared`: title, differences and conclusion of each server; the first is what the others are compared with."""
    console = report_console()
    for name, document in zip(names, documents, strict=True):
        print_conditions(console, document, name)
        console.print(runs_table(document))
        for line in untimed_lines(document):
            say(console, line)
    say(console, legend(documents), "dim")
    for text in (*same(names, documents), *unlike(documents)):
        say(console, text, "yellow")
    for title, rows, text in compared[1:]:
        say(console, f"{title} against {compared[0][0]}", "bold")
        console.print(differences_table(rows))
        say(console, text)


def letters(number: int) -> str:
    """A, B, … Z, then S27 and on: what a server is called in texts and pictures."""
    return string.ascii_uppercase[number] if number < len(string.ascii_uppercase) else f"S{number + 1}"


def same(names: Sequence[str], documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Servers that are one and the same URL."""
    groups: dict[str, list[str]] = {}
    for name, document in zip(names, documents, strict=True):
        groups.setdefault(document["url"], []).append(name)
    return [f"{' and '.join(group)} are the same URL: any difference is chance" for group in groups.values() if len(group) > 1]


def differences_table(rows: list[Difference]) -> Table:
    """Shift with interval per point; `real` is judged among all points."""
    table = Table("tokens", "cache", "shift ms", "95 % interval ms", "second ÷ first", "real")
    for row in rows:
        interval = "-" if row.lower is None else f"{milliseconds(row.lower)} to {milliseconds(row.upper)}"
        table.add_row(
            str(row.prompt_tokens),
            row.cache,
            f"{row.ttft_shift_seconds * 1000:+.1f}",
            interval,
            f"{row.ratio:.3f}",
            "yes" if row.real else f"no: {row.reason}" if row.reason else "no",
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
