"""`--web.config.file`: TLS, users, headers and a rate limit, in the format of Prometheus' exporter-toolkit.

In: a path. Out: a `WebConfig`, or a `ConfigError` that names file, line, key, value and remedy of every problem. What the toolkit can
and Python cannot is refused with a word of explanation, never ignored. `webguard.py` keeps such a file in force; `check web-config`
calls `load_web_config`.

Source: web/tls_config.go, web/handler.go and docs/web-configuration.md of prometheus/exporter-toolkit.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_exporter.config.document import Document, dotted, parse_document, printable, read_file
from llm_exporter.errors import ConfigError
from llm_exporter.expose.webtls import CIPHERS, CURVES, TLS13_CIPHERS, TlsServer, server_context

# A check at cost 14 takes about a second of CPU; each step more doubles it, and anybody can ask for one.
MAX_BCRYPT_COST = 14
_BCRYPT = re.compile(r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{53}")

# Headers that may be set, with their allowed values; () is any value. The toolkit keeps this list closed, and so do we.
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
_SECTIONS = ("tls_server_config", "http_server_config", "basic_auth_users", "rate_limit")
_TLS_KEYS = (
    "cert", "key", "client_ca", "cert_file", "key_file", "client_auth_type", "client_ca_file", "client_allowed_sans",
    "min_version", "max_version", "cipher_suites", "prefer_server_cipher_suites", "curve_preferences",
)  # fmt: skip
_PLAIN_AUTH = ("", "NoClientCert")
_VERIFYING_AUTH = ("VerifyClientCertIfGiven", "RequireAndVerifyClientCert")
_UNVERIFIED_AUTH = ("RequestClientCert", "RequireAnyClientCert", "RequireClientCert")
_VERSIONS = ("TLS12", "TLS13")
_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

At = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says.

    Attributes:
        tls: None for plain HTTP.
        headers: added to every answer.
        users: bcrypt hash by user; empty where everybody may read.
        rate_interval_seconds: mean time between two requests; 0 for no limit.
        rate_burst: requests that may come at once.
        notes: settings that are accepted and change nothing here, and why.
    """

    tls: TlsServer | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    rate_interval_seconds: float = 0.0
    rate_burst: int = 0
    notes: tuple[str, ...] = ()


def load_web_config(path: Path) -> WebConfig:
    """Reads and checks the file, its certificates included. Raises: ConfigError."""
    config = read_web_config(path)
    context_of(path, config)
    return config


def context_of(path: Path, config: WebConfig) -> ssl.SSLContext | None:
    """The TLS context of a configuration, from its certificates as they are now. Raises: ConfigError."""
    try:
        return None if config.tls is None else server_context(config.tls)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def read_web_config(path: Path, *, empty: bool = True) -> WebConfig:
    """Reads the file without its certificates.

    Args:
        path: relative file names inside start at its directory.
        empty: whether a file without any content is accepted. Read anew, such a file is more likely half written than meant.

    Raises:
        ConfigError: names every problem, one a line.
    """
    document = parse_document(read_file(path), str(path))
    if document.data is None and not empty:
        raise ConfigError(f"{path}:1: the file is empty; write {{}} if TLS, users and headers are really to go")
    reader = _Reader(document, path.absolute().parent)
    config = reader.config()
    if reader.problems:
        raise ConfigError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(set(reader.problems))))
    return config


class _Reader:
    """Turns a document into a `WebConfig`, collecting what is wrong."""

    def __init__(self, document: Document, directory: Path) -> None:
        self._document = document
        self._directory = directory
        self.problems = [(problem.line, problem.text) for problem in document.problems]
        self._notes: list[str] = []

    def config(self) -> WebConfig:
        top = self._section(self._document.data, (), _SECTIONS)
        tls = self._tls(self._section(top.get("tls_server_config"), ("tls_server_config",), _TLS_KEYS))
        http = self._section(top.get("http_server_config"), ("http_server_config",), ("http2", "headers"))
        if self._flag(http, ("http_server_config", "http2"), default=False):
            self._notes.append("http_server_config.http2: this server speaks HTTP/1.1, which every scraper does")
        headers = self._headers(http.get("headers"))
        users = self._users(top.get("basic_auth_users"))
        interval, burst = self._rate(self._section(top.get("rate_limit"), ("rate_limit",), ("interval", "burst")))
        return WebConfig(tls, headers, users, interval, burst, tuple(self._notes))

    # ---- sections

    def _tls(self, section: Mapping[str, Any]) -> TlsServer | None:
        if not section:
            return None
        at = ("tls_server_config",)
        text = {
            key: self._text(section, (*at, key), secret=key == "key")
            for key in ("cert", "key", "client_ca", "client_auth_type", "min_version", "max_version")
        }
        files = {key: self._file(section, (*at, key)) for key in ("cert_file", "key_file", "client_ca_file")}
        sans = self._texts(section, (*at, "client_allowed_sans"))
        for inline, file in (("cert", "cert_file"), ("key", "key_file"), ("client_ca", "client_ca_file")):
            if text[inline] and files[file]:
                self._wrong((*at, inline), f"stands beside {file}", "give one of the two", show=False)
            elif not text[inline] and not files[file] and inline != "client_ca":
                self._wrong(at, f"{inline} or {file} is missing", f"add {file}: a PEM file", show=False)
        self._client_auth(
            text["client_auth_type"], bool(text["client_ca"] or files["client_ca_file"]), "client_allowed_sans" in section, sans
        )
        low, high = (self._version((*at, key), text[key]) for key in ("min_version", "max_version"))
        if low and high and low > high:
            self._wrong((*at, "min_version"), "is higher than max_version", "swap the two")
        ciphers = self._ciphers(section, low)
        curves = self._texts(section, (*at, "curve_preferences"), known=CURVES)
        if len(curves) > 1:
            self._wrong(
                (*at, "curve_preferences"),
                "several curves: Python's ssl can be held to one, not to a list",
                "name the one curve to use, or remove the key for OpenSSL's own order",
                show=False,
            )
        return TlsServer(
            cert=text["cert"],
            key=text["key"],
            client_ca=text["client_ca"],
            cert_file=files["cert_file"],
            key_file=files["key_file"],
            client_ca_file=files["client_ca_file"],
            client_auth=text["client_auth_type"] or "NoClientCert",
            allowed_sans=tuple(sans),
            min_version=low or "TLS12",
            max_version=high or "TLS13",
            ciphers=tuple(ciphers),
            prefer_server_ciphers=self._flag(section, (*at, "prefer_server_cipher_suites"), default=True),
            curve=CURVES.get(curves[0], "") if curves else "",
        )

    def _client_auth(self, kind: str, has_ca: bool, has_sans: bool, sans: Sequence[str]) -> None:
        at = ("tls_server_config", "client_auth_type")
        if kind in _UNVERIFIED_AUTH:
            remedy = "write RequireAndVerifyClientCert with client_ca_file, or VerifyClientCertIfGiven"
            self._wrong(at, "Python's ssl cannot ask for a client certificate without verifying it", remedy)
        elif kind not in (*_PLAIN_AUTH, *_VERIFYING_AUTH):
            self._wrong(at, "unknown", f"write {', '.join((*_PLAIN_AUTH[1:], *_VERIFYING_AUTH))}")
        elif has_ca and kind in _PLAIN_AUTH:
            self._wrong(at[:1], "a client CA is given and client_auth_type asks for no certificate", "add client_auth_type", show=False)
        elif has_sans and kind != "RequireAndVerifyClientCert":
            at = ("tls_server_config", "client_allowed_sans")
            self._wrong(at, "a client could do without a certificate", "add client_auth_type: RequireAndVerifyClientCert", show=False)
        elif has_sans and not sans:
            self._wrong(("tls_server_config", "client_allowed_sans"), "names nobody", "name at least one, or remove the key", show=False)
        elif kind in _VERIFYING_AUTH and not has_ca:
            self._notes.append("tls_server_config: without client_ca_file, every authority this system trusts may vouch for clients")

    def _version(self, at: At, value: str) -> str:
        if value in ("SSL30", "TLS10", "TLS11"):
            self._wrong(at, "the OpenSSL of today refuses versions before 1.2", "write TLS12 or TLS13")
        elif value and value not in _VERSIONS:
            self._wrong(at, "unknown", "write TLS12 or TLS13")
        return value if value in _VERSIONS else ""

    def _ciphers(self, section: Mapping[str, Any], min_version: str) -> list[str]:
        at = ("tls_server_config", "cipher_suites")
        names = self._texts(section, at, known={**CIPHERS, **dict.fromkeys(TLS13_CIPHERS, "")})
        old = [CIPHERS[name] for name in names if name in CIPHERS]
        if names and not old and min_version != "TLS13":
            self._wrong(at, "nothing is left for TLS 1.2", "add a suite of TLS 1.2, or write min_version: TLS13", show=False)
        if len(old) < len(names):
            self._notes.append("tls_server_config.cipher_suites: the suites of TLS 1.3 are always on, as in the toolkit")
        return old

    def _headers(self, value: Any) -> dict[str, str]:
        at = ("http_server_config", "headers")
        headers: dict[str, str] = {}
        for name in self._section(value, at, tuple(HEADERS)):
            text = self._text(value, (*at, name))
            if text and HEADERS.get(name) and text not in HEADERS[name]:
                self._wrong((*at, name), "not allowed", f"write {' or '.join(HEADERS[name])}")
            elif not text.isprintable() or not text.isascii():
                self._wrong((*at, name), "holds signs that a header cannot carry", "write printable ASCII")
            elif text:  # blank unsets it, as in the toolkit
                headers[name] = text
        return headers

    def _users(self, value: Any) -> dict[str, bytes]:
        users: dict[str, bytes] = {}
        for name in self._section(value, ("basic_auth_users",), None):
            at = ("basic_auth_users", name)
            text = self._text(value, at, secret=True)
            match = _BCRYPT.fullmatch(text)
            if not name or ":" in name:
                self._wrong(at, "a user name cannot be empty or hold a colon", "choose another name", show=False)
            elif match is None:
                self._wrong(at, "not a bcrypt hash", f"make one with: htpasswd -nBC 10 {printable(name)}", secret=True)
            elif not 4 <= int(match[1]) <= MAX_BCRYPT_COST:
                remedy = f"make one with cost 10: htpasswd -nBC 10 {printable(name)}"
                self._wrong(
                    at,
                    f"a bcrypt cost of {int(match[1])}; at most {MAX_BCRYPT_COST} is allowed, since anybody can ask for a check",
                    remedy,
                    secret=True,
                )
            else:
                users[name] = text.encode()
        return users

    def _rate(self, section: Mapping[str, Any]) -> tuple[float, int]:
        at = ("rate_limit", "interval")
        interval = _go_seconds(section.get("interval", 0))
        if interval is None:
            self._wrong(at, "not a duration", "write for example 100ms or 1s; 0 for no limit")
            return 0.0, 0
        burst = section.get("burst", 0)
        if not isinstance(burst, int) or isinstance(burst, bool) or burst < 0:
            self._wrong(("rate_limit", "burst"), "must be a whole number", "write for example 20")
        elif interval and not burst:
            self._wrong(("rate_limit",), "a burst of 0 lets no request through", "add burst: 20", show=False)
        else:
            return interval, burst
        return 0.0, 0

    # ---- values

    def _section(self, value: Any, at: At, known: Sequence[str] | None) -> Mapping[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._wrong(at, "must hold keys", f"write {', '.join(known or ('USER: HASH',))}", show=False)
            return {}
        for key in value:
            if known is not None and key not in known:
                what = "this header cannot be set" if at[-1:] == ("headers",) else "unknown key"
                self._wrong((*at, key), what, f"known are {', '.join(known)}", show=False)
        return {key: item for key, item in value.items() if known is None or key in known}

    def _text(self, section: Mapping[str, Any], at: At, *, secret: bool = False) -> str:
        value = section.get(str(at[-1]), "")
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        self._wrong(at, "must be text", "put it in quotes", secret=secret)
        return ""

    def _file(self, section: Mapping[str, Any], at: At) -> str:
        text = self._text(section, at)
        return str(self._directory / text) if text else ""

    def _flag(self, section: Mapping[str, Any], at: At, *, default: bool) -> bool:
        value = section.get(str(at[-1]), default)
        if not isinstance(value, bool):
            self._wrong(at, "must be true or false", "write true or false without quotes")
            return default
        return value

    def _texts(self, section: Mapping[str, Any], at: At, known: Mapping[str, str] | None = None) -> list[str]:
        value = section.get(str(at[-1])) or []
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            self._wrong(at, "must be a list of texts", "write - in front of each", show=False)
            return []
        for position, item in enumerate(value):
            if known is not None and item not in known:
                self._wrong((*at, position), "unknown", f"known are {', '.join(known)}")
        return [item for item in value if known is None or item in known]

    def _wrong(self, at: At, what: str, remedy: str, *, show: bool = True, secret: bool = False) -> None:
        node, _, reached = self._document.node(at)
        value = ""
        if secret:
            value = "value <secret>: "
        elif show and node is not None and isinstance(node.value, str):
            value = f"value {printable(node.value)}: "
        self.problems.append((self._document.line(at), f"{dotted(reached) or 'the file'}: {value}{what}; {remedy}"))


def _go_seconds(value: Any) -> float | None:
    """Seconds of a Go duration ("1m30s", "1.5s", "250ms"); None where it is none. A bare number other than 0 is none."""
    if value == 0 and not isinstance(value, bool):
        return 0.0
    if not isinstance(value, str) or not re.fullmatch(r"(\d+(\.\d*)?(ns|us|µs|ms|s|m|h))+|0", value):
        return None
    return sum(float(number) * _GO_UNITS[unit] for number, unit in re.findall(r"([\d.]+)(ns|us|µs|ms|s|m|h)", value))
