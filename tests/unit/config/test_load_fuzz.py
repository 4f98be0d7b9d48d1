"""Whatever stands in a file, loading it gives a configuration or a ConfigError that begins with the file's name."""

# strategies: one on one line

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_exporter.config.keys import sections_of
from llm_exporter.config.load import load
from llm_exporter.config.model import Config, Target
from llm_exporter.errors import ConfigError

CONTRACT = (Path(__file__).parents[2] / "fixtures" / "config" / "good" / "contract.yml").read_bytes()
keys = st.sampled_from([*sections_of(Config), *sections_of(Target), "interval", "schedule", "x", "<<"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["5s", "http://a:1", "${A}", "auto", "0 4 * * *"]),
)
documents = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=25)


def load_bytes(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "c.yml"
        file.write_bytes(content)
        try:
            load(file, {})
        except ConfigError as error:
            assert all(line.startswith(f"{file}:") for line in str(error).split("\n"))  # noqa: PT017  # either way is fine


@settings(max_examples=80, deadline=None)
@given(documents)
def test_any_document(document: Any) -> None:
    load_bytes(yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "surrogatepass"))


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes(content: bytes) -> None:
    load_bytes(content)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, len(CONTRACT) - 1),
    st.integers(0, 40),
    st.binary(max_size=4) | st.sampled_from([b"&a ", b"*a", b"!x ", b": ", b"{", b"]", b"\n"]),
)
def test_any_change_of_a_good_file(at: int, cut: int, put: bytes) -> None:
    load_bytes(CONTRACT[:at] + put + CONTRACT[at + cut :])
