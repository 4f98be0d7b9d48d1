"""The directory of reviews: index, retention, last success."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from llm_exporter.report.directory import entries, family, last_success, last_window_end, retain


def put(directory: Path, day: int, *, whole: bool = True, made_at: float = 0.0) -> Path:
    path = directory / f"2027-01-{day:02d}T0000Z"
    path.mkdir(parents=True)
    (path / "report.html").write_text("x")
    window = {"start": f"2027-01-{day - 1:02d}T00:00:00Z", "end": f"2027-01-{day:02d}T00:00:00Z"}
    body = json.dumps({"window": window, "models": [{"model": "a/b"}], "warnings": ["w"]})
    (path / "report.json").write_text(body if whole else body[:40])
    os.utime(path / "report.json", (made_at, made_at))
    return path


def test_the_index_names_whole_reviews_newest_first(tmp_path: Path) -> None:
    put(tmp_path, 2, made_at=1000.0)
    put(tmp_path, 9, made_at=2000.0)
    put(tmp_path, 16, whole=False, made_at=3000.0)
    (tmp_path / "notes").mkdir()
    (tmp_path / "2027-01-23T0000Z").mkdir()
    rows = [entry.row() for entry in entries(tmp_path)]
    assert [row["name"] for row in rows] == ["2027-01-09T0000Z", "2027-01-02T0000Z"]
    assert rows[0]["models"] == ["a/b"]
    assert rows[0]["warnings"] == 1
    assert rows[0]["files"] == ["report.html", "report.json"]
    assert last_window_end(tmp_path) == datetime(2027, 1, 9, tzinfo=UTC)
    assert last_success(tmp_path) == 2000.0


def test_retention_removes_old_reviews_and_nothing_else(tmp_path: Path) -> None:
    for day in (2, 9, 16):
        put(tmp_path, day)
    (tmp_path / "mine.txt").write_text("keep")
    (tmp_path / "2026-01-01T0000Z").mkdir()
    assert list(retain(tmp_path, 2)) == ["2027-01-02T0000Z"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2026-01-01T0000Z", "2027-01-09T0000Z", "2027-01-16T0000Z", "mine.txt"]


def test_a_missing_directory_is_empty(tmp_path: Path) -> None:
    assert entries(tmp_path / "none") == []
    assert last_success(tmp_path / "none") is None
    assert last_window_end(tmp_path / "none") is None


def test_no_review_means_no_sample() -> None:
    assert list(family(None).samples) == []
    assert [sample.value for sample in family(5.0).samples] == [5.0]


def test_what_the_daemon_imports_is_light() -> None:
    code = "import llm_exporter.report.directory, llm_exporter.report.schedule, llm_exporter.signals.review_records, sys; "
    code += "print([n for n in ('numpy', 'matplotlib', 'scipy', 'requests') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
