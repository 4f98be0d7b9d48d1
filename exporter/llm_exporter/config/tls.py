"""TLS of the rare requests of discovery and the review: an `ssl.SSLContext`, and what makes a session of requests use one.

Built anew for each: certificates may rotate. Scrapes and probes have their own in `sources/tls.py`, which looks at the files' stamps.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3 import PoolManager

from llm_exporter.config.http_client import TlsConfig
from llm_exporter.errors import SourceError

_VERSIONS: Mapping[str, ssl.TLSVersion] = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}


def tls_context(tls: TlsConfig | None) -> ssl.SSLContext:
    """A client context: the system's authorities, or those of `ca` and `ca_file`; the client certificate; versions.

    The name that is checked is `server_name` where it is set; the caller passes it as `server_hostname`.

    Raises:
        SourceError: a file cannot be read or is no certificate; reason `tls`.
    """
    tls = tls or TlsConfig()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file, cadata=tls.ca)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file, password=_no_passphrase)
    except ValueError:
        raise SourceError("tls", f"the key {tls.key_file} has a passphrase", hint="use a key without one") from None
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(str(path) for path in (tls.ca_file, tls.cert_file, tls.key_file) if path)
        what = f"of {files} one" if files else "the text of ca"
        raise SourceError(
            "tls", f"{what} cannot be used: {error.strerror or type(error).__name__}", hint="check path, permissions, PEM"
        ) from None
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.min_version is not None:
        context.minimum_version = _VERSIONS[tls.min_version]
    if tls.max_version is not None:
        context.maximum_version = _VERSIONS[tls.max_version]
    return context


class TlsAdapter(HTTPAdapter):
    """Lets a session of requests use our own TLS context and expected name instead of the authorities that come with requests.

    Args:
        context: None where no https is spoken.
        server_name: checked instead of the URL's host.
        pool_classes: urllib3's pools by scheme, where others than its own are wanted.
    """

    def __init__(self, context: ssl.SSLContext | None, server_name: str | None, pool_classes: dict[str, Any] | None = None) -> None:
        self._pool_classes = pool_classes
        self._options: dict[str, Any] = {}
        if context is not None:
            self._options = {"ssl_context": context, "cert_reqs": context.verify_mode}
        if server_name:
            self._options |= {"server_hostname": server_name, "assert_hostname": server_name}
        super().__init__(max_retries=0)

    def init_poolmanager(self, connections: int, maxsize: int, block: bool = False, **_: Any) -> None:
        """Build the pool with our options (called by the base class)."""
        self.poolmanager = PoolManager(connections, maxsize=maxsize, block=block, **self._options)
        if self._pool_classes is not None:
            self.poolmanager.pool_classes_by_scheme = self._pool_classes

    def get_connection_with_tls_context(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> Any:
        """The pool's connection; requests would add its own authorities here."""
        return self.poolmanager.connection_from_url(request.url)

    def cert_verify(self, *_: Any, **__: Any) -> None:
        """Nothing: the context decides."""


def _no_passphrase() -> str:
    raise ValueError("passphrase asked for")
