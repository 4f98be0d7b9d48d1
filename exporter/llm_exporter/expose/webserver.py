"""cheroot, so that clients that do nothing cost nothing.

cheroot shakes TLS hands inside its accept loop and gives every new connection a worker at once: one client that connects and stays
silent stops all others over TLS, and as many as there are workers stop plain HTTP. Here a new connection waits in cheroot's own
selector until bytes arrive, handshakes go on there step by step, and only a connection with a request gets a worker.
The daemon uses `WebServer` in place of `cheroot.wsgi.Server`.
"""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import suppress
from typing import Any

from cheroot import errors, wsgi
from cheroot.makefile import StreamReader, StreamWriter
from cheroot.ssl import Adapter

from llm_exporter.expose.webguard import WebGuard
from llm_exporter.expose.webtls import client_allowed

_PLAIN_BODY = b"This port speaks TLS only: write https:// in the URL\n"
_PLAIN_ANSWER = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
    len(_PLAIN_BODY),
    _PLAIN_BODY,
)


class _GuardAdapter(Adapter):
    """Wraps accepted sockets with the guard's context of the moment; the handshake itself is left to `WebServer`."""

    def __init__(self, guard: WebGuard) -> None:  # the base class wants file names
        self.guard = guard

    def wrap(self, sock: socket.socket) -> tuple[ssl.SSLSocket, dict[str, Any]]:
        """Called by cheroot in its accept loop: nothing here waits for the client."""
        context = self.guard.ssl_context()
        assert context is not None
        try:
            wrapped = context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # gone already
            raise errors.FatalSSLAlert(*error.args) from None
        return wrapped, {"wsgi.url_scheme": "https", "HTTPS": "on"}

    def bind(self, sock: socket.socket) -> socket.socket:
        """Nothing to do for a listening socket."""
        return sock

    def get_environ(self) -> dict[str, Any]:
        """Nothing beyond what `wrap` gave."""
        return {}

    def makefile(self, sock: ssl.SSLSocket, mode: str = "r", bufsize: int = -1) -> Any:
        """The streams of cheroot."""
        return StreamReader(sock, mode, bufsize) if "r" in mode else StreamWriter(sock, mode, bufsize)


class WebServer(wsgi.Server):
    """`cheroot.wsgi.Server` with patience for silent clients and, where the guard has TLS, with TLS.

    Args:
        bind_addr: host and port; port 0 lets the kernel choose.
        wsgi_app: the application; wrap it in `wsgi_guard` for users and headers.
        guard: None for plain HTTP without a web configuration.
        more: keywords of `cheroot.wsgi.Server` (numthreads, timeout, …). `timeout` is also the time for a handshake.
    """

    def __init__(self, bind_addr: tuple[str, int], wsgi_app: Any, *, guard: WebGuard | None = None, **more: Any) -> None:
        # With cheroot's backlog of 5 a burst of connections waits seconds for the kernel's next try.
        super().__init__(bind_addr, wsgi_app, **{"request_queue_size": 128, **more})
        self._guard = guard
        if guard is not None and guard.tls is not None:
            self.ssl_adapter = _GuardAdapter(guard)

    def process_conn(self, conn: Any) -> None:
        """Called by cheroot for new connections and for waiting ones that have become readable."""
        if conn.last_used is None:  # new
            conn.accepted_at = time.monotonic()
            self._wait(conn)
        elif isinstance(conn.socket, ssl.SSLSocket) and conn.socket.version() is None:
            self._shake_hands(conn)
        else:
            super().process_conn(conn)

    def _wait(self, conn: Any) -> None:
        """Parks a connection in the selector, which closes it after `timeout` seconds without a byte."""
        try:
            self.put_conn(conn)
        except (OSError, ValueError, KeyError):
            self._drop(conn)

    def _shake_hands(self, conn: Any) -> None:
        """One step of a handshake. A client that feeds it byte by byte has `timeout` seconds in all."""
        sock = conn.socket
        try:
            sock.settimeout(0)
            sock.do_handshake()
            sock.settimeout(self.timeout)
        except ssl.SSLWantReadError:
            if time.monotonic() - conn.accepted_at < self.timeout:
                self._wait(conn)
            else:
                self._drop(conn)
        except (OSError, ValueError) as error:  # SSLWantWrite too: such a client does not read what we say
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                with suppress(OSError):
                    socket.socket.send(sock, _PLAIN_ANSWER)
            self._drop(conn)
        else:
            tls = self._guard.tls if self._guard is not None else None
            if tls is not None and not client_allowed(tls, sock.getpeercert()):
                self._drop(conn)
            elif sock.pending():
                super().process_conn(conn)
            else:
                self._wait(conn)

    def _drop(self, conn: Any) -> None:
        with suppress(OSError, ValueError):
            conn.close()
