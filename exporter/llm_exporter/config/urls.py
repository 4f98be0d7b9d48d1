"""Rules for URLs: which are accepted, how they are shown, which may be probed.

A URL is shown without user info and query, always: both are places where people put secrets.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_LONGEST_LABEL, _LONGEST_NAME = 63, 253  # RFC 1035, 2.3.4
# What may follow an allowed base URL. No `%`, `;` or backslash: servers and proxies differ in what they make of `..%2f`, `..;` or `%252e`.
_PLAIN_SEGMENT = re.compile(r"[\w.~!$&'()*+,=:@-]+", re.ASCII)


class Base(NamedTuple):
    """A base URL in its one form: two texts that lead to the same place on the same server are equal.

    Attributes:
        scheme, host: in lower case; an IPv6 address without brackets.
        port: the scheme's own where the URL has none.
        path: without slashes at the end and without repeated ones; empty for the root.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: the server, as far as an address can tell."""
        return self.scheme, self.host, self.port

    @property
    def text(self) -> str:
        """As a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port == _PORTS.get(self.scheme) else f':{self.port}'}{self.path}"


def base_of(url: str) -> Base:
    """Takes an accepted URL apart; a query is left out."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        with suppress(ValueError):
            host = ipaddress.ip_address(host).compressed
    return Base(parts.scheme, host, parts.port or _PORTS.get(parts.scheme, 0), re.sub(r"/+", "/", parts.path).rstrip("/"))


def is_host(name: str) -> bool:
    """Whether a name (or IPv4 address) can be looked up at all: no empty part, and none longer than DNS has room for."""
    parts = name.removesuffix(".").split(".")
    return len(name) <= _LONGEST_NAME and all(0 < len(part) <= _LONGEST_LABEL for part in parts)


def is_server_name(name: str) -> bool:
    """Whether a certificate can be for this name or address, so that TLS can ask for it."""
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return is_host(name) and re.fullmatch(r"[\w.-]+", name) is not None


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
    if "%" in parts.netloc:
        return "names the zone of an address (%25…), which other hosts do not know", "write an address without a zone, or a host name"
    if not re.fullmatch(r"\[[0-9a-f:.]+\]|[a-z0-9_.-]+", parts.netloc.rpartition(":")[0].lower() if port else parts.netloc.lower()):
        return "names no valid host", "write http://HOST:PORT, an IPv6 address in brackets: http://[::1]:8000"
    if ":" not in host and not is_host(host):
        return "names a host with an empty or too long part between its dots", "write http://HOST:PORT"
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
    """Whether `url` lies under one of the allowed base URLs: same scheme, host and port, and the path below the base's path.

    Below the base's path only plain segments are admitted: nothing that a server could read as another path.
    """
    if url_problem(url, query=False):
        return False
    wanted, path = base_of(url), urlsplit(url).path
    return any(wanted.origin == base.origin and _below(path, base.path) for base in map(base_of, allowed))


def _below(path: str, base: str) -> bool:
    if not f"{path}/".startswith(f"{base}/"):
        return False
    segments = path[len(base) :].removesuffix("/").split("/")[1:]
    return all(_PLAIN_SEGMENT.fullmatch(segment) and segment.strip(".") for segment in segments)
