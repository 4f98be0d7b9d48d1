"""A total deadline for a fetch with requests, which itself only knows how long one read may take.

Used by `sd_fetch.py` for lists of targets and by `probing/servers.py` for what a server says about itself.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from urllib3 import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection


class Watch:
    """Cuts the connections of one fetch when its time is over, whatever the server is dripping: head, body or TLS handshake.

    Attributes:
        over: the time is over, so whatever came is not whole.
    """

    def __init__(self, seconds: float) -> None:
        self.over = False
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()
        for connection in self._sockets:
            connection.close()

    def add(self, connection: socket.socket) -> socket.socket:
        """Watch a connection through a second descriptor, since TLS takes the first one over."""
        self._sockets.append(connection.dup())
        return connection

    def _cut(self) -> None:
        self.over = True
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def pool_classes(watch: Watch) -> dict[str, type[HTTPConnectionPool]]:
    """Pools for `TlsAdapter` whose connections are watched."""

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return watch.add(super()._new_conn())

    class Tls(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return watch.add(super()._new_conn())

        def connect(self) -> None:
            super().connect()
            self.is_verified = True  # or skipped on purpose, of which the configuration warns once and urllib3 would at each request

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    return {"http": PlainPool, "https": TlsPool}
