"""`llm-exporter record`: live servers as recordings, to look at later, to send to somebody, or to test with."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

import click

from llm_exporter.config.discovery import Discovery
from llm_exporter.config.durations import parse_duration
from llm_exporter.config.load import load_config
from llm_exporter.daemon.logs import set_up
from llm_exporter.daemon.recording_run import RecordingRun
from llm_exporter.errors import ConfigError, LlmExporterError, UsageError

log = logging.getLogger("llm_exporter.record")


@click.command("record")
@click.option("--config.file", "config_file", required=True, type=click.Path(path_type=Path), help="Configuration file.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder; each target gets one of its own in it.")
@click.option("--duration", metavar="S", help="Seconds, or 90s, 5m. Default: until Ctrl-C.")
def command(config_file: Path, out: Path, duration: str | None) -> None:
    """Record all targets of a configuration: their pages, GPUs and processes, in the format that `replay` reads.

    Ctrl-C or SIGTERM ends it cleanly. Nothing of the configuration but the targets' names is written.
    """
    set_up("warn", "logfmt")
    seconds = seconds_of(duration)
    config = load_config(config_file, os.environ)
    found = Discovery(config).refresh(time.monotonic())
    for problem in found.problems:
        click.echo(f"warning: {problem.source}: {problem.detail}", err=True)
    if not found.targets:
        raise UsageError(f"{config_file}: no targets to record; add some under `targets`")
    run = RecordingRun(config, found.targets, out)
    ended = threading.Event()

    def on_end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    before = {number: signal.signal(number, on_end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run.start()
        names = ", ".join(recording.target.name for recording in run.recordings)
        click.echo(f"recording {names} into {out}" + ("; Ctrl-C ends" if seconds is None else f" for {seconds:g} s"), err=True)
        ended.wait(seconds)
    finally:
        run.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    for recording in run.recordings:
        told = ", ".join(f"{n} {what.replace('_', ' ')}" for what, n in recording.counted.items())
        click.echo(f"{recording.folder}: {told}")
    if not any(recording.counted["pages"] for recording in run.recordings):
        raise LlmExporterError("not one page was recorded; the .fail files say why")


def seconds_of(text: str | None) -> float | None:
    """`90`, `90s` or `1m30s` as seconds. Raises: UsageError."""
    if text is None:
        return None
    try:
        seconds = float(text) if text.replace(".", "", 1).isdigit() else parse_duration(text)
    except (ConfigError, ValueError):
        seconds = 0.0
    if seconds <= 0:
        raise UsageError(f"--duration: {text!r} is no time; write seconds, or for example 90s or 5m")
    return seconds
