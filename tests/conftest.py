"""What all tests share: hypothesis profiles, golden files and their renewal, Debian's programs.

Profiles: `ci` where CI is set (the same examples at each run), `default` elsewhere, `deep` by hand (`--hypothesis-profile=deep`).
A test that asks for a program of the system is marked `system`, and skipped with the reason where the program is missing.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from difflib import unified_diff
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Machines that run tests are busy: how long an example takes says nothing about it.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None, print_blob=True)
settings.register_profile("deep", settings.get_profile("default"), max_examples=3000)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# program → the Debian package that has it (`make system-deps`, .ci/system-deps)
PROGRAMS = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "amtool": "prometheus-alertmanager",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "chromium": "chromium",
    "vmalert": "victoria-metrics",
}
GOLDEN = Path(__file__).parent / "golden"
DIFF_LINES_SHOWN = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files; read the diff")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(name in getattr(item, "fixturenames", ()) for name in ("program", *PROGRAMS)):
            item.add_marker("system")


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """A command that a test calls in this process sets the root's level; what the next test sees logged must not depend on it."""
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """The path of a program of the system; skips the test where it is missing."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"{name} is not installed (Debian package {PROGRAMS[name]}; make system-deps)")
        return path

    return find


@pytest.fixture(scope="session")
def promtool(program: Callable[[str], str]) -> str:
    return program("promtool")


@pytest.fixture(scope="session")
def prometheus(program: Callable[[str], str]) -> str:
    return program("prometheus")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden, or writes the file with --update-golden."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
            return
        assert path.is_file(), f"tests/golden/{name} is missing: make golden"
        diff = list(
            islice(
                unified_diff(path.read_text(encoding="utf-8").splitlines(), text.splitlines(), name, "now", lineterm="", n=1),
                DIFF_LINES_SHOWN,
            )
        )
        assert not diff, "\n".join(["differs from tests/golden; if it should: make golden, and read the diff", *diff])

    return check
