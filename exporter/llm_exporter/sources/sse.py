"""Streams of server-sent events, and what the events of an inference server mean.

In: the bytes of a response's body, cut anywhere, each piece with the moments between which it came. Out: events by the WHATWG rules, and
`StreamNotes`: when the first chunk, the first token and the first visible content came, the usage, why it ended.
`sources/probe.py` reads the whole only after the stream has ended, so that parsing cannot bend the clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_BOM = b"\xef\xbb\xbf"
_DONE = "[DONE]"
_CLOSING = re.compile(rb"[\r\n]data: ?\[DONE\](\r\n\r\n|\n\n|\r\r)$")
_MOST_TOKENS = 10**8
_MOST_WORDS = 4000  # characters of an error; who shows them takes out our credentials first, and shortens them then
# A stream that ends with one of these has not done what it was asked.
_FAILED_FINISHES = frozenset({"abort", "error", "cancelled"})


class Event(NamedTuple):
    """One dispatched event. `type` is "message" where the stream names none; `data` has its lines joined by newlines."""

    type: str
    data: str


class Piece(NamedTuple):
    """Bytes of a body that were read at once. Monotonic seconds.

    Attributes:
        at: when the last of them came.
        data: the bytes.
        since: when the first of them came; None where that is the same.
        error: how far `since` may be off.
    """

    at: float
    data: bytes
    since: float | None = None
    error: float = 0.0

    def moment(self, place: int, count: int) -> tuple[float, float]:
        """(when, how far off at most) the event ended that is number `place` of the `count` in here.

        The last one ends with the piece. The first one ended when the piece began, since engines write events whole and small enough for
        one packet. Of the others only the order is known, so they are spread evenly.
        """
        if self.since is None or place == count - 1:
            return self.at, 0.0
        at = self.since + (self.at - self.since) * place / (count - 1)
        return at, self.error + (max(at - self.since, self.at - at) if place else 0.0)


class EventReader:
    """Turns pieces of bytes into events. The same bytes give the same events, wherever they are cut.

    An event comes out of the piece that holds the end of its blank line. A line may end in CR, LF or CRLF; a CR ends its line at once,
    and an LF that follows it, in the same piece or the next, is swallowed. What is unfinished at the end of the stream is no event.
    Source: WHATWG HTML, section "Interpreting an event stream".
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._after_cr = False
        self._at_start = True
        self._in_block = False  # a line since the last blank one
        self._type = ""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[Event]:
        """Events that this piece completes, in order; often none."""
        return [event for event in self.blocks(piece) if event is not None]

    def blocks(self, piece: bytes) -> list[Event | None]:
        """The same, with None in the place of each comment, which may have been a packet of its own, and of each block without data."""
        events: list[Event | None] = []
        if not piece:
            return events
        if self._after_cr and piece[:1] == b"\n":
            piece = piece[1:]
        # Each CR, LF or CRLF is one end of line. `splitlines` on bytes knows exactly these three.
        for part in piece.splitlines(keepends=True):
            if part[-1:] not in (b"\n", b"\r"):
                self._line += part
                continue
            self._line += part.rstrip(b"\r\n")
            line, self._line = bytes(self._line), bytearray()
            if self._at_start:
                line, self._at_start = line.removeprefix(_BOM), False
            if line[:1] == b":":
                events.append(None)
            elif self._take_line(line):
                events.append(self._dispatch())
        self._after_cr = piece.endswith(b"\r")
        return events

    @property
    def unfinished(self) -> bool:
        """Bytes of a block that has not ended yet are waiting."""
        return bool(self._line) or self._in_block

    def _take_line(self, line: bytes) -> bool:
        """Reads one line; True where it ends a block."""
        if not line:
            return self._in_block
        self._in_block = True
        # A line is whole here, so a character that was split over two reads is whole too.
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._type = value
        return False  # id, retry and unknown fields say nothing to a probe

    def _dispatch(self) -> Event | None:
        kind, data = self._type, self._data
        self._type, self._data, self._in_block = "", [], False
        return Event(kind or "message", "\n".join(data)) if data else None


@dataclass(slots=True)
class StreamNotes:
    """What one stream said, and when. Moments are on the clock of the pieces (monotonic seconds); None means it never came.

    Attributes:
        first_chunk_at: first event with a JSON object, a chunk that only names the role included.
        first_token_at: first event with generated output of any kind: content, reasoning, tool call, text; never an empty string.
        first_content_at: first event with output that a reader of the answer sees.
        first_token_error: seconds by which first_token_at may be off.
        token_times: the moment of each event with output. One event can hold several tokens.
        prompt_tokens, completion_tokens, cached_tokens: the server's own counts.
        engine_queue_seconds, engine_prefill_seconds: the engine's own split of this request, where it gives one.
        error: text of an error inside the stream. For people only: it never becomes a label.
        done: the closing `[DONE]` came.
        malformed: events whose data is no JSON object.
    """

    first_chunk_at: float | None = None
    first_token_at: float | None = None
    first_content_at: float | None = None
    first_token_error: float = 0.0
    token_times: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    engine_queue_seconds: float | None = None
    engine_prefill_seconds: float | None = None
    finish_reason: str | None = None
    error: str | None = None
    done: bool = False
    malformed: int = 0
    events: int = 0

    @property
    def ended(self) -> bool:
        """The server said that it is through: `[DONE]`, or a reason to finish."""
        return self.done or self.finish_reason is not None

    def take(self, event: Event, at: float) -> None:
        """Reads one event that was complete at the moment `at`."""
        data = event.data.strip()
        if self.done or not (data or event.type == "error"):
            return
        self.events += 1
        if data == _DONE:
            self.done = True
            return
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            chunk = None
        if event.type == "error":
            self.error = error_text(chunk) or data[:_MOST_WORDS] or "error without a text"
            return
        if not isinstance(chunk, dict):
            self.malformed += 1
            return
        if chunk.get("error") or chunk.get("object") == "error":
            self.error = error_text(chunk) or "error without a text"
            return
        if self.first_chunk_at is None:
            self.first_chunk_at = at
        self._take_usage(chunk)
        if "meta_info" in chunk:
            self._take_generate(chunk, at)
            return
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._take_choice(choice, at)

    def _take_choice(self, choice: Mapping[str, Any], at: float) -> None:
        """One choice of an OpenAI chunk, chat or completions."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        visible = _text_of(delta.get("content")) or _text_of(delta.get("refusal"))
        hidden = any(delta.get(name) for name in ("reasoning", "reasoning_content", "tool_calls", "function_call", "audio"))
        if visible or hidden or _holds_thought(delta.get("content")):
            self._note_output(at, visible=bool(visible))
        self.text += visible
        self._take_finish(choice.get("finish_reason"))

    def _take_generate(self, chunk: Mapping[str, Any], at: float) -> None:
        """One event of SGLang's `/generate`: `text` and the counts in `meta_info` are cumulative.

        The first token can be half a character, with `text` still empty: the count tells.
        """
        meta = chunk["meta_info"] if isinstance(chunk["meta_info"], dict) else {}
        text = _text_of(chunk.get("text"))
        tokens = _count(meta.get("completion_tokens"))
        grown = tokens > (self.completion_tokens or 0) if tokens is not None else bool(text) and text != self.text
        if grown:
            self._note_output(at, visible=bool(text))
        elif text and self.first_content_at is None:
            self.first_content_at = at
        # with --incremental-streaming-output each event holds only what is new
        self.text = text if text.startswith(self.text) else self.text + text
        self.completion_tokens = tokens if tokens is not None else self.completion_tokens
        self.prompt_tokens = _count(meta.get("prompt_tokens")) or self.prompt_tokens
        cached = _count(meta.get("cached_tokens"))
        self.cached_tokens = cached if cached is not None else self.cached_tokens
        queue, start, end = (_seconds(meta.get(key)) for key in ("queue_time", "forward_entry_time", "prefill_finished_time"))
        if queue is not None:
            self.engine_queue_seconds = queue
        if start is not None and end is not None and end >= start:
            self.engine_prefill_seconds = end - start
        reason = meta.get("finish_reason")
        self._take_finish(reason.get("type") if isinstance(reason, dict) else reason)

    def _take_usage(self, chunk: Mapping[str, Any]) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            for name in ("prompt_tokens", "completion_tokens"):
                count = _count(usage.get(name))
                if count is not None:
                    setattr(self, name, count)
            details = usage.get("prompt_tokens_details")
            cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
            self.cached_tokens = cached if cached is not None else self.cached_tokens
        # vLLM with --enable-per-request-metrics. Its time_to_first_token_ms runs from the first scheduling, so it is the prefill.
        metrics = chunk.get("metrics")
        if isinstance(metrics, dict):
            queue, prefill = _seconds(metrics.get("queue_time_ms")), _seconds(metrics.get("time_to_first_token_ms"))
            self.engine_queue_seconds = None if queue is None else queue / 1000
            self.engine_prefill_seconds = None if prefill is None else prefill / 1000

    def _take_finish(self, reason: object) -> None:
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
            if reason in _FAILED_FINISHES:
                self.error = self.error or f"the server ended the stream with finish_reason {reason!r}"

    def _note_output(self, at: float, *, visible: bool) -> None:
        if self.first_token_at is None:
            self.first_token_at = at
        if visible and self.first_content_at is None:
            self.first_content_at = at
        self.token_times.append(at)


def interpret(pieces: Iterable[Piece]) -> StreamNotes:
    """What a whole stream said."""
    reader, notes = EventReader(), StreamNotes()
    for piece in pieces:
        blocks = reader.blocks(piece.data)
        count = len(blocks) + reader.unfinished
        for place, event in enumerate(blocks):
            if event is None:
                continue
            at, error = piece.moment(place, count)
            knew = notes.first_token_at
            notes.take(event, at)
            if knew is None and notes.first_token_at is not None:
                notes.first_token_error = error
    return notes


def ends_with_done(tail: bytes) -> bool:
    """Do the last bytes of a stream close it? JSON holds no line breaks, so this line is never part of an output."""
    return _CLOSING.search(tail) is not None


def error_text(chunk: object) -> str:
    """What an error object says, in any of the forms in which the engines and their proxies say it; empty where it says nothing."""
    if not isinstance(chunk, dict):
        return ""
    error = chunk.get("error", chunk)
    message = error.get("message") if isinstance(error, dict) else error
    return message[:_MOST_WORDS] if isinstance(message, str) else ""


def _text_of(content: object) -> str:
    """Visible text of `content`, which is a string or a list of typed parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict) and isinstance(part.get("text"), str | None))
    return ""


def _holds_thought(content: object) -> bool:
    """Some servers send reasoning as a typed part of `content`."""
    return isinstance(content, list) and any(isinstance(part, dict) and part.get("thinking") for part in content)


def _count(value: object) -> int | None:
    """A count of tokens; None where it is none. No context is as long as `_MOST_TOKENS`: a server that says so is not to be believed."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12 else None
