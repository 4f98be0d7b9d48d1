"""What `probe` and `compare` share: options, credentials, the progress bar.

In: flags. Out: `Server`s, a `Plan`, ladders. Credentials come from `--header` or the environment, and are never printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from llm_exporter.errors import UsageError
from llm_exporter.probing.calls import CHAT
from llm_exporter.probing.ladder import DEFAULT_LENGTHS, EndedEarly, Ladder, LadderRun, Plan, Server, fitting_lengths, lengths_asked_for
from llm_exporter.probing.pool import ProbePool
from llm_exporter.probing.servers import Asker, describe
from llm_exporter.probing.typed_url import base_url
from llm_exporter.probing.words import LANGUAGES
from llm_exporter.sources.probe import TlsSettings

TOKEN_VARIABLE = "LLM_EXPORTER_TOKEN"  # noqa: S105  # the name of a variable, not a token
_PICTURES = (".png", ".svg", ".pdf")
_REFERENCE = re.compile(r"\$\{(\w+)\}")
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags that both commands have."""

    prompt_tokens: str | None
    cache: str
    repeat: int
    max_tokens: int
    concurrency: int
    endpoint: str
    model: str | None
    temperature: float
    language: str
    timeout_seconds: float
    gpu: tuple[str, ...]
    precision: tuple[str, ...]
    quantization: tuple[str, ...]
    headers: tuple[str, ...]
    ca_file: str | None
    insecure: bool


def options(command: _Command) -> _Command:
    """Adds the common flags to a click command."""
    rows = (
        click.option(
            "--prompt-tokens",
            metavar="N,N,…",
            help="Prompt lengths in tokens, 2048 or 2K. Default: 2K to 32K, as far as the context holds.",
        ),
        click.option(
            "--cache", default="cold,warm", show_default=True, help="cold, warm or both (cold,warm): is the prompt in the prefix cache?"
        ),
        click.option("--repeat", default=5, show_default=True, type=click.IntRange(min=1), help="Samples per length and cache state."),
        click.option("--max-tokens", default=8, show_default=True, type=click.IntRange(min=1), help="Output tokens to ask for."),
        click.option("--concurrency", default=1, show_default=True, type=click.IntRange(1, 200), help="Requests at once per sample."),
        click.option("--endpoint", default=CHAT, show_default=True, help="Also /v1/completions, or SGLang's /generate."),
        click.option("--model", help="Served model. Default: the first that the server lists."),
        click.option("--temperature", default=0.0, show_default=True, type=click.FloatRange(min=0)),
        click.option("--language", default="en", show_default=True, type=click.Choice(LANGUAGES), help="Language of the made-up text."),
        click.option("--timeout", "timeout_seconds", default=120.0, show_default=True, type=click.FloatRange(min=0.1), help="Seconds."),
        click.option(
            "--gpu", multiple=True, help="Name of the GPU, printed with the conditions: servers do not say it. Once, or once per URL."
        ),
        click.option(
            "--precision", multiple=True, help="Of weights and activations, where the server does not say it. Once, or once per URL."
        ),
        click.option("--quantization", multiple=True, help="Of the weights, where the server does not say it. Once, or once per URL."),
        click.option(
            "--header",
            "headers",
            multiple=True,
            metavar="'NAME: VALUE'",
            help="Sent to every URL given; ${NAME} is read from the environment.",
        ),
        click.option("--ca-file", type=click.Path(exists=True, dir_okay=False), help="PEM file of certificate authorities."),
        click.option("--insecure", is_flag=True, help="Do not verify certificates."),
    )
    for row in reversed(rows):
        command = row(command)
    return command


def stated(settings: Settings, servers: int) -> list[dict[str, str]]:
    """What the user says of each server, by condition.

    Raises:
        UsageError: a flag is given neither once nor once per URL.
    """
    found: list[dict[str, str]] = [{} for _ in range(servers)]
    for name, values in (("gpu", settings.gpu), ("precision", settings.precision), ("quantization", settings.quantization)):
        if len(values) not in (0, 1, servers):
            raise UsageError(f"--{name} is given {len(values)} times for {servers} URLs: give it once, or once per URL in their order")
        for place, one in enumerate(found):
            if values:
                one[name] = values[place if len(values) > 1 else 0]
    return found


def check_plot_file(path: Path | None) -> None:
    """A picture that cannot be written must be known before the measurement, not after it.

    Raises:
        UsageError: another kind of file, or no such directory.
    """
    if path is None:
        return
    if path.suffix not in _PICTURES:
        raise UsageError(f"--plot: {path.name} must end in {', '.join(_PICTURES)}")
    if not path.parent.is_dir():
        raise UsageError(f"--plot: there is no directory {path.parent}")


def parse_lengths(text: str | None) -> tuple[int, ...]:
    """`2048,8192` or `2K,8K` as numbers.

    Raises:
        UsageError: no length.
    """
    if text is None:
        return DEFAULT_LENGTHS
    found = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*([kK]?)\s*", word)
        if match is None or int(match[1]) == 0:
            raise UsageError(f"--prompt-tokens: {word.strip()!r} is no number of tokens; write for example 2048,8192 or 2K,8K")
        found.append(int(match[1]) * (1024 if match[2] else 1))
    return tuple(found)


def parse_cache(text: str) -> tuple[str, ...]:
    """`cold,warm` as words; `both` is the two.

    Raises:
        UsageError: another word.
    """
    named = [word.strip() for word in text.split(",")]
    words = tuple(dict.fromkeys(each for word in named for each in (("cold", "warm") if word == "both" else (word,))))
    wrong = [word for word in words if word not in ("cold", "warm")]
    if wrong or not words:
        raise UsageError(f"--cache: {wrong[0]!r} is none of cold, warm, both")
    return words


def parse_headers(lines: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """`NAME: VALUE` lines; a token in the environment becomes a bearer token.

    Raises:
        UsageError: no colon, or an unset variable.
    """
    headers = {"Authorization": f"Bearer {environment[TOKEN_VARIABLE]}"} if environment.get(TOKEN_VARIABLE) else {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise UsageError("--header: write 'Name: value'")

        def expand(match: re.Match[str]) -> str:
            if match[1] not in environment:
                raise UsageError(f"--header: the environment has no {match[1]}")
            return environment[match[1]]

        headers[name.strip()] = _REFERENCE.sub(expand, value.strip())
    return headers


def connect(url: str, settings: Settings) -> Server:
    """Asks a server for its facts.

    Raises:
        UsageError: the URL cannot be used, or no model is known.
        FetchError: nothing answers.
    """
    clean = base_url(url)
    tls = TlsSettings(ca_file=settings.ca_file, insecure_skip_verify=settings.insecure)
    headers = parse_headers(settings.headers, os.environ)
    facts = describe(Asker(clean, headers, tls))
    model = settings.model or (facts.models[0] if facts.models else None)
    if model is None:
        raise UsageError(f"{clean} lists no model at /v1/models; say which with --model")
    return Server(clean, facts, model, headers, tls)


def measure(servers: Sequence[Server], settings: Settings, console: Console) -> tuple[list[Ladder], EndedEarly | None]:
    """The whole ladder on all servers, with a progress bar on stderr.

    Returns: what was measured, and why that is not all. The caller raises the second once it has shown the first.

    Raises:
        SourceError: a server fails, and nothing is measured.
    """
    contexts = [server.facts.context_tokens for server in servers if server.facts.context_tokens is not None]
    lengths = parse_lengths(settings.prompt_tokens)
    fitting = fitting_lengths if settings.prompt_tokens is None else lengths_asked_for
    plan = Plan(
        prompt_tokens=fitting(lengths, min(contexts, default=None), settings.max_tokens),
        cache=parse_cache(settings.cache),
        repeat=settings.repeat,
        max_tokens=settings.max_tokens,
        concurrency=settings.concurrency,
        endpoint="/" + settings.endpoint.lstrip("/"),
        temperature=settings.temperature,
        language=settings.language,
        timeout_seconds=settings.timeout_seconds,
    )
    if plan.prompt_tokens != tuple(sorted(set(lengths))):
        lost = ", ".join(map(str, sorted(set(lengths) - set(plan.prompt_tokens))))
        measured = ", ".join(map(str, plan.prompt_tokens))
        console.print(f"The context of {min(contexts)} tokens does not hold {lost} tokens. Measured: {measured}.", highlight=False)
    columns = (TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProbePool() as pool, Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting")
        run = LadderRun(servers, plan, pool, lambda text: progress.update(task, advance=1, description=text))
        progress.update(task, total=run.steps)
        try:
            return run.carry_out(), None
        except EndedEarly as ended:
            if not any(cell.good for ladder in ended.ladders for cell in ladder.cells):
                raise
            return ended.ladders, ended
