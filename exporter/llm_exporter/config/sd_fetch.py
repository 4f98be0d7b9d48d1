"""Fetches one http_sd list with requests: bounded in time and size, with the credentials and TLS settings of its section.

`discovery.py` calls it unless it is given another function. Redirects are followed on the same scheme, host and port only.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

import requests
from urllib3.exceptions import HTTPError, NameResolutionError

from llm_exporter import __version__
from llm_exporter.config.model import HttpSdConfig
from llm_exporter.config.secrets import credentials_headers
from llm_exporter.config.tls import TlsAdapter, tls_context
from llm_exporter.config.urls import shown_url
from llm_exporter.config.watch import Watch, pool_classes
from llm_exporter.errors import FetchError

_MAX_BYTES = 8 * 1024 * 1024
_MAX_REDIRECTS = 5
_READ_BYTES = 8 * 1024  # of compressed data at a time, so that a bomb unfolds in small steps


def _adapter(config: HttpSdConfig, watch: Watch) -> TlsAdapter:
    secure = config.url.lower().startswith("https:")  # reading the system's authorities is slow
    name = config.tls_config.server_name if config.tls_config else None
    return TlsAdapter(tls_context(config.tls_config) if secure else None, name, pool_classes(watch))


def fetch_list(config: HttpSdConfig, timeout: float = 10.0) -> bytes:
    """The body of the answer of an http_sd endpoint.

    Args:
        config: URL, credentials and TLS settings.
        timeout: seconds for all of it, redirects and a slow body included.

    Raises:
        SourceError: there is no usable answer; nothing secret is in its text.
    """
    headers = {
        "Accept": "application/json",
        "User-Agent": f"llm-exporter/{__version__}",
        "X-Prometheus-Refresh-Interval-Seconds": f"{config.refresh_interval:g}",
    } | credentials_headers(config)
    with Watch(timeout) as watch, requests.Session() as session:
        session.trust_env = False  # no ~/.netrc, no proxy behind the configuration's back
        for scheme in ("http://", "https://"):
            session.mount(scheme, _adapter(config, watch))
        try:
            body = _body(session, config.url, headers, timeout)
        except (requests.RequestException, HTTPError, OSError) as error:
            reason = "timeout" if watch.over else _reason(error)
            raise FetchError(reason, f"{shown_url(config.url)} gave no answer: {type(error).__name__}") from None
    if watch.over:
        raise FetchError("timeout", f"{shown_url(config.url)} sent its list too slowly")
    return body


def _body(session: requests.Session, url: str, headers: Mapping[str, str], timeout: float) -> bytes:
    for _ in range(_MAX_REDIRECTS):
        with session.get(url, headers=headers, timeout=timeout, stream=True, allow_redirects=False) as answer:
            if answer.is_redirect:
                wanted = urljoin(url, answer.headers["Location"])
                if _origin(wanted) != _origin(url):
                    raise FetchError("redirect", f"{shown_url(url)} redirects to {shown_url(wanted)}", hint="configure the final URL")
                url = wanted
                continue
            if answer.status_code != 200:
                raise FetchError(f"http_{answer.status_code}", f"{shown_url(url)} answered with status {answer.status_code}")
            return _read(answer, shown_url(url))
    raise FetchError("redirect", f"{shown_url(url)} redirects more than {_MAX_REDIRECTS} times", hint="configure the final URL")


def _read(answer: requests.Response, shown: str) -> bytes:
    parts, size = [], 0
    while part := answer.raw.read1(_READ_BYTES, decode_content=True):
        parts.append(part)
        size += len(part)
        if size > _MAX_BYTES:
            raise FetchError("too_large", f"{shown} sends more than {_MAX_BYTES} bytes")
    return b"".join(parts)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _reason(error: BaseException) -> str:
    """The reason of CONTRACT 6.5 for an error of requests, urllib3 or the socket."""
    seen: BaseException | None = error
    causes: list[BaseException] = []
    while seen is not None and len(causes) < 10:
        causes.append(seen)
        inner = getattr(seen, "reason", None) or (seen.args[0] if seen.args else None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__ or seen.__context__
    text = " ".join(map(str, causes))
    if any(isinstance(cause, NameResolutionError) for cause in causes):
        return "dns"
    if "CERTIFICATE_VERIFY_FAILED" in text or "doesn't match" in text:
        return "tls_verify"
    if any(isinstance(cause, requests.exceptions.SSLError) for cause in causes):
        return "tls"
    if isinstance(error, requests.Timeout) or any(isinstance(cause, TimeoutError) for cause in causes) or "timed out" in text:
        return "timeout"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes) or "refused" in text:
        return "refused"
    return "connection_closed"
