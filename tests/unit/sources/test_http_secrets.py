"""No secret in any error: one is planted in every place where it could leak from, and every text that comes out is searched."""

from __future__ import annotations

import base64
import logging
import socket
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from fakes import servers as fake
from fakes.servers import FakeServer, Handler
from llm_exporter.errors import FetchError, SourceError
from llm_exporter.sources.http import Client
from llm_exporter.sources.tls import TlsFiles

SECRET = "SECRET-TOKEN-123"
FORMS = (SECRET, base64.b64encode(SECRET.encode()).decode(), repr(SECRET.encode()))


def echo(status: int = 200, **headers: object) -> Handler:
    """Puts what it was sent into every part of its answer."""

    def handle(talk: fake.Talk, request: fake.Request) -> None:
        sent = request.headers["authorization"]
        talk.answer(sent.encode() * 3, status, x_echo=sent, **{name: str(value).format(sent=sent) for name, value in headers.items()})

    return handle


def raw(data: bytes) -> Handler:
    return fake.garbage(data)


FAILING: dict[str, Handler] = {
    "401": echo(401),
    "403 with a challenge": echo(403, www_authenticate="Bearer realm={sent}"),
    "500": echo(500),
    "redirect that carries it": fake.page(b"", 302, location=f"http://other.example/{SECRET}?token={SECRET}"),
    "redirect with user info": fake.page(b"", 302, location=f"http://u:{SECRET}@other.example/"),
    "redirect to nonsense": fake.page(b"", 302, location=f"http://[{SECRET}/"),
    "redirect to a scheme": fake.page(b"", 302, location=f"{SECRET}://x/"),
    "redirect to a port": fake.page(b"", 302, location=f"http://127.0.0.1:{SECRET}/"),
    "redirect loop": fake.redirect(f"/metrics?token={SECRET}"),
    "status line": raw(f"{SECRET} hello\r\n\r\n".encode()),
    "reason phrase": raw(f"HTTP/1.1 418 {SECRET}\r\nContent-Length: 0\r\n\r\n".encode()),
    "header line": raw(f"HTTP/1.1 200 OK\r\n{SECRET}\r\n\r\n".encode()),
    "header": raw(f"HTTP/1.1 200 OK\r\nContent-Length: {SECRET}\r\n\r\n".encode()),
    "chunk size": raw(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{SECRET}\r\n".encode()),
    "encoding": fake.page(b"x", content_encoding=SECRET),
    "length": raw(f"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{SECRET}".encode()),
    "timeout": fake.silent(),
    "timeout in the body": fake.drip(SECRET.encode() * 99),
}


def texts_of(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """Everything that a log, a page or a traceback could show of an error."""
    parts = [*traceback.format_exception(error), repr(error), str(error), repr(error.args), repr(vars(error)), caplog.text]
    chain: BaseException | None = error
    while chain is not None:
        parts.append(repr(chain))
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)
    return "\n".join(parts)


def scrape(client: Client, path: str = f"/metrics?token={SECRET}") -> FetchError:
    with pytest.raises(FetchError) as caught:
        client.get(path, timeout=0.2)
    client.close()
    return caught.value


def with_token() -> Mapping[str, str]:
    return {"Authorization": f"Bearer {SECRET}"}


@pytest.mark.parametrize("handler", FAILING.values(), ids=FAILING.keys())
def test_no_failure_repeats_the_secret(handler: Handler, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with FakeServer(handler) as server:
        error = scrape(Client(server.url, headers=with_token))
    text = texts_of(error, caplog)
    assert not [form for form in FORMS if form in text], text


def broken_value() -> Mapping[str, str]:
    return {"Authorization": f"Bearer {SECRET}\r\nX: y"}


def unencodable_value() -> Mapping[str, str]:
    return {"Authorization": f"Bearer {SECRET}\u20ac"}


def broken_name() -> Mapping[str, str]:
    return {f"X\n{SECRET}": "y"}


def unreadable() -> Mapping[str, str]:
    return {"Authorization": Path(f"/nowhere/{SECRET}").read_text()}


@pytest.mark.parametrize("headers", [broken_value, unencodable_value, broken_name, unreadable])
def test_headers_that_cannot_be_sent_are_not_repeated(headers: Callable[[], Mapping[str, str]], caplog: pytest.LogCaptureFixture) -> None:
    with FakeServer() as server:
        client = Client(server.url, headers=headers)
        error = scrape(client)
        assert error.reason == "credentials"
        assert server.requests == []
    assert SECRET not in texts_of(error, caplog)


def test_credentials_that_cannot_be_had_are_a_fetch_error_with_their_own_hint() -> None:
    def headers() -> Mapping[str, str]:
        raise SourceError("credentials", "/run/secrets/token is empty", hint="write the secret into it")

    error = scrape(Client("http://127.0.0.1:1", headers=headers))
    assert (error.reason, error.detail, error.hint) == ("credentials", "/run/secrets/token is empty", "write the secret into it")


def test_nothing_listens_and_no_name(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}/p", f"http://{'a' * 70}.example/p"):
        assert SECRET not in texts_of(scrape(Client(url, headers=with_token)), caplog)


def test_an_inline_certificate_is_not_repeated(caplog: pytest.LogCaptureFixture) -> None:
    error = scrape(Client("https://127.0.0.1:1", tls=TlsFiles(ca=f"-----BEGIN {SECRET}"), headers=with_token))
    assert error.reason == "tls"
    assert SECRET not in texts_of(error, caplog)


@pytest.mark.parametrize("location", ["http://127.0.0.1:{port}/metrics", "//127.0.0.1:{port}/metrics", "http://localhost:{own}/metrics"])
def test_credentials_never_cross_to_another_host_scheme_or_port(location: str) -> None:
    with FakeServer() as other, FakeServer(lambda talk, request: handler(talk, request)) as server:  # needs the port
        handler = fake.redirect(location.format(port=other.port, own=server.port))
        error = scrape(Client(server.url, headers=with_token), "/metrics")
        assert error.reason == "redirect"
        assert other.requests == []
        assert len(server.requests) == 1
    assert f"http://{location.format(port=other.port, own=server.port).split('/')[2]}" in error.detail
