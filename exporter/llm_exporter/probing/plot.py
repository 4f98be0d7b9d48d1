"""A picture of a ladder: TTFT by prompt length, cold and warm, with the fitted curve. Written without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from llm_exporter.probing.fit import Fit

_MARKS = {"cold": "o", "warm": "s"}


def plot_documents(documents: Sequence[dict[str, Any]], fits: Sequence[Fit | None], path: Path) -> None:
    """Draws the documents of `probe_document` into one file; its suffix chooses the format."""
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    try:
        for number, (document, fit) in enumerate(zip(documents, fits, strict=True)):
            colour = f"C{number}"
            for cache in ("cold", "warm"):
                rows = [row for row in document["runs"] if row["cache"] == cache and row["n"]]
                if not rows:
                    continue
                tokens = [row["prompt_tokens_measured"] or row["prompt_tokens"] for row in rows]
                for x, row in zip(tokens, rows, strict=True):
                    axes.plot([x] * row["n"], row["ttft_seconds"]["samples"], _MARKS[cache], color=colour, alpha=0.3, markersize=4)
                medians = [row["ttft_seconds"]["median"] for row in rows]
                label = f"{document['model']} {document['engine'] or ''} {cache}".replace("  ", " ")
                axes.plot(tokens, medians, _MARKS[cache] + ("-" if cache == "warm" else ""), color=colour, label=label)
            if fit is not None:
                grid = np.linspace(0, max(tokens for tokens, _ in fit.points), 200)
                axes.plot(grid, [fit.predict(x) for x in grid], "--", color=colour, linewidth=1)
        axes.set_xlabel("prompt tokens (counted by the server)")
        axes.set_ylabel("time to first token, seconds")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
        figure.savefig(path)
    finally:
        plt.close(figure)
