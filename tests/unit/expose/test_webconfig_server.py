"""The server under real sockets: TLS that can be swapped, client certificates, and clients that do nothing."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme

from llm_exporter.expose.webguard import WebGuard, wsgi_guard
from llm_exporter.expose.webserver import MAX_HEAD_BYTES, WebServer

WORKERS = 2


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def put_certificate(authority: trustme.CA, folder: Path, name: str = "localhost") -> trustme.LeafCert:
    leaf = authority.issue_cert(name)
    for pem, file in ((leaf.private_key_pem, "key.pem"), (leaf.cert_chain_pems[0], "cert.pem")):
        pem.write_to_path(folder / "fresh")
        (folder / "fresh").replace(folder / file)
    return leaf


def hello(_: Any, start: Any) -> list[bytes]:
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]


@contextmanager
def serving(guard: WebGuard | None, timeout: float = 5.0, application: Any = hello) -> Iterator[int]:
    if guard is not None:
        application = wsgi_guard(application, guard)
    server = WebServer(("127.0.0.1", 0), application, guard=guard, numthreads=WORKERS, max=WORKERS, timeout=timeout, shutdown_timeout=1)
    server.expiration_interval = 0.1
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server.bind_addr[1]
    finally:
        server.stop()
        thread.join(5)


@pytest.fixture
def guard(authority: trustme.CA, tmp_path: Path) -> Callable[..., WebGuard]:
    def make(more: str = "", **fields: Any) -> WebGuard:
        put_certificate(authority, tmp_path)
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        (tmp_path / "web.yml").write_text("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n" + more)
        return WebGuard(tmp_path / "web.yml", **fields)

    return make


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def fetch(port: int, context: ssl.SSLContext | None, **headers: str) -> tuple[int, bytes, str]:
    """Status, body and the server certificate's serial number."""
    if context is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=3)
    else:
        connection = http.client.HTTPSConnection("localhost", port, timeout=3, context=context)
    try:
        connection.request("GET", "/", headers=headers)
        certificate = connection.sock.getpeercert() if context is not None else None
        answer = connection.getresponse()
        return answer.status, answer.read(), str(certificate["serialNumber"]) if certificate else ""
    finally:
        connection.close()


def test_https_with_keep_alive(guard: Callable[..., WebGuard], authority: trustme.CA) -> None:
    with serving(guard()) as port:
        connection = http.client.HTTPSConnection("localhost", port, timeout=3, context=trusting(authority))
        for _ in range(3):
            connection.request("GET", "/")
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == (200, b"hello")
        connection.close()


def test_plain_http_without_a_web_configuration() -> None:
    with serving(None) as port:
        assert fetch(port, None)[:2] == (200, b"hello")


def test_users_over_tls(guard: Callable[..., WebGuard], authority: trustme.CA) -> None:
    hashed = bcrypt.hashpw(b"wonderland", bcrypt.gensalt(4)).decode()
    with serving(guard(f"basic_auth_users: {{alice: {hashed}}}\n")) as port:
        context = trusting(authority)
        assert fetch(port, context)[0] == 401
        right = base64.b64encode(b"alice:wonderland").decode()
        assert fetch(port, context, Authorization=f"Basic {right}")[:2] == (200, b"hello")


def test_a_rotated_certificate_is_shown_to_new_connections(guard: Callable[..., WebGuard], authority: trustme.CA, tmp_path: Path) -> None:
    now = [0.0]
    with serving(guard(clock=lambda: now[0])) as port:
        context = trusting(authority)
        first = fetch(port, context)[2]
        put_certificate(authority, tmp_path)
        now[0] += 2
        second = fetch(port, context)[2]
        assert second != first
        (tmp_path / "cert.pem").write_text("half a fi")
        now[0] += 2
        assert fetch(port, context) == (200, b"hello", second)


@pytest.mark.parametrize(
    ("name", "status"), [("prometheus.example", 200), ("other.example", None), (None, None)], ids=["allowed", "another name", "none"]
)
def test_client_certificates_and_their_names(
    guard: Callable[..., WebGuard], authority: trustme.CA, name: str | None, status: int | None
) -> None:
    rules = "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n  client_allowed_sans: [prometheus.example]\n"
    context = trusting(authority)
    if name is not None:
        authority.issue_cert(name).configure_cert(context)
    with serving(guard(rules)) as port:
        if status is None:
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
                fetch(port, context)
        else:
            assert fetch(port, context)[0] == status


def test_a_client_without_certificate_is_let_in_where_one_is_optional(guard: Callable[..., WebGuard], authority: trustme.CA) -> None:
    with serving(guard("  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.pem\n")) as port:
        assert fetch(port, trusting(authority))[0] == 200
        context = trusting(authority)
        trustme.CA().issue_cert("stranger.example").configure_cert(context)
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            fetch(port, context)


def hello_record(authority: trustme.CA) -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusting(authority).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("sent", [0, 1, 50, None], ids=["nothing", "one byte", "half a hello", "a hello, then nothing"])
def test_handshakes_that_hang_disturb_nobody(guard: Callable[..., WebGuard], authority: trustme.CA, sent: int | None) -> None:
    first = hello_record(authority)[:sent]
    with serving(guard()) as port, ExitStack() as open_sockets:
        for _ in range(20 * WORKERS):
            silent = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
            silent.sendall(first)
        started_at = time.monotonic()
        assert fetch(port, trusting(authority))[0] == 200
        assert time.monotonic() - started_at < 2


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", HEAD[:1], HEAD[:20], HEAD + HEAD[:20]], ids=["nothing", "one byte", "half a head", "one and a half"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_clients_that_stop_before_the_end_of_the_head_disturb_nobody(
    guard: Callable[..., WebGuard], authority: trustme.CA, tls: bool, sent: bytes
) -> None:
    context = trusting(authority) if tls else None
    with serving(guard() if tls else None) as port, ExitStack() as open_sockets:
        for _ in range(10 * WORKERS):
            slow = open_sockets.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            if context is not None:
                slow = open_sockets.enter_context(context.wrap_socket(slow, server_hostname="localhost"))
            slow.sendall(sent)
        started_at = time.monotonic()
        assert fetch(port, context)[0] == 200
        assert time.monotonic() - started_at < 2


def conversation(port: int, context: ssl.SSLContext | None) -> ssl.SSLSocket | socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock if context is None else context.wrap_socket(sock, server_hostname="localhost")


def read_answers(sock: socket.socket, count: int) -> bytes:
    data = b""
    while data.count(b"hello") < count and (more := sock.recv(65536)):
        data += more
    return data


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_heads_in_pieces_and_several_at_once(guard: Callable[..., WebGuard], authority: trustme.CA, tls: bool) -> None:
    context = trusting(authority) if tls else None
    with serving(guard() if tls else None) as port, conversation(port, context) as sock:
        for position in range(len(HEAD)):
            sock.sendall(HEAD[position : position + 1])
        assert read_answers(sock, 1).startswith(b"HTTP/1.1 200")
        sock.sendall(HEAD * 2)
        assert read_answers(sock, 2).count(b"HTTP/1.1 200") == 2
        sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
        sock.sendall(b"abc")
        assert read_answers(sock, 1).startswith(b"HTTP/1.1 200")


def test_a_body_is_read_whole_however_it_comes() -> None:
    def echo(environ: Any, start: Any) -> list[bytes]:
        body = environ["wsgi.input"].read()
        start("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    with serving(None, application=echo) as port:
        for pieces in ([b"abc" + b"hello"], [b"abc", b"hello"], [b"", b"abchello"]):
            with conversation(port, None) as sock:
                sock.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n" + pieces[0])
                for piece in pieces[1:]:
                    sock.sendall(piece)
                assert read_answers(sock, 1).endswith(b"\r\n\r\nabchello")


def test_a_head_without_end_is_refused(authority: trustme.CA) -> None:
    with serving(None) as port, conversation(port, None) as sock:
        answer = b""
        try:
            sock.sendall(b"GET / HTTP/1.1\r\nX: " + b"y" * (MAX_HEAD_BYTES - 1))
            answer = sock.recv(65536)
        except ConnectionError:
            pass
        else:
            assert b"431" in answer
        assert fetch(port, None)[0] == 200


def test_a_head_that_drips_is_ended_after_the_timeout() -> None:
    with serving(None, timeout=0.3) as port, conversation(port, None) as slow:
        slow.settimeout(0.05)
        started_at = time.monotonic()
        closed = False
        while not closed and time.monotonic() - started_at < 3:
            try:
                slow.sendall(b"x")
                closed = slow.recv(1) == b""
            except TimeoutError:
                closed = False
            except ConnectionError:
                closed = True
        assert closed


@pytest.mark.parametrize("drip", [False, True])
def test_a_handshake_that_never_ends_is_closed_after_the_timeout(guard: Callable[..., WebGuard], authority: trustme.CA, drip: bool) -> None:
    first = hello_record(authority)
    with serving(guard(), timeout=0.3) as port, socket.create_connection(("127.0.0.1", port), timeout=0.05) as silent:
        started_at = time.monotonic()
        for position in range(len(first)):
            if drip:
                silent.sendall(first[position : position + 1])
            try:
                closed = silent.recv(1) == b""
            except TimeoutError:
                closed = False
            except ConnectionError:
                closed = True
            if closed or time.monotonic() - started_at > 3:
                break
        assert closed
        assert time.monotonic() - started_at < 2


def test_plain_http_on_the_tls_port_is_told_so(guard: Callable[..., WebGuard]) -> None:
    with serving(guard()) as port:
        status, body, _ = fetch(port, None)
    assert status == 400
    assert b"https://" in body


def test_garbage_on_the_tls_port_disturbs_nobody(guard: Callable[..., WebGuard], authority: trustme.CA) -> None:
    with serving(guard()) as port:
        for data in (b"\0" * 100, b"SSH-2.0-x\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100):
            with socket.create_connection(("127.0.0.1", port)) as odd:
                odd.sendall(data)
        assert fetch(port, trusting(authority))[0] == 200
