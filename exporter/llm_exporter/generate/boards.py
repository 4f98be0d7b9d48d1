"""The six dashboards: what they are called, and how an alert links to one with its variables filled.

The generators of dashboards take uid, title and variables from here, so that links and boards cannot part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Board(NamedTuple):
    """One dashboard: `variables` are labels of alerts that it takes as `var-…`."""

    uid: str
    title: str
    variables: tuple[str, ...]


_EXPORTER = ("job", "instance")
FLEET = Board("llm-fleet", "LLM fleet", _EXPORTER)
TARGET = Board("llm-target", "LLM target", (*_EXPORTER, "target", "model"))
GPU = Board("llm-gpu", "LLM GPU and host", (*_EXPORTER, "target", "gpu"))
PROBE = Board("llm-probe", "LLM probe", (*_EXPORTER, "target", "module"))
CAPACITY = Board("llm-capacity", "LLM capacity", (*_EXPORTER, "target", "model"))
EXPORTER = Board("llm-exporter", "LLM exporter", _EXPORTER)
BOARDS: tuple[Board, ...] = (FLEET, TARGET, GPU, PROBE, CAPACITY, EXPORTER)


def link(base: str, board: Board, labels: Sequence[str]) -> str:
    """URL of a board as an annotation: those of its variables that the alert has as labels are filled by its template."""
    filled = "".join(f"&var-{name}={{{{ $labels.{name} | urlquery }}}}" for name in board.variables if name in labels)
    return f"{base}/d/{board.uid}?from=now-1h&to=now{filled}"
