"""The base URL of a server, from what people type: with or without scheme, with the `/v1` of OpenAI clients or without.

In: text from a command line. Out: a URL in its one form, below which paths are asked, or an error that says what to write. Called by the
commands that measure a server or ask it for its facts. What a URL may be is said in `config/urls.py`.
"""

from __future__ import annotations

from llm_exporter.config.urls import base_of, url_problem
from llm_exporter.errors import UsageError


def base_url(text: str, flag: str = "") -> str:
    """`http://host:8000` of `host:8000`, `http://host:8000/` and `http://host:8000/v1`; a path before `/v1` stays.

    Args:
        text: as somebody typed it.
        flag: that the text was given with, for the message.

    Raises:
        UsageError: no http or https URL, or one that holds credentials; those are not repeated.
    """
    place = f"{flag}: " if flag else ""
    if "@" in text:
        raise UsageError(f"{place}credentials in a URL end up in logs; use --header, or set LLM_EXPORTER_TOKEN")
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    problem = url_problem(url, query=False)
    if problem is not None:
        raise UsageError(f"{place}{text!r} {problem[0]}; {problem[1]}")
    return base_of(url).text.removesuffix("/v1")
