"""The daemon's HTTP server: addresses, ports that are taken, and that it answers and ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any
from urllib.request import urlopen

import pytest

from llm_exporter.daemon.server import HttpServer, split_address
from llm_exporter.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [(":9880", "", 9880), ("127.0.0.1:0", "127.0.0.1", 0), ("[::1]:9880", "::1", 9880), ("host.example:65535", "host.example", 65535)],
)
def test_addresses(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@pytest.mark.parametrize("address", ["", "9880", "127.0.0.1", "127.0.0.1:", ":x", ":-1", ":65536", ":9880/metrics", ":٣"])
def test_what_is_no_address_is_refused_with_the_remedy(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--web\.listen-address: .*HOST:PORT"):
        split_address(address)


def hello(_: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]


def test_it_answers_on_the_port_that_the_kernel_chose_and_ends() -> None:
    server = HttpServer(hello, "127.0.0.1:0", threads=2)
    server.start()
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/", timeout=5) as answer:
            assert answer.read() == b"hello"
    finally:
        server.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)


# cheroot leaves the socket that it could not bind to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_port_that_is_taken_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{address}: cannot listen.*in use"):
            HttpServer(hello, address, threads=2).start()
