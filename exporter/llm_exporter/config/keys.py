"""The model as a list of keys: where each stands, its type in words, its default and its meaning.

`load.py` asks it for the keys that a section knows, `describe.py` makes the reference and the example from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from llm_exporter.config.http_client import HttpClient
from llm_exporter.config.model import Config
from llm_exporter.config.values import Section


def yaml_key(name: str, field: FieldInfo) -> str:
    """How the field is written in the file."""
    return field.validation_alias if isinstance(field.validation_alias, str) else name


def sections_of(section: type[Section]) -> Mapping[str, FieldInfo]:
    """The fields of a section by their YAML keys: required ones first, those that every HTTP client has last."""
    shared = HttpClient.model_fields if section is not HttpClient else {}
    fields = sorted(section.model_fields.items(), key=lambda item: (not item[1].is_required(), item[0] in shared))
    return {yaml_key(name, field): field for name, field in fields}


def _parts(annotation: Any) -> Iterator[Any]:
    """The types that an annotation is made of, itself first."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def section_in(annotation: Any) -> type[Section] | None:
    """The section that a field holds: itself, in a list, in a mapping, or optional."""
    return next((part for part in _parts(annotation) if isinstance(part, type) and issubclass(part, Section)), None)


def section_at(path: Sequence[str | int]) -> type[Section] | None:
    """The section that stands at `path` of the file; None where there is none."""
    section: type[Section] | None = Config
    inside = False  # of a list or mapping of sections, whose index or name is the next step
    for step in path:
        if inside:
            inside = False
            continue
        field = sections_of(section).get(str(step)) if section else None
        if field is None:
            return None
        section = section_in(field.annotation)
        inside = is_many(field.annotation)
    return section


def is_many(annotation: Any) -> bool:
    """Whether a field holds a list or a mapping."""
    return any(get_origin(part) in (tuple, Mapping) for part in _parts(annotation))
