"""Questions to a server that answers, splits, fails, or is something else."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.errors import FetchError, UsageError
from llm_exporter.report.query import MAX_POINTS, Connection, Prometheus
from llm_exporter.report.wire import NotAMatrix, Series, parse_matrix

Answer = tuple[int, str, bytes]
Query = dict[str, str]


@contextmanager
def server(answer: Callable[[Query, dict[str, str]], Answer]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            status, kind, body = answer({**query, "path": urlsplit(self.path).path}, dict(self.headers.items()))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if 300 <= status < 400:
                self.send_header("Location", "http://elsewhere.example/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def matrix(query: Query) -> Answer:
    start, end, step = (int(float(query[name])) for name in ("start", "end", "step"))
    values = [[at, str(at / 2)] for at in range(start, end + 1, step)]
    body = {"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {"target": "a"}, "values": values}]}}
    return 200, "application/json", json.dumps(body, separators=(",", ":")).encode()


def refusal(status: int, text: str) -> Answer:
    return status, "application/json", json.dumps({"status": "error", "errorType": "x", "error": text}).encode()


def ask(url: str, start: int = 0, end: int = 900_000, step: int = 300, **connection: Any) -> list[Series]:
    found: list[Series] = []
    client = Prometheus(Connection(url, **connection), sleep=lambda _: None)
    try:
        client.range("up", start, end, step, sink=found.extend)
    finally:
        client.close()
    return found


def test_a_long_range_comes_in_pieces_without_gap_or_overlap() -> None:
    spans: list[tuple[int, int]] = []

    def answer(query: Query, _: dict[str, str]) -> Answer:
        spans.append((int(query["start"]), int(query["end"])))
        return matrix(query)

    with server(answer) as url:
        found = ask(url, 0, 20_000_000)
    times = np.concatenate([one.times for one in found])
    assert times.tolist() == list(range(0, 20_000_001, 300))
    assert max((end - start) // 300 + 1 for start, end in spans) <= MAX_POINTS
    assert len(spans) > 5


def test_a_server_that_says_too_much_is_asked_for_half() -> None:
    def answer(query: Query, _: dict[str, str]) -> Answer:
        if int(query["end"]) - int(query["start"]) > 50_000:
            return refusal(422, "query processing would load too many samples into memory in query execution")
        return matrix(query)

    with server(answer) as url:
        assert sum(one.times.size for one in ask(url, 0, 300_000)) == 1001


def test_a_server_that_always_says_too_much_is_given_up() -> None:
    with server(lambda *_: refusal(422, "too many samples")) as url, pytest.raises(FetchError, match="even for 6 h"):
        ask(url)


@pytest.mark.parametrize(
    ("answer", "reason", "words"),
    [
        ((401, "text/plain", b"no"), "http_401", "answered 401"),
        ((404, "text/plain", b"no"), "http_404", "answered 404"),
        ((302, "text/plain", b""), "redirect", "redirects"),
        ((200, "text/html", b"<html>Grafana</html>"), "not_prometheus", "a web page"),
        ((200, "application/json", b"[1]"), "not_prometheus", "no Prometheus answer"),
        (refusal(400, 'invalid parameter "query"'), "http_400", "invalid parameter"),
        (refusal(500, "broken"), "http_500", "broken"),
    ],
)
def test_every_way_to_fail_has_a_reason_and_a_remedy(answer: Answer, reason: str, words: str) -> None:
    with server(lambda *_: answer) as url, pytest.raises(FetchError, match=words) as caught:
        ask(url, 0, 3000)
    assert caught.value.reason == reason
    assert caught.value.hint or reason in {"http_400", "http_500"}


def test_a_passing_failure_is_asked_again() -> None:
    seen: list[int] = []

    def answer(query: Query, _: dict[str, str]) -> Answer:
        seen.append(1)
        return refusal(500, "starting") if len(seen) < 3 else matrix(query)

    with server(answer) as url:
        assert ask(url, 0, 3000)[0].times.size == 11


def test_nobody_there() -> None:
    with server(lambda query, _: matrix(query)) as url:
        pass
    with pytest.raises(FetchError) as caught:
        ask(url, 0, 3000)
    assert caught.value.reason == "refused"


def test_the_deadline_holds_for_all_questions_together() -> None:
    now = [0.0]
    client = Prometheus(Connection("http://127.0.0.1:9", deadline=5.0), clock=lambda: now[0])
    now[0] = 6.0
    with pytest.raises(FetchError, match="within 5 s"):
        client.range("up", 0, 300, 300, sink=lambda _: None)


def test_an_address_without_the_api_may_be_no_prometheus_or_lack_a_prefix() -> None:
    with server(lambda *_: (404, "text/plain", b"not found")) as url, pytest.raises(FetchError) as caught:
        ask(url, 0, 300)
    assert caught.value.hint.startswith("is this Prometheus?")
    assert "may be under a prefix" in caught.value.hint


def test_prefix_headers_and_no_secret_in_errors() -> None:
    seen: list[tuple[Query, dict[str, str]]] = []

    def answer(query: Query, headers: dict[str, str]) -> Answer:
        seen.append((query, headers))
        return (401, "text/plain", b"") if len(seen) > 1 else matrix(query)

    secret = {"Authorization": "Bearer s3cret", "X-Scope-OrgID": "team"}
    with server(answer) as url:
        ask(url + "/prometheus", 0, 300, headers=secret)
        with pytest.raises(FetchError) as caught:
            ask(url + "/prometheus", 0, 300, headers=secret)
    assert seen[0][0]["path"] == "/prometheus/api/v1/query_range"
    assert seen[0][1]["Authorization"] == "Bearer s3cret"
    assert seen[0][1]["X-Scope-OrgID"] == "team"
    assert "s3cret" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "http://", "http://user:pw@host:9090"])
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        Connection(url)
    assert "pw" not in str(caught.value)


names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20) | st.just(',"values":[[') | st.just('"]]},')
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(
        st.tuples(st.dictionaries(st.text("abc_", min_size=1), names, max_size=3), st.lists(numbers, min_size=1, max_size=5)), max_size=4
    )
)
def test_the_fast_way_and_json_agree(rows: list[tuple[dict[str, str], list[float]]]) -> None:
    result = [{"metric": labels, "values": [[300 * at, repr(value)] for at, value in enumerate(values)]} for labels, values in rows]
    body = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    for separators in ((",", ":"), (", ", ": ")):
        found = parse_matrix(json.dumps(body, separators=separators, ensure_ascii=False).encode())
        assert [(one.labels, one.values.tolist()) for one in found] == rows


def test_stale_and_infinite_values_are_left_out() -> None:
    body = b'{"status":"success","isPartial":false,"data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"NaN"],[2,"+Inf"],[3,"4"]]}]}}'
    (one,) = parse_matrix(body)
    assert one.times.tolist() == [3.0]
    assert one.values.tolist() == [4.0]


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"{}", b"[]", b'{"status":"error"}', b'{"status":"success","data":{"resultType":"vector","result":[]}}']
)
def test_what_is_no_matrix_is_refused(body: bytes) -> None:
    with pytest.raises(NotAMatrix):
        parse_matrix(body)
