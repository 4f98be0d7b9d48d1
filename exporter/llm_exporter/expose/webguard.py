"""Keeps a web configuration file in force: who may read, which headers are added, which certificate is shown.

`WebGuard` reads the file and its certificates again when they change, at most once a second; a broken file keeps the last good one in
force, is logged once and stays readable as `problem`. `wsgi_guard` puts it in front of an application. Called by the daemon.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import bcrypt

from llm_exporter.errors import ConfigError
from llm_exporter.expose.webconfig import WebConfig, context_of, read_web_config
from llm_exporter.expose.webtls import TlsServer
from llm_exporter.sources.watched import Stamp, stamps

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
_REMEMBERED = 256
_LONGEST_HEADER = 4096
_BCRYPT_BYTES = 72  # more than these never counted in bcrypt; its libraries differ in whether they say so
_PATIENCE_SECONDS = 5.0
# A hash of nothing in particular: users that do not exist must cost the same time as users that do.
_NOBODY = "$2b${cost:02d}$" + "N" * 21 + "u" + "x" * 31

Environ = Mapping[str, Any]
StartResponse = Callable[..., Any]
Application = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]


class WebGuard:
    """The file in force.

    Args:
        path: of the web configuration.
        clock: monotonic seconds.

    Attributes:
        config: the last good one.
        problem: why the file as it is now is not in force; "" while it is.

    Raises:
        ConfigError: at construction, when the file is not good.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self.problem = ""
        self.config, self._context = _read(path, None)
        self._stamps = self._current_stamps()
        self._checked_at = clock()
        self._bucket = _Bucket(self.config.rate_interval_seconds, self.config.rate_burst, self._checked_at)
        self._passwords = _Passwords()

    @property
    def tls(self) -> TlsServer | None:
        """TLS settings in force; None for plain HTTP. Whether there are any never changes while the exporter runs."""
        return self.config.tls

    def refresh(self) -> None:
        """Reads the file again if it or a certificate has changed; looks at most once a second; never raises."""
        now = self._clock()
        if now - self._checked_at < CHECK_SECONDS or not self._lock.acquire(blocking=False):
            return
        try:
            self._checked_at = now
            found = self._current_stamps()
            if found != self._stamps or self.problem:  # what a broken file refers to may come after it
                self._stamps = found
                self._reread(now)
        finally:
            self._lock.release()

    def _reread(self, now: float) -> None:
        try:
            config, context = _read(self._path, self.config)
        except ConfigError as error:
            if self.problem != str(error):
                self.problem = str(error)
                log.error("web configuration: not changed, the one read before stays in force: %s", error)
            return
        if (config.rate_interval_seconds, config.rate_burst) != (self.config.rate_interval_seconds, self.config.rate_burst):
            self._bucket = _Bucket(config.rate_interval_seconds, config.rate_burst, now)
        self.config, self._context = config, context
        self._stamps = self._current_stamps()
        self.problem = ""
        log.info("web configuration: read again")

    def _current_stamps(self) -> tuple[Stamp, ...]:
        return stamps((self._path, *(self.config.tls.files if self.config.tls is not None else ())))

    def ssl_context(self) -> ssl.SSLContext | None:
        """The context for new connections; None for plain HTTP."""
        self.refresh()
        return self._context

    def headers(self) -> Mapping[str, str]:
        """Headers for every answer."""
        return self.config.headers

    def within_rate(self) -> bool:
        """Takes one request from the rate limit; False when it is used up."""
        return self._bucket.take(self._clock())

    def authorise(self, environ: Environ) -> bool:
        """Whether the request's user and password are right; True where there are no users."""
        users = self.config.users
        if not users:
            return True
        pair = _basic_pair(environ.get("HTTP_AUTHORIZATION", ""))
        return pair is not None and self._passwords.right(users, *pair)


def _read(path: Path, before: WebConfig | None) -> tuple[WebConfig, ssl.SSLContext | None]:
    config = read_web_config(path, empty=before is None or before == WebConfig())
    if before is not None and (before.tls is None) != (config.tls is None):
        word = "removed" if config.tls is None else "added"
        raise ConfigError(f"{path}: tls_server_config was {word}, which open ports cannot follow; restart the exporter")
    return config, context_of(path, config)


def _basic_pair(header: str) -> tuple[str, bytes] | None:
    """User and password of an Authorization header."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic" or len(text) > _LONGEST_HEADER:
        return None
    try:
        user, colon, password = base64.b64decode(text.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


class _Passwords:
    """Checks passwords and remembers the outcome, so that a scrape every few seconds costs one bcrypt in all.

    What is remembered is a keyed digest of user, hash and password, never the password. Right and wrong ones are kept apart, so that
    guessing cannot push the right ones out. One check runs at a time: bcrypt is expensive on purpose, and anybody can ask for it.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._checking = threading.Lock()
        self._known: dict[bool, OrderedDict[bytes, None]] = {True: OrderedDict(), False: OrderedDict()}

    def right(self, users: Mapping[str, bytes], user: str, password: bytes) -> bool:
        """Whether the password is the user's. Takes as long for users that do not exist."""
        wanted = users.get(user)
        hashed = wanted or _nobody(users)
        digest = self._digest(user.encode(), hashed, password)
        known = self._recall(digest)
        if known is None:
            if not self._checking.acquire(timeout=_PATIENCE_SECONDS):
                return False
            try:
                matches = bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed)
            except ValueError:  # a NUL in the password
                matches = False
            finally:
                self._checking.release()
            known = matches and wanted is not None
            self._remember(digest, known)
        return known

    def _digest(self, *parts: bytes) -> bytes:
        sized = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, sized, hashlib.sha256)

    def _recall(self, digest: bytes) -> bool | None:
        with self._lock:
            for answer, digests in self._known.items():
                if digest in digests:
                    digests.move_to_end(digest)
                    return answer
        return None

    def _remember(self, digest: bytes, answer: bool) -> None:
        with self._lock:
            digests = self._known[answer]
            digests[digest] = None
            if len(digests) > _REMEMBERED:
                digests.popitem(last=False)


def _nobody(users: Mapping[str, bytes]) -> bytes:
    """A hash that no password has, as expensive as those of the users."""
    cost = max(int(hashed[4:6]) for hashed in users.values())
    return _NOBODY.format(cost=cost).encode()


class _Bucket:
    """A token bucket: one request per interval in the long run, `burst` at once. An interval of 0 is no limit."""

    def __init__(self, interval_seconds: float, burst: int, now: float) -> None:
        self._interval, self._burst = interval_seconds, burst
        self._tokens, self._at = float(burst), now
        self._lock = threading.Lock()

    def take(self, now: float) -> bool:
        if not self._interval:
            return True
        with self._lock:
            self._tokens = min(self._burst, self._tokens + (now - self._at) / self._interval)
            self._at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


def wsgi_guard(application: Application, guard: WebGuard) -> Application:
    """Puts the guard in front of an application: 429 beyond the rate limit, 401 for strangers, the headers on every answer."""

    def guarded(environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        guard.refresh()

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            taken = {name.lower() for name, _ in headers}
            more = [(name, value) for name, value in guard.headers().items() if name.lower() not in taken]
            return start_response(status, headers + more, *rest)

        if not guard.within_rate():
            return _refuse(environ, start, "429 Too Many Requests")
        if not guard.authorise(environ):
            return _refuse(environ, start, "401 Unauthorized", ("WWW-Authenticate", 'Basic realm="llm-exporter", charset="UTF-8"'))
        return application(environ, start)

    return guarded


def _refuse(environ: Environ, start: StartResponse, status: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    body = status[4:].encode() + b"\n"
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *headers])
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
