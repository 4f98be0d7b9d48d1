"""The scrape client against servers that behave."""

from __future__ import annotations

import socket

import pytest

from fakes.servers import (
    PAGE,
    FakeServer,
    Handler,
    answers_then_closes,
    chunked,
    gzipped,
    needs_header,
    page,
    redirect,
    routes,
    then,
    until_close,
)
from llm_exporter.errors import ConfigError, FetchError
from llm_exporter.sources.http import METRICS_ACCEPT, Client
from llm_exporter.sources.origin import Origin, split_base_url

TIMEOUT = 5.0  # never reached: these servers answer at once


@pytest.mark.parametrize(
    "handler",
    [page(), chunked(), chunked([PAGE[:5], PAGE[5:6], PAGE[6:]]), until_close(), gzipped()],
    ids=["content-length", "one chunk", "three chunks", "until close", "gzip"],
)
def test_every_framing_gives_the_same_page(handler: Handler) -> None:
    with FakeServer(handler) as server:
        client = Client(server.url)
        for _ in range(2):
            answer = client.get("/metrics", timeout=TIMEOUT)
            assert (answer.status, answer.body) == (200, PAGE)
            assert answer.content_type.startswith("text/plain")
        client.close()


def test_one_connection_serves_many_scrapes() -> None:
    with FakeServer() as server:
        client = Client(server.url)
        first, second = (client.get("/metrics", timeout=TIMEOUT) for _ in range(2))
        client.close()
    assert server.connections == 1
    assert first.connect_seconds is not None
    assert first.connect_seconds <= first.duration_seconds
    assert second.connect_seconds is None


def test_asks_for_plain_text_first_since_sglang_garbles_names_in_openmetrics() -> None:
    with FakeServer() as server:
        client = Client(server.url)
        client.get("/metrics", timeout=TIMEOUT)
        client.get("/v1/models", timeout=TIMEOUT, accept="application/json")
        client.close()
    accepts = [request.headers["accept"] for request in server.requests]
    assert accepts == [METRICS_ACCEPT, "application/json"]
    assert METRICS_ACCEPT.startswith("text/plain;version=0.0.4")
    assert "openmetrics" not in METRICS_ACCEPT


def test_a_server_on_this_machine_is_not_asked_to_compress() -> None:
    with FakeServer() as server:
        client = Client(server.url)
        client.get("/metrics", timeout=TIMEOUT)
        client.close()
    assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("prefix", "path", "asked"),
    [
        ("", "/metrics", "/metrics"),
        ("/", "/metrics", "/metrics"),
        ("/llm/a", "/metrics", "/llm/a/metrics"),
        ("/llm/a/", "metrics", "/llm/a/metrics"),
        ("", "/metrics/", "/metrics/"),
        ("", "/metrics?name[]=vllm:x", "/metrics?name[]=vllm:x"),
        ("", "/my metrics/é", "/my%20metrics/%C3%A9"),
        ("/a%20b", "/metrics", "/a%20b/metrics"),
    ],
)
def test_path_prefix_and_path_are_joined(prefix: str, path: str, asked: str) -> None:
    with FakeServer() as server:
        client = Client(server.url + prefix)
        client.get(path, timeout=TIMEOUT)
        client.close()
    assert server.requests[0].path == asked


def test_ipv6_literal() -> None:
    try:
        server = FakeServer(host="::1")
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    with server:
        client = Client(server.url)
        assert client.get("/metrics", timeout=TIMEOUT).body == PAGE
        client.close()
    assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


def test_headers_are_asked_for_before_each_request_so_a_rotated_token_works_at_once() -> None:
    tokens = iter(["old", "new"])
    with FakeServer(needs_header("authorization", "Bearer new")) as server:
        client = Client(server.url, headers=lambda: {"Authorization": f"Bearer {next(tokens)}"})
        with pytest.raises(FetchError) as caught:
            client.get("/metrics", timeout=TIMEOUT)
        assert caught.value.reason == "http_401"
        assert client.get("/metrics", timeout=TIMEOUT).body == PAGE
        client.close()


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with FakeServer() as server:
        client = Client(server.url)
        assert client.get("/metrics", timeout=TIMEOUT).body == PAGE
        client.close()


def test_a_redirect_on_the_same_host_is_followed_with_the_credentials() -> None:
    with FakeServer(routes({"/metrics": redirect("/metrics/"), "/metrics/": needs_header("authorization", "t")})) as server:
        client = Client(server.url, headers=lambda: {"Authorization": "t"})
        answer = client.get("/metrics", timeout=TIMEOUT)
        client.close()
    assert (answer.body, answer.path) == (PAGE, "/metrics/")
    assert server.connections == 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_every_kind_of_redirect_and_an_absolute_location_on_the_same_origin(status: int) -> None:
    with FakeServer(lambda talk, request: served(talk, request)) as server:  # needs the port
        served = routes({"/metrics": redirect(f"http://127.0.0.1:{server.port}/real?x=1", status), "/real?x=1": page()})
        client = Client(server.url)
        answer = client.get("/metrics", timeout=TIMEOUT)
        client.close()
    assert (answer.body, answer.path) == (PAGE, "/real")


def test_five_redirects_are_followed_and_a_sixth_is_not() -> None:
    hops: dict[str, Handler] = {f"/{n}": redirect(f"/{n + 1}") for n in range(6)}
    with FakeServer(routes({**hops, "/6": page()})) as server:
        client = Client(server.url)
        assert client.get("/1", timeout=TIMEOUT).path == "/6"
        with pytest.raises(FetchError) as caught:
            client.get("/0", timeout=TIMEOUT)
        client.close()
    assert caught.value.reason == "redirect"


def test_a_connection_that_the_server_closed_between_scrapes_is_replaced_without_a_word() -> None:
    with FakeServer(answers_then_closes()) as server:
        client = Client(server.url)
        for _ in range(3):
            assert client.get("/metrics", timeout=TIMEOUT).body == PAGE
        client.close()
    assert server.connections == 3
    assert len(server.requests) == 3


def test_only_one_retry_on_a_stale_connection() -> None:
    with FakeServer(then(page(), lambda talk, _: talk.close())) as server:
        client = Client(server.url)
        client.get("/metrics", timeout=TIMEOUT)
        with pytest.raises(FetchError) as caught:
            client.get("/metrics", timeout=TIMEOUT)
        client.close()
    assert caught.value.reason == "connection_closed"
    assert len(server.requests) == 3  # the good one, the stale one, its one retry


def test_no_retry_once_a_byte_of_the_answer_has_come() -> None:
    def half(talk, _) -> None:  # type: ignore[no-untyped-def]
        talk.send(b"HTTP/1.1 2")
        talk.close()

    with FakeServer(then(page(), half)) as server:
        client = Client(server.url)
        client.get("/metrics", timeout=TIMEOUT)
        with pytest.raises(FetchError):
            client.get("/metrics", timeout=TIMEOUT)
        client.close()
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("url", "origin", "prefix"),
    [
        ("http://Host", Origin("http", "host", 80), ""),
        ("https://h/p/", Origin("https", "h", 443), "/p/"),
        ("http://[::1]:8000/a", Origin("http", "::1", 8000), "/a"),
    ],
)
def test_base_urls_are_taken_apart(url: str, origin: Origin, prefix: str) -> None:
    assert split_base_url(url) == (origin, prefix)


@pytest.mark.parametrize("url", ["ftp://h", "h:8000", "http://", "http://h:99999", "http://h?a=SECRET", "http://u:SECRET@h", "http://[::1"])
def test_base_urls_that_cannot_work_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Client(url)
    assert "SECRET" not in str(caught.value)
    assert str(caught.value).startswith("url: ")


def test_a_name_is_looked_up_and_its_second_address_used_when_the_first_refuses() -> None:
    closed = socket.create_server(("127.0.0.1", 0))
    dead_port = closed.getsockname()[1]
    closed.close()
    with FakeServer() as server:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in (dead_port, server.port)]
        client = Client("http://chat.example:8000", lookup=lambda *_, **__: found)
        assert client.get("/metrics", timeout=TIMEOUT).body == PAGE
        client.close()
    assert server.requests[0].headers["host"] == "chat.example:8000"
