"""Rules for URLs: which are accepted, how they are shown, which may be probed.

A URL is shown without user info and query, always: both are places where people put secrets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit


def url_problem(text: str, *, query: bool) -> tuple[str, str] | None:
    """What is wrong with an HTTP URL and what to write instead; None where it is fine.

    Args:
        text: the URL.
        query: whether a query is allowed (discovery endpoints have one, base URLs do not).
    """
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "is not a URL: host or port is malformed", "write http://HOST:PORT, an IPv6 address in brackets: http://[::1]:8000"
    if "@" in parts.netloc:
        return "holds user info (user:password@)", "remove it and use basic_auth or authorization"
    if parts.scheme not in ("http", "https"):
        return "does not begin with http:// or https://", "write http://HOST:PORT"
    if not host:
        return "names no host", "write http://HOST:PORT"
    if re.search(r"[\s\\\x00-\x20\x7f]", text) or not text.isascii():
        return "holds a space, a backslash or a letter outside ASCII", "write other letters as %XX, other hosts as xn--…"
    if parts.netloc.endswith(":") or port == 0:
        return "has no usable port", "write http://HOST:PORT"
    if not re.fullmatch(
        r"\[[0-9a-f:.]+(%25[\w.~-]+)?\]|[a-z0-9_.-]+", parts.netloc.rpartition(":")[0].lower() if port else parts.netloc.lower()
    ):
        return "names no valid host", "write http://HOST:PORT, an IPv6 address in brackets: http://[::1]:8000"
    if "#" in text:
        return "holds a fragment (#…)", "remove it"
    if "?" in text and not query:
        return "holds a query (?…)", "remove it; secrets belong into authorization or headers"
    return None


def shown_url(text: str) -> str:
    """The URL for logs, pages and errors: user info replaced, query and fragment cut. Works on malformed URLs too."""
    head, sep, rest = text.partition("://")
    if not sep:
        head, rest = "", text
    rest = re.split(r"[?#]", rest, maxsplit=1)[0] if "@" not in rest else rest
    if "@" in rest:
        rest = "<secret>@" + re.split(r"[?#]", rest.rpartition("@")[2], maxsplit=1)[0]
    return f"{head}{sep}{rest}"


def admits(allowed: Iterable[str], url: str) -> bool:
    """Whether `url` lies under one of the allowed base URLs: same scheme, host and port, and the path below the base's path."""
    if url_problem(url, query=False):
        return False
    wanted = urlsplit(url)
    if re.search(r"(^|/)(\.|%2e)(\.|%2e)?(/|$)", wanted.path, re.IGNORECASE):
        return False
    return any(_origin(base) == _origin(url) and f"{wanted.path}/".startswith(f"{urlsplit(base).path.rstrip('/')}/") for base in allowed)


def _origin(url: str) -> tuple[str, str | None, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
