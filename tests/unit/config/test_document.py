"""Hostile and broken YAML gives one clean error, quickly."""

# tables: one case on one line

from __future__ import annotations

import pytest

from llm_exporter.config.document import parse_document
from llm_exporter.errors import ConfigError


def laughs(levels: int) -> bytes:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 9) + "]" for n in range(1, levels)]
    return "\n".join(lines).encode()


def merges(levels: int) -> bytes:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [" + ", ".join([f"*a{n - 1}"] * 9) + "]}" for n in range(1, levels)]
    return "\n".join(lines).encode()


BROKEN = {
    "bomb of aliases": (laughs(12), "the file expands to too many values"),
    "bomb of merge keys": (merges(12), "the file expands to too many values"),
    "alias to itself": (b"a: &a [*a]", "the file expands to too many values"),
    "merge with itself": (b"a: &a {<<: *a}", "f.yml:1: the file expands to too many values"),
    "deep lists": (b"a: " + b"[" * 5000 + b"]" * 5000, "nested more than 40 deep; flatten it"),
    "deep mappings": (b"{a: " * 5000, "nested more than 40 deep; flatten it"),
    "not UTF-8": (b"a: 1\nb: \xff\n", "f.yml:2: the file is not UTF-8; save it as UTF-8"),
    "UTF-16": ("a: 1".encode("utf-16"), "f.yml:1: the file is not UTF-8; save it as UTF-8"),
    "zero byte": (b"a: 1\nb: \x00\n", "f.yml:2: not valid YAML: a control character; remove it"),
    "too large": (b"#" * (4 * 1024 * 1024 + 1), "f.yml: the file has 4194305 bytes; at most 4194304 are read"),
    "two documents": (b"a: 1\n---\nb: 2\n", "f.yml:2: not valid YAML: but found another document; keep one document in a file"),
    "tabs": (b"a:\n\tb: 1\n", "f.yml:2: not valid YAML: found character '\\t' that cannot start any token; indent with spaces instead of tabs"),
    "open quote": (b'a: "x\nb: 1\n', "not valid YAML: found unexpected end of stream; check indentation, colons and quotes"),
    "colon in text": (b"a: b: c\n", "f.yml:1: not valid YAML: mapping values are not allowed here; check indentation, colons and quotes"),
    "comma": (b"a: [b c: d\n", "expected ',' or ']', but got '<stream end>'"),
    "unknown alias": (b"password: *hunter2\n", "f.yml:1: not valid YAML: found undefined alias …; put text that begins with * & or ! in quotes"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "wanted"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_yaml_is_one_clean_error(content: bytes, wanted: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_document(content, "f.yml")
    text = str(error.value)
    assert wanted in text
    assert text.startswith("f.yml")
    assert "\n" not in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system [id]", "!hunter2", "!!binary aGk=", "!!set {a: }", "!!timestamp 2024-01-01"]
)
def test_tags_are_refused_and_never_built(tag: str) -> None:
    document = parse_document(f"a: {tag}\n".encode(), "f.yml")
    assert [problem.text for problem in document.problems] == [
        "YAML tags (!…) are not supported; remove the tag, or put the text in quotes"
    ]
    assert isinstance(document.data["a"], str | list | dict)


SCALARS = {
    "on": "on", "no": "no", "y": "y", "true": True, "FALSE": False, "~": None, "null": None, "": None, "12": 12, "-3": -3, "012": "012",
    "0o14": "0o14", "0x1f": "0x1f", "1_000": "1_000", "1.5": 1.5, "1e3": 1000.0, ".5": 0.5, "12:30:00": "12:30:00", "2024-01-01": "2024-01-01",
    "'12'": "12", '"true"': "true", "1.2.3": "1.2.3", "=": "=", "<<": "<<", "5s": "5s", ".inf": float("inf"), "1.": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), SCALARS.items(), ids=repr)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    data = parse_document(f"a: {text}\n".encode(), "f.yml").data["a"]
    assert data == value
    assert type(data) is type(value)


def test_a_number_that_python_refuses_is_a_problem_and_no_crash() -> None:
    document = parse_document(b"a: " + b"9" * 5000 + b"\nb: !!int x\n", "f.yml")
    assert [problem.line for problem in document.problems] == [1, 2]


def test_lines_are_those_of_keys_and_list_items() -> None:
    document = parse_document(b"a:\n  - b: 1\n  - b:\n      c: 2\n", "f.yml")
    assert [document.line(path) for path in (("a",), ("a", 0, "b"), ("a", 1), ("a", 1, "b", "c"), ("a", 1, "b", "none"), ())] == [
        1, 2, 3, 4, 3, 1,
    ]  # fmt: skip
