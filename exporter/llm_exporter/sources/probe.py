"""One synthetic streaming request, measured.

In: a `ProbeCall` (where, what to send, how long to wait). Out: a `ProbeReading`: a result from a closed set, and the times that hold.
Called in the child process by `probing/worker.py`. From the first token on nothing is parsed but the framing of HTTP; events are read
after the stream has ended.

TTFT runs from the moment the last byte of the request goes to the kernel, on an open connection, to the arrival of the byte that
completes the first event with generated output. It is absent after a failure, never 0, and absent too where this machine read so late
that it cannot be told.
"""

from __future__ import annotations

import ssl
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from llm_exporter.errors import FetchError
from llm_exporter.sources.response import ResponseReader
from llm_exporter.sources.server_words import for_people, words_of_refusal
from llm_exporter.sources.sse import EventReader, Piece, StreamNotes, ends_with_done, interpret
from llm_exporter.sources.tls import TlsFiles
from llm_exporter.sources.wire import Connection, Deadline

# The closed set of `result`; beside it http_NNN for every other status of the answer (CONTRACT 6.3).
SENT_RESULTS = ("success", "timeout", "connect", "dns", "tls", "tls_verify", "in_band_error", "truncated", "no_output", "not_streaming")
# Of these no byte has reached the server, so its counters know nothing of them.
UNSENT_RESULTS = ("connect", "dns", "tls", "tls_verify")
SKIPS = ("skipped_busy", "skipped_loading", "skipped_sleeping", "skipped_budget", "skipped_unknown_engine", "skipped_context")

BODY_LIMIT = 4 * 2**20  # a probe asks for some dozens of tokens: more is a runaway
# Events of an engine come one per decoding step, and no step takes less than this. Events closer together were held back on the way.
_HELD_BACK_SECONDS = 0.0005
_TAIL = 24
# Beyond this error, as a share of TTFT and in seconds, a time is not worth saying.
_MOST_ERROR = (0.25, 0.005)
# What the user may not change: the reader depends on them.
_FIXED_HEADERS = frozenset({"accept-encoding", "connection", "content-length", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """As `tls_config` of Prometheus, plain enough to be sent to the probe process; `ca` is PEM, files are paths of PEM."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False
    ca: str | None = None
    min_version: str | None = None
    max_version: str | None = None

    def context(self) -> ssl.SSLContext:
        """A client context.

        Raises:
            FetchError: tls, where a file cannot be read or is no PEM.
        """
        return TlsFiles(**asdict(self))()


@dataclass(frozen=True, slots=True)
class ProbeCall:
    """One request to send.

    Attributes:
        url: base URL of the target, path prefix allowed.
        endpoint: path below it.
        body: JSON text.
        headers: added to ours; hold credentials, so a ProbeCall is never logged.
        timeout_seconds: for everything, names and handshakes included.
        idle_timeout_seconds: longest silence once output has begun.
    """

    url: str
    endpoint: str
    body: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 30.0
    idle_timeout_seconds: float = 10.0
    tls: TlsSettings = TlsSettings()


@dataclass(frozen=True, slots=True)
class ProbeReading:
    """What one probe saw. Seconds; None means not known. All times but `duration_seconds` and the connection's are None after a failure.

    Attributes:
        result: one of SENT_RESULTS, or http_NNN.
        detail: a sentence for people; may quote the server, never a credential.
        connect_seconds: TCP and TLS. `dns_seconds` and `tls_seconds` stand beside it.
        first_chunk_seconds: first event at all, a role-only chunk included. This is what `vllm bench serve` calls TTFT in its chat mode.
        time_to_first_token_seconds: first event with output of any kind (guidellm's TTFT).
        time_to_first_content_seconds: first event with visible output (llmperf's TTFT, guidellm's TTFOT).
        inter_token_seconds: (last output − first output) ÷ (tokens − 1), as aiperf has it.
        gap_seconds: gaps between successive events with output.
        buffered: the events of the output came in one burst: a proxy holds the stream back. None where there are too few to say.
        server_seconds: queue and prefill by the engine's own clock.
        network_overhead_seconds: TTFT − server_seconds: network, proxies and the server's frontend.
        lag_seconds: how late this process read what the kernel had already received, at most.
        ttft_error_seconds: how far TTFT may be off because this process read late. Where that is too much to be of use, all times of the
            stream are None, though the result is a success.
        request_sent: the server may have begun to work on it, so it counts.
    """

    result: str
    detail: str = ""
    http_status: int | None = None
    dns_seconds: float | None = None
    connect_seconds: float | None = None
    tls_seconds: float | None = None
    first_chunk_seconds: float | None = None
    time_to_first_token_seconds: float | None = None
    time_to_first_content_seconds: float | None = None
    inter_token_seconds: float | None = None
    gap_seconds: tuple[float, ...] = ()
    duration_seconds: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reason: str | None = None
    buffered: bool | None = None
    server_seconds: float | None = None
    network_overhead_seconds: float | None = None
    lag_seconds: float | None = None
    ttft_error_seconds: float | None = None
    request_sent: bool = False

    @property
    def success(self) -> bool:
        """The stream came whole, with output."""
        return self.result == "success"

    def as_json(self) -> dict[str, Any]:
        """For the pipe between the processes."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ProbeReading:
        """The inverse of `as_json`."""
        return cls(**{**data, "gap_seconds": tuple(data.get("gap_seconds", ()))})


def measure(call: ProbeCall) -> ProbeReading:
    """Sends the request once and reads its stream. Never raises for anything that a server or a network does."""
    started = time.monotonic()
    deadline = Deadline(call.timeout_seconds)
    response = ResponseReader(BODY_LIMIT)
    pieces: list[Piece] = []
    failure: FetchError | None = None
    with Connection() as connection:
        try:
            _exchange(call, connection, deadline, response, pieces)
        except FetchError as error:
            failure = error.with_traceback(None)  # which would keep this frame, and all its bytes, until the collector runs
    duration = time.monotonic() - started
    reading = _judge(connection, response, pieces, failure, duration)
    return replace(reading, detail=for_people(reading.detail, call.headers))


def _exchange(call: ProbeCall, connection: Connection, deadline: Deadline, response: ResponseReader, pieces: list[Piece]) -> None:
    parts = urlsplit(call.url)
    host = parts.hostname or ""
    secure = parts.scheme == "https"
    context = call.tls.context() if secure else None
    connection.open(host, parts.port or (443 if secure else 80), context, call.tls.server_name or host, deadline)
    connection.send(_request_bytes(call, parts.netloc, parts.path), deadline)
    tail = b""
    scout = StreamNotes()  # looks for the first token only: before it a server may think as long as the total deadline allows
    scouting = EventReader()

    def idle_seconds() -> float:
        return call.timeout_seconds if scout.first_token_at is None else call.idle_timeout_seconds

    for arrival, raw in connection.pieces(deadline, idle_seconds):
        body = response.feed(raw)
        if body:
            pieces.append(Piece(arrival.last_at, body, arrival.first_at, arrival.error))
            tail = (tail + body)[-_TAIL:] if len(body) < _TAIL else body[-_TAIL:]
            if scout.first_token_at is None:
                for event in scouting.feed(body):
                    scout.take(event, arrival.last_at)
        # some proxies keep the connection open after the closing event
        if response.complete or ends_with_done(tail):
            return


def _request_bytes(call: ProbeCall, netloc: str, prefix: str) -> bytes:
    body = call.body.encode()
    asked = {name: value for name, value in call.headers.items() if name.lower() not in _FIXED_HEADERS}
    ours = {
        "Host": netloc.rpartition("@")[2],
        "Content-Type": "application/json",
        "Accept": "text/event-stream",
        "Accept-Encoding": "identity",  # a compressor holds back small pieces
        "Cache-Control": "no-cache",
        "Connection": "close",
        "Content-Length": str(len(body)),
    }
    taken = {name.lower() for name in asked}
    headers = {**{name: value for name, value in ours.items() if name.lower() not in taken}, **asked}
    lines = [f"POST {prefix.rstrip('/')}{call.endpoint} HTTP/1.1"]
    for name, value in headers.items():
        if "\r" in value or "\n" in value or "\r" in name or "\n" in name:
            raise FetchError("connect", f"header {name!r} holds a line break")
        lines.append(f"{name}: {value}")
    return "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n" + body


def _judge(
    connection: Connection,
    response: ResponseReader,
    pieces: list[Piece],
    failure: FetchError | None,
    duration: float,
) -> ProbeReading:
    """The result, and the times that hold for it."""
    streaming = response.headers.get("content-type", "").lower().startswith("text/event-stream")
    notes = interpret(pieces)
    result, detail = _result(response, pieces, notes, failure, streaming=streaming or (notes.events > 0 and notes.malformed == 0))
    connect = None
    if connection.tcp_seconds is not None and _reason_of(failure) not in ("tls", "tls_verify"):
        connect = connection.tcp_seconds + (connection.tls_seconds or 0.0)
    common: dict[str, Any] = {
        "result": result,
        "detail": detail,
        "http_status": response.status or None,
        "dns_seconds": connection.dns_seconds,
        "connect_seconds": connect,
        "tls_seconds": connection.tls_seconds,
        "duration_seconds": duration,
        "request_sent": connection.request_started,
        "lag_seconds": connection.lag_seconds,
    }
    sent_at = connection.sent_at
    if result != "success" or notes.first_token_at is None or sent_at is None:
        return ProbeReading(**common)

    ttft, error = notes.first_token_at - sent_at, notes.first_token_error
    if connection.given_at is not None and connection.answered_at is not None:
        # the request left between the two moments around the call, and before anything of its answer came
        error = max(error, min(connection.given_at, connection.answered_at) - sent_at)
    common["ttft_error_seconds"] = error
    told: dict[str, Any] = {
        "prompt_tokens": notes.prompt_tokens,
        "completion_tokens": notes.completion_tokens,
        "cached_tokens": notes.cached_tokens,
        "finish_reason": notes.finish_reason,
    }
    share, least = _MOST_ERROR
    if ttft <= 0 or connection.given_at is None:
        common["detail"] = "the server answered before it had the whole request, so there is no time to first token"
        return ProbeReading(**common, **told)
    if error > max(least, share * ttft):
        common["detail"] = f"this machine read the first token up to {error * 1e3:.0f} ms late, so there is no time to first token"
        return ProbeReading(**common, **told)

    def since_sent(at: float | None) -> float | None:
        return None if at is None else at - sent_at

    gaps = tuple(max(0.0, later - earlier) for earlier, later in zip(notes.token_times, notes.token_times[1:], strict=False))
    server = None
    if notes.engine_queue_seconds is not None and notes.engine_prefill_seconds is not None:
        server = notes.engine_queue_seconds + notes.engine_prefill_seconds
    tokens = notes.completion_tokens or len(notes.token_times)
    return ProbeReading(
        **common,
        **told,
        first_chunk_seconds=since_sent(notes.first_chunk_at),
        time_to_first_token_seconds=ttft,
        time_to_first_content_seconds=since_sent(notes.first_content_at),
        inter_token_seconds=(notes.token_times[-1] - notes.first_token_at) / (tokens - 1) if tokens > 1 and gaps else None,
        gap_seconds=gaps,
        buffered=came_in_a_burst(gaps),
        server_seconds=server,
        # clocks of two machines are never subtracted, only durations; below 0 the two do not fit together
        network_overhead_seconds=ttft - server if server is not None and ttft >= server else None,
    )


def _reason_of(failure: FetchError | None) -> str:
    """The reason word, empty without a failure."""
    return failure.reason if failure else ""


def _result(
    response: ResponseReader, pieces: list[Piece], notes: StreamNotes, failure: FetchError | None, *, streaming: bool
) -> tuple[str, str]:
    """(result, detail). The order matters: what the server said goes before how the connection ended."""
    if response.has_head and response.status != 200:
        words = words_of_refusal(b"".join(piece.data for piece in pieces))
        return f"http_{response.status}", f"HTTP {response.status}" + (f": {words}" if words else "")
    if notes.error is not None:
        return "in_band_error", notes.error
    if failure is not None and not (failure.reason in ("truncated", "timeout") and notes.ended):
        return failure.reason, failure.detail
    if not response.has_head:
        return "truncated", "the server closed the connection without an answer"
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding not in ("identity", ""):
        return "not_streaming", f"the answer is compressed ({coding[:20]}) although identity was asked for"
    if not streaming:
        kind = response.headers.get("content-type", "no content type").partition(";")[0][:60]
        return "not_streaming", f"the answer is {kind}, not a stream of events"
    if not notes.ended:
        return "truncated", "the stream ended without a finish reason and without [DONE]"
    if notes.first_token_at is None:
        return "no_output", "the stream ended without any output"
    return "success", ""


def came_in_a_burst(gaps: tuple[float, ...]) -> bool | None:
    """Was the stream held back on its way?

    A decoding step of any engine takes longer than half a millisecond, so most gaps below that mean that something collected the events.
    """
    if len(gaps) < 3:
        return False if gaps and statistics.median(gaps) >= _HELD_BACK_SECONDS else None
    return sum(gap < _HELD_BACK_SECONDS for gap in gaps) >= 0.75 * len(gaps)
