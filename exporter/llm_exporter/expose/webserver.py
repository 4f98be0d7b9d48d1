"""cheroot, so that clients that do nothing cost nothing.

cheroot shakes TLS hands inside its accept loop and gives every new connection a worker at once: one client that connects and stays
silent stops all others over TLS, and as many as there are workers stop plain HTTP. Here a connection waits in cheroot's own selector:
handshake and request head are read there as their bytes arrive, and only a connection with a whole head gets a worker.
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

MAX_HEAD_BYTES = 64 * 1024


def _answer(status: str, text: str) -> bytes:
    body = text.encode() + b"\n"
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


_NOT_TLS = _answer("400 Bad Request", "This port speaks TLS only: write https:// in the URL")
_TOO_LONG = _answer("431 Request Header Fields Too Large", f"A request's head may have {MAX_HEAD_BYTES} bytes")


class _GuardAdapter(Adapter):
    """Wraps accepted sockets with the guard's context of the moment.

    Of no use without `WebServer`, which shakes hands and looks at client certificates afterwards.
    """

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


class _FedReader(StreamReader):
    """cheroot's reader (pure Python, from `_pyio`), with a way in for bytes that were read before a worker had the connection."""

    _read_buf: bytes
    _read_pos: int

    def feed(self, data: bytes) -> None:
        """Puts bytes behind those not yet read."""
        self._read_buf = self._read_buf[self._read_pos :] + data
        self._read_pos = 0

    def take(self) -> bytes:
        """Takes out what is not yet read."""
        data, self._read_buf, self._read_pos = self._read_buf[self._read_pos :], b"", 0
        return data


class WebServer(wsgi.Server):
    """`cheroot.wsgi.Server` with patience for slow clients and, where the guard has TLS, with TLS.

    Args:
        bind_addr: host and port; port 0 lets the kernel choose.
        wsgi_app: the application; wrap it in `wsgi_guard` for users and headers.
        guard: None for plain HTTP without a web configuration.
        more: keywords of `cheroot.wsgi.Server` (numthreads, timeout, …). `timeout` is also the time for a handshake, and for the head
            of a request from its first byte on.
    """

    def __init__(self, bind_addr: tuple[str, int], wsgi_app: Any, *, guard: WebGuard | None = None, **more: Any) -> None:
        # With cheroot's backlog of 5 a burst of connections waits seconds for the kernel's next try.
        super().__init__(bind_addr, wsgi_app, **{"request_queue_size": 128, **more})
        self._guard = guard
        if guard is not None and guard.tls is not None:
            self.ssl_adapter = _GuardAdapter(guard)

    def process_conn(self, conn: Any) -> None:
        """Called by cheroot for new connections and for waiting ones that have become readable; never waits."""
        if conn.last_used is None:  # new
            conn.rfile = _FedReader(conn.socket, "rb", conn.rbufsize)
            conn.began_at, conn.head = time.monotonic(), b""
            self._wait(conn)
        elif isinstance(conn.socket, ssl.SSLSocket) and conn.socket.version() is None:
            self._shake_hands(conn)
        else:
            if conn.rfile.has_data():  # a further request, or the beginning of one, came with the last one
                conn.head, conn.began_at = conn.rfile.take(), time.monotonic()
            self._read_head(conn)

    def _wait(self, conn: Any) -> None:
        """Parks a connection in the selector, which closes it after `timeout` seconds without a byte."""
        try:
            self.put_conn(conn)
        except (OSError, ValueError, KeyError):
            self._drop(conn)

    def _wait_on(self, conn: Any) -> None:
        """As `_wait`, for a connection that has begun something which may take `timeout` seconds in all."""
        if time.monotonic() - conn.began_at < self.timeout:
            self._wait(conn)
        else:
            self._drop(conn)

    def _shake_hands(self, conn: Any) -> None:
        sock = conn.socket
        try:
            sock.settimeout(0)
            sock.do_handshake()
        except ssl.SSLWantReadError:
            self._wait_on(conn)
        except (OSError, ValueError) as error:  # SSLWantWrite too: such a client does not read what we say
            if isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                with suppress(OSError):
                    socket.socket.send(sock, _NOT_TLS)
            self._drop(conn)
        else:
            tls = self._guard.tls if self._guard is not None else None
            if tls is not None and not client_allowed(tls, sock.getpeercert()):
                self._drop(conn)
            else:
                self._read_head(conn)

    def _read_head(self, conn: Any) -> None:
        sock = conn.socket
        if not conn.head:
            conn.began_at = time.monotonic()
        try:
            sock.settimeout(0)
            while not _ends_head(conn.head):
                data = sock.recv(MAX_HEAD_BYTES)
                if not data:
                    self._drop(conn)
                    return
                conn.head += data
                if len(conn.head) > MAX_HEAD_BYTES and not _ends_head(conn.head[:MAX_HEAD_BYTES]):
                    with suppress(OSError):
                        sock.send(_TOO_LONG)
                    self._drop(conn)
                    return
            sock.settimeout(self.timeout)
        except (BlockingIOError, ssl.SSLWantReadError):
            self._wait_on(conn)
        except (OSError, ValueError):
            self._drop(conn)
        else:
            conn.rfile.feed(conn.head)
            conn.head = b""
            super().process_conn(conn)

    def _drop(self, conn: Any) -> None:
        with suppress(OSError, ValueError):
            conn.close()


def _ends_head(data: bytes) -> bool:
    """Whether an empty line is there; one of bare line feeds too, so that cheroot can say what is wrong with it."""
    return b"\r\n\r\n" in data or b"\n\n" in data
