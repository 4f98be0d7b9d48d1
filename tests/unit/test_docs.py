"""Nothing is undocumented: metrics, statuses, commands and their flags, configuration keys, HTTP routes, alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click
import pytest

from llm_exporter.cli import COMMANDS, cli
from llm_exporter.config.model import Config
from llm_exporter.config.values import Section
from llm_exporter.daemon.daemon import Daemon
from llm_exporter.daemon.published import declared
from llm_exporter.expose import probes
from llm_exporter.expose.web import WebSettings, application
from llm_exporter.generate.alerts import ALERTS
from llm_exporter.signals.model import Status
from llm_exporter.telemetry import Telemetry

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
METRICS, CONFIGURATION, RUNBOOKS = DOCS / "metrics.md", DOCS / "configuration.md", DOCS / "runbooks"


def text_of(*paths: Path) -> str:
    """Text of documents; skips where there are none yet, and says which."""
    missing = [path for path in paths if not path.exists()]
    if missing:
        pytest.skip(f"not written yet: {', '.join(str(path.relative_to(ROOT)) for path in missing)}")
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def prose() -> str:
    """README and everything in docs/ that people read from the start."""
    return text_of(ROOT / "README.md", *sorted(DOCS.glob("*.md")))


def has(text: str, name: str) -> bool:
    """Whether the name stands there as a whole word; an underscore, a dash or a dot belongs to a longer one."""
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text) is not None


def test_every_metric_is_in_the_reference() -> None:
    text = text_of(METRICS)
    names = [metric.name for metric in (*declared(), *probes.METRICS)]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_metric_of_the_exporter_itself_is_in_the_reference() -> None:
    text = text_of(METRICS)
    families = [family for family in Telemetry().registry.collect() if family.name.startswith("llm_")]
    names = [family.name + ("_total" if family.type == "counter" else "") for family in families]
    assert names
    assert [name for name in names if not has(text, name)] == []


def test_every_status_is_explained() -> None:
    text = text_of(METRICS)
    assert [status.value for status in Status if f"`{status.value}`" not in text] == []


def flags() -> Iterator[tuple[str, str]]:
    """(command, flag), subcommands included."""

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, str]]:
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                yield name, max((*parameter.opts, *parameter.secondary_opts), key=len)
        if isinstance(command, click.Group):
            for below in command.list_commands(click.Context(command)):
                found = command.get_command(click.Context(command), below)
                assert found is not None
                yield from walk(f"{name} {below}", found)

    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield from walk(name, command)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_documents(command: str) -> None:
    assert f"llm-exporter {command}" in prose()


def test_every_flag_is_in_the_documents() -> None:
    text = prose()
    assert sorted({f"{command} {flag}" for command, flag in flags() if not has(text, flag)}) == []


def keys(section: type[Section], seen: set[type[Section]]) -> Iterator[str]:
    """Every key below a section, by its name in YAML."""
    if section in seen:
        return
    seen.add(section)
    for name, field in section.model_fields.items():
        yield str(field.validation_alias or field.alias or name)
        for below in sections_in(field.annotation):
            yield from keys(below, seen)


def sections_in(annotation: Any) -> Iterator[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_in(argument)


def test_every_configuration_key_is_in_the_reference_and_in_the_example() -> None:
    found = sorted(set(keys(Config, set())))
    assert len(found) > 60
    assert [key for key in found if not has(text_of(CONFIGURATION), key)] == []


def test_every_route_is_in_the_documents(tmp_path: Path) -> None:
    app: Any = application(Daemon(tmp_path / "none.yml", {}), WebSettings)
    flask = next(cell.cell_contents for cell in app.__closure__ if hasattr(cell.cell_contents, "url_map"))
    routes = {re.sub(r"<[^>]*>", "", str(rule)).rstrip("/") or "/" for rule in flask.url_map.iter_rules()}
    text = prose()
    assert {"/metrics", "/probe", "/-/reload"} <= routes
    assert sorted(route for route in routes if route not in text) == []


@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_every_alert_has_a_runbook(alert: str) -> None:
    index = text_of(RUNBOOKS / "README.md")
    assert (RUNBOOKS / f"{alert}.md").is_file()
    assert has(index, alert)


def test_no_runbook_is_of_an_alert_that_is_gone() -> None:
    text_of(RUNBOOKS / "README.md")
    assert {path.stem for path in RUNBOOKS.glob("LLM*.md")} == {alert.name for alert in ALERTS}


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link) and not (path.parent / link).exists():
                broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert broken == []
