"""The ledger of field cases: a folder that no test names would be a case that nobody checks."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = TESTS / "fixtures" / "cases"
COUNT = 72


def spoken(path: Path) -> Iterator[str]:
    """Names and texts of a module's code; comments and docstrings check nothing, so they do not count."""
    tree = ast.parse(path.read_text())
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value


def test_every_folder_is_named_by_a_test() -> None:
    said = {text for path in TESTS.rglob("test_*.py") if path != Path(__file__) for text in spoken(path)}
    folders = sorted(path.name for path in CASES.iterdir() if path.is_dir())
    assert len(folders) == COUNT
    assert [name for name in folders if name not in said] == []


def test_every_folder_says_what_is_right() -> None:
    for path in CASES.iterdir():
        if path.is_dir():
            expected = json.loads((path / "expect.json").read_text())
            assert expected["id"] == path.name
            assert expected["checks"]
