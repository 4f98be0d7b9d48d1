"""Events by the rules, and what the events of real servers mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from llm_exporter.sources.sse import Event, EventReader, Piece, StreamNotes, interpret

STREAMS = Path(__file__).parents[2] / "fixtures" / "streams"


def body_of(name: str) -> bytes:
    data = (STREAMS / name).read_bytes()
    return data.partition(b"\n\n")[2].lstrip(b"\n") if data.startswith(b"# ") else data


def notes_of(data: bytes) -> StreamNotes:
    """Each event is a piece of its own, and its moment is its number, from 1 on."""
    pieces = [piece + b"\n\n" for piece in data.split(b"\n\n") if piece.strip()]
    return interpret(Piece(float(number), piece) for number, piece in enumerate(pieces, 1))


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b"data: a\n\n", [("message", "a")]),
        (b"data:a\n\n", [("message", "a")]),
        (b"data:  a\n\n", [("message", " a")]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [("message", "a"), ("message", "b")]),
        (b"data: a\r\rdata: b\r\r", [("message", "a"), ("message", "b")]),
        (b"data: a\ndata: b\n\n", [("message", "a\nb")]),
        (b"data\n\n", [("message", "")]),
        (b"data:\n\n", [("message", "")]),
        (b": comment\n\n:\n\ndata: a\n\n", [("message", "a")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", "a")]),
        (b"data: \xef\xbb\xbfa\n\n", [("message", "\ufeffa")]),
        (b"event: error\ndata: a\n\ndata: b\n\n", [("error", "a"), ("message", "b")]),
        (b"event: lonely\n\ndata: b\n\n", [("message", "b")]),
        (b"id: 7\nretry: 10\nunknown: x\ndata: a\n\n", [("message", "a")]),
        (b"data: a: b\n\n", [("message", "a: b")]),
        ("data: é世\u2028x\n\n".encode(), [("message", "é世\u2028x")]),
        (b"data: \xff\n\n", [("message", "\ufffd")]),
        (b"data: unfinished\n", []),
        (b"\n\n\n", []),
    ],
)
def test_events_follow_the_rules(data: bytes, events: list[tuple[str, str]]) -> None:
    assert EventReader().feed(data) == [Event(*event) for event in events]


def test_an_event_comes_out_of_the_piece_that_ends_it() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\r") == []
    assert reader.feed(b"\n\r") == [Event("message", "a")]
    assert reader.feed(b"\ndata: b\n\n") == [Event("message", "b")]


def test_vllm_chat_first_token_is_not_the_role_chunk() -> None:
    notes = notes_of(body_of("vllm-0.32.0-chat-include-usage.txt"))
    assert (notes.first_chunk_at, notes.first_token_at, notes.first_content_at) == (1, 2, 2)
    assert (notes.prompt_tokens, notes.completion_tokens, notes.finish_reason, notes.done) == (10, 8, "length", True)
    assert len(notes.token_times) == 8
    assert notes.text.startswith("decodeuma")


def test_the_only_token_can_come_with_the_finish_reason() -> None:
    notes = notes_of(body_of("vllm-0.32.0-chat-max-tokens-1.txt"))
    assert (notes.first_token_at, notes.finish_reason, notes.completion_tokens) == (2, "length", 1)


def test_vllm_per_request_metrics_give_queue_and_prefill() -> None:
    notes = notes_of(body_of("vllm-0.32.0-chat-per-request-metrics.txt"))
    assert notes.engine_queue_seconds == pytest.approx(0.00004562599)
    assert notes.engine_prefill_seconds == pytest.approx(0.012156717)
    assert notes.cached_tokens == 0


def test_keep_alives_are_no_events() -> None:
    notes = notes_of(body_of("vllm-0.32.0-chat-queued-with-keepalive-1s.txt"))
    assert notes.first_chunk_at is not None
    assert notes.first_chunk_at > 100
    assert (notes.error, notes.malformed, notes.completion_tokens) == (None, 0, 2)
    assert notes.engine_queue_seconds == pytest.approx(176.2243791830001)


def test_vllm_completions_have_text_and_no_role_chunk() -> None:
    notes = notes_of(body_of("vllm-0.32.0-completions-include-usage.txt"))
    assert (notes.first_token_at, notes.prompt_tokens, notes.completion_tokens) == (1, 7, 8)


@pytest.mark.parametrize(
    ("name", "words", "output"),
    [
        ("vllm-0.32.0-stream-when-engine-dies.txt", "EngineCore encountered an issue", True),
        ("vllm-0.32.0-admission-rejected-inside-200-stream.txt", "currently busy", False),
        ("sglang-0.5.23-error_prompt_too_long_generate_stream.txt", "longer than the model's context", False),
        ("sglang-0.5.23-chat_stream_aborted_head_tail.sse", "'abort'", True),
    ],
)
def test_an_error_inside_the_stream_is_seen(name: str, words: str, output: bool) -> None:
    notes = notes_of(body_of(name))
    assert notes.error is not None
    assert words in notes.error
    assert (notes.first_token_at is not None) == output


def test_sglang_chat_with_null_reasoning() -> None:
    notes = notes_of(body_of("sglang-0.5.23-chat_stream_include_usage.sse"))
    assert (notes.first_chunk_at, notes.first_token_at, notes.prompt_tokens, notes.completion_tokens) == (1, 2, 6, 4)
    assert notes.error is None


def test_sglang_completions() -> None:
    notes = notes_of(body_of("sglang-0.5.23-completions_stream.sse"))
    assert (notes.first_token_at, notes.completion_tokens, notes.text) == (1, 4, " converildWARNING date")


def test_sglang_generate_is_cumulative_and_its_first_token_can_be_half_a_character() -> None:
    notes = notes_of(body_of("sglang-0.5.23-generate_stream.sse"))
    assert (notes.first_token_at, notes.first_content_at) == (1, 2)
    assert (notes.prompt_tokens, notes.completion_tokens, notes.cached_tokens) == (9, 4, 4)
    assert notes.text == "\ufffdend\ufffdend"
    assert notes.engine_queue_seconds == pytest.approx(0.005553451)
    assert notes.engine_prefill_seconds == pytest.approx(0.0435066, abs=1e-6)
    assert notes.finish_reason == "length"


@pytest.mark.parametrize(
    "delta",
    [
        '{"reasoning":"x"}',
        '{"reasoning_content":"x"}',
        '{"tool_calls":[{"index":0}]}',
        '{"content":[{"type":"thinking","thinking":[{"type":"text","text":"x"}]}]}',
        '{"function_call":{"name":"f"}}',
    ],
)
def test_output_that_is_not_visible_is_a_token_and_no_content(delta: str) -> None:
    notes = interpret([Piece(1.0, f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n'.encode())])
    assert (notes.first_token_at, notes.first_content_at) == (1.0, None)


@pytest.mark.parametrize("delta", ['{"content":[{"type":"text","text":"x"}]}', '{"content":"x"}', '{"refusal":"x"}'])
def test_visible_output(delta: str) -> None:
    notes = interpret([Piece(1.0, f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n'.encode())])
    assert (notes.first_token_at, notes.first_content_at, notes.text) == (1.0, 1.0, "x")


@pytest.mark.parametrize(
    "delta",
    ["{}", "null", '{"content":""}', '{"content":null}', '{"role":"assistant","content":""}', '{"tool_calls":[]}', '{"reasoning":""}'],
)
def test_empty_output_is_no_token(delta: str) -> None:
    notes = interpret([Piece(1.0, f'data: {{"choices":[{{"delta":{delta}}}]}}\n\n'.encode())])
    assert (notes.first_chunk_at, notes.first_token_at) == (1.0, None)


@pytest.mark.parametrize("data", ["nonsense", "[1]", "7", '"text"', '{"choices":'])
def test_data_that_is_no_object_is_counted_and_disturbs_nothing(data: str) -> None:
    notes = interpret([Piece(1.0, f'data: {data}\n\ndata: {{"choices":[{{"text":"x"}}]}}\n\n'.encode())])
    assert (notes.malformed, notes.first_token_at) == (1, 1.0)


@pytest.mark.parametrize(
    "text", ['{"error":{"message":"m"}}', '{"error":"m"}', '{"object":"error","message":"m","code":400}', '{"error":{"code":1}}']
)
def test_every_form_of_an_error_is_one(text: str) -> None:
    notes = interpret([Piece(1.0, f"data: {text}\n\n".encode())])
    assert notes.error in ("m", "error without a text")


def test_an_error_event_with_plain_text_is_one() -> None:
    assert interpret([Piece(1.0, b"event: error\ndata: engine died\n\n")]).error == "engine died"


def test_a_null_error_is_none() -> None:
    assert interpret([Piece(1.0, b'data: {"error":null,"choices":[{"text":"x"}]}\n\n')]).error is None


def test_nothing_counts_after_done() -> None:
    assert interpret([Piece(1.0, b'data: [DONE]\n\ndata: {"choices":[{"text":"x"}]}\n\n')]).first_token_at is None
