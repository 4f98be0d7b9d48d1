"""The HTTP server: cheroot in threads, with the web configuration's TLS and users in front of the application."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cheroot import wsgi

from llm_exporter.errors import ConfigError

# Room for requests at once beside web.max_requests, so that the limit can answer 503 instead of letting clients wait.
SPARE_THREADS = 4


def split_address(address: str) -> tuple[str, int]:
    """`:9880`, `127.0.0.1:9880` or `[::1]:9880` → (host, port). An empty host is every interface. Raises: ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"--web.listen-address: {address}: no address; write HOST:PORT, for example 127.0.0.1:9880 or :9880")
    return host.removeprefix("[").removesuffix("]"), int(port)


class HttpServer:
    """Serves an application until it is stopped.

    Args:
        application: WSGI.
        address: HOST:PORT; port 0 lets the kernel choose.
        threads: worker threads.
        ssl_adapter: cheroot's TLS adapter, or None for plain HTTP.
    """

    def __init__(self, application: Callable[..., Any], address: str, *, threads: int, ssl_adapter: Any | None = None) -> None:
        host, port = split_address(address)
        self._server = wsgi.Server(
            # "::" takes IPv4 too where the system allows it; cheroot falls back by itself where IPv6 is missing
            (host or "0.0.0.0", port),  # noqa: S104 — the contract's default listens everywhere, as every exporter does
            application,
            numthreads=threads + SPARE_THREADS,
            max=threads + SPARE_THREADS,
            request_queue_size=128,
            timeout=10,
            shutdown_timeout=2,
        )
        self._server.ssl_adapter = ssl_adapter
        self._server.error_log = _quiet  # type: ignore[method-assign]
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Binds and serves in a thread. Raises: ConfigError when the address cannot be had."""
        try:
            self._server.prepare()
        except OSError as error:
            raise ConfigError(f"--web.listen-address: cannot listen: {error}; is another process on this port?") from None
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.bind_addr[1])

    def stop(self) -> None:
        """Stops serving; requests in flight get a moment."""
        self._server.stop()
        if self._thread is not None:
            self._thread.join(5)


def _quiet(msg: str = "", level: int = 20, traceback: bool = False) -> None:
    """Clients that hang up are not worth a line; the routes log their own bugs."""
