"""Prometheus' target lists (file_sd and http_sd): bytes to address and labels, and from there to a `Target`.

`discovery.py` calls it. A list of the wrong shape is refused whole; one bad target in a good list is refused alone, by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from llm_exporter.config.document import parse_document, printable
from llm_exporter.config.target import FORBIDDEN_LABELS, Target, TargetDefaults
from llm_exporter.config.urls import shown_url
from llm_exporter.errors import ConfigError, SourceError

_HINT = 'write a list of {"targets": ["host:port"], "labels": {"name": "value"}}'


class Listed(NamedTuple):
    """One address of a list, with the labels of its group."""

    address: str
    labels: Mapping[str, str]


def parse_list(content: bytes, name: str) -> tuple[Listed, ...]:
    """The addresses of a list in JSON or, where the name ends in .yml or .yaml, in YAML.

    Raises:
        SourceError: reason `parse`; the list as a whole cannot be used.
    """
    if name.lower().endswith((".yml", ".yaml")):
        try:
            document = parse_document(content, name)
        except ConfigError as error:
            raise SourceError("parse", str(error), hint=_HINT) from None
        if document.problems:
            problem = document.problems[0]
            raise SourceError("parse", f"{name}:{problem.line}: {problem.text}", hint=_HINT)
        groups = [] if document.data is None else document.data
    else:
        try:
            groups = json.loads(content)
        except (ValueError, RecursionError) as error:
            place = f" in line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise SourceError("parse", f"{name} is not valid JSON{place}", hint=_HINT) from None
    return tuple(_listed(groups, name))


def _listed(groups: Any, name: str) -> list[Listed]:
    if not isinstance(groups, list):
        raise SourceError("parse", f"{name} holds no list", hint=_HINT)
    found = []
    for position, group in enumerate(groups):
        place = f"{name}: item {position + 1}"
        if not isinstance(group, dict):
            raise SourceError("parse", f"{place} is no mapping", hint=_HINT)
        if unknown := sorted(set(group) - {"targets", "labels"}):
            raise SourceError("parse", f"{place} has the unknown key {printable(unknown[0])}", hint=_HINT)
        addresses, labels = group.get("targets") or [], group.get("labels") or {}
        if not isinstance(addresses, list) or not all(isinstance(address, str) for address in addresses):
            raise SourceError("parse", f"{place}: targets is no list of text", hint=_HINT)
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise SourceError("parse", f"{place}: labels is no mapping of text to text", hint=_HINT)
        found += [Listed(address, labels) for address in addresses]
    return found


def target_of(listed: Listed, defaults: TargetDefaults) -> tuple[Target, tuple[str, ...]]:
    """The target that an address stands for.

    The label `target` names it, else the address does; `__scheme__` and `__metrics_path__` are honoured, other `__*` dropped. Labels
    that the exporter keeps for itself are refused one by one; the target stays.

    Returns: the target, and a sentence for each label that was refused.

    Raises:
        SourceError: reason `bad_target`; this address cannot be used.
    """
    labels = dict(listed.labels)
    name = labels.pop("target", "") or listed.address
    scheme = labels.pop("__scheme__", "") or "http"
    path = labels.pop("__metrics_path__", "") or defaults.metrics_path
    refused = [
        f"the label {label!r} of {printable(name)} is the exporter's own and was left out"
        for label in sorted(FORBIDDEN_LABELS & set(labels))
    ]
    kept = {label: value for label, value in labels.items() if value and not label.startswith("__") and label not in FORBIDDEN_LABELS}
    if "/" in listed.address or "@" in listed.address:
        raise SourceError(
            "bad_target",
            f"{printable(shown_url(listed.address))} is not host:port",
            hint="set scheme and path by __scheme__ and __metrics_path__",
        )
    given = {key: getattr(defaults, key) for key in TargetDefaults.model_fields}
    given |= {"name": name, "url": f"{scheme}://{listed.address}", "metrics_path": path, "labels": {**defaults.labels, **kept}}
    if given["service"] is None:
        del given["service"]
    try:
        return Target.model_validate(given), tuple(refused)
    except ValidationError as error:
        item = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in item["loc"] if step != "[key]")
        raise SourceError("bad_target", f"{printable(shown_url(name))}: {printable(where)} {item['msg']}") from None
