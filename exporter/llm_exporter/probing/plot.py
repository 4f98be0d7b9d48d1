"""A picture of a ladder: TTFT by prompt length, cold and warm, with the fitted curve. Written without a display."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from llm_exporter.probing.fit import Fit
from llm_exporter.wording import harmless

_MARKS = {"cold": "o", "warm": "s"}
_LONGEST_NAME = 60
# What one server's figures depend on most; the rest is in the table and the JSON.
_TOLD = ("gpu", "device", "precision", "quantization", "prefix_cache", "tensor_parallel", "concurrency")


def plot_documents(documents: Sequence[dict[str, Any]], fits: Sequence[Fit | None], path: Path, names: Sequence[str] = ()) -> None:
    """Draws the documents of `probe_document` into one file; its suffix chooses the format. `names` tells several servers apart."""
    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    try:
        for number, (document, fit) in enumerate(zip(documents, fits, strict=True)):
            name = names[number] if names else ""
            _draw(axes, document, fit, f"C{number}", f"{name} " if name else "")
        axes.set_title("Time to first token\n" + "\n".join(titles(documents, names)), fontsize="small", loc="left")
        axes.set_xlabel("prompt tokens (counted by the server)")
        axes.set_ylabel("time to first token, ms")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
        figure.savefig(path)
    finally:
        plt.close(figure)


def titles(documents: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> list[str]:
    """One line per server: who, what, and under which conditions."""
    lines = []
    for number, document in enumerate(documents):
        engine = " ".join(word for word in (document["engine"], document["engine_version"]) if word) or "unknown engine"
        known = [f"{key} {document['conditions'][key]}" for key in _TOLD if document["conditions"].get(key) is not None]
        name = f"{names[number]}: " if names else ""
        lines.append(f"{name}{_plain(document['url'])}, {_plain(engine)}, {_plain(document['model'])}, {_plain(', '.join(known))}")
    return lines


def _draw(axes: Axes, document: Mapping[str, Any], fit: Fit | None, colour: str, name: str) -> None:
    for cache in ("cold", "warm"):
        rows = [row for row in document["runs"] if row["cache"] == cache and row["n"]]
        if not rows:
            continue
        tokens = [row["prompt_tokens_measured"] or row["prompt_tokens"] for row in rows]
        for x, row in zip(tokens, rows, strict=True):
            times = [seconds * 1000 for seconds in row["ttft_seconds"]["samples"]]
            axes.plot([x] * row["n"], times, _MARKS[cache], color=colour, alpha=0.3, markersize=4)
        medians = [row["ttft_seconds"]["median"] * 1000 for row in rows]
        axes.plot(tokens, medians, _MARKS[cache] + ("-" if cache == "warm" else ""), color=colour, label=f"{name}{cache}, median")
    if fit is not None:
        grid = np.linspace(0, max(tokens for tokens, _ in fit.points), 200)
        axes.plot(grid, [fit.predict(x) * 1000 for x in grid], "--", color=colour, linewidth=1, label=f"{name}cold, fit")


def _plain(text: str) -> str:
    """A server's words without control characters, cut to a line, and with no sign that starts a formula."""
    text = harmless(text)
    return (text if len(text) <= _LONGEST_NAME else text[: _LONGEST_NAME - 1] + "…").replace("$", r"\$")
