"""`llm-exporter report`: the weekly capacity review from the history in Prometheus."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import click

from llm_exporter.config.durations import parse_duration
from llm_exporter.config.load import load_config
from llm_exporter.config.model import Config
from llm_exporter.config.secrets import credentials_headers, read_secret
from llm_exporter.errors import SourceError, UsageError
from llm_exporter.report.document import document
from llm_exporter.report.finding import Span
from llm_exporter.report.fleet import TargetFacts
from llm_exporter.report.history import read_history
from llm_exporter.report.markdown import summary
from llm_exporter.report.query import Connection, Prometheus
from llm_exporter.report.review import review
from llm_exporter.report.schedule import stamp_name
from llm_exporter.report.webhook import post_summary
from llm_exporter.report.write import write_review
from llm_exporter.signals.review_records import STEP_SECONDS

SETTLE_SECONDS = 60.0  # rules and scrapes of the last minute must have reached the server before it is asked


@click.command(
    "report", help="Write the weekly capacity review: HTML, Markdown and JSON. Give --prometheus.url or --config.file; the flag wins."
)
@click.option("--prometheus.url", "url", help="Base URL of Prometheus, VictoriaMetrics, Thanos or Mimir; a path prefix is kept.")
@click.option(
    "--config.file", "config_file", type=click.Path(path_type=Path), help="Configuration file: report.prometheus, prices, GPU counts."
)
@click.option("--range", "range_text", default="7d", show_default=True, help="Length of the window under review.")
@click.option("--end", "end_text", help="End of the window, RFC 3339; now where it is missing.")
@click.option("--start", "start_text", help="Start of the window, RFC 3339; wins over --range.")
@click.option("--history", "history_text", default="35d", show_default=True, help="How far back load, growth and capacity look.")
@click.option("--timezone", "timezone", help="Time zone of days and hours; that of the configuration, else UTC.")
@click.option(
    "--out",
    "out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory to write to; <reports directory>/<end> where it is missing.",
)
@click.option("--png", is_flag=True, help="Write each plot as a PNG file too.")
@click.option("--post-webhook", "webhook", is_flag=True, help="Post the summary to report.webhook_url_file.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
def command(
    url: str | None,
    config_file: Path | None,
    range_text: str,
    end_text: str | None,
    start_text: str | None,
    history_text: str,
    timezone: str | None,
    out: Path | None,
    png: bool,
    webhook: bool,
    quiet: bool,
) -> None:
    """Ask, judge, write; prints the paths of what was written."""
    config = load_config(config_file, os.environ) if config_file is not None else None
    settings = config.report if config is not None else None
    connection = _connection(url, config)
    zone_name = timezone or (settings.timezone if settings is not None else "UTC")
    try:
        zone = ZoneInfo(zone_name)
    except (ValueError, OSError, KeyError):
        raise UsageError(f"--timezone {zone_name!r} is no time zone: write one such as Europe/Berlin") from None
    now = time.time()
    end = _moment("--end", end_text, now)
    start = _moment("--start", start_text, end - _duration("--range", range_text))
    if start >= end or end > now + SETTLE_SECONDS:
        raise UsageError("the window is empty or lies in the future: --start must be before --end, and --end not after now")
    if end_text is not None and now < end + SETTLE_SECONDS:
        time.sleep(end + SETTLE_SECONDS - now)
    window = Span(int(start), int(end) // STEP_SECONDS * STEP_SECONDS)
    if window.end - window.start < STEP_SECONDS:
        raise UsageError(f"the window is shorter than the step of {STEP_SECONDS} s: give a longer --range")
    first = min(window.start, window.end - int(_duration("--history", history_text)))
    prometheus = Prometheus(connection)
    try:
        with _progress(quiet) as progress:
            history = read_history(prometheus, first, window.end, zone, progress=progress)
    except SourceError as error:
        raise _told(error) from None
    finally:
        prometheus.close()
    # Where the start is no multiple of the step from the end, the window begins with the first whole step.
    found = review(history, window, zone, zone_name, facts=_facts(config), currency=settings.currency if settings is not None else None)
    base = settings.directory if settings is not None else Path("reports")
    directory = out if out is not None else base / stamp_name(datetime.fromtimestamp(window.end, UTC))
    for path in write_review(found, directory, time.time(), png=png):
        click.echo(str(path))
    if webhook and settings is not None and settings.webhook_url_file is not None:
        post_summary(read_secret(settings.webhook_url_file), summary(found), document(found)["window"])


def _connection(url: str | None, config: Config | None) -> Connection:
    settings = config.report.prometheus if config is not None and config.report is not None else None
    if url is None and settings is None:
        if config is not None:
            raise UsageError("the configuration has no report.prometheus.url: add it, or give --prometheus.url")
        raise UsageError("where is the history? Give --prometheus.url http://HOST:9090, or --config.file with report.prometheus")
    if settings is None:
        assert url is not None
        return Connection(url)
    if url is not None and url.rstrip("/") != settings.url.rstrip("/"):
        # Credentials belong to the configured address; they are not sent anywhere else.
        return Connection(url, matchers=settings.matchers or "")
    return Connection(settings.url, matchers=settings.matchers or "", headers=credentials_headers(settings), tls=settings.tls_config)


def _facts(config: Config | None) -> dict[str, TargetFacts]:
    if config is None:
        return {}
    return {target.name: TargetFacts(target.gpu_count, target.gpu_cost_per_hour) for target in config.targets}


def _duration(flag: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{flag} {text!r} {error}") from None
    if seconds <= 0:
        raise UsageError(f"{flag} {text!r} is empty: write a duration such as 7d")
    return seconds


def _moment(flag: str, text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{flag} {text!r} is no time: write it as 2026-11-23T08:00:00+01:00") from None
    if moment.tzinfo is None:
        raise UsageError(f"{flag} {text!r} has no time zone: write Z or an offset such as +01:00 behind it")
    return moment.timestamp()


def _told(error: SourceError) -> SourceError:
    """The same error with its remedy in the text, which is what the command line prints."""
    return type(error)(error.reason, f"{error.detail}. {error.hint}" if error.hint else error.detail)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on stderr, where a person is there to see it."""
    if quiet or not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console  # only where somebody looks
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("asking Prometheus", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)
