"""`llm-exporter diagnose URL`: watch one server for a while, say what limits it, why that is believed, and what to change."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable

import click
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from llm_exporter.cli.diagnose_text import print_diagnosis
from llm_exporter.cli.measuring import TOKEN_VARIABLE, parse_headers
from llm_exporter.config.model import Config, Target
from llm_exporter.daemon.diagnosing import Watch, document
from llm_exporter.daemon.logs import set_up
from llm_exporter.daemon.loop import next_due
from llm_exporter.daemon.machine import Machine
from llm_exporter.daemon.published import declared
from llm_exporter.errors import UsageError
from llm_exporter.expose.page import Page
from llm_exporter.sources.engine import Failed, Fetched, read_version, scrape
from llm_exporter.sources.http import Client
from llm_exporter.sources.origin import split_base_url
from llm_exporter.sources.tls import TlsFiles

LEAST_WATCH_SECONDS = 15
TIMEOUT_SECONDS = 5.0
# Pages that take long to make are asked for less often: to watch must not be to load.
FAST_SECONDS, SLOW_SECONDS, SLOW_PAGE_SECONDS = 1.0, 2.0, 0.25
# A server that gave nothing so many times in a row from the start on is not waited for; one that loads (503) is.
HOPELESS_AFTER = 3


@click.command("diagnose")
@click.argument("url")
@click.option("--watch", "seconds", default=60, show_default=True, type=click.IntRange(min=LEAST_WATCH_SECONDS), help="Seconds to watch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
@click.option("--gpus", default="auto", show_default=True, help="GPUs of this machine that serve it: auto, none, or 0,1 or UUIDs.")
@click.option("--metrics-path", default="/metrics", show_default=True, help="Path of the metrics below the URL.")
@click.option("--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="${NAME} is read from the environment.")
@click.option("--ca-file", type=click.Path(exists=True, dir_okay=False), help="PEM file of certificate authorities.")
@click.option("--insecure", is_flag=True, help="Do not verify certificates.")
def command(
    url: str, seconds: int, as_json: bool, gpus: str, metrics_path: str, headers: tuple[str, ...], ca_file: str | None, insecure: bool
) -> int:
    """Watch the server at URL and say what limits it, with the evidence and the flags to change.

    It sends no requests but reads the metrics once or twice a second, and, where the server runs on this machine, its GPUs and processes.
    A token from LLM_EXPORTER_TOKEN is sent as a bearer token. Exit code 1 where the server cannot be read.
    """
    set_up("error", "logfmt")  # what is missing stands in the diagnosis
    base = base_url(url, metrics_path)
    sent = parse_headers(headers, os.environ)
    tls = TlsFiles(ca_file=ca_file or "", insecure_skip_verify=insecure)
    target = target_of(base, gpus, metrics_path)
    client = Client(base, headers=lambda: sent, tls=tls)
    machine = Machine(Page(declared(), time.monotonic), lambda *_: None)
    watch = Watch(
        target,
        hardware=lambda now, seconds: machine.view(target.name, now, seconds),
        version=lambda engine: read_version(client, engine, timeout=TIMEOUT_SECONDS),
        wall=time.time,
    )
    machine.apply(Config(), [target])
    try:
        notes = Console(stderr=True)
        columns = (TextColumn("watching"), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
            task = progress.add_task("", total=seconds)
            follow(
                watch,
                lambda: scrape(client, metrics_path, timeout=TIMEOUT_SECONDS, clock=time.monotonic),
                float(seconds),
                told=lambda done: progress.update(task, completed=done, description=state_of(watch)),
            )
    finally:
        machine.stop()
        client.close()
    found = watch.diagnosis()
    if as_json:
        click.echo(json.dumps(document(found, base), indent=2, allow_nan=False, ensure_ascii=False))
    else:
        print_diagnosis(Console(highlight=False, soft_wrap=not Console().is_terminal), found, base)
    return 1 if found.failure else 0


def follow(
    watch: Watch,
    scraped: Callable[[], Fetched | Failed],
    seconds: float,
    *,
    told: Callable[[float], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ticks the watch for `seconds`; ends early on Ctrl-C, or when nothing of an engine comes from the start on."""
    start = due = clock()
    interval, failed_in_a_row, ever = FAST_SECONDS, 0, False
    try:
        while True:
            now = clock()
            page = scraped()
            watch.tick(page, now)
            status = watch.pipeline.status
            if page.duration_seconds > SLOW_PAGE_SECONDS:
                interval = SLOW_SECONDS
            useful = status.up and not status.reason
            ever |= useful or status.state == "loading"
            failed_in_a_row = 0 if useful else failed_in_a_row + 1
            told(now - start)
            due, _ = next_due(due, clock(), interval)
            if due > start + seconds or (failed_in_a_row >= HOPELESS_AFTER and not ever):
                return
            sleep(max(0.0, due - clock()))
    except KeyboardInterrupt:
        return


def state_of(watch: Watch) -> str:
    """A word for the progress bar."""
    view = watch.pipeline.view
    if not watch.pipeline.status.up:
        return watch.pipeline.status.reason
    return view.decision.cause if view is not None and view.decision is not None else "reading"


def base_url(url: str, metrics_path: str = "/metrics") -> str:
    """The base URL of what a person pasted: with or without scheme, with /v1 or the metrics path behind it.

    Raises: UsageError, without repeating what may be a secret.
    """
    full = url if "://" in url else f"http://{url}"
    if "@" in full.split("://", 1)[1].split("/", 1)[0]:
        raise UsageError(f"credentials in a URL end up in logs; use --header, or set {TOKEN_VARIABLE}")
    full = full.rstrip("/").removesuffix(metrics_path).removesuffix("/v1").rstrip("/")
    split_base_url(full)  # names what is wrong
    return full


def target_of(base: str, gpus: str, metrics_path: str) -> Target:
    """The target to watch. Raises: UsageError."""
    chosen: object = gpus if gpus in ("auto", "none") else [int(word) if word.isdigit() else word for word in gpus.split(",")]
    try:
        return Target.model_validate({"name": "server", "url": base, "gpus": chosen, "metrics_path": metrics_path})
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(map(str, first['loc'])) or 'URL'}: {first['msg']}") from None
