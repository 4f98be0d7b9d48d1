"""A way to a server that can be cut: what a crash or a cut cable looks like from outside, which closing a listener alone is not."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from urllib.parse import urlsplit


class Relay:
    """Passes bytes between clients and a server, until it is cut."""

    def __init__(self, url: str) -> None:
        there = urlsplit(url)
        self._server = (there.hostname or "127.0.0.1", there.port or 80)
        self._address = ("127.0.0.1", 0)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.join()
        self.url = f"http://127.0.0.1:{self._address[1]}"

    def join(self) -> None:
        """Lets connections through, on the port of before."""
        self._listener = socket.create_server(self._address)
        self._address = self._listener.getsockname()
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Ends all connections and refuses new ones."""
        with self._lock:
            ending = [self._listener, *self._open]
            self._open.clear()
        for one in ending:
            with suppress(OSError):  # it has ended by itself
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass  # cut
        for one in (source, sink):
            with self._lock:
                self._open.discard(one)
            one.close()
