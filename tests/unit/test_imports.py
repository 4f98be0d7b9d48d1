"""The rooms import in one direction only; a library with one door is imported in one module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "exporter" / "llm_exporter"

# A room may import from itself and from rooms on lines above it. Rooms on one line do not know each other.
ORDER: tuple[tuple[str, ...], ...] = (
    ("errors", "wording"),
    ("readings",),
    ("metrics", "hardware"),
    ("config",),
    ("sources",),
    ("engines",),
    ("state",),
    ("signals",),
    ("probing", "expose", "generate", "report", "kv", "recording"),
    ("telemetry",),
    ("demo",),
    ("daemon",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}

# Libraries without types or with global state: one door each.
DOORS = {"pynvml": "sources/nvml.py", "apscheduler": "daemon/schedule.py", "grafanalib": "generate/panels.py"}

MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imported(path: Path) -> list[tuple[int, str]]:
    """(line, dotted name) of every import in the file, those inside functions too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write the full name instead of a relative import"
            names = [node.module or ""]
            if node.module == "llm_exporter":
                names = [f"llm_exporter.{alias.name}" for alias in node.names]
            found += [(node.lineno, name) for name in names]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_rooms_before_its_own(path: Path) -> None:
    room = room_of(path)
    if room == "__init__":
        assert not [name for _, name in imported(path) if name.startswith("llm_exporter")]
        return
    assert room in LEVEL, f"room {room!r} is not in ORDER: say where it belongs"
    for line, name in imported(path):
        parts = name.split(".")
        if parts[0] != "llm_exporter" or len(parts) == 1 or parts[1] == "__version__":
            continue
        other = parts[1]
        assert other == room or LEVEL[other] < LEVEL[room], f"{path}:{line}: {room} must not import {other} (see ORDER)"


@pytest.mark.parametrize(("library", "door"), DOORS.items())
def test_a_library_with_one_door_is_imported_there_only(library: str, door: str) -> None:
    users = {str(path.relative_to(PACKAGE)) for path in MODULES for _, name in imported(path) if name.split(".")[0] == library}
    assert users <= {door}
