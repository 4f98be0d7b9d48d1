"""From a configuration file to a `Config`, strictly: every problem is named with file, line, key, value and remedy.

`serve`, `check config` and every command with `--config.file` call `load` or `load_config`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from llm_exporter.config.advice import advice, in_container
from llm_exporter.config.document import SECRET_SECTIONS, Document, Problem, dotted, parse_document, printable, read_file
from llm_exporter.config.keys import section_at, sections_of
from llm_exporter.config.model import Config, cross_problems
from llm_exporter.config.render import is_secret_key, render_document
from llm_exporter.config.urls import shown_url
from llm_exporter.config.values import EMPTY, HIDDEN, LoadContext
from llm_exporter.errors import ConfigError

# Words of Prometheus, of its other exporters, and of former habits: what we call them.
_FOREIGN_KEYS: Mapping[str, str] = {
    "bearer_token": "authorization: {credentials: …}",
    "bearer_token_file": "authorization: {credentials_file: …}",
    "token": "authorization: {credentials: …}",
    "token_file": "authorization: {credentials_file: …}",
    "api_key": "authorization: {credentials: …}",
    "api_key_file": "authorization: {credentials_file: …}",
    "http_headers": "headers",
    "scrape_configs": "targets",
    "static_configs": "targets",
    "address": "url",
    "endpoint": "url",
    "path": "metrics_path",
    "modules": "probe_modules",
    "probe": "probes",
    "slo": "slos",
    "cron": "schedule",
    "webhook_url": "webhook_url_file",
    "cert": "cert_file",
    "key": "key_file",
}
_MOST_PROBLEMS = 100


class Loaded(NamedTuple):
    """A configuration and how `/config` shows it.

    Attributes:
        config: the validated configuration; file names are absolute, `${NAME}` is expanded.
        written: the document as written, with `<secret>` in the place of secrets.
        warnings: what is valid and yet looks wrong, one line each, with file, line, key and remedy.
    """

    config: Config
    written: str
    warnings: tuple[str, ...] = ()


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """The configuration in the file at `path`.

    Raises:
        ConfigError: names every problem, one a line.
    """
    return load(path, environ).config


def load(path: Path, environ: Mapping[str, str]) -> Loaded:
    """The configuration in the file at `path`, its text for `/config`, and warnings for the log.

    Raises:
        ConfigError: names every problem, one a line.
    """
    document = parse_document(read_file(path), str(path))
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: the file holds {_kind(document.root)}; it must hold keys such as targets: at the top")
    context = LoadContext(path.absolute().parent, environ)
    problems = list(document.problems)
    if "global_" in data:  # the name of the attribute, which pydantic would accept
        data = {key: value for key, value in data.items() if key != "global_"}
        problems.append(_word(document, ("global_",), "unknown key", "did you mean global?", key=True))
    try:
        config = Config.model_validate(data, context=context)
    except ValidationError as error:
        problems += _problems(document, error)
        if not any(item["type"] == "config" and not item["loc"] for item in error.errors(include_input=False, include_url=False)):
            problems += [_word(document, at, message, remedy) for at, message, remedy in cross_problems(data)]
        config = None
    if problems or config is None:
        raise _refusal(document, problems)
    advised = [_word(document, at, message, remedy) for at, message, remedy in advice(config, in_container=in_container(environ))]
    warnings = tuple(f"{document.name}:{line}: {text}" for line, text in sorted((item.line, item.text) for item in advised))
    return Loaded(config, render_document(document), warnings)


def _refusal(document: Document, problems: Sequence[Problem]) -> ConfigError:
    lines = [f"{document.name}:{p.line}: {p.text}" for p in sorted(set(problems), key=lambda p: (p.line, p.text))]
    if len(lines) > _MOST_PROBLEMS:
        lines[_MOST_PROBLEMS:] = [f"{document.name}: and {len(lines) - _MOST_PROBLEMS} more problems"]
    return ConfigError("\n".join(lines))


def _problems(document: Document, error: ValidationError) -> Iterator[Problem]:
    for item in error.errors(include_url=False):
        at = tuple(step for step in item["loc"] if step != "[key]")
        context = item.get("ctx", {})
        if item.get("input") is EMPTY:
            yield _word(document, at, "has no value", "give it one, or remove the key", key=True)
        elif item["type"] == "config":
            for below, message, remedy in context["faults"]:
                yield _word(document, (*at, *below), message, remedy, key=item["loc"][-1:] == ("[key]",))
        elif item["type"] == "extra_forbidden":
            yield _word(document, at, "unknown key", _did_you_mean(at), key=True)
        elif item["type"] == "missing":
            key = str(at[-1])
            section = section_at(at[:-1])
            meaning = section.model_fields[key].description if section and key in section.model_fields else ""
            yield _word(document, at[:-1], f"the key {key} is missing", f"add {key}: ({meaning})", key=True)
        else:
            yield _word(document, at, *_wording(item["type"], context, item["msg"]))


def _wording(kind: str, context: Mapping[str, Any], message: str) -> tuple[str, str]:
    """What is wrong and the remedy, for errors that pydantic found itself."""
    if kind == "literal_error":
        return f"must be {context['expected']}".replace("'", ""), ""
    if kind in ("greater_than_equal", "less_than_equal"):
        word, bound = ("least", context.get("ge", 0)) if kind.startswith("greater") else ("most", context.get("le", 0))
        return f"must be at {word} {bound:g}", ""
    return {
        "string_type": ("must be text", "put it in quotes"),
        "int_type": ("must be a whole number", "write digits without quotes, unit or point"),
        "float_type": ("must be a number", "write digits without quotes or unit"),
        "finite_number": ("must be a finite number", "write digits"),
        "bool_type": ("must be true or false", "write true or false without quotes"),
        "tuple_type": ("must be a list", "write [ … ] around it, or - in front of each item"),
        "mapping_type": ("must be a mapping", "write KEY: VALUE lines below it"),
        "dict_type": ("must be a mapping", "write KEY: VALUE lines below it"),
        "model_type": ("must be a mapping", "write KEY: VALUE lines below it"),
        "model_attributes_type": ("must be a mapping", "write KEY: VALUE lines below it"),
    }.get(kind, (message[:1].lower() + message[1:], ""))


def _did_you_mean(at: Sequence[str | int]) -> str:
    key = str(at[-1])
    section = section_at(at[:-1])
    known = list(sections_of(section)) if section else []
    foreign = _FOREIGN_KEYS.get(key, "")
    if foreign and foreign.split(":")[0] in known:
        return f"did you mean {foreign}?"
    if close := difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.6):
        return f"did you mean {close[0]}?"
    if key in Config.model_fields or key == "global":
        return "it belongs to the top of the file"
    return f"known keys are {', '.join(known)}"


def _word(document: Document, at: Sequence[str | int], message: str, remedy: str = "", *, key: bool = False) -> Problem:
    """One problem in the words of the house: `key.path: value …: what is wrong; remedy`; no value where the key itself (`key`) is wrong."""
    node, _, reached = document.node(at)
    whole = node is None or isinstance(node, yaml.MappingNode)  # else the rest of `at` is inside of a scalar, which only the model splits
    where = dotted(at if whole else reached) or "the file"
    value = "" if key else _shown(node, reached)
    text = f"{where}: {value}{message}" + (f"; {remedy}" if remedy else "")
    return Problem(document.line(at), text)


def _shown(node: yaml.Node | None, path: Sequence[str | int]) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if any(isinstance(step, str) and (step in SECRET_SECTIONS or is_secret_key(step)) for step in path):
        return f"value {HIDDEN}: "
    text = node.value
    text = shown_url(text) if "@" in text or "://" in text or text.startswith("/") else text  # URLs and paths lose query and user
    text = printable(text)
    return f'value "{text}": ' if node.style in ("'", '"') or not text else f"value {text}: "


def _kind(node: yaml.Node | None) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
