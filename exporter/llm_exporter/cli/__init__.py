"""The command line: one module per command, imported only when it is called.

So the daemon never pays for numpy or matplotlib, and a broken optional library breaks one command. Errors become exit codes here and
nowhere else: 0 fine, 1 failed, 2 wrong usage or configuration.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Mapping

import click

from llm_exporter import __version__
from llm_exporter.errors import ConfigError, LlmExporterError, UsageError

# command → (module below llm_exporter.cli, one line for --help). The module has a click command called `command`.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("serve", "Run the exporter."),
    "demo": ("demo", "Show everything on simulated engines; needs no GPU."),
    "check": ("check", "Validate a configuration or web configuration file."),
    "generate": ("generate", "Write dashboards, alert rules and reference documents."),
    "probe": ("probe", "Measure time to first token by context length."),
    "compare": ("compare", "Measure two servers side by side and say whether the difference is real."),
    "diagnose": ("diagnose", "Watch one server and say what limits it."),
    "replay": ("replay", "Run a recording through the whole pipeline and print the page."),
    "record": ("record", "Write a recording of live servers."),
    "explain": ("explain", "Show the path of one value from the raw line to the alert."),
    "report": ("report", "Write the weekly capacity review."),
    "kv": ("kv", "Compute the KV-cache memory of a model."),
}


class _LazyGroup(click.Group):
    """A group that knows its commands' names and imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"llm_exporter.cli.{COMMANDS[cmd_name][0]}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, "--version", prog_name="llm-exporter")
def cli() -> None:
    """Say why an LLM inference server is slow: a Prometheus exporter for vLLM and SGLang."""


def main() -> None:
    """Entry point. Maps errors to exit codes; raises SystemExit always."""
    if sys.argv[1:2] == ["serve"]:
        # A reload asked for while the daemon is still being imported must not end it; the file is read after this anyway.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(1)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (ConfigError, UsageError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except LlmExporterError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
