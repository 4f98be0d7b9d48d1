"""The HTTP client that scrapes a target: one kept-alive connection, one request at a time, one deadline for everything.

In: a base URL, callables for headers and TLS. Out: an `Answer` with status 200, or `FetchError` whose reason is a value of
`llm_target_down_reason`. Used by `sources/engine.py` and everything else that reads small pages from an engine.

Decisions, with the figures in bench/bench_fetch.py:
- `http.client` on a socket of our own: least CPU of the three candidates, and the only one whose every read can be held to a total.
- Proxies in the environment (HTTP_PROXY …) are ignored, as Prometheus ignores them unless configured: what is measured is the server.
- A request that times out before the first byte of its answer stays open, and no second one is sent until that answer came (it is
  thrown away), the connection ended, or three timeouts have passed. A busy engine is never given a pile of scrapes.
- gzip is asked for only where the peer is another machine: on loopback it costs the engine CPU and saves nothing.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from llm_exporter import __version__
from llm_exporter.errors import FetchError, SourceError
from llm_exporter.sources.body import read_body
from llm_exporter.sources.deadline import Deadline, Lookup, Resolver, Wire, dial
from llm_exporter.sources.fetch_errors import from_exception, from_status
from llm_exporter.sources.origin import DEFAULT_PORTS, Origin, split_base_url
from llm_exporter.sources.tls import TlsFiles

MAX_BYTES = 16 * 2**20
MAX_REDIRECTS = 5
# Unanswered requests are waited for so many timeouts before a second one is sent.
PATIENCE_TIMEOUTS = 3
# Text 0.0.4 first: asked for OpenMetrics, SGLang answers with names that differ from its HELP lines (client_python #1177).
METRICS_ACCEPT = "text/plain;version=0.0.4, */*;q=0.1"

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_DISCARD_BYTES = 64 * 1024
_FILES_HINT = "check path and permissions, as the user the exporter runs as"
_PATH_SAFE = "/%:=&?~+!$,;'@()*[]|"


class Answer(NamedTuple):
    """A complete answer with status 200.

    Attributes:
        body: unpacked.
        duration_seconds: from the call to the last byte, redirects and connecting included.
        connect_seconds: name lookup, TCP and TLS; None where the connection was already open.
        headers: names in lower case.
        wire_bytes: size of the body before unpacking.
        path: that answered in the end, after redirects.
    """

    status: int
    body: bytes
    content_type: str
    duration_seconds: float
    connect_seconds: float | None
    headers: Mapping[str, str]
    wire_bytes: int
    path: str


def no_headers() -> Mapping[str, str]:
    """For targets that need no credentials."""
    return {}


class Client:
    """Fetches pages of one target. `get` is for one thread at a time, so one request is in flight; `close` is for any.

    Args:
        base_url: http or https, host (name, IPv4, [IPv6]), port, path prefix; no user info, query or fragment.
        headers: asked before each request, so that rotated credentials are used at once. Sent to this host, scheme and port only.
        tls: asked before each request; when it gives another context than before, the connection is made anew.
        server_name: for SNI and verification, where it is not the host of the URL.
        max_bytes: cap of a body, on the wire and unpacked.
        lookup: `socket.getaddrinfo` or a stand-in.
    """

    def __init__(
        self,
        base_url: str,
        *,
        headers: Callable[[], Mapping[str, str]] = no_headers,
        tls: Callable[[], ssl.SSLContext] | None = None,
        server_name: str = "",
        max_bytes: int = MAX_BYTES,
        lookup: Lookup = socket.getaddrinfo,
    ) -> None:
        self._origin, prefix = split_base_url(base_url)
        self._prefix = prefix.rstrip("/")
        self._headers = headers
        self._tls = tls or TlsFiles()
        self._server_name = server_name or self._origin.host
        self._max_bytes = max_bytes
        self._resolver = Resolver(self._origin.host, self._origin.port, lookup)
        self._context: ssl.SSLContext | None = None
        self._wire: Wire | None = None
        self._connection: _Connection | None = None
        self._unanswered: _Unanswered | None = None
        self._lock = threading.Lock()
        self._busy = self._ended = False

    def get(self, path: str, *, timeout: float, accept: str = METRICS_ACCEPT) -> Answer:
        """Fetches one page.

        Args:
            path: below the base URL; may have a query.
            timeout: seconds for everything: lookup, connecting, redirects, and a slow body.
            accept: the Accept header.

        Raises:
            FetchError: with reason, detail and, where something can be done, a hint.
        """
        deadline = Deadline(timeout)
        with self._lock:
            self._busy, self._ended = True, False
        try:
            return self._get(self._prefix + "/" + path.lstrip("/"), accept, deadline)
        except (OSError, EOFError, http.client.HTTPException) as error:
            received = self._wire.received if self._wire is not None else 0
            failure = from_exception(error, deadline, received=received, secure=self._origin.scheme == "https")
            if self._unanswered is None or failure.reason != "timeout":
                self._drop()
            raise failure from None
        except BaseException:  # whatever else happens, no half-read connection is kept
            self._drop()
            raise
        finally:
            with self._lock:
                self._busy = False
                if self._ended:
                    self._drop()

    def close(self) -> None:
        """Closes the connection; the next `get` opens a new one. From another thread it ends a `get` that waits for an answer."""
        with self._lock:
            if not self._busy:
                self._drop()
                return
            self._ended = True
            wire = self._wire
        if wire is not None:
            wire.hang_up()  # the thread in `get` closes: closing here could hand its descriptor to somebody else

    def _drop(self) -> None:
        if self._wire is not None:
            self._wire.shut()
        self._wire = self._connection = None
        self._unanswered = None

    def _get(self, path: str, accept: str, deadline: Deadline) -> Answer:
        self._await_unanswered(deadline)
        fixed = {"Accept": accept, "User-Agent": f"llm-exporter/{__version__}"}
        connect_seconds: float | None = None
        for _ in range(MAX_REDIRECTS + 1):
            response, connecting = self._ask(path, fixed, deadline)
            if connecting is not None:
                connect_seconds = (connect_seconds or 0.0) + connecting
            if response.status in _REDIRECTS and response.getheader("Location"):
                path = self._follow(path, response.getheader("Location") or "")
                self._discard(response)
                continue
            if response.status != http.client.OK:
                raise from_status(response.status, path.partition("?")[0])
            return self._finish(response, path, deadline, connect_seconds)
        raise FetchError("redirect", f"more than {MAX_REDIRECTS} redirects", hint="two redirects may point at each other")

    def _finish(self, response: http.client.HTTPResponse, path: str, deadline: Deadline, connect_seconds: float | None) -> Answer:
        assert self._wire is not None
        deadline.phase = "reading the answer"
        body = read_body(response, self._max_bytes)
        if response.will_close:
            self._drop()
        elif self._wire.out_of_step():
            raise FetchError("truncated", "more bytes came than the answer's own length says")
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Answer(
            response.status,
            body.data,
            headers.get("content-type", ""),
            deadline.elapsed(),
            connect_seconds,
            headers,
            body.wire_bytes,
            path.partition("?")[0],
        )

    def _ask(self, path: str, fixed: Mapping[str, str], deadline: Deadline) -> tuple[http.client.HTTPResponse, float | None]:
        """Sends the request and reads the head of the answer; once more on a new connection where a kept one had gone stale."""
        headers = {**fixed, **self._current_headers()}
        connecting = self._connect(deadline)
        try:
            return self._exchange(path, headers, deadline), connecting
        except (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            stale = connecting is None and self._wire is not None and not self._wire.received and not self._ended
            if not stale:
                raise
        self._drop()
        connecting = self._connect(deadline)
        return self._exchange(path, headers, deadline), connecting

    def _exchange(self, path: str, headers: Mapping[str, str], deadline: Deadline) -> http.client.HTTPResponse:
        assert self._connection is not None
        assert self._wire is not None
        self._wire.received = 0
        deadline.phase = "sending the request"
        self._connection.send_get(quote(path, safe=_PATH_SAFE), headers, compress=not self._wire.loopback)
        deadline.phase = "waiting for the answer"
        now = time.monotonic()
        self._unanswered = _Unanswered(now, now + PATIENCE_TIMEOUTS * deadline.timeout_seconds)
        try:
            return self._connection.getresponse()
        finally:
            if self._wire.received:
                self._unanswered = None

    def _connect(self, deadline: Deadline) -> float | None:
        """Sees to an open connection. Returns: seconds that it took, None where one was open."""
        context = self._current_context()
        if self._wire is not None:
            if context is self._context and not self._wire.gone():
                self._wire.deadline = deadline
                return None
            self._drop()
        started_at = time.monotonic()
        sock = dial(self._resolver.addresses(deadline), deadline)
        self._wire = Wire(sock, deadline)
        if context is not None:
            self._wire.start_tls(context, self._server_name)
        self._context = context
        self._connection = _Connection(self._origin, self._wire)
        return time.monotonic() - started_at

    def _current_context(self) -> ssl.SSLContext | None:
        if self._origin.scheme != "https":
            return None
        try:
            return self._tls()
        except OSError as error:
            raise FetchError("tls", f"certificate files cannot be read: {error.strerror}", hint=_FILES_HINT) from None

    def _current_headers(self) -> Mapping[str, str]:
        try:
            return self._headers()
        except SourceError as error:
            raise FetchError(error.reason, error.detail, hint=error.hint) from None
        except OSError as error:
            raise FetchError("credentials", f"a file of credentials cannot be read: {error.strerror}", hint=_FILES_HINT) from None

    def _await_unanswered(self, deadline: Deadline) -> None:
        """Waits for the answer to an earlier request that timed out, so that no second one piles up behind it."""
        if self._unanswered is None or self._wire is None or self._connection is None:
            return
        now = time.monotonic()
        deadline.phase = f"waiting for the answer to a request sent {now - self._unanswered.sent_at:.0f} s ago"
        patience = self._unanswered.until - now
        self._wire.deadline = deadline
        if patience <= 0 or not self._wire.readable(min(patience, deadline.remaining())):
            if patience >= deadline.timeout_seconds:
                raise TimeoutError
            self._drop()
            return
        try:
            response = self._connection.getresponse()
            self._unanswered = None
            self._discard(response)
        except TimeoutError:
            if self._wire.received:  # half an answer was read: the connection is out of step
                self._unanswered = None
            raise
        except (OSError, EOFError, http.client.HTTPException):
            self._drop()

    def _discard(self, response: http.client.HTTPResponse) -> None:
        """Reads and forgets a body of known modest size; otherwise gives up the connection."""
        if response.will_close or response.chunked or response.length is None or response.length > _DISCARD_BYTES:
            self._drop()
            return
        response.read()

    def _follow(self, path: str, location: str) -> str:
        """The path that a redirect leads to. Raises: FetchError where it leads to another scheme, host or port."""
        hint = "name the final address in the target's url: credentials are never sent to another host, scheme or port"
        try:
            target = urlsplit(urljoin(f"{self._origin.scheme}://{self._origin.netloc}{path}", location))
            origin = Origin(target.scheme, (target.hostname or "").lower(), target.port or DEFAULT_PORTS.get(target.scheme, 0))
        except ValueError:
            raise FetchError("redirect", "the server redirects to an address that is no valid URL") from None
        if origin != self._origin:
            raise FetchError("redirect", f"the server redirects to {origin.scheme}://{origin.netloc}", hint=hint)
        return (target.path or "/") + (f"?{target.query}" if target.query else "")


class _Unanswered(NamedTuple):
    """A request that the server still owes an answer to. Moments on the monotonic clock."""

    sent_at: float
    until: float


class _Connection(http.client.HTTPConnection):
    """HTTP/1.1 on a socket that is open already; never opens one itself."""

    auto_open = 0

    def __init__(self, origin: Origin, wire: Wire) -> None:
        super().__init__(origin.host, origin.port)
        self._origin = origin
        self.sock = wire

    def send_get(self, path: str, headers: Mapping[str, str], *, compress: bool) -> None:
        try:
            self.putrequest("GET", path, skip_host=True, skip_accept_encoding=True)
            self.putheader("Host", self._origin.netloc.encode("idna" if not self._origin.netloc.isascii() else "ascii"))
            self.putheader("Accept-Encoding", "gzip" if compress else "identity")
            for name, value in headers.items():
                self.putheader(name, value)
        except ValueError:  # its text would repeat the value
            raise FetchError("credentials", "a request header has a line break or a sign outside Latin-1 in it") from None
        self.endheaders()
