"""TLS of our own HTTP server: from settings to an `ssl.SSLContext`, and which client certificates are let in.

`webconfig.py` reads the settings, `webguard.py` keeps a context that follows rotated files, `webserver.py` shakes hands with it.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from llm_exporter.errors import ConfigError

# Go's names of the suites of TLS 1.2 that exporter-toolkit accepts (crypto/tls.CipherSuites), with OpenSSL's.
CIPHERS: Mapping[str, str] = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
}
TLS13_CIPHERS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
CURVES: Mapping[str, str] = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}

_VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_VERIFY = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class TlsServer:
    """Checked settings. Files are absolute paths; "" where not given; versions and client_auth in Go's words."""

    cert: str = ""
    key: str = field(default="", repr=False)
    client_ca: str = ""
    cert_file: str = ""
    key_file: str = ""
    client_ca_file: str = ""
    client_auth: str = "NoClientCert"
    allowed_sans: tuple[str, ...] = ()
    min_version: str = "TLS12"
    max_version: str = "TLS13"
    ciphers: tuple[str, ...] = ()
    prefer_server_ciphers: bool = True
    curve: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """Files whose rotation makes a new context."""
        return tuple(path for path in (self.cert_file, self.key_file, self.client_ca_file) if path)


def server_context(tls: TlsServer) -> ssl.SSLContext:
    """A context as the files are now. Raises: ConfigError, naming the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.maximum_version = _VERSIONS[tls.max_version]
    context.verify_mode = _VERIFY[tls.client_auth]
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Go, whatever is in the pool is an anchor
    if tls.ciphers:
        context.set_ciphers(":".join(tls.ciphers))
    if tls.curve:
        context.set_ecdh_curve(tls.curve)
    if not tls.prefer_server_ciphers:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    what = f"cert_file {tls.cert_file or '(inline)'} with key_file {tls.key_file or '(inline)'}"
    try:
        with ExitStack() as opened:
            cert = tls.cert_file or _as_file(tls.cert, opened)
            key = tls.key_file or _as_file(tls.key, opened)
            context.load_cert_chain(cert, key, password=_no_password)
        if context.verify_mode != ssl.CERT_NONE:
            what = f"client_ca_file {tls.client_ca_file or '(inline)'}"
            if tls.client_ca_file or tls.client_ca:
                context.load_verify_locations(tls.client_ca_file or None, cadata=tls.client_ca or None)
            else:
                context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    except ssl.SSLError as error:
        word = (error.reason or "not readable as PEM").replace("_", " ").lower()
        raise ConfigError(
            f"tls_server_config: {what}: {word}; give PEM files, the key without a password and fitting the certificate"
        ) from None
    except (OSError, ValueError) as error:
        word = getattr(error, "strerror", None) or "not readable as PEM"
        raise ConfigError(f"tls_server_config: {what}: {word}; check path and permissions, as the user the exporter runs as") from None
    return context


def _as_file(text: str, opened: ExitStack) -> str:
    """A path to inline PEM, since OpenSSL's loader takes paths only; in memory, so that no key touches a disk."""
    descriptor = os.memfd_create("pem")
    opened.callback(os.close, descriptor)
    os.write(descriptor, text.encode())
    return f"/proc/self/fd/{descriptor}"


def _no_password() -> str:
    """Keeps OpenSSL from asking on the terminal for the password of an encrypted key."""
    raise ValueError


def client_allowed(tls: TlsServer, certificate: Mapping[str, Any] | None) -> bool:
    """Whether a verified client certificate carries an allowed name.

    Args:
        tls: with `allowed_sans`; empty lets everybody in whom the handshake let in.
        certificate: as `SSLSocket.getpeercert()` gives it.
    """
    if not tls.allowed_sans:
        return True
    names = certificate.get("subjectAltName", ()) if certificate else ()
    allowed = {_plain_address(name) for name in tls.allowed_sans}
    return any((_plain_address(name) if kind == "IP Address" else name) in allowed for kind, name in names)


def _plain_address(text: str) -> str:
    """One spelling for each IP address; other text as it is."""
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        return text
