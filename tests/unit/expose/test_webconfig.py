"""The web configuration file: what is understood, and what is refused with a remedy."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest
import trustme

from llm_exporter.errors import ConfigError
from llm_exporter.expose.webconfig import WebConfig, load_web_config, read_web_config
from llm_exporter.expose.webtls import TlsServer, client_allowed, server_context

# The hash of "fakepassword" that exporter-toolkit's documentation and tests use.
HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def folder(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web")
    leaf = authority.issue_cert("localhost")
    leaf.private_key_pem.write_to_path(path / "key.pem")
    leaf.cert_chain_pems[0].write_to_path(path / "cert.pem")
    authority.cert_pem.write_to_path(path / "ca.pem")
    trustme.CA().issue_cert("x.example").private_key_pem.write_to_path(path / "other.key")
    return path


def load(folder: Path, text: str) -> WebConfig:
    path = folder / f"web{abs(hash(text))}.yml"
    path.write_text(text)
    return load_web_config(path)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, text)
    return str(caught.value)


@pytest.mark.parametrize("text", ["", "{}\n", "# nothing\n", "tls_server_config: {}\n", "basic_auth_users:\n"])
def test_nothing_configured(folder: Path, text: str) -> None:
    assert load(folder, text) == WebConfig()


def test_everything_that_is_understood(folder: Path) -> None:
    config = load(
        folder,
        TLS
        + f"""
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  client_allowed_sans: [prometheus.example]
  min_version: TLS12
  max_version: TLS13
  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]
  prefer_server_cipher_suites: false
  curve_preferences: [X25519]
http_server_config:
  http2: true
  headers:
    X-Frame-Options: deny
    X-Content-Type-Options: nosniff
    Content-Security-Policy: "default-src 'self'"
    X-XSS-Protection: ""
basic_auth_users:
  alice: {HASH}
  bob: {HASH}
rate_limit: {{interval: 1.5s, burst: 20}}
""",
    )
    assert config.tls == TlsServer(
        cert_file=str(folder / "cert.pem"),
        key_file=str(folder / "key.pem"),
        client_ca_file=str(folder / "ca.pem"),
        client_auth="RequireAndVerifyClientCert",
        allowed_sans=("prometheus.example",),
        ciphers=("ECDHE-RSA-AES128-GCM-SHA256",),
        prefer_server_ciphers=False,
        curve="X25519",
    )
    assert dict(config.headers) == {
        "X-Frame-Options": "deny",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'self'",
    }
    assert config.users == {"alice": HASH.encode(), "bob": HASH.encode()}
    assert (config.rate_interval_seconds, config.rate_burst) == (1.5, 20)
    assert {note.split(":")[0] for note in config.notes} == {"http_server_config.http2", "tls_server_config.cipher_suites"}
    assert HASH not in repr(config)


def indented(pem: bytes) -> str:
    return "".join(f"\n    {line}" for line in pem.decode().splitlines())


def test_inline_certificates_work_and_leave_no_descriptor(folder: Path) -> None:
    cert, key = (indented((folder / name).read_bytes()) for name in ("cert.pem", "key.pem"))
    text = f"tls_server_config:\n  cert: |{cert}\n  key: |{key}\n"
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # as short as it gets
    config = load(folder, text)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert "PRIVATE" not in repr(config)


@pytest.mark.parametrize(
    ("text", "line", "parts"),
    [
        ("a: 1\n", 1, ["a: unknown key", "tls_server_config"]),
        ("[]\n", 1, ["must hold keys"]),
        ("rate_limit: {}\nrate_limit: {}\n", 2, ["already there", "line 1"]),
        (TLS + "  cert_fil: x\n", 4, ["tls_server_config.cert_fil: unknown key"]),
        ("tls_server_config:\n  cert_file: cert.pem\n", 1, ["key or key_file is missing"]),
        ("tls_server_config:\n  key_file: key.pem\n", 1, ["cert or cert_file is missing"]),
        (TLS + "  cert: x\n", 4, ["stands beside cert_file"]),
        (TLS + "  min_version: TLS10\n", 4, ["value TLS10", "refuses versions before 1.2", "TLS12"]),
        (TLS + "  min_version: TLS14\n", 4, ["value TLS14", "unknown", "TLS13"]),
        (TLS + "  min_version: TLS13\n  max_version: TLS12\n", 4, ["higher than max_version"]),
        (TLS + "  cipher_suites: [TLS_RSA_WITH_RC4_128_SHA]\n", 4, ["value TLS_RSA_WITH_RC4_128_SHA", "unknown"]),
        (TLS + "  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", 4, ["nothing is left for TLS 1.2", "min_version: TLS13"]),
        (TLS + "  cipher_suites: TLS_AES_128_GCM_SHA256\n", 4, ["must be a list"]),
        (TLS + "  curve_preferences: [CurveP224]\n", 4, ["value CurveP224", "CurveP256"]),
        (TLS + "  curve_preferences: [X25519, CurveP256]\n", 4, ["Python's ssl", "name the one curve"]),
        (TLS + "  client_auth_type: RequestClientCert\n", 4, ["without verifying", "RequireAndVerifyClientCert"]),
        (TLS + "  client_auth_type: RequireAnyClientCert\n", 4, ["without verifying"]),
        (TLS + "  client_auth_type: RequireClientCert\n", 4, ["without verifying"]),
        (TLS + "  client_auth_type: Sometimes\n", 4, ["value Sometimes", "VerifyClientCertIfGiven"]),
        (TLS + "  client_ca_file: ca.pem\n", 1, ["asks for no certificate", "client_auth_type"]),
        (TLS + "  client_allowed_sans: [a]\n", 4, ["RequireAndVerifyClientCert"]),
        (TLS + "  client_auth_type: VerifyClientCertIfGiven\n  client_allowed_sans: [a]\n", 5, ["could do without"]),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: []\n", 5, ["names nobody"]),
        (TLS + "  prefer_server_cipher_suites: yes\n", 4, ["value yes", "true or false"]),
        ("http_server_config: {http2: 1}\n", 1, ["http2", "true or false"]),
        ("http_server_config:\n  headers:\n    X-Powered-By: me\n", 3, ["cannot be set", "X-Frame-Options"]),
        ("http_server_config:\n  headers:\n    X-Frame-Options: DENY\n", 3, ["value DENY", "deny or sameorigin"]),
        ('http_server_config:\n  headers:\n    X-XSS-Protection: "1\\r\\nX: y"\n', 3, ["cannot carry"]),
        ("basic_auth_users: [a]\n", 1, ["must hold keys"]),
        ("basic_auth_users:\n  a: secret-word\n", 2, ["not a bcrypt hash", "htpasswd -nBC 10 a"]),
        ("basic_auth_users:\n  a:\n", 2, ["not a bcrypt hash"]),
        ("basic_auth_users:\n  a: 12345\n", 2, ["must be text"]),
        (f"basic_auth_users:\n  'a:b': {HASH}\n", 2, ["colon"]),
        (f"basic_auth_users:\n  a: {HASH.replace('$10$', '$18$')}\n", 2, ["cost of 18", "at most 14"]),
        (f"basic_auth_users:\n  a: {HASH.replace('$10$', '$03$')}\n", 2, ["cost of 3"]),
        ("rate_limit: {interval: 5}\n", 1, ["not a duration"]),
        ("rate_limit: {interval: soon}\n", 1, ["value soon", "100ms"]),
        ("rate_limit: {interval: 1s}\n", 1, ["burst of 0"]),
        ("rate_limit: {interval: 1s, burst: -1}\n", 1, ["whole number"]),
    ],
)
def test_refusals_name_file_line_key_value_and_remedy(folder: Path, text: str, line: int, parts: list[str]) -> None:
    message = refusal(folder, text)
    place, _, rest = message.splitlines()[0].partition(": ")
    assert place.endswith(f".yml:{line}"), message
    assert not [part for part in parts if part not in message], message
    assert ";" in rest  # a remedy follows


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("tls_server_config: {cert_file: none.pem, key_file: key.pem}\n", "none.pem"),
        ("tls_server_config: {cert_file: cert.pem, key_file: other.key}\n", "key values mismatch"),
        ("tls_server_config: {cert_file: cert.pem, key_file: cert.pem}\n", "key_file"),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: key.pem\n", "client_ca_file"),
    ],
)
def test_certificates_are_tried_when_the_file_is_checked(folder: Path, text: str, part: str) -> None:
    message = refusal(folder, text)
    assert part in message
    assert "tls_server_config" in message


def test_every_problem_is_named_at_once(folder: Path) -> None:
    assert len(refusal(folder, "a: 1\nrate_limit: {interval: x}\nbasic_auth_users: {u: v}\n").splitlines()) == 3


@pytest.mark.parametrize(
    "text",
    [
        "basic_auth_users:\n  a: SECRET-123\n",
        "basic_auth_users:\n  a: [SECRET-123]\n",
        "tls_server_config:\n  cert: x\n  key: SECRET-123\n",
        "tls_server_config:\n  cert_file: cert.pem\n  key: [SECRET-123]\n",
        "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  key: SECRET-123\n",
    ],
)
def test_no_secret_is_repeated(folder: Path, text: str) -> None:
    assert "SECRET-123" not in refusal(folder, text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_web_config(tmp_path / "none.yml")


def test_an_empty_file_may_be_taken_for_half_written(tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("")
    with pytest.raises(ConfigError, match="empty"):
        read_web_config(tmp_path / "web.yml", empty=False)


def test_settings_reach_the_context(folder: Path) -> None:
    files = {"cert_file": str(folder / "cert.pem"), "key_file": str(folder / "key.pem")}
    plain = server_context(TlsServer(**files))  # type: ignore[arg-type]
    assert plain.minimum_version is ssl.TLSVersion.TLSv1_2
    assert plain.verify_mode is ssl.CERT_NONE
    assert plain.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    tight = server_context(
        TlsServer(
            **files,  # type: ignore[arg-type]
            client_auth="RequireAndVerifyClientCert",
            client_ca_file=str(folder / "ca.pem"),
            min_version="TLS13",
            ciphers=("ECDHE-RSA-AES256-GCM-SHA384",),
            prefer_server_ciphers=False,
        )
    )
    assert tight.minimum_version is ssl.TLSVersion.TLSv1_3
    assert tight.verify_mode is ssl.CERT_REQUIRED
    assert not tight.options & ssl.OP_CIPHER_SERVER_PREFERENCE
    assert [c["name"] for c in tight.get_ciphers() if c["protocol"] == "TLSv1.2"] == ["ECDHE-RSA-AES256-GCM-SHA384"]


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        ((("DNS", "prometheus.example"),), True),
        ((("DNS", "other.example"), ("URI", "spiffe://a/b")), True),
        ((("email", "ops@example.org"),), True),
        ((("IP Address", "0:0:0:0:0:0:0:1\n"),), True),
        ((("IP Address", "10.0.0.1"),), False),
        ((("DNS", "sub.prometheus.example"),), False),
        ((), False),
    ],
)
def test_client_names_match_exactly(names: tuple[tuple[str, str], ...], allowed: bool) -> None:
    tls = TlsServer(allowed_sans=("prometheus.example", "spiffe://a/b", "ops@example.org", "::1"))
    assert client_allowed(tls, {"subjectAltName": names}) is allowed
    assert client_allowed(TlsServer(), None)
    assert not client_allowed(tls, None)
