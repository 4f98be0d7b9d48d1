"""The default fetch of http_sd lists against real sockets: good, silent, dripping, huge, foreign."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from llm_exporter.config.http_client import Authorization, BasicAuth, Header, TlsConfig
from llm_exporter.config.model import HttpSdConfig
from llm_exporter.config.sd_fetch import fetch_list
from llm_exporter.config.values import Secret
from llm_exporter.errors import SourceError

LIST = b'[{"targets": ["a:1"]}]'
Answer = Callable[[BaseHTTPRequestHandler], None]


def plain(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@contextlib.contextmanager
def serving(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server on loopback; yields its address and the headers that it was sent."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({"path": self.path, **dict(self.headers)})
            with contextlib.suppress(OSError):
                answer(self)

        def log_message(self, *_: object) -> None:
            pass

    class Server(HTTPServer):
        def handle_error(self, *_: object) -> None:
            pass

    server = Server(("127.0.0.1", 0), Handler)
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def failure(config: HttpSdConfig, timeout: float = 5) -> SourceError:
    with pytest.raises(SourceError) as error:
        fetch_list(config, timeout)
    assert "hunter2" not in str(error.value)
    return error.value


def test_a_list_is_fetched_with_credentials_query_and_headers() -> None:
    with serving(plain(LIST)) as (address, seen):
        config = HttpSdConfig(
            url=f"http://{address}/list?team=a",
            basic_auth=BasicAuth(username="u", password=Secret("p")),
            headers={"X-Scope": Header(values=(Secret("s"),))},
        )
        assert fetch_list(config) == LIST
    assert seen[0]["path"] == "/list?team=a"
    assert (seen[0]["Authorization"], seen[0]["X-Scope"], seen[0]["Accept"]) == ("Basic dTpw", "s", "application/json")
    assert seen[0]["X-Prometheus-Refresh-Interval-Seconds"] == "60"


def test_no_proxy_and_no_netrc_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login u password hunter2\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with serving(plain(LIST)) as (address, seen):
        assert fetch_list(HttpSdConfig(url=f"http://{address}/")) == LIST
    assert "Authorization" not in seen[0]


@pytest.mark.parametrize("status", [401, 404, 500, 204])
def test_other_statuses_are_reasons(status: int) -> None:
    with serving(plain(b"", status)) as (address, _):
        error = failure(HttpSdConfig(url=f"http://{address}/x?token=hunter2"))
    assert (error.reason, error.detail) == (f"http_{status}", f"http://{address}/x answered with status {status}")


def test_a_redirect_on_the_same_server_is_followed_and_no_other() -> None:
    token = Authorization(credentials=Secret("hunter2"))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        plain(LIST)(handler) if handler.path == "/list/" else plain(b"", 307, Location="/list/")(handler)

    with serving(answer) as (address, seen):
        assert fetch_list(HttpSdConfig(url=f"http://{address}/list", authorization=token)) == LIST
        assert [request["path"] for request in seen] == ["/list", "/list/"]
    with serving(plain(LIST)) as (foreign, seen), serving(plain(b"", 302, Location=f"http://{foreign}/?k=hunter2")) as (address, _):
        assert failure(HttpSdConfig(url=f"http://{address}/", authorization=token)).reason == "redirect"
        assert seen == []
    with serving(plain(b"", 301, Location="/")) as (address, seen):
        assert failure(HttpSdConfig(url=f"http://{address}/")).reason == "redirect"
        assert len(seen) == 5


def test_a_list_that_is_too_large_or_a_bomb_is_cut_off() -> None:
    bomb = gzip.compress(b"\0" * (64 * 1024 * 1024), 9)
    for answer in (plain(b"x" * (9 * 1024 * 1024)), plain(bomb, Content_Encoding="gzip")):
        with serving(answer) as (address, _):
            assert failure(HttpSdConfig(url=f"http://{address}/")).reason == "too_large"


def drip(parts: bytes) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        for part in parts:
            handler.wfile.write(bytes([part]))
            handler.wfile.flush()
            time.sleep(0.05)

    return answer


@pytest.mark.parametrize(
    "parts", [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 80, b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + b"[" * 80], ids=["head", "body"]
)
def test_what_drips_for_ever_is_cut_off_in_time(parts: bytes) -> None:
    with serving(drip(parts)) as (address, _):
        start = time.monotonic()
        assert failure(HttpSdConfig(url=f"http://{address}/"), 0.5).reason == "timeout"
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_says_nothing_times_out(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = failure(HttpSdConfig(url=f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/"), 0.3)
    assert error.reason == "timeout"


def test_refused_closed_and_unknown_hosts_are_reasons() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert failure(HttpSdConfig(url=f"http://127.0.0.1:{port}/")).reason == "refused"
    assert failure(HttpSdConfig(url="http://no-such-host.invalid/")).reason == "dns"
    with serving(lambda handler: handler.connection.close()) as (address, _):
        assert failure(HttpSdConfig(url=f"http://{address}/")).reason == "connection_closed"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def test_certificates_are_verified_as_configured(authority: trustme.CA, tmp_path: Path) -> None:
    """Field case TGT-09, for discovery."""
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with serving(plain(LIST), server_context(authority, "127.0.0.1")) as (address, _):
        url = f"https://{address}/"
        assert failure(HttpSdConfig(url=url)).reason == "tls_verify"
        assert fetch_list(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca))) == LIST
        assert fetch_list(HttpSdConfig(url=url, tls_config=TlsConfig(ca=ca.read_text()))) == LIST
        assert fetch_list(HttpSdConfig(url=url, tls_config=TlsConfig(insecure_skip_verify=True))) == LIST
        assert failure(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca, server_name="other.example"))).reason == "tls_verify"


def test_another_name_of_the_server_is_accepted_where_configured(authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    with serving(plain(LIST), server_context(authority, "sd.example")) as (address, _):
        url = f"https://{address}/"
        assert failure(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca))).reason == "tls_verify"
        assert fetch_list(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca, server_name="sd.example"))) == LIST


def test_a_client_certificate_is_shown(authority: trustme.CA, tmp_path: Path) -> None:
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(str(ca))
    issued = authority.issue_cert("client.example")
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    context = server_context(authority, "127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    with serving(plain(LIST), context) as (address, _):
        url = f"https://{address}/"
        assert fetch_list(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca, cert_file=cert, key_file=key))) == LIST
        assert failure(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca))).reason in ("tls", "connection_closed")


def test_unusable_certificates_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("hunter2")
    for tls in (TlsConfig(ca_file=bad), TlsConfig(ca_file=tmp_path / "none.pem"), TlsConfig(cert_file=bad, key_file=bad)):
        error = failure(HttpSdConfig(url="https://127.0.0.1:9/", tls_config=tls))
        assert error.reason == "tls"
        assert ".pem" in error.detail


def test_versions_of_tls_are_kept(authority: trustme.CA, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    context = server_context(authority, "127.0.0.1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(plain(LIST), context) as (address, _):
        url = f"https://{address}/"
        assert fetch_list(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca, max_version="TLS12"))) == LIST
        assert failure(HttpSdConfig(url=url, tls_config=TlsConfig(ca_file=ca, min_version="TLS13"))).reason == "tls"


def test_failures_leave_no_thread_and_no_descriptor() -> None:
    before = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for _ in range(20):
        failure(HttpSdConfig(url=f"http://127.0.0.1:{port}/"))
    assert threading.active_count() <= before[0]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before[1]
