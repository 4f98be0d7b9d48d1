"""The committed artefacts: which there are, who makes them, and whether the files on disk are still theirs.

In: `RuleSettings` and a configuration. Out: text by relative path. `cli/generate.py` adds producers of
other rooms.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from llm_exporter.generate.alertmanager import alertmanager_file
from llm_exporter.generate.recording import ReviewRecord
from llm_exporter.generate.rules import alerts_file, recording_file
from llm_exporter.generate.runbooks import runbooks
from llm_exporter.generate.settings import RuleSettings

Producer = Callable[[], Mapping[str, str]]


def alert_artefacts(settings: RuleSettings, review: Sequence[ReviewRecord] = ()) -> dict[str, str]:
    """Everything below alerts/."""
    return {
        "alerts/recording.yml": recording_file(settings, review),
        "alerts/alerts.yml": alerts_file(settings),
        "alerts/alertmanager.yml": alertmanager_file(),
    }


def runbook_artefacts() -> dict[str, str]:
    """docs/runbooks/."""
    return runbooks()


def collect(producers: Sequence[Producer]) -> dict[str, str]:
    """What all producers make; two that make the same file are a mistake of ours."""
    found: dict[str, str] = {}
    for producer in producers:
        for path, text in producer().items():
            if path in found:
                raise ValueError(f"two producers make {path}")
            found[path] = text
    return found


def drift(artefacts: Mapping[str, str], root: Path) -> list[str]:
    """A unified diff per file that differs from what it should be, or is missing."""
    found = []
    for path, wanted in sorted(artefacts.items()):
        file = root / path
        there = file.read_text(encoding="utf-8") if file.is_file() else ""
        if there != wanted or not file.is_file():
            diff = difflib.unified_diff(there.splitlines(), wanted.splitlines(), f"{path} (on disk)", f"{path} (generated)", lineterm="")
            found.append("\n".join(diff) or f"{path}: the file is missing")
    return found


def write(artefacts: Mapping[str, str], root: Path) -> list[str]:
    """Writes what differs; the paths written."""
    written = []
    for path, text in sorted(artefacts.items()):
        file = root / path
        if file.is_file() and file.read_text(encoding="utf-8") == text:
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        written.append(path)
    return written
