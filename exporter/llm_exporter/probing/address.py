"""The base URL of a server, from what people type: with or without scheme, with the `/v1` of OpenAI clients or without.

In: text from a command line. Out: a URL below which paths are asked, or an error that says what to write. Called by the commands that
measure a server or ask it for its facts.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from llm_exporter.errors import UsageError


def base_url(text: str, flag: str = "") -> str:
    """`http://host:8000` of `host:8000`, `http://host:8000/` and `http://host:8000/v1`; a path before `/v1` stays.

    Args:
        text: as somebody typed it.
        flag: that the text was given with, for the message.

    Raises:
        UsageError: no http or https URL, or one that holds credentials.
    """
    place = f"{flag}: " if flag else ""
    if "@" in text.split("?")[0]:
        raise UsageError(f"{place}credentials in a URL end up in logs; use --header, or set LLM_EXPORTER_TOKEN")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket without its partner, a port that is no number
        usable = False
    if not usable:
        raise UsageError(f"{place}{text!r} is no http or https URL; write for example http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}".removesuffix("/v1")
