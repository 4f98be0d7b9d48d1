"""TLS settings as an `ssl.SSLContext`, for the rare requests of discovery: built anew for each, so that certificates may rotate.

Scrapes and probes have their own in `sources/tls.py`, which keeps sessions and looks at the files' stamps.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

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


def _no_passphrase() -> str:
    raise ValueError("passphrase asked for")
