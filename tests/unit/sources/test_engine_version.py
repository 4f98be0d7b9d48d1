"""The engine's own version: what may become a label, and what a server may send instead."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from llm_exporter.sources.engine import read_version


def answered(body: bytes) -> str:
    client: Any = SimpleNamespace(get=lambda path, *, timeout, accept: SimpleNamespace(body=body))
    return read_version(client, "vllm", timeout=1.0)


def test_a_version_is_taken_as_it_is() -> None:
    assert answered(b'{"version": "0.32.0+cu129.dev\xc3\xa9"}') == "0.32.0+cu129.dev\xe9"
    assert len(answered(json.dumps({"version": "9" * 5000}).encode())) == 64


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"version": "\\ud800"}', id="half a character"),
        pytest.param(b'{"version": "1\\n2"}', id="two lines"),
        pytest.param(b'{"version": "\\u0000"}', id="NUL"),
        pytest.param(b"[" * 200_000, id="nested without end"),
        pytest.param(b'{"version": ' + b"9" * 6000 + b"}", id="number of six thousand digits"),
        pytest.param(b"[1]", id="no object"),
        pytest.param(b"<html>", id="no JSON"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b'{"version": null}', id="null"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_nonsense_is_no_version_and_breaks_no_tick(body: bytes) -> None:
    assert answered(body) == ""
