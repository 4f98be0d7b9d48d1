"""A YAML file as values and places: strict, bounded, and without the traps of YAML 1.1.

`load.py`, `render.py` and `discovery.py` hand in bytes; out comes a `Document`, whose nodes know their lines. Scalars are read as in
YAML 1.2: only `true` and `false` are booleans (`on`, `no` are text), there are no sexagesimal numbers (`12:30:00` is text), no dates,
no octals. Duplicate keys, keys that are no text, tags, bombs of aliases and deep nesting are refused. Anchors, aliases and merge keys
(`<<`) work as in Prometheus' own files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from llm_exporter.errors import ConfigError

type_bool, type_int, type_float, type_null, type_str, type_merge = (
    f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null", "str", "merge")
)
_COLLECTIONS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_NO_TAGS = "YAML tags (!…) are not supported; remove the tag, or put the text in quotes"
MAX_BYTES = 4 * 1024 * 1024
_MAX_VALUES = 100_000
_MAX_DEPTH = 40


# Sections that hold secrets, and the keys below them whose values are none.
SECRET_SECTIONS: Mapping[str, frozenset[str]] = {
    "authorization": frozenset({"type", "credentials_file"}),
    "basic_auth": frozenset({"username", "username_file", "password_file"}),
    "headers": frozenset(),
}


class _Loader(yaml.SafeLoader):
    """Composes nodes only; knows the scalars of YAML 1.2, and how deep it is."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own, replaced
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested more than {_MAX_DEPTH} deep", self.peek_event().start_mark)  # type: ignore[no-untyped-call]
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


_FLOAT = r"[-+]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN"
for _tag, _pattern, _first in (
    (type_bool, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (type_int, r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (type_float, _FLOAT, "-+.0123456789"),
    (type_null, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (type_merge, r"<<", "<"),
):  # fmt: skip
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, at one line."""

    line: int
    text: str


class Document:
    """A parsed file.

    Attributes:
        name: file name for messages.
        root: the node tree; None for an empty file.
        data: the same as dicts, lists and scalars; duplicate keys hold their first value.
        problems: duplicate keys, foreign tags and the like, found on the way.
    """

    def __init__(self, name: str, root: yaml.Node | None) -> None:
        self.name = name
        self.root = root
        self.problems: list[Problem] = []
        self._values = 0
        self.data = None if root is None else self._read(root, ())

    def node(self, path: Sequence[str | int]) -> tuple[yaml.Node | None, yaml.Node | None, tuple[str | int, ...]]:
        """The node at `path`, or the deepest that exists on the way to it.

        Returns: that node, the key node that names it (None for list items and the root), and the path that was reached.
        """
        node, key, reached = self.root, None, list[str | int]()
        for step in path:
            found: tuple[yaml.Node | None, yaml.Node] | None = None
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in self._pairs(node) if k.value == step), None)
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                found = (None, node.value[step])
            if found is None:
                break
            key, node = found
            reached.append(step)
        return node, key, tuple(reached)

    def line(self, path: Sequence[str | int]) -> int:
        """Line, from 1, of the key or list item at `path`."""
        node, key, _ = self.node(path)
        place = key or node
        return place.start_mark.line + 1 if place is not None else 1

    def _pairs(self, node: yaml.MappingNode, depth: int = 0) -> list[tuple[yaml.Node, yaml.Node]]:
        """Keys and values, those of merged mappings behind the mapping's own."""
        own = [(key, value) for key, value in node.value if key.tag != type_merge]
        merged = []
        for key, value in node.value:
            if key.tag == type_merge:
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    self._count(part, depth)
                    if isinstance(part, yaml.MappingNode):
                        merged += self._pairs(part, depth + 1)
                    else:
                        self._wrong(value, "a merge key (<<) needs a mapping or a list of mappings")
        return own + merged

    def _wrong(self, node: yaml.Node, text: str) -> None:
        problem = Problem(node.start_mark.line + 1, text)
        if problem not in self.problems:
            self.problems.append(problem)

    def _count(self, node: yaml.Node, depth: int) -> None:
        self._values += 1
        if self._values > _MAX_VALUES or depth > _MAX_DEPTH:
            line = node.start_mark.line + 1
            raise ConfigError(f"{self.name}:{line}: the file expands to too many values; write less, and fewer aliases (*)")

    def _read(self, node: yaml.Node, path: tuple[str | int, ...]) -> Any:
        self._count(node, len(path))
        if isinstance(node, yaml.CollectionNode) and node.tag not in _COLLECTIONS:
            self._wrong(node, _NO_TAGS)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._read(item, (*path, position)) for position, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: tuple[str | int, ...]) -> dict[str, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in (type_str, type_merge):
                self._wrong(key, "a key must be text; put it in quotes")
            elif key.value in seen:
                place = dotted((*path, key.value))
                self._wrong(key, f"{place}: the key is already there, in line {seen[key.value]}; remove one of the two")
            else:
                seen[key.value] = key.start_mark.line + 1
        values: dict[str, Any] = {}
        for key, value in self._pairs(node):
            if isinstance(key, yaml.ScalarNode) and key.tag == type_str:
                item = self._read(value, (*path, key.value))
                values.setdefault(key.value, item)
        return values

    def _scalar(self, node: yaml.Node) -> Any:
        text = node.value
        try:
            if node.tag == type_bool:
                return text.lower() == "true"
            if node.tag == type_int:
                return int(text)
            if node.tag == type_float:
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            self._wrong(node, "the number cannot be read; write it in decimal digits")
            return 0
        if node.tag == type_null:
            return None
        if node.tag not in (type_str, type_merge):
            self._wrong(node, _NO_TAGS)
        return text


def dotted(path: Sequence[str | int]) -> str:
    """A path as people write it: `targets[0].url`."""
    text = ""
    for position, step in enumerate(path):
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{shown_key(step) if position and path[position - 1] in SECRET_SECTIONS else printable(step)}"
    return text.removeprefix(".")


def printable(text: str) -> str:
    """Text for one line of a terminal: at most 80 characters, none of which moves the cursor."""
    text = text if len(text) <= 80 else f"{text[:77]}…"
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def shown_key(key: str) -> str:
    """A key for messages: as it is where it looks like a key, else hidden, since it may be a slipped value."""
    return key if re.fullmatch(r"[A-Za-z_][\w.-]{0,60}", key, re.ASCII) else "<not shown>"


def parse_document(content: bytes, name: str) -> Document:
    """Parse one YAML (or JSON) file.

    Raises:
        ConfigError: the file is no YAML, not UTF-8, too large, nested too deeply, or its aliases expand too far.
    """
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{name}: the file has {len(content)} bytes; at most {MAX_BYTES} are read")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}:{line}: the file is not UTF-8; save it as UTF-8") from None
    loader = None
    try:
        loader = _Loader(text)  # reads ahead, so it raises too
        return Document(name, loader.get_single_node())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        # Quoted parts may be a slipped secret (`password: *abc` is an alias that does not exist); single letters and <tokens> are not.
        problem = re.sub(r"'[^']*'|\"[^\"]*\"", _harmless, error.problem or "cannot be read")
        raise ConfigError(f"{name}:{line}: not valid YAML: {problem}; {_yaml_remedy(error.problem or '')}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1 if isinstance(error.position, int) else 1
        raise ConfigError(f"{name}:{line}: not valid YAML: a control character; remove it") from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{name}: not valid YAML: it cannot be read; check it with a YAML linter") from None
    finally:
        if loader is not None:
            loader.dispose()


def _harmless(quoted: re.Match[str]) -> str:
    return quoted[0] if re.fullmatch(r"\\?.|<[a-z ]+>", quoted[0][1:-1]) else "…"


def _yaml_remedy(problem: str) -> str:
    if "\\t" in problem or "\t" in problem:
        return "indent with spaces instead of tabs"
    if "alias" in problem or "anchor" in problem or "tag" in problem:
        return "put text that begins with * & or ! in quotes"
    if "nested" in problem:
        return "flatten it"
    if "document" in problem:
        return "keep one document in a file"
    if "cannot start any token" in problem:
        return "put text that begins with a special character in quotes"
    return "check indentation, colons and quotes"


def read_file(path: Path) -> bytes:
    """The bytes of a configuration file, bounded.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from None
