"""What a server says when it refuses, made fit for people: short, and without what it must not repeat.

In: the body of a refusal, the text of an error, the headers that we sent. Out: a line of text.
`sources/probe.py` and `probing/run.py` call it.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Mapping

from llm_exporter.sources.sse import error_text
from llm_exporter.wording import harmless

_LONGEST_DETAIL = 200
_SHORTEST_SECRET = 6  # "Bearer" and shorter words are none
_PUBLIC_HEADERS = frozenset({"user-agent", "host", "content-type", "accept"})


def words_of_refusal(body: bytes) -> str:
    """What the body of a refusal says to people; empty for HTML and the like."""
    text = body[:4096].decode("utf-8", "replace").strip()
    try:
        return error_text(json.loads(text)) or ""
    except (ValueError, RecursionError):
        return "" if text[:1] in ("<", "{", "[") else text.partition("\n")[0]


def for_people(text: str, headers: Mapping[str, str]) -> str:
    """Text of a server for people: short, no control characters, and none of the credentials that we sent, should it repeat them."""
    for secret in sorted(_secrets(headers), key=len, reverse=True):
        text = text.replace(secret, "…")
    return harmless(text[:_LONGEST_DETAIL])


def _secrets(headers: Mapping[str, str]) -> set[str]:
    """Values of headers, whole and by word, and what Basic authorization hides in Base64."""
    found = set()
    for name, value in headers.items():
        if name.lower() not in _PUBLIC_HEADERS:
            found |= {value, *value.split()}
            scheme, _, rest = value.partition(" ")
            if scheme.lower() == "basic":
                with contextlib.suppress(ValueError):
                    pair = base64.b64decode(rest).decode("utf-8", "replace")
                    found |= {pair, pair.partition(":")[2]}
    return {secret for secret in found if len(secret) > _SHORTEST_SECRET}
