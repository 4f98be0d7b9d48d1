"""One probe against real sockets: the field cases SSE-*, and every way in which a request can fail."""

from __future__ import annotations

import gc
import json
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from fakes.stream_player import Play, Step, StreamPlayer, chat_chunk, chat_play, play_of_case
from llm_exporter.sources.arrival import Wait, Waiter
from llm_exporter.sources.probe import ProbeCall, ProbeReading, TlsSettings, came_in_a_burst, measure
from llm_exporter.sources.wire import Connection, Deadline

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
SPEED = 2.0  # the cases are played twice as fast as they are written
# SSE-14, SSE-21 and SSE-22 have tests of their own
PLAIN_CASES = (
    *("SSE-01", "SSE-02", "SSE-04", "SSE-05", "SSE-06", "SSE-07", "SSE-10", "SSE-11"),
    *("SSE-13", "SSE-16", "SSE-18", "SSE-19", "SSE-26"),
)
SIGNALS = {
    "probe_ttft_seconds": "time_to_first_token_seconds",
    "probe_time_to_first_content_seconds": "time_to_first_content_seconds",
    "probe_completion_tokens": "completion_tokens",
    "probe_connect_seconds": "connect_seconds",
    "probe_duration_seconds": "duration_seconds",
    "probe_stream_buffered": "buffered",
}


def call(url: str, **changes: object) -> ProbeCall:
    settings = {"endpoint": "/v1/chat/completions", "body": '{"stream": true}', "timeout_seconds": 5.0, **changes}
    return ProbeCall(url=url, **settings)  # type: ignore[arg-type]


def misses(reading: ProbeReading, checks: list[dict[str, object]], speed: float) -> list[str]:
    found = []
    for check in checks:
        signal = check["signal"]
        if signal == "probe_success":
            ok = reading.success == bool(check["value"])
            reasons = check.get("reason", reading.result)
            ok = ok and reading.result in ([reasons] if isinstance(reasons, str) else reasons)  # type: ignore[operator]
        elif signal == "probe_result":
            ok = reading.result == check["value"]
        else:
            value = getattr(reading, SIGNALS[str(signal)])
            if check.get("absent"):
                ok = value is None
            elif value is None:
                ok = False
            elif str(signal).endswith("_seconds"):
                ok = abs(value - check["value"] / speed) <= check["tol"]  # type: ignore[operator]
            else:
                ok = value == check["value"]
        if not ok:
            found.append(f"{check}: {reading}")
    return found


def checks_of(case: str) -> list[dict[str, object]]:
    return json.loads((CASES / case / "expect.json").read_text())["checks"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", PLAIN_CASES)
def test_field_case(case: str) -> None:
    endpoint = "/v1/completions" if case == "SSE-26" else "/v1/chat/completions"
    left: list[str] = []
    with StreamPlayer(play_of_case(CASES / case, SPEED)) as server:
        for _ in range(3):  # a busy machine may delay the player: best of three
            left = misses(measure(call(server.url, endpoint=endpoint)), checks_of(case), SPEED)
            if not left:
                break
    assert not left


def test_field_case_sse_01_is_not_buffered() -> None:
    with StreamPlayer(play_of_case(CASES / "SSE-01", SPEED)) as server:
        assert measure(call(server.url)).buffered is False


def test_field_case_sse_14_ends_at_the_deadline() -> None:
    with StreamPlayer(play_of_case(CASES / "SSE-14")) as server:
        reading = measure(call(server.url, timeout_seconds=0.6))
    assert (reading.result, reading.time_to_first_token_seconds) == ("timeout", None)
    assert 0.6 <= reading.duration_seconds < 1.1


def contexts(certificate: trustme.LeafCert, authority: trustme.CA, folder: Path) -> tuple[ssl.SSLContext, str]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(server)
    file = folder / "ca.pem"
    authority.cert_pem.write_to_path(file)
    return server, str(file)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    authority = trustme.CA()
    return contexts(authority.issue_cert("127.0.0.1", "localhost"), authority, tmp_path_factory.mktemp("tls"))


def test_field_case_sse_21_keeps_the_handshake_out_of_ttft(tls: tuple[ssl.SSLContext, str]) -> None:
    context, ca_file = tls
    left: list[str] = []
    with StreamPlayer(play_of_case(CASES / "SSE-21", SPEED), tls=context, handshake_delay=0.5 / SPEED) as server:
        for settings in (TlsSettings(insecure_skip_verify=True), TlsSettings(ca_file=ca_file), TlsSettings(ca_file=ca_file)):
            reading = measure(call(server.url, tls=settings))
            left = misses(reading, checks_of("SSE-21"), SPEED)
            if not left:
                break
        assert not left
        assert reading.tls_seconds is not None
        assert reading.tls_seconds > 0.2


def test_a_probe_trusts_what_scrapes_trust(tls: tuple[ssl.SSLContext, str]) -> None:
    """`ca`, versions and the name are those of the target's tls_config; probes once knew the files only."""
    context, ca_file = tls
    with StreamPlayer(chat_play(), tls=context) as server:
        assert measure(call(server.url, tls=TlsSettings(ca=Path(ca_file).read_text()))).result == "success"
        named = TlsSettings(ca=Path(ca_file).read_text(), server_name="localhost", min_version="TLS13", max_version="TLS13")
        assert measure(call(server.url, tls=named)).result == "success"
        assert measure(call(server.url, tls=TlsSettings(ca=Path(ca_file).read_text(), server_name="elsewhere"))).result == "tls_verify"


def test_an_unknown_authority_is_tls_verify_and_nothing_is_sent(tls: tuple[ssl.SSLContext, str]) -> None:
    with StreamPlayer(chat_play(), tls=tls[0]) as server:
        reading = measure(call(server.url))
        assert (reading.result, reading.request_sent, reading.connect_seconds) == ("tls_verify", False, None)
        assert server.requests == []


def test_tls_to_a_plain_server_is_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        reading = measure(call(f"https://127.0.0.1:{listener.getsockname()[1]}"))
    assert (reading.result, reading.request_sent) == ("tls", False)


def test_a_refused_connection_is_connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    reading = measure(call(f"http://127.0.0.1:{port}"))
    assert (reading.result, reading.request_sent, reading.connect_seconds) == ("connect", False, None)


def test_an_unknown_name_is_dns() -> None:
    assert measure(call("http://nowhere.invalid:1")).result == "dns"


def test_a_server_that_never_accepts_the_handshake_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        reading = measure(call(f"https://127.0.0.1:{listener.getsockname()[1]}", timeout_seconds=0.2))
    assert reading.result == "timeout"


def test_silence_after_output_ends_at_the_idle_deadline_long_before_the_total() -> None:
    play = Play([Step(0.0, chat_chunk({"content": "x"})), Step(60.0, None)])
    with StreamPlayer(play) as server:
        reading = measure(call(server.url, timeout_seconds=30.0, idle_timeout_seconds=0.2))
    assert reading.result == "timeout"
    assert reading.duration_seconds < 5
    assert reading.time_to_first_token_seconds is None


def test_a_drip_of_comments_does_not_outlive_the_total_deadline() -> None:
    play = Play([Step(number * 0.05, b": keep-alive\n\n") for number in range(200)])
    with StreamPlayer(play) as server:
        reading = measure(call(server.url, timeout_seconds=0.4))
    assert reading.result == "timeout"
    assert reading.duration_seconds < 2


@pytest.mark.parametrize(
    ("play", "result"),
    [
        (Play([Step(0, b"<html>loading</html>")], headers={"Content-Type": "text/html"}), "not_streaming"),
        (Play([Step(0, b"<html>loading</html>")], 503, {"Content-Type": "text/html"}), "http_503"),
        (Play([Step(0, b"\x1f\x8b...")], headers={"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}), "not_streaming"),
        (Play([], 302, {"Location": "http://other/"}), "http_302"),
        (Play([Step(0, b'{"error":"x"}')], 404, {"Content-Type": "application/json"}), "http_404"),
        (Play([]), "truncated"),
        (Play([Step(0, b"data: [DONE]\n\n")]), "no_output"),
        (Play([Step(0, chat_chunk({"role": "assistant"})), Step(0, chat_chunk({}, "stop"))]), "no_output"),
        (Play([Step(0, chat_chunk({"content": "x"})), Step(0, None)]), "truncated"),
        (Play([Step(0, chat_chunk({"content": "x"})), Step(0.01, chat_chunk({}, "stop")), Step(0.02, None)]), "success"),
        (Play([Step(0, chat_chunk({"content": "x"})), Step(0, chat_chunk(None, error={"message": "died"}))]), "in_band_error"),
        (Play([Step(0, chat_chunk({"content": "x"})), Step(0, chat_chunk({}, "abort") + b"data: [DONE]\n\n")]), "in_band_error"),
    ],
)
def test_every_end_has_its_own_result(play: Play, result: str) -> None:
    with StreamPlayer(play) as server:
        reading = measure(call(server.url))
    assert reading.result == result
    assert (reading.time_to_first_token_seconds is not None) == (result == "success")
    assert reading.time_to_first_token_seconds != 0


def test_no_http_at_all_is_not_streaming() -> None:
    assert measure_raw(b"SSH-2.0-OpenSSH_9.2\r\n").result == "not_streaming"


def test_a_runaway_body_is_cut() -> None:
    line = b": " + b"x" * 100_000 + b"\n"
    with StreamPlayer(Play([Step(0, line) for _ in range(60)])) as server:
        reading = measure(call(server.url))
    assert reading.result == "truncated"
    assert "longer than" in reading.detail


def test_done_ends_the_reading_where_a_proxy_keeps_the_connection_open() -> None:
    play = chat_play(ttft=0.01, tokens=2)
    with StreamPlayer(Play([*play.steps, Step(60.0, None)])) as server:
        reading = measure(call(server.url))
    assert reading.success
    assert reading.duration_seconds < 2


@pytest.mark.parametrize("chunked", [True, False])
def test_both_framings_of_a_body(chunked: bool) -> None:
    play = chat_play(tokens=3, prompt_tokens=17, cached_tokens=16)
    with StreamPlayer(Play(play.steps, chunked=chunked)) as server:
        reading = measure(call(server.url))
    assert (reading.result, reading.prompt_tokens, reading.completion_tokens, reading.cached_tokens) == ("success", 17, 3, 16)


def test_gaps_and_inter_token_latency() -> None:
    with StreamPlayer(chat_play(ttft=0.05, tokens=5, gap=0.03)) as server:
        reading = measure(call(server.url))
    assert len(reading.gap_seconds) == 4
    assert reading.inter_token_seconds == pytest.approx(0.03, abs=0.02)
    assert reading.first_chunk_seconds is not None
    assert reading.time_to_first_token_seconds is not None
    assert 0 < reading.first_chunk_seconds < reading.time_to_first_token_seconds


def test_network_overhead_is_ttft_less_the_engines_own_time() -> None:
    play = chat_play(ttft=0.1, metrics={"queue_time_ms": 31.0, "time_to_first_token_ms": 40.0})
    with StreamPlayer(play) as server:
        reading = measure(call(server.url))
    assert reading.server_seconds == pytest.approx(0.071)
    assert reading.time_to_first_token_seconds is not None
    assert reading.network_overhead_seconds == pytest.approx(reading.time_to_first_token_seconds - 0.071)


def test_an_engine_time_above_ttft_gives_no_overhead() -> None:
    play = chat_play(ttft=0.01, metrics={"queue_time_ms": 0.0, "time_to_first_token_ms": 4000.0})
    with StreamPlayer(play) as server:
        assert measure(call(server.url)).network_overhead_seconds is None


def test_the_request_asks_for_identity_and_goes_below_the_path_prefix() -> None:
    with StreamPlayer(chat_play()) as server:
        measure(call(f"{server.url}/team/a/", headers={"Authorization": "Bearer x", "User-Agent": "u"}, body='{"a": "é"}'))
        (request,) = server.posts
    assert request.path == "/team/a/v1/chat/completions"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["authorization"] == "Bearer x"
    assert request.json == {"a": "é"}


def test_a_header_with_a_line_break_is_refused_before_anything_is_sent() -> None:
    with StreamPlayer(chat_play()) as server:
        reading = measure(call(server.url, headers={"X": "a\r\nY: b"}))
        assert (reading.success, server.posts) == (False, [])
        assert "a\r\nY" not in reading.detail


TOKENS = Play([Step(0.11 + 0.02 * place, chat_chunk({"content": "x"})) for place in range(8)] + [Step(0.26, chat_chunk({}, "stop"))])


def late_by(seconds: float, *, without_core: float, at_most: int = 1) -> Callable[[Waiter, float], Wait]:
    """A wait whose thread runs again `seconds` after its bytes came; of these it knows `without_core`."""
    original, left = Waiter.wait, [at_most + 1]  # the first read is the head

    def wait(self: Waiter, longest: float) -> Wait:
        found = original(self, longest)
        left[0] -= 1
        if left[0] == 0:
            time.sleep(seconds)
            found = found._replace(ended_at=found.ended_at + seconds, without_core=found.without_core + without_core)
        return found

    return wait


def test_a_reader_without_a_core_still_knows_when_the_first_of_joined_tokens_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel joins packets that nobody fetches and keeps the last one's time: that time was once taken for the first token's."""
    monkeypatch.setattr(Waiter, "wait", late_by(0.12, without_core=0.12))
    with StreamPlayer(TOKENS) as server:
        reading = measure(call(server.url))
    assert reading.time_to_first_token_seconds == pytest.approx(0.11, abs=0.04)
    assert reading.inter_token_seconds == pytest.approx(0.02, abs=0.01)
    assert reading.buffered is False


def test_a_reader_that_was_stopped_gives_no_time_to_first_token_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Waiter, "wait", late_by(0.12, without_core=0.0))
    with StreamPlayer(TOKENS) as server:
        reading = measure(call(server.url))
    assert reading.success
    assert (reading.time_to_first_token_seconds, reading.inter_token_seconds, reading.buffered) == (None, None, None)
    assert reading.ttft_error_seconds is not None
    assert reading.ttft_error_seconds > 0.05
    assert "ms late" in reading.detail


def test_the_kernels_time_holds_although_we_read_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single token that is read 80 ms late came when the kernel says."""
    monkeypatch.setattr(Waiter, "wait", late_by(0.08, without_core=0.0))
    play = Play([Step(0.1, chat_chunk({"content": "x"})), Step(0.5, chat_chunk({}, "stop") + b"data: [DONE]\n\n")])
    with StreamPlayer(play) as server:
        reading = measure(call(server.url))
    if reading.lag_seconds is None:
        pytest.skip("this kernel gives no receive times for TCP")
    assert reading.time_to_first_token_seconds == pytest.approx(0.1, abs=0.04)
    assert reading.ttft_error_seconds is not None
    assert reading.ttft_error_seconds < 0.02
    assert reading.lag_seconds > 0.07


@pytest.mark.parametrize("first", [b": ping\n\n", chat_chunk({"role": "assistant", "content": ""})])
def test_silence_before_the_first_token_has_the_whole_timeout(first: bytes) -> None:
    """A long prefill is silent, also after a comment or a role chunk; the idle deadline once began with those."""
    play = Play([Step(0.0, first), Step(0.4, chat_chunk({"content": "x"})), Step(0.41, chat_chunk({}, "stop") + b"data: [DONE]\n\n")])
    with StreamPlayer(play) as server:
        reading = measure(call(server.url, timeout_seconds=5.0, idle_timeout_seconds=0.15))
    assert reading.success
    assert reading.time_to_first_token_seconds == pytest.approx(0.4, abs=0.1)


def test_an_answer_before_the_request_is_complete_has_no_time_to_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Connection._send_raw

    def slow(self: Connection, data: bytes, deadline: Deadline) -> None:
        original(self, data, deadline)
        assert self.sent_at is not None
        self.sent_at += 1.0

    monkeypatch.setattr(Connection, "_send_raw", slow)
    with StreamPlayer(chat_play(ttft=0.01)) as server:
        reading = measure(call(server.url))
    assert (reading.result, reading.time_to_first_token_seconds) == ("success", None)
    assert "before it had the whole request" in reading.detail


@pytest.mark.parametrize(
    "body",
    [
        {"object": "error", "message": "The model `nope` does not exist.", "code": 404},  # vLLM
        {"error": {"message": "The model `nope` does not exist.", "type": "NotFoundError"}},  # OpenAI
        {"message": "The model `nope` does not exist."},
    ],
)
def test_a_refusal_keeps_the_servers_words(body: dict[str, object]) -> None:
    with StreamPlayer(Play([Step(0, json.dumps(body).encode())], 404, {"Content-Type": "application/json"})) as server:
        assert measure(call(server.url)).detail == "HTTP 404: The model `nope` does not exist."


def test_a_server_that_answers_and_never_takes_the_request_gives_no_time_to_first_token() -> None:
    """The answer is there, but most of a long request is still on this side."""
    events = chat_chunk({"content": "x"}) + chat_chunk({}, "stop") + b"data: [DONE]\n\n"
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + events
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        done = threading.Event()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(100)
                connection.sendall(answer)
                done.wait(10)

        threading.Thread(target=serve, daemon=True).start()
        reading = measure(call(f"http://127.0.0.1:{listener.getsockname()[1]}", body="x" * 20_000_000))
        done.set()
    assert (reading.result, reading.time_to_first_token_seconds) == ("success", None)
    assert "before it had the whole request" in reading.detail


def test_a_chunk_line_without_end_is_cut() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert measure_raw(head + b"5;" + b"x" * 10_000).result == "truncated"


def test_a_failure_keeps_nothing_alive_until_the_collector_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failed probe once left its frame, its prompt and its answer behind, in a cycle with its traceback."""
    alive: list[weakref.ref[Connection]] = []

    class Watched(Connection):
        def __init__(self) -> None:
            super().__init__()
            alive.append(weakref.ref(self))

    monkeypatch.setattr("llm_exporter.sources.probe.Connection", Watched)
    gc.disable()
    try:
        assert measure_raw(b"SSH-2.0-OpenSSH_9.2\r\n").result == "not_streaming"
        with StreamPlayer(Play([Step(60.0, None)])) as server:
            assert measure(call(server.url, timeout_seconds=0.1)).result == "timeout"
        assert [one() for one in alive] == [None, None]
    finally:
        gc.enable()


def test_html_of_a_refusal_is_not_repeated() -> None:
    with StreamPlayer(Play([Step(0, b"<html>secret</html>")], 502, {"Content-Type": "text/html"})) as server:
        assert measure(call(server.url)).detail == "HTTP 502"


@pytest.mark.parametrize("status", [200, 401])
def test_a_server_that_repeats_our_credential_does_not_get_it_into_the_detail(status: int) -> None:
    said = {"error": {"message": "bad key sk-PLANTED-1 \x1b[31m in Bearer sk-PLANTED-1"}}
    with StreamPlayer(Play([Step(0, b"data: " + json.dumps(said).encode() + b"\n\n")], status)) as server:
        reading = measure(call(server.url, headers={"Authorization": "Bearer sk-PLANTED-1", "User-Agent": "u"}))
    assert not reading.success
    assert "PLANTED" not in reading.detail
    assert "\x1b" not in reading.detail
    assert reading.result in ("in_band_error", "http_401")


@pytest.mark.parametrize("said", ["x" * 190 + "sk-PLANTED-0123456789", "user:PLANTED-pw", "PLANTED-pw", "dXNlcjpQTEFOVEVELXB3"])
def test_no_part_of_a_credential_stays_where_the_text_is_cut_or_decoded(said: str) -> None:
    headers = {"X-Key": "sk-PLANTED-0123456789", "Authorization": "Basic dXNlcjpQTEFOVEVELXB3"}  # user:PLANTED-pw
    with StreamPlayer(Play([Step(0, json.dumps({"message": said}).encode())], 403)) as server:
        detail = measure(call(server.url, headers=headers)).detail
    assert "PLANTED" not in detail
    assert "sk-PL" not in detail
    assert "dXNlcjpQTEFOVEVELXB3" not in detail
    assert len(detail) <= 200


def test_headers_of_the_user_go_out_once_and_identity_stays() -> None:
    with StreamPlayer(chat_play()) as server:
        measure(call(server.url, headers={"host": "gateway", "accept-encoding": "gzip", "content-length": "1"}))
        (request,) = server.posts
    assert request.headers["host"] == "gateway"
    assert request.headers["accept-encoding"] == "identity"
    assert request.json == {"stream": True}


def test_a_server_name_that_is_none_is_tls(tls: tuple[ssl.SSLContext, str]) -> None:
    with StreamPlayer(chat_play(), tls=tls[0]) as server:
        assert measure(call(server.url, tls=TlsSettings(server_name=".x"))).result == "tls"


@pytest.mark.parametrize(
    ("head", "result"),
    [
        ("HTTP/1.1 ²00 OK\r\n", "not_streaming"),
        ("HTTP/1.1 " + "2" * 5000 + " OK\r\n", "not_streaming"),
        ("HTTP/1.1 999 X\r\n", "not_streaming"),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: ²\r\n", "success"),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: " + "9" * 5000 + "\r\n", "success"),
        ("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n", "truncated"),
    ],
)
def test_heads_that_python_would_take_for_numbers(head: str, result: str) -> None:
    events = chat_chunk({"content": "x"}) + chat_chunk({}, "stop") + b"data: [DONE]\n\n"
    body = b"-5\r\n" + events if "chunked" in head else events
    assert measure_raw(head.encode("latin-1") + b"\r\n" + body).result == result


def measure_raw(answer: bytes) -> ProbeReading:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(65536)
            connection.sendall(answer)
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        return measure(call(f"http://127.0.0.1:{listener.getsockname()[1]}"))


def test_a_reading_survives_the_pipe() -> None:
    with StreamPlayer(chat_play()) as server:
        reading = measure(call(server.url))
    assert ProbeReading.from_json(json.loads(json.dumps(reading.as_json()))) == reading


@pytest.mark.parametrize(
    ("gaps", "buffered"),
    [
        ((), None),
        ((0.0001,), None),
        ((0.02,), False),
        ((0.0, 0.0001, 0.0), True),
        ((0.003, 0.003, 0.003), False),
        ((0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0), True),
        ((0.01, 0.0, 0.01, 0.0, 0.01), False),
    ],
)
def test_a_burst_is_told_from_a_stream(gaps: tuple[float, ...], buffered: bool | None) -> None:
    assert came_in_a_burst(gaps) is buffered
