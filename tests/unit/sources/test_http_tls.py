"""Scrapes over TLS: who is trusted, what is said when nobody is, rotation of files, handshakes that hang."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
import trustme

from fakes import servers as fake
from fakes.servers import PAGE, FakeServer
from llm_exporter.errors import ConfigError, FetchError
from llm_exporter.sources.http import Client
from llm_exporter.sources.tls import TlsFiles

PATIENT = 5.0
CASE_PAGE = (Path(__file__).parents[2] / "fixtures" / "cases" / "TGT-09" / "t000.prom").read_bytes()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(certificate: trustme.LeafCert, client_authority: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    if client_authority is not None:
        client_authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(scope="module")
def loopback(authority: trustme.CA) -> ssl.SSLContext:
    return server_context(authority.issue_cert("127.0.0.1"))


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    return path


def failure(client: Client, timeout: float = PATIENT) -> FetchError:
    with pytest.raises(FetchError) as caught:
        client.get("/metrics", timeout=timeout)
    client.close()
    return caught.value


def test_tgt_09_an_unknown_authority_is_refused_with_a_remedy_that_is_not_to_switch_verification_off(loopback: ssl.SSLContext) -> None:
    with FakeServer(tls=loopback) as server:
        error = failure(Client(server.url))
    assert error.reason == "tls_verify"
    assert error.hint.index("ca_file") < error.hint.index("insecure_skip_verify")


def test_tgt_09_with_its_authority_the_page_comes(loopback: ssl.SSLContext, ca_file: Path, authority: trustme.CA) -> None:
    with FakeServer(fake.page(CASE_PAGE), tls=loopback) as server:
        for tls in (TlsFiles(ca_file=ca_file), TlsFiles(ca=authority.cert_pem.bytes().decode()), TlsFiles(insecure_skip_verify=True)):
            client = Client(server.url, tls=tls)
            assert client.get("/metrics", timeout=PATIENT).body == CASE_PAGE
            assert client.get("/metrics", timeout=PATIENT).connect_seconds is None
            client.close()


def test_tgt_09_a_self_signed_certificate_can_itself_be_named_as_ca_file(authority: trustme.CA, tmp_path: Path) -> None:
    leaf = authority.issue_cert("127.0.0.1")
    path = tmp_path / "leaf.pem"
    leaf.cert_chain_pems[0].write_to_path(path)
    with FakeServer(fake.page(CASE_PAGE), tls=server_context(leaf)) as server:
        client = Client(server.url, tls=TlsFiles(ca_file=path))
        assert client.get("/metrics", timeout=PATIENT).body == CASE_PAGE
        client.close()


@pytest.mark.parametrize("name", [".x", "a..b", "a" * 64, "ä" * 64])
def test_a_server_name_that_no_server_can_have_is_a_tls_failure_and_no_bug(loopback: ssl.SSLContext, name: str) -> None:
    with FakeServer(tls=loopback) as server:
        client = Client(server.url, tls=TlsFiles(insecure_skip_verify=True), server_name=name)
        for _ in range(2):
            error = failure(client)
            assert (error.reason, error.detail) == ("tls", f"{name!r} is no name that a server can have")
            assert "server_name" in error.hint


def test_a_name_that_differs_is_refused_unless_server_name_says_it(authority: trustme.CA, ca_file: Path) -> None:
    with FakeServer(tls=server_context(authority.issue_cert("chat.internal"))) as server:
        tls = TlsFiles(ca_file=ca_file, server_name="chat.internal")
        error = failure(Client(server.url, tls=tls))
        assert error.reason == "tls_verify"
        assert "server_name" in error.hint
        client = Client(server.url, tls=tls, server_name=tls.server_name)
        assert client.get("/metrics", timeout=PATIENT).body == PAGE
        client.close()


def test_a_client_certificate_is_shown_where_the_server_wants_one(authority: trustme.CA, ca_file: Path, tmp_path: Path) -> None:
    mine = authority.issue_cert("exporter.internal")
    mine.private_key_pem.write_to_path(tmp_path / "key.pem")
    mine.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    with FakeServer(tls=server_context(authority.issue_cert("127.0.0.1"), authority)) as server:
        error = failure(Client(server.url, tls=TlsFiles(ca_file=ca_file)))
        assert error.reason in ("tls", "connection_closed")  # TLS 1.3: an alert, unless the connection is gone before it is read
        client = Client(server.url, tls=TlsFiles(ca_file=ca_file, cert_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem"))
        assert client.get("/metrics", timeout=PATIENT).body == PAGE
        client.close()


def test_a_plain_answer_to_a_handshake_gives_the_hint(loopback: ssl.SSLContext) -> None:
    class Plain(FakeServer):
        def _converse(self, talk) -> None:  # type: ignore[no-untyped-def]
            talk.sock.recv(65536)
            talk.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
            talk.close()

    with Plain() as server:
        error = failure(Client(f"https://127.0.0.1:{server.port}"))
    assert error.reason == "tls"
    assert "http://" in error.hint


def test_a_tls_server_behind_http_gives_the_hint(loopback: ssl.SSLContext) -> None:
    with FakeServer(tls=loopback) as server:
        error = failure(Client(f"http://127.0.0.1:{server.port}"))
    assert error.reason in ("connection_closed", "not_metrics")
    assert "https://" in error.hint


def test_a_handshake_that_hangs_keeps_the_deadline() -> None:
    with FakeServer(greet=False) as server:
        started_at = time.monotonic()
        error = failure(Client(f"https://127.0.0.1:{server.port}", tls=TlsFiles(insecure_skip_verify=True)), timeout=0.2)
    assert time.monotonic() - started_at < 2  # a machine under load may be late
    assert error.reason == "timeout"
    assert "handshake" in error.detail


def test_a_stale_tls_connection_is_replaced(loopback: ssl.SSLContext, ca_file: Path) -> None:
    with FakeServer(tls=loopback) as server:
        client = Client(server.url, tls=TlsFiles(ca_file=ca_file))
        for _ in range(3):
            assert client.get("/metrics", timeout=PATIENT).body == PAGE
            server.drop_idle()
        client.close()
    assert server.connections == 3


def test_a_rotated_authority_is_picked_up_and_ends_the_old_connection(loopback: ssl.SSLContext, ca_file: Path, tmp_path: Path) -> None:
    tls = TlsFiles(ca_file=ca_file)
    with FakeServer(tls=loopback) as server:
        client = Client(server.url, tls=tls)
        client.get("/metrics", timeout=PATIENT)
        assert tls() is tls()
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(other)
        other.replace(ca_file)
        assert failure(client).reason == "tls_verify"


def test_a_broken_rotation_keeps_the_last_good_context(ca_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls = TlsFiles(ca_file=ca_file)
    good, pem = tls(), ca_file.read_bytes()
    for _ in range(2):
        ca_file.write_text("half a fi")
        assert tls() is good
        assert tls() is good
    assert len(caplog.records) in (1, 2)  # once per change that the clock of the file system can tell apart
    ca_file.write_bytes(pem + b"\n")
    assert tls() is not good


def test_targets_with_equal_settings_share_a_context(ca_file: Path) -> None:
    assert TlsFiles(ca_file=ca_file)() is TlsFiles(ca_file=ca_file)()
    assert TlsFiles()() is TlsFiles()()


@pytest.mark.parametrize("content", [None, "no PEM at all", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_files_that_never_were_good(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    error = failure(Client("https://127.0.0.1:1", tls=TlsFiles(ca_file=path)))
    assert error.reason == "tls"
    assert str(path) in error.detail
    assert error.hint


def test_an_encrypted_key_is_refused_instead_of_asking_on_the_terminal(authority: trustme.CA, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as form

    leaf = authority.issue_cert("x.internal")
    key = form.load_pem_private_key(leaf.private_key_pem.bytes(), None)
    locked = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"pw"))
    (tmp_path / "key.pem").write_bytes(locked)
    leaf.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    with pytest.raises(FetchError) as caught:
        TlsFiles(cert_file=tmp_path / "cert.pem", key_file=tmp_path / "key.pem")()
    assert caught.value.reason == "tls"


@pytest.mark.parametrize(
    "fields",
    [
        {"min_version": "TLS10"},
        {"max_version": "TLS11"},
        {"min_version": "1.2"},
        {"cert_file": "c"},
        {"key_file": "k"},
        {"ca": "x", "ca_file": "y"},
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="tls_config"):
        TlsFiles(**fields)  # type: ignore[arg-type]


def test_versions_are_kept(authority: trustme.CA, ca_file: Path) -> None:
    context = server_context(authority.issue_cert("127.0.0.1"))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with FakeServer(tls=context) as server:
        error = failure(Client(server.url, tls=TlsFiles(ca_file=ca_file, min_version="TLS13")))
        assert error.reason == "tls"
        client = Client(server.url, tls=TlsFiles(ca_file=ca_file, max_version="TLS12"))
        assert client.get("/metrics", timeout=PATIENT).body == PAGE
        client.close()


def test_key_log_of_the_environment_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert TlsFiles(min_version="TLS13")().keylog_filename is None
    assert list(tmp_path.iterdir()) == []
