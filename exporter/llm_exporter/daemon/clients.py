"""HTTP clients from configuration: a target's address, credentials and certificates become one `Client`."""

from __future__ import annotations

from llm_exporter.config.http_client import TlsConfig
from llm_exporter.config.model import Target
from llm_exporter.config.secrets import credentials_headers
from llm_exporter.sources.http import Client
from llm_exporter.sources.tls import TlsFiles


def tls_files(config: TlsConfig | None) -> TlsFiles:
    """The TLS context factory of a `tls_config` block; the system's authorities without one."""
    if config is None:
        return TlsFiles()
    return TlsFiles(
        ca=config.ca or "",
        ca_file=str(config.ca_file or ""),
        cert_file=str(config.cert_file or ""),
        key_file=str(config.key_file or ""),
        server_name=config.server_name or "",
        insecure_skip_verify=config.insecure_skip_verify,
        min_version=config.min_version or "",
        max_version=config.max_version or "",
    )


def client_for(target: Target) -> Client:
    """A client for one target; credential files are read again at each request."""
    server_name = (target.tls_config.server_name if target.tls_config is not None else None) or ""
    return Client(target.url, headers=lambda: credentials_headers(target), tls=tls_files(target.tls_config), server_name=server_name)
