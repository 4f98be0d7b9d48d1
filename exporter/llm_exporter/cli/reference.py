"""docs/commands.md: every command with its arguments and flags, from click's own declarations.

`generate docs` writes it; nothing is typed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click

from llm_exporter.cli import COMMANDS, cli

PATH = "docs/commands.md"
_HEAD = """\
# Commands

<!-- Written by `llm-exporter generate docs` from the commands themselves; edit those. -->

Exit codes: 0 fine, 1 failed, 2 wrong usage or configuration. `--help` works on every command.
"""


def commands_markdown() -> str:
    """The document."""
    return "\n".join([_HEAD, *(part for name in COMMANDS for part in _sections(f"llm-exporter {name}", _command(cli, name)))])


def _command(group: click.Group, name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


def _sections(name: str, command: click.Command) -> Iterator[str]:
    arguments = [parameter.make_metavar(click.Context(command)) for parameter in command.params if isinstance(parameter, click.Argument)]
    yield f"## {name}\n"
    yield f"{cleandoc(command.help or command.short_help or '')}\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(click.Context(command)):
            yield from _sections(f"{name} {below}", _command(command, below))
        return
    yield f"`{' '.join([name, *(['[OPTIONS]'] if _options(command) else []), *arguments])}`\n"
    if _options(command):
        rows = [f"| `{', '.join(option.opts)}` | {_cell(option, command)} |" for option in _options(command)]
        yield "\n".join(["| flag | meaning |", "|---|---|", *rows]) + "\n"


def _options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option) and not parameter.hidden]


def _cell(option: click.Option, command: click.Command) -> str:
    record = option.get_help_record(click.Context(command))
    said = record[1] if record is not None else ""
    if isinstance(option.type, click.Choice):
        said = f"{' | '.join(option.type.choices)}. {said}"
    return said.replace("|", "\\|").replace("\n", " ").strip()
