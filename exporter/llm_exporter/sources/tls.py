"""TLS towards a target, from the fields of Prometheus' `tls_config`.

In: paths or inline PEM. Out: an `ssl.SSLContext`, the same object until a file is rotated. Called by `sources/http.py` before each
request and by probes; discovery and the review have their own (`config/tls.py`). As in Prometheus, `ca` or `ca_file` replace the system's
authorities instead of adding to them, and any certificate among them is trusted as it stands, so a self-signed one can be named directly.
"""

from __future__ import annotations

import logging
import ssl
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from llm_exporter.errors import ConfigError, FetchError
from llm_exporter.sources.watched import Stamp, stamps

log = logging.getLogger(__name__)

VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_OLD_VERSIONS = frozenset({"SSL30", "TLS10", "TLS11"})


class TlsFields(NamedTuple):
    """What a context is made from; "" or None where not given."""

    ca: str
    ca_file: str
    cert_file: str
    key_file: str
    insecure_skip_verify: bool
    min_version: ssl.TLSVersion | None
    max_version: ssl.TLSVersion | None


class TlsFiles:
    """Gives the context for a target; reads the files again when one of them has changed.

    A broken rotation (certificate without its key, half a file) keeps the last good context and is logged once.

    Raises:
        ConfigError: at construction, for versions that cannot be had and a certificate without key.
    """

    def __init__(
        self,
        *,
        ca: str | None = None,
        ca_file: str | Path | None = None,
        cert_file: str | Path | None = None,
        key_file: str | Path | None = None,
        server_name: str | None = None,
        insecure_skip_verify: bool = False,
        min_version: str | None = None,
        max_version: str | None = None,
    ) -> None:
        self._fields = TlsFields(
            ca or "",
            str(ca_file or ""),
            str(cert_file or ""),
            str(key_file or ""),
            insecure_skip_verify,
            tls_version("tls_config.min_version", min_version),
            tls_version("tls_config.max_version", max_version),
        )
        self._paths = [str(path) for path in (ca_file, cert_file, key_file) if path]
        self._stamps: tuple[Stamp, ...] | None = None
        self._context: ssl.SSLContext | None = None
        self.server_name = server_name or ""
        if bool(cert_file) != bool(key_file):
            raise ConfigError("tls_config: cert_file and key_file belong together; give both or neither")
        if ca and ca_file:
            raise ConfigError("tls_config: give ca or ca_file, not both")

    def __call__(self) -> ssl.SSLContext:
        """The context as the files are now. Raises: FetchError("tls") where there has never been a good one."""
        now = stamps(self._paths)
        if self._context is not None and now == self._stamps:
            return self._context
        try:
            self._context = _build(self._fields, now)
        except FetchError as error:
            if self._context is None:
                raise
            log.warning("tls_config: %s; the certificates read before stay in use", error.detail)
        self._stamps = now
        return self._context


@lru_cache(maxsize=64)
def _build(fields: TlsFields, _as_of: tuple[Stamp, ...]) -> ssl.SSLContext:
    """A context; targets with equal fields share it, since loading the system's authorities costs tens of milliseconds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.set_alpn_protocols(["http/1.1"])
    context.minimum_version = fields.min_version or ssl.TLSVersion.TLSv1_2
    if fields.max_version:
        context.maximum_version = fields.max_version
    if fields.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    what = f"ca_file {fields.ca_file}" if fields.ca_file else "ca"
    try:
        if fields.ca_file or fields.ca:
            context.load_verify_locations(cafile=fields.ca_file or None, cadata=fields.ca or None)
        elif not fields.insecure_skip_verify:
            context.load_default_certs()
        if fields.cert_file:
            what = f"cert_file {fields.cert_file} with key_file {fields.key_file}"
            context.load_cert_chain(fields.cert_file, fields.key_file, password=_no_password)
    except ssl.SSLError as error:
        word = (error.reason or "not readable as PEM").replace("_", " ").lower()
        raise FetchError(
            "tls", f"{what}: {word}", hint="give PEM files; the key must be without a password and fit the certificate"
        ) from None
    except (OSError, ValueError) as error:
        word = getattr(error, "strerror", None) or "not readable as PEM"
        raise FetchError("tls", f"{what}: {word}", hint="check path and permissions, as the user the exporter runs as") from None
    return context


def _no_password() -> str:
    """Keeps OpenSSL from asking on the terminal for the password of an encrypted key."""
    raise ValueError


def tls_version(key: str, value: str | None) -> ssl.TLSVersion | None:
    """Reads a version as Go and Prometheus write it. Raises: ConfigError. Returns: None where none is given."""
    if not value:
        return None
    if value in VERSIONS:
        return VERSIONS[value]
    if value in _OLD_VERSIONS:
        raise ConfigError(f"{key}: {value}: the OpenSSL of today refuses versions before 1.2; write TLS12 or TLS13")
    raise ConfigError(f"{key}: {value}: unknown; write TLS12 or TLS13")


def no_server_name(name: str) -> FetchError:
    """For a name that no certificate can have, such as ".x" or one with a part of more than 63 letters."""
    hint = "correct tls_config.server_name: the name as it stands in the server's certificate"
    return FetchError("tls", f"{name!r} is no name that a server can have", hint=hint)
