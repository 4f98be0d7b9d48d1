"""The HTTP server of the daemon: address, web configuration, and the application behind it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_exporter.errors import ConfigError
from llm_exporter.expose.webguard import WebGuard, wsgi_guard
from llm_exporter.expose.webserver import WebServer

# Room for requests at once beside web.max_requests, so that the limit can answer 503 instead of letting clients wait.
SPARE_THREADS = 4
# Longer than requests in flight get (shutdown_timeout); an orchestrator kills after ten seconds at the earliest.
STOP_SECONDS = 3.0


def split_address(address: str) -> tuple[str, int]:
    """`:9880`, `127.0.0.1:9880` or `[::1]:9880` → (host, port). An empty host is every interface. Raises: ConfigError."""
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or not 0 <= int(port) <= 65535:
        raise ConfigError(f"--web.listen-address: {address}: no address; write HOST:PORT, for example 127.0.0.1:9880 or :9880")
    return host.removeprefix("[").removesuffix("]"), int(port)


class HttpServer:
    """Serves an application until it is stopped.

    Args:
        application: WSGI.
        address: HOST:PORT; port 0 lets the kernel choose.
        threads: worker threads.
        web_config: file with TLS, users and headers (exporter-toolkit format), or None. Raises: ConfigError when it is wrong.
    """

    def __init__(self, application: Callable[..., Any], address: str, *, threads: int, web_config: Path | None = None) -> None:
        host, port = split_address(address)
        self._address = address
        guard = None if web_config is None else WebGuard(web_config)
        self._server = WebServer(
            (host or "0.0.0.0", port),  # noqa: S104 — the contract's default listens everywhere, as every exporter does
            application if guard is None else wsgi_guard(application, guard),
            guard=guard,
            numthreads=threads + SPARE_THREADS,
            max=threads + SPARE_THREADS,
            timeout=10,
            shutdown_timeout=2,
        )
        self._server.error_log = _quiet  # type: ignore[method-assign]
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Binds and serves in a thread. Raises: ConfigError when the address cannot be had."""
        failed: list[OSError] = []

        def prepare() -> None:
            try:
                self._server.prepare()
            except OSError as error:
                failed.append(error)

        # in a daemon thread, whose kind the workers inherit: one that is busy must not hold the process when it ends
        starter = threading.Thread(target=prepare, daemon=True)
        starter.start()
        starter.join()
        if failed:
            raise ConfigError(
                f"--web.listen-address: {self._address}: cannot listen: {failed[0]}; is another process on this port?"
            ) from None
        self._thread = threading.Thread(target=self._server.serve, name="http", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return int(self._server.bind_addr[1])

    def stop(self) -> None:
        """Stops serving; requests in flight get a moment. cheroot itself waits for each of them without end (a probe takes its time)."""
        stopper = threading.Thread(target=self._server.stop, name="http stop", daemon=True)
        stopper.start()
        until = time.monotonic() + STOP_SECONDS
        stopper.join(STOP_SECONDS)
        if self._thread is not None:
            self._thread.join(max(0.0, until - time.monotonic()))


def _quiet(msg: str = "", level: int = 20, traceback: bool = False) -> None:
    """Clients that hang up are not worth a line; the routes log their own bugs."""
