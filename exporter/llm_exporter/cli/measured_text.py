"""How `probe` and `compare` print what was measured: who was measured under which conditions, and the table of times.

In: documents of `probing/document.py`. Out: lines and tables for a terminal. Whatever a server said of itself is printed as it is,
without control characters and never as markup.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from llm_exporter.wording import harmless

_FIGURE = re.compile(r"\d+(?:\.\d+)?")


def report_console() -> Console:
    """Stdout; a file or a pipe gets lines that are not broken at 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def say(console: Console, text: str, style: str = "") -> None:
    """One line of text that may hold a server's or a user's words."""
    console.print(Text(harmless(text), style=style), highlight=False)


def milliseconds(seconds: float | None) -> str:
    """Three figures, enough for any table here."""
    return "-" if seconds is None else f"{seconds * 1000:.1f}"


def print_conditions(console: Console, document: Mapping[str, Any], name: str = "") -> None:
    """Engine, version, and everything else that makes a figure comparable; what is not known is named at the end.

    `name` goes before the URL where there are several servers.
    """
    known = {key: value for key, value in document["conditions"].items() if value is not None}
    unknown = [key for key, value in document["conditions"].items() if value is None]
    engine = f"{document['engine'] or 'unknown engine'} {document['engine_version'] or ''}".strip()
    head = Text(f"{name}  " if name else "", style="bold")
    head.append(harmless(document["url"]), style="bold").append(harmless(f"  {engine}, model {document['model']}"), style="not bold")
    console.print(head, highlight=False)
    say(
        console,
        "conditions: " + ", ".join(f"{key} {'+'.join(value) if isinstance(value, list) else value}" for key, value in known.items()),
    )
    if unknown:
        ask = (
            "; the server does not say its hardware: name it with --gpu, --precision, --quantization"
            if {"gpu", "device"} <= set(unknown)
            else ""
        )
        say(console, f"not known: {', '.join(unknown)}{ask}", "dim")


def legend(documents: Sequence[Mapping[str, Any]]) -> str:
    """What the columns of the tables are."""
    rows = [row for document in documents for row in document["runs"]]
    several = any(row["n"] != row["n_samples"] for row in rows)
    notes = ["counted: prompt tokens by the server's count"]
    if several:
        notes.append("n: requests (samples of requests that were sent at once)")
    notes.append("trimmed: mean without the highest and lowest fifth")
    notes.append("spread: median deviation ÷ median" + (", of samples" if several else ""))
    notes.append("ITL: time between tokens")
    if any(row["network_overhead_seconds"] is not None for row in rows):
        notes.append("outside: part of the time outside the engine, network and frontend")
    if any(row["cached_tokens"] is not None for row in rows):
        notes.append("cached: tokens out of the prefix cache by the server's count")
    return "; ".join(notes)


def runs_table(document: Mapping[str, Any]) -> Table:
    """One line per length and cache state, times in ms; columns that would be empty are left out."""
    rows = document["runs"]
    with_cached = any(row["cached_tokens"] is not None for row in rows)
    with_outside = any(row["network_overhead_seconds"] is not None for row in rows)
    with_failed = any(set(row["results"]) - {"success"} for row in rows)
    several = any(row["n"] != row["n_samples"] for row in rows)
    names = ["tokens", "counted", "cache", "n", "median", "trimmed", "min", "max", "spread", "ITL"]
    table = Table(title="time to first token, ms", title_justify="left", box=SIMPLE, padding=(0, 1))
    for name in [
        *names,
        *(["outside"] if with_outside else []),
        *(["cached"] if with_cached else []),
        *(["failed"] if with_failed else []),
    ]:
        table.add_column(name, justify="left" if name in ("cache", "failed") else "right", no_wrap=name != "failed")
    for row in rows:
        ttft = row["ttft_seconds"]
        count = f"{row['n']} ({row['n_samples']})" if several else str(row["n"])
        cells = [str(row["prompt_tokens"]), str(row["prompt_tokens_measured"] or "-"), row["cache"], count]
        cells += [milliseconds(ttft[name]) for name in ("median", "trimmed_mean", "min", "max")]
        cells += ["-" if ttft["spread_ratio"] is None else f"±{ttft['spread_ratio'] * 100:.0f} %"]
        cells += [milliseconds(row["itl_seconds"]["median"])]
        if with_outside:
            cells.append(milliseconds(row["network_overhead_seconds"]))
        if with_cached:
            cells.append("-" if row["cached_tokens"] is None else str(row["cached_tokens"]))
        if with_failed:
            cells.append(", ".join(f"{count} {result}" for result, count in row["results"].items() if result != "success") or "-")
        table.add_row(*cells)
    return table


def untimed_lines(document: Mapping[str, Any]) -> list[str]:
    """How many requests succeeded without a time to first token, and why; reasons that differ in a figure are one, with the largest."""
    reasons = [reason or "for no known reason" for row in document["runs"] for reason in row["without_ttft"]]
    if not reasons:
        return []
    alike = defaultdict(list)
    for reason in reasons:
        alike[_FIGURE.sub("#", reason)].append(reason)
    groups = sorted(alike.values(), key=len, reverse=True)
    told = [max(group, key=lambda reason: [float(figure) for figure in _FIGURE.findall(reason)]) for group in groups]
    words = told[0] if len(told) == 1 else "; ".join(f"{len(group)} × {words}" for group, words in zip(groups, told, strict=True))
    whole = len(reasons) + sum(row["n"] for row in document["runs"])
    return [f"{len(reasons)} of {whole} requests have no time to first token and are left out: {words}"]
