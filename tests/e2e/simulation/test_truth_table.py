"""The table's place in its document: between its marks, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_exporter.daemon import truth_table
from llm_exporter.daemon.truth_table import BEGIN, END, main, with_table

OLD = f"# Title\n\n{BEGIN}\nold\n{END}\n\nrest\n"


def test_only_what_is_between_the_marks_changes() -> None:
    assert with_table(OLD, "| new |") == f"# Title\n\n{BEGIN}\n| new |\n{END}\n\nrest\n"


@pytest.mark.parametrize("document", ["", BEGIN, END, f"{END} {BEGIN}"])
def test_a_document_without_marks_is_refused(document: str) -> None:
    with pytest.raises(ValueError, match="needs the marks"):
        with_table(document, "| new |")


def test_check_tells_a_difference_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(truth_table, "table", lambda: "| new |")
    document = tmp_path / "simulation.md"
    document.write_text(OLD)
    assert main(["--check", "--document", str(document)]) == 1
    assert "+| new |" in capsys.readouterr().out
    assert document.read_text() == OLD
    assert main(["--document", str(document)]) == 0
    assert main(["--check", "--document", str(document)]) == 0
