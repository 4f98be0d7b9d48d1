"""Writes a review: JSON, HTML, Markdown, and each plot as PNG where that is wanted.

In: `Review` and a directory. Out: the paths written. Called by the command `report`. Every file is written beside and then moved,
`report.json` last: a directory that holds it is whole.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from llm_exporter.report.directory import REPORT_HTML, REPORT_JSON, REPORT_MARKDOWN
from llm_exporter.report.document import document
from llm_exporter.report.html import render_html
from llm_exporter.report.markdown import render_markdown
from llm_exporter.report.plots import draw_all
from llm_exporter.report.review import Review


def write_review(review: Review, directory: Path, made_at: float, *, png: bool = False) -> list[Path]:
    """Write all forms of the review.

    Args:
        review: what was found.
        directory: made where it is missing.
        made_at: unix time, printed in the page.
        png: write each plot as a file too.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plots = draw_all(review)
    written, names = [], {}
    if png:
        for position, images in enumerate(plots):
            for name, image in images.items():
                file = f"{position + 1}-{_slug(review.models[position].service.model)}-{name}.png"
                names[position, name] = file
                written.append(_write(directory / file, image))
    written.append(_write(directory / REPORT_HTML, render_html(review, plots, made_at).encode()))
    written.append(_write(directory / REPORT_MARKDOWN, render_markdown(review, names).encode()))
    text = json.dumps(document(review), indent=1, ensure_ascii=False, allow_nan=False)
    written.append(_write(directory / REPORT_JSON, text.encode()))
    return written


def _slug(model: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-.")[:60] or "model"


def _write(path: Path, content: bytes) -> Path:
    beside = path.with_name(f".{path.name}.partial")
    beside.write_bytes(content)
    os.replace(beside, path)  # noqa: PTH105  # the atomic one, by its own name
    return path
