"""The review as Markdown: for a ticket, a chat or a terminal.

In: `Review`. Out: text. Called by `write.py`. Plots are named as files only where they were written.
"""

from __future__ import annotations

from llm_exporter.report.review import Review
from llm_exporter.report.story import Table, overview, sections, subtitle, title

_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\`*_[]<>|#"})


def escape(text: str) -> str:
    """Text that Markdown shows as it is: model names and warnings are not ours to trust."""
    return " ".join(text.split()).translate(_SPECIAL)


def render_markdown(review: Review, png_names: dict[tuple[int, str], str] | None = None) -> str:
    """The whole report.

    Args:
        review: what was found.
        png_names: file name by (position of the model, plot), where plots were written beside the report.
    """
    parts = [f"# {title(review)}", subtitle(review), _table(overview(review))]
    if review.warnings:
        parts += ["## To know first", "\n".join(f"- {escape(warning)}" for warning in review.warnings)]
    for position, one in enumerate(review.models):
        parts.append(f"## {escape(one.service.model or '(no model name)')}")
        parts.append(f"Targets: {escape(', '.join(one.service.targets))}. Engine: {escape(one.service.engine)}.")
        if one.headlines:
            parts.append("\n".join(f"- **{escape(headline.text)}**" for headline in one.headlines))
        for section in sections(one, review):
            parts.append(f"### {section.title}")
            if section.lines:
                parts.append("\n".join(f"- {escape(line)}" for line in section.lines))
            if section.table is not None:
                parts.append(_table(section.table))
            parts += [
                f"![{escape(alt)}]({png_names[position, name]})"
                for name, alt in section.plots
                if png_names is not None and (position, name) in png_names
            ]
            basis = " ".join(text for text in section.basis if text)
            if basis:
                parts.append(f"*{escape(basis)}*")
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = ["| " + " | ".join(table.heads) + " |", "|" + " --- |" * len(table.heads)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join(lines)


def summary(review: Review) -> str:
    """A few lines for a webhook: one per model, then what stands out."""
    lines = [title(review)]
    for one in review.models:
        slo = one.slos[0].finding if one.slos else None
        good = f"SLO {100 * slo['good_ratio']:.2f} % good" if slo is not None and slo["good_ratio"] is not None else "SLO unknown"
        headroom = one.headroom["headroom_ratio"]
        room = f"headroom {100 * headroom:.0f} %" if headroom is not None else "headroom unknown"
        lines.append(f"{one.service.model}: {good}, {room}.")
        lines += [f"  - {headline.text}" for headline in one.headlines]
        lines += [f"  - To do: {advice['action']}" for advice in one.recommendations[:1]]
    return "\n".join(lines)
