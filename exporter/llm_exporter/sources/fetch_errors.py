"""From an exception or a status to a `FetchError`: the reasons of `llm_target_down_reason`, and what the operator can do.

Texts are written here from scratch and hold neither header values, nor queries, nor bytes of an answer: all of them can carry secrets.
Called by `sources/http.py`.
"""

from __future__ import annotations

import http.client
import ssl

from llm_exporter.errors import FetchError
from llm_exporter.sources.deadline import Deadline

# numbers of X509_V_ERR_… in OpenSSL's x509_vfy.h
_NOT_YET_VALID, _EXPIRED, _HOST_MISMATCH, _IP_MISMATCH = 9, 10, 62, 64
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21, 27})

_CA_HINT = "put the certificate of its authority (or its own, when self-signed) into tls_config.ca_file"
_SKIP_HINT = "or, on a network that you trust, set tls_config.insecure_skip_verify"


def from_exception(error: Exception, deadline: Deadline, *, received: int, secure: bool) -> FetchError:
    """Names what went wrong.

    Args:
        error: an OSError (TimeoutError and ssl errors included) or an HTTPException.
        deadline: of the exchange; its phase tells where it stopped.
        received: bytes of the answer that had come.
        secure: whether the target is https.
    """
    if isinstance(error, TimeoutError):
        so_far = f" ({received} bytes had come)" if received else ""
        return FetchError("timeout", f"after {deadline.timeout_seconds:g} s still {deadline.phase}{so_far}")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _from_verification(error)
    if isinstance(error, ssl.SSLError):
        return _from_tls(error, deadline)
    if isinstance(error, ConnectionRefusedError):
        return FetchError("refused", "nothing listens on that address and port", hint="check host and port, and that the server runs")
    if isinstance(error, (http.client.IncompleteRead, EOFError)):
        return FetchError("truncated", f"the connection ended inside the answer ({received} bytes had come)")
    if isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
        if received:
            return FetchError("truncated", f"the connection broke inside the answer ({received} bytes had come)")
        hint = "" if secure else "if the server speaks TLS, write https:// in the target's url"
        return FetchError("connection_closed", f"the server closed the connection while {deadline.phase}", hint=hint)
    if isinstance(error, http.client.HTTPException):
        hint = "" if secure else "if the server speaks TLS, write https:// in the target's url"
        return FetchError("not_metrics", "the answer is not HTTP/1.x", hint=hint)
    if isinstance(error, OSError):  # no route, network down, out of descriptors …
        return FetchError("refused", f"no connection: {error.strerror or type(error).__name__}")
    raise error


def _from_verification(error: ssl.SSLCertVerificationError) -> FetchError:
    code = error.verify_code
    if code in _UNKNOWN_ISSUER:
        hint = f"{_CA_HINT}; {_SKIP_HINT}"
    elif code in (_HOST_MISMATCH, _IP_MISMATCH):
        hint = "set tls_config.server_name to a name in the certificate, or use that name in the target's url"
    elif code in (_EXPIRED, _NOT_YET_VALID):
        hint = "renew the server's certificate, or set this machine's clock right"
    else:
        hint = f"{_CA_HINT}; {_SKIP_HINT}"
    return FetchError("tls_verify", f"the server's certificate was not accepted: {error.verify_message}", hint=hint)


def _from_tls(error: ssl.SSLError, deadline: Deadline) -> FetchError:
    word = (error.reason or "unexpected end of the connection").replace("_", " ").lower()
    hint = ""
    if "wrong version number" in word or "http request" in word or "record layer" in word:
        hint = "the server seems to speak plain HTTP on this port: write http:// in the target's url"
    elif "certificate required" in word or "handshake failure" in word or "bad certificate" in word:
        hint = "the server may ask for a client certificate: set tls_config.cert_file and key_file"
    elif "protocol version" in word or "unsupported protocol" in word:
        hint = "compare tls_config.min_version and max_version with what the server offers"
    return FetchError("tls", f"{word}, {deadline.phase}", hint=hint)


def from_status(status: int, path: str) -> FetchError:
    """The error for a status other than 200.

    Args:
        status: as answered.
        path: asked for, without query.
    """
    hint = ""
    if status in (401, 403):
        hint = "set authorization or basic_auth for this target; if it is set, check that the token is right and may read metrics"
    elif status == 404:
        hint = (
            "SGLang serves metrics only when started with --enable-metrics; vLLM serves them on the port of its API: "
            "check the target's port, the path prefix in its url, and metrics_path"
        )
    elif status == 503:
        hint = "the server is there and not ready: a model that is loading answers so"
    elif status in (502, 504):
        hint = "a proxy answered; the server behind it did not"
    elif status == 429:
        hint = "something limits the request rate: raise global.scrape_interval, or exempt the metrics path"
    return FetchError(f"http_{status}", f"{path} was answered with {status} {http.client.responses.get(status, '')}".rstrip(), hint=hint)
