"""The review as one HTML file: plots inside, no external asset, fit for print.

In: `Review` and its plots. Out: text. Called by `write.py`. The template is `report.html.j2` beside this module; everything is escaped.
"""

from __future__ import annotations

import base64
from importlib import resources

from jinja2 import Environment, StrictUndefined

from llm_exporter import __version__
from llm_exporter.report.grid import stamp
from llm_exporter.report.review import Review
from llm_exporter.report.story import overview, sections, subtitle, title


def render_html(review: Review, plots: list[dict[str, bytes]], made_at: float) -> str:
    """The page.

    Args:
        review: what was found.
        plots: PNG by plot name, one dict per model.
        made_at: unix time, for the foot of the page.
    """
    source = resources.files("llm_exporter.report").joinpath("report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    models = [
        {
            "name": one.service.model or "(no model name)",
            "targets": ", ".join(one.service.targets),
            "engine": one.service.engine,
            "headlines": [headline.text for headline in one.headlines],
            "sections": sections(one, review),
            "plots": {name: base64.b64encode(image).decode() for name, image in images.items()},
        }
        for one, images in zip(review.models, plots, strict=True)
    ]
    return environment.from_string(source).render(
        title=title(review),
        subtitle=subtitle(review),
        overview=overview(review),
        warnings=review.warnings,
        models=models,
        made=stamp(made_at),
        version=__version__,
    )
