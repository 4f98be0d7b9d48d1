"""Scheme, host and port of a target: the border that credentials never cross. Called by `sources/http.py`."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from llm_exporter.errors import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Scheme, host in lower case without brackets, port. Credentials never leave it."""

    scheme: str
    host: str
    port: int

    @property
    def netloc(self) -> str:
        """Host and port as in a URL and in the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS.get(self.scheme) else f"{host}:{self.port}"


def split_base_url(url: str) -> tuple[Origin, str]:
    """Takes a base URL apart. Raises: ConfigError, without repeating what may be a secret."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError("url: no valid URL; write http://HOST:PORT or https://HOST:PORT, with a path prefix if needed") from None
    if parts.username is not None or parts.password is not None:
        raise ConfigError("url: user info is not allowed here; use basic_auth or authorization")
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ConfigError("url: write http://HOST:PORT or https://HOST:PORT, with a path prefix if needed")
    if parts.query or parts.fragment:
        raise ConfigError("url: a query or fragment is not allowed here; metrics_path may have a query")
    return Origin(parts.scheme, parts.hostname.lower(), port or DEFAULT_PORTS[parts.scheme]), parts.path
