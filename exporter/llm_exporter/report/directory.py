"""The directory of reviews: its index, its retention, and when the last one was made.

In: a path. Out: rows for `/reports/`, the `Family` with the time of the last success. Called by the daemon, so it imports neither numpy nor
matplotlib. A review is a directory named by the end of its window that holds a whole `report.json`; everything else is left alone.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from llm_exporter.metrics import Family, Metric, Sample
from llm_exporter.readings import Kind, Unit

REPORT_JSON, REPORT_HTML, REPORT_MARKDOWN = "report.json", "report.html", "report.md"
_NAME = re.compile(r"\d{4}-\d{2}-\d{2}T\d{4}Z")

LAST_SUCCESS = Metric(
    "llm_report_last_success_timestamp_seconds",
    Kind.GAUGE,
    Unit.TIMESTAMP,
    "When the last capacity review was finished, read back from the reports directory at start; absent without a schedule.",
    bound="1",
)


class Entry(NamedTuple):
    """One review in the directory.

    Attributes:
        name: of its directory.
        start, end: of its window, aware.
        made_at: unix time at which it was finished.
        models: names of the models in it.
        warnings: how many.
        files: names of the files beside `report.json`.
    """

    name: str
    start: datetime
    end: datetime
    made_at: float
    models: tuple[str, ...]
    warnings: int
    files: tuple[str, ...]

    def row(self) -> dict[str, Any]:
        """For the page `/reports/` and its JSON."""
        return {
            "name": self.name,
            "start": self.start.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "end": self.end.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "made_at": self.made_at,
            "models": list(self.models),
            "warnings": self.warnings,
            "files": list(self.files),
        }


def entries(directory: Path) -> list[Entry]:
    """Reviews in the directory, newest window first; those that are unfinished or unreadable are left out."""
    if not directory.is_dir():
        return []
    found = [entry for path in directory.iterdir() if _NAME.fullmatch(path.name) and (entry := _entry(path)) is not None]
    return sorted(found, key=lambda entry: entry.end, reverse=True)


def _entry(path: Path) -> Entry | None:
    report = path / REPORT_JSON
    try:
        made_at = report.stat().st_mtime
        document = json.loads(report.read_text(encoding="utf-8"))
        window = document["window"]
        return Entry(
            path.name,
            datetime.fromisoformat(window["start"]),
            datetime.fromisoformat(window["end"]),
            made_at,
            tuple(str(model["model"]) for model in document["models"]),
            len(document["warnings"]),
            tuple(sorted(file.name for file in path.iterdir() if file.is_file() and not file.name.startswith("."))),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_window_end(directory: Path) -> datetime | None:
    """End of the newest window that was reviewed; None where there is no review."""
    found = entries(directory)
    return found[0].end if found else None


def last_success(directory: Path) -> float | None:
    """Unix time at which the newest review was finished; None where there is none."""
    found = entries(directory)
    return max(entry.made_at for entry in found) if found else None


def family(made_at: float | None) -> Family:
    """The metric; without samples while no review was ever made."""
    return Family(LAST_SUCCESS, () if made_at is None else (Sample((), made_at),))


def retain(directory: Path, keep: int) -> Sequence[str]:
    """Remove all but the newest `keep` reviews; returns the names of those that are gone."""
    gone = []
    for entry in entries(directory)[keep:]:
        shutil.rmtree(directory / entry.name, ignore_errors=True)
        gone.append(entry.name)
    return gone
