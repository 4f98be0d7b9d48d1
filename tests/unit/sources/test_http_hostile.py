"""The scrape client against servers that misbehave: each has its reason, and none takes longer than the deadline."""

from __future__ import annotations

import socket
import threading
import time
import tracemalloc

import pytest

from fakes import servers as fake
from fakes.servers import PAGE, FakeServer, Handler
from llm_exporter.errors import FetchError
from llm_exporter.sources.http import Client

TIMEOUT = 0.2
PATIENT = 5.0  # for servers that answer at once
# The deadline is kept to the wake-up of a thread; a machine under load may add a good deal.
SLACK = 1.5


def failure(client: Client, *, timeout: float = PATIENT, path: str = "/metrics") -> FetchError:
    started_at = time.monotonic()
    with pytest.raises(FetchError) as caught:
        client.get(path, timeout=timeout)
    assert time.monotonic() - started_at < timeout + SLACK
    return caught.value


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        pytest.param(fake.huge(framing="length"), "too_large", id="100 MB announced"),
        pytest.param(fake.huge(framing="chunked"), "too_large", id="100 MB in chunks"),
        pytest.param(fake.huge(framing="close"), "too_large", id="100 MB until close"),
        pytest.param(fake.gzip_bomb(), "too_large", id="gzip bomb"),
        pytest.param(fake.redirect("/metrics"), "redirect", id="redirect loop"),
        pytest.param(
            lambda talk, _: talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n"),
            "not_metrics",
            id="a chunk of negative length",
        ),
        pytest.param(fake.closes(b"HTTP/1.1 200 OK\r\n"), "truncated", id="closed inside the head"),
        pytest.param(fake.redirect("http://127.0.0.1:1/metrics"), "redirect", id="redirect to another port"),
        pytest.param(fake.redirect("https://127.0.0.1/metrics"), "redirect", id="redirect to another scheme"),
        pytest.param(fake.redirect("//other.example/metrics"), "redirect", id="redirect to another host"),
        pytest.param(fake.redirect("http://[bad/"), "redirect", id="redirect to nonsense"),
        pytest.param(fake.redirect("file:///etc/passwd"), "redirect", id="redirect to a file"),
        pytest.param(fake.truncated(), "truncated", id="short body"),
        pytest.param(fake.truncated_chunks(), "truncated", id="last chunk missing"),
        pytest.param(fake.too_short_length(), "truncated", id="length too small"),
        pytest.param(fake.page(fake.gzip.compress(PAGE)[:-4], content_encoding="gzip"), "truncated", id="short gzip"),
        pytest.param(fake.page(b"no gzip", content_encoding="gzip"), "truncated", id="gzip that is none"),
        pytest.param(fake.page(PAGE, content_encoding="br"), "not_metrics", id="other compression"),
        pytest.param(fake.closes(), "connection_closed", id="closes"),
        pytest.param(fake.resets(), "connection_closed", id="resets"),
        pytest.param(fake.closes(b"HTTP/1.1 2"), "not_metrics", id="closes inside the status line"),
        pytest.param(fake.garbage(), "not_metrics", id="not HTTP"),
        pytest.param(fake.garbage(b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000), "not_metrics", id="endless header line"),
        pytest.param(fake.page(b"", 401), "http_401", id="401"),
        pytest.param(fake.page(b"", 404), "http_404", id="404"),
        pytest.param(fake.page(b"", 500), "http_500", id="500"),
        pytest.param(fake.page(b"", 503), "http_503", id="503"),
        pytest.param(fake.page(b"", 204), "http_204", id="204 is no page"),
        pytest.param(fake.page(b"", 304), "http_304", id="304 is no page"),
        pytest.param(fake.page(b"", 307), "http_307", id="redirect without a location"),
    ],
)
def test_answers_that_cannot_be_used(handler: Handler, reason: str) -> None:
    with FakeServer(handler) as server:
        client = Client(server.url)
        assert failure(client).reason == reason
        server.handler = fake.page()
        assert client.get("/metrics", timeout=PATIENT).body == PAGE  # recovers on the first good answer
        client.close()


@pytest.mark.parametrize(
    ("handler", "doing"),
    [
        pytest.param(fake.silent(), "waiting for the answer", id="silent"),
        pytest.param(fake.drip(PAGE * 99, framing="length"), "reading the answer", id="drips"),
        pytest.param(fake.drip(PAGE * 99, framing="chunked"), "reading the answer", id="drips chunks"),
        pytest.param(fake.drip(PAGE * 99, framing="close"), "reading the answer", id="drips until close"),
        pytest.param(fake.drip_head(), "waiting for the answer", id="drips a head"),
    ],
)
def test_a_slow_server_ends_with_the_deadline(handler: Handler, doing: str) -> None:
    with FakeServer(handler) as server:
        client = Client(server.url)
        error = failure(client, timeout=0.4)
        client.close()
    assert error.reason == "timeout"
    assert doing in error.detail
    assert "0.4 s" in error.detail


def test_nothing_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    error = failure(Client(f"http://127.0.0.1:{port}"))
    assert error.reason == "refused"
    assert "check host and port" in error.hint


def test_hints_say_what_to_do() -> None:
    hints = {}
    for status in (401, 403, 404, 429, 502, 503):
        with FakeServer(fake.page(b"", status)) as server:
            client = Client(server.url)
            hints[status] = failure(client).hint
            client.close()
    assert "--enable-metrics" in hints[404]
    assert "path prefix" in hints[404]
    assert "authorization" in hints[401]
    assert hints[403] == hints[401]
    assert "loading" in hints[503]
    assert all(hints.values())


def test_a_bomb_is_left_before_it_fills_the_memory() -> None:
    with FakeServer(fake.gzip_bomb(256 * 2**20)) as server:
        client = Client(server.url, max_bytes=2**20)
        tracemalloc.start()
        try:
            failure(client)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        client.close()
    assert peak < 8 * 2**20


@pytest.mark.parametrize("excess", [0, 1])
def test_the_cap_is_exact(excess: int) -> None:
    body = b"#" * (1000 + excess)
    for handler in (fake.page(body), fake.chunked([body]), fake.gzipped(body)):
        with FakeServer(handler) as server:
            client = Client(server.url, max_bytes=1000)
            if excess:
                assert failure(client).reason == "too_large"
            else:
                assert client.get("/metrics", timeout=PATIENT).body == body
            client.close()


def test_gzip_of_several_members_counts_as_one_body() -> None:
    body = fake.gzip.compress(b"a 1\n") + fake.gzip.compress(b"b 2\n")
    with FakeServer(fake.page(body, content_encoding="gzip")) as server:
        client = Client(server.url)
        assert client.get("/metrics", timeout=PATIENT).body == b"a 1\nb 2\n"
        client.close()


def test_fifty_thousand_series_fit() -> None:
    body = fake.many_series(50_000)
    with FakeServer(fake.page(body)) as server:
        client = Client(server.url)
        assert client.get("/metrics", timeout=PATIENT).body == body
        client.close()


@pytest.mark.parametrize("body", [fake.duplicate_series(), fake.names_not_utf8(), b""], ids=["duplicates", "not UTF-8", "empty"])
def test_odd_pages_are_left_to_the_parser(body: bytes) -> None:
    with FakeServer(fake.page(body)) as server:
        client = Client(server.url)
        assert client.get("/metrics", timeout=PATIENT).body == body
        client.close()


def test_html_with_status_200_is_left_to_the_parser_with_its_content_type() -> None:
    with FakeServer(fake.html_login()) as server:
        client = Client(server.url)
        assert client.get("/metrics", timeout=PATIENT).content_type.startswith("text/html")
        client.close()


def test_two_servers_behind_one_address_are_both_heard() -> None:
    with FakeServer(fake.in_turn(fake.page(b"a 1\n"), fake.page(b"b 1\n"))) as server:
        client = Client(server.url)
        assert [client.get("/metrics", timeout=PATIENT).body for _ in range(3)] == [b"a 1\n", b"b 1\n", b"a 1\n"]
        client.close()


# ---- a busy engine is never given a pile of scrapes (TGT-01, TGT-02) ------------------------------------------------------


def test_a_request_that_timed_out_is_waited_for_instead_of_sent_again() -> None:
    with FakeServer(fake.late()) as server:
        client = Client(server.url)
        assert failure(client, timeout=TIMEOUT).reason == "timeout"
        error = failure(client, timeout=TIMEOUT)
        assert "sent 0 s ago" in error.detail
        assert len(server.requests) == 1
        server.released.set()
        answer = client.get("/metrics", timeout=PATIENT)  # the old answer is thrown away, a new one asked for
        client.close()
    assert answer.body == PAGE
    assert len(server.requests) == 2
    assert server.connections == 1
    assert server.max_open == 1


def test_after_three_timeouts_the_old_request_is_given_up() -> None:
    with FakeServer(fake.then(fake.silent(), fake.page())) as server:
        client = Client(server.url)
        started_at = time.monotonic()
        assert failure(client, timeout=TIMEOUT).reason == "timeout"
        answer = client.get("/metrics", timeout=PATIENT)
        assert 3 * TIMEOUT <= time.monotonic() - started_at < 3 * TIMEOUT + SLACK
        client.close()
    assert answer.body == PAGE
    assert server.connections == 2


def test_a_restart_of_a_server_that_hung_is_noticed_at_once() -> None:
    with FakeServer(fake.then(fake.silent(), fake.page())) as server:
        client = Client(server.url)
        assert failure(client, timeout=TIMEOUT).reason == "timeout"
        server.drop_idle()
        assert client.get("/metrics", timeout=PATIENT).body == PAGE
        client.close()


def test_a_hundred_timeouts_leak_neither_threads_nor_descriptors() -> None:
    with FakeServer(greet=False) as server:
        client = Client(server.url)
        failure(client, timeout=0.01)
        threads, descriptors = threading.active_count(), len(open_descriptors())
        for _ in range(100):
            assert failure(client, timeout=0.005).reason == "timeout"
        assert threading.active_count() <= threads + 1
        # The server of this test keeps one per connection it accepted.
        assert len(open_descriptors()) - descriptors - server.connections <= 1
        client.close()


def test_close_from_another_thread_ends_a_request_that_hangs() -> None:
    asked, reasons = threading.Event(), []

    def handler(talk: fake.Talk, _: fake.Request) -> None:
        asked.set()
        talk.hang()

    with FakeServer(fake.then(fake.page(), handler)) as server:
        client = Client(server.url)
        client.get("/metrics", timeout=PATIENT)

        def scrape() -> None:
            reasons.append(failure(client, timeout=30).reason)

        thread = threading.Thread(target=scrape)
        thread.start()
        assert asked.wait(PATIENT)
        client.close()
        thread.join(PATIENT)
        assert not thread.is_alive()
        assert reasons == ["connection_closed"]
        assert len(server.requests) == 2  # no retry
        server.handler = fake.page()
        assert client.get("/metrics", timeout=PATIENT).body == PAGE
        client.close()


def open_descriptors() -> list[str]:
    from pathlib import Path

    return [entry.name for entry in Path("/proc/self/fd").iterdir()]


# ---- names ---------------------------------------------------------------------------------------------------------------


def test_a_name_that_does_not_exist() -> None:
    def lookup(*_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    error = failure(Client("http://nowhere.example:8000", lookup=lookup))  # type: ignore[arg-type]
    assert error.reason == "dns"
    assert "nowhere.example" in error.detail
    assert "not known" in error.detail


@pytest.mark.parametrize("host", ["a" * 64 + ".example", "a..b"])
def test_a_name_that_cannot_exist(host: str) -> None:
    assert failure(Client(f"http://{host}")).reason == "dns"


def test_a_resolver_that_hangs_keeps_the_deadline_and_costs_one_thread() -> None:
    release, calls = threading.Event(), []
    with FakeServer() as server:

        def lookup(*_: object, **__: object) -> list[object]:
            calls.append(1)
            release.wait()
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]

        client = Client("http://slow.example", lookup=lookup)  # type: ignore[arg-type]
        for _ in range(3):
            assert failure(client, timeout=0.05).reason == "dns"
        assert len(calls) == 1
        release.set()
        assert client.get("/metrics", timeout=PATIENT).body == PAGE
        client.close()


def test_a_black_hole_before_a_good_address_does_not_eat_the_deadline() -> None:
    hole = socket.socket()
    hole.bind(("127.0.0.1", 0))
    hole.listen(0)
    fillers = []
    for _ in range(4):  # fill the backlog: further connects get no answer
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(hole.getsockname())
        fillers.append(filler)
    with FakeServer() as server:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in (hole.getsockname()[1], server.port)]
        client = Client("http://two.example", lookup=lambda *_, **__: found)
        answer = client.get("/metrics", timeout=1.0)
        client.close()
    for sock in (hole, *fillers):
        sock.close()
    assert answer.body == PAGE
