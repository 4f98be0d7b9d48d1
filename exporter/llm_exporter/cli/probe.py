"""`llm-exporter probe URL`: time to first token by context length, cold and warm, with a fit of what it is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from llm_exporter.cli.measured_text import legend, print_conditions, report_console, runs_table, say, untimed_lines
from llm_exporter.cli.measuring import Settings, check_plot_file, connect, measure, options, stated
from llm_exporter.probing.document import fit_of, probe_document
from llm_exporter.probing.fit import Fit
from llm_exporter.probing.ladder import Ladder
from llm_exporter.probing.prefix_cache import cache_rows
from llm_exporter.wording import plain_seconds


@click.command("probe")
@click.argument("url")
@options
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), metavar="F.png", help="Draw the ladder into a file.")
def command(url: str, as_json: bool, plot_file: Path | None, **flags: Any) -> None:
    """Measure time to first token of the server at URL by prompt length.

    TTFT runs from the request's last byte sent on an open connection to the read that completes the first event with output of any
    kind. Cold prompts are new each time; warm ones have just been sent. A token from LLM_EXPORTER_TOKEN is sent as a bearer token.
    """
    settings = Settings(**flags)
    check_plot_file(plot_file)
    (said,) = stated(settings, 1)
    notes = Console(stderr=True)
    (ladder,), ended = measure([connect(url, settings)], settings, notes)
    document, fit = probe_document(ladder, said), fit_of(ladder)
    if plot_file is not None:
        from llm_exporter.probing.plot import plot_documents  # matplotlib takes a second to import

        plot_documents([document], [fit], plot_file)
        say(notes, f"drawn: {plot_file}")
    if as_json:
        click.echo(json.dumps({**document, "ended_early": None if ended is None else str(ended)}, indent=2, allow_nan=False))
    else:
        _show(report_console(), ladder, document, fit)
    if ended is not None:
        raise ended


def _show(console: Console, ladder: Ladder, document: dict[str, Any], fit: Fit | None) -> None:
    print_conditions(console, document)
    console.print(runs_table(document))
    say(console, legend([document]), "dim")
    for line in (*untimed_lines(document), *fit_lines(fit)):
        say(console, line)
    for row in cache_rows(ladder, fit):
        say(console, row.text(), "yellow" if row.finding else "")
    if any(row["stream_buffered"] for row in document["runs"]):
        say(
            console,
            "The output arrives in bursts: a proxy on the way, or a frontend of the server that gets no core, holds the stream back.",
            "yellow",
        )


def fit_lines(fit: Fit | None) -> list[str]:
    """The fit in words."""
    if fit is None:
        return ["no fit: it takes cold prompts of two lengths at least"]

    def figure(value: float, name: str) -> str:
        if name in fit.unseen:
            return "cannot be told beside the other parts"
        low, high = fit.intervals[name]
        return f"{plain_seconds(value)} ({plain_seconds(low)} to {plain_seconds(high)})"

    lines = []
    lines.append(
        f"fixed overhead {figure(fit.fixed_seconds, 'fixed_seconds')}, "
        f"per token {figure(fit.per_token_seconds, 'per_token_seconds')}; in brackets the 95 % intervals"
    )
    if fit.per_token_squared_seconds is None:
        lines.append(f"no quadratic part: {fit.note}")
    else:
        lines.append(f"per token squared {figure(fit.per_token_squared_seconds, 'per_token_squared_seconds')}")
    if fit.contended:
        lines.append(
            f"the samples of one length differ by ±{fit.spread_ratio * 100:.0f} %: other work ran meanwhile, so trust the intervals in "
            "brackets, not the figures before them"
        )
    return lines
