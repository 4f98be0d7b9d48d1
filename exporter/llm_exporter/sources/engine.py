"""One scrape of one target: the page, or the reason why there is none; and the engine's version, asked rarely.

The result is data, never an exception: a target that fails is a fact about the target.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple, Protocol

from llm_exporter.errors import FetchError
from llm_exporter.sources.http import METRICS_ACCEPT, Answer


class Fetched(NamedTuple):
    """A page as it came."""

    body: bytes
    content_type: str
    duration_seconds: float


class Failed(NamedTuple):
    """No page. `reason` is one of CONTRACT 6.5."""

    reason: str
    detail: str
    hint: str
    duration_seconds: float


class Getter(Protocol):
    """What a scrape needs of an HTTP client."""

    def get(self, path: str, *, timeout: float, accept: str = METRICS_ACCEPT) -> Answer:
        """GET below the base URL; raises FetchError."""


# Where each engine tells its version, in the order in which to ask. SGLang's interrupts its scheduler for a moment: ask once per start.
VERSION_PATHS: dict[str, tuple[str, ...]] = {"vllm": ("/version",), "sglang": ("/server_info", "/get_server_info")}
_VERSION_LENGTH = 64


def scrape(client: Getter, path: str, *, timeout: float, clock: Callable[[], float]) -> Fetched | Failed:
    """Fetches one page."""
    began = clock()
    try:
        answer = client.get(path, timeout=timeout)
    except FetchError as error:
        return Failed(error.reason, error.detail, error.hint, clock() - began)
    return Fetched(answer.body, answer.content_type, answer.duration_seconds)


def read_version(client: Getter, engine: str, *, timeout: float) -> str:
    """The engine's version, or "" where it does not say (a key may be needed; an old release may lack the route)."""
    for path in VERSION_PATHS.get(engine, ()):
        try:
            answer = client.get(path, timeout=timeout, accept="application/json")
            version = json.loads(answer.body).get("version", "")
        except (FetchError, ValueError, AttributeError, RecursionError):
            continue
        if isinstance(version, str) and version and version.isprintable():  # JSON can spell half a character, which no page can hold
            return version[:_VERSION_LENGTH]
    return ""
