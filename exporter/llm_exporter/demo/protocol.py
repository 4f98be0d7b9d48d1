"""What the inference routes of both engines answer: checks of the request, bodies of streams and replies.

The bodies are those captured from real servers. No socket here: `server.py` sends what this module makes.
"""

from __future__ import annotations

import json
import math
import uuid
from dataclasses import dataclass, field
from typing import Any

from llm_exporter.demo.text import prompt_tokens, word

CHAT, COMPLETIONS, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
_BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
_TYPICAL_OUTPUT = 160  # tokens after which an answer ends by itself, when nothing is said


class Refusal(Exception):
    """A request that is answered with an error body.

    Args:
        status: HTTP status.
        body: JSON object; for a stream that begins with 200 all the same, one event.
        in_stream: answer 200 and put the body into the stream (SGLang's /generate).
    """

    def __init__(self, status: int, body: dict[str, Any], *, in_stream: bool = False) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.in_stream = in_stream


@dataclass(slots=True)
class Call:
    """One checked request.

    Attributes:
        identity: id in the answers.
        cached_tokens, queue_seconds, retractions: what /generate tells about the request, set once it is known.
        output_tokens: where it will end, at most `max_tokens`.
        created: unix time, whole seconds.
    """

    kind: str
    route: str
    model: str
    tokens: list[str]
    max_tokens: int
    output_tokens: int
    stream: bool
    identity: str
    number: int
    created: int
    include_usage: bool = False
    continuous_usage: bool = False
    cached_tokens: int = 0
    queue_seconds: float = 0.0
    retractions: int = 0
    sent: list[str] = field(default_factory=list)

    def usage(self) -> dict[str, Any]:
        """The usage object as this engine writes it."""
        prompt, output = len(self.tokens), len(self.sent)
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}
        if self.kind == "sglang":
            usage |= {"prompt_tokens_details": None, "reasoning_tokens": 0, "completion_tokens_details": None}
        return usage

    @property
    def fingerprint(self) -> str:
        """The `system_fingerprint` of vLLM."""
        return "vllm-0.32.0-c95b1941"


def vllm_error(status: int, kind: str, message: str, param: str | None = None) -> Refusal:
    """The error object of vLLM."""
    return Refusal(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


def busy(kind: str) -> Refusal:
    """The refusal of a full queue."""
    if kind == "vllm":
        return vllm_error(503, "Service Unavailable", _BUSY)
    return Refusal(503, _sglang_body("The request queue is full.", 503, "ServiceUnavailable"))


def _sglang_body(message: str, code: int = 400, kind: str = "BadRequestError") -> dict[str, Any]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": code}


def checked(kind: str, route: str, raw: bytes, *, model: str, context_tokens: int, number: int, now: float, luck: float) -> Call:
    """Parse and check a request body.

    Args:
        kind: vllm or sglang.
        route: path of the request.
        raw: its body.
        model: the served model's name.
        context_tokens: longest context of the server.
        number: of the request; makes the id.
        now: unix time.
        luck: random, 0 to 1: where an answer ends by itself.

    Raises:
        Refusal: with the status and body that the engine would answer.
    """
    body = _parsed(kind, raw)
    sampling = body.get("sampling_params") if route == GENERATE else body
    sampling = sampling if isinstance(sampling, dict) else {}
    limit = sampling.get("max_new_tokens", sampling.get("max_completion_tokens", sampling.get("max_tokens")))
    stream = bool(body.get("stream"))
    if kind == "vllm":
        _check_vllm(route, body, model, context_tokens, limit)
    else:
        _check_sglang(route, body, limit)
    tokens = prompt_tokens(body)
    room = context_tokens - len(tokens)
    if room < 1:
        raise _too_long(kind, route, body, len(tokens), context_tokens, stream=stream)
    most = min(limit if limit is not None else 128 if route != CHAT else room, room)
    natural = max(1, round(-_TYPICAL_OUTPUT * math.log(1.0 - 0.999 * luck)))
    options = body.get("stream_options") or {}
    prefix = {CHAT: "chatcmpl-", COMPLETIONS: "cmpl-"}.get(route, "") if kind == "vllm" else ""
    digits = 16 if kind == "vllm" else 32
    return Call(
        kind=kind,
        route=route,
        model=str(body.get("model") or model),
        tokens=tokens,
        max_tokens=most,
        output_tokens=most if sampling.get("ignore_eos") else min(most, natural),
        stream=stream,
        identity=prefix + uuid.uuid4().hex[:digits],
        number=number,
        created=int(now),
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
    )


def _parsed(kind: str, raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError as error:
        reason = getattr(error, "msg", "not UTF-8")
        if kind == "sglang":
            raise Refusal(400, _sglang_body(f"JSON decode error: {reason}")) from None
        detail = f"{{'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', 'ctx': {{'error': '{reason}'}}}}"
        raise vllm_error(400, "Bad Request", f"1 validation error:\n  {detail}", "body.1") from None
    if not isinstance(body, dict):
        body = {}
    return body


def _check_vllm(route: str, body: dict[str, Any], model: str, context_tokens: int, limit: Any) -> None:
    bad = "BadRequestError"
    if route == CHAT and not isinstance(body.get("messages"), list):
        detail = f"{{'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': '<dict of {len(body)} items>'}}"
        raise vllm_error(400, "Bad Request", f"1 validation error:\n  {detail}", "body.messages")
    if body.get("stream_options") and not body.get("stream"):
        text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise vllm_error(400, bad, text, "stream_options")
    if body.get("model") not in (None, model):
        text = f"The model `{body['model']}` does not exist. Valid aliases: {model}."
        raise vllm_error(404, "NotFoundError", text, "model")
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        text = f"temperature must be non-negative, got {float(temperature)}. (parameter=temperature, value={float(temperature)})"
        raise vllm_error(400, bad, text, "temperature")
    if limit is not None and limit < 1:
        raise vllm_error(400, bad, f"max_tokens must be at least 1, got {limit}. (parameter=max_tokens, value={limit})", "max_tokens")
    if limit is not None and limit > context_tokens:
        text = (
            f"max_tokens={limit} cannot be greater than max_model_len={context_tokens}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={limit})"
        )
        raise vllm_error(400, bad, text, "max_tokens")
    if route == COMPLETIONS and not body.get("prompt"):
        text = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise vllm_error(400, bad, text, "prompt")


def _check_sglang(route: str, body: dict[str, Any], limit: Any) -> None:
    if route == CHAT and not body.get("messages"):
        raise Refusal(400, _sglang_body("Messages cannot be empty."))
    if limit is not None and limit < 0:
        text = f"max_new_tokens must be at least 0, got {limit}."
        raise Refusal(400, {"error": {"message": text}} if route == GENERATE else _sglang_body(text))


def _too_long(kind: str, route: str, body: dict[str, Any], count: int, context_tokens: int, *, stream: bool) -> Refusal:
    if kind == "vllm":
        characters = len(json.dumps(body.get("messages", body.get("prompt", ""))))
        text = (
            f"This model's maximum context length is {context_tokens} tokens. However, your prompt contains {characters} characters "
            f"({count} tokens). Please reduce the length of the input prompt. (parameter=input_text, value={characters})"
        )
        return vllm_error(400, "BadRequestError", text, "input_text")
    text = f"The input ({count} tokens) is longer than the model's context length ({context_tokens} tokens)."
    if route == GENERATE:
        error = {"message": text, "type": "invalid_request_error", "code": 400, "retryable": False}
        return Refusal(400, {"error": error}, in_stream=stream)
    return Refusal(400, _sglang_body(text))


# -- streams -------------------------------------------------------------------------------------------------


def _chunk(call: Call, choices: list[dict[str, Any]]) -> dict[str, Any]:
    kind = "chat.completion.chunk" if call.route == CHAT else "text_completion"
    return {"id": call.identity, "object": kind, "created": call.created, "model": call.model, "choices": choices}


def opening(call: Call) -> list[dict[str, Any]]:
    """Events before the first token, sent together with it: chat's role chunk."""
    if call.route != CHAT:
        return []
    if call.kind == "vllm":
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        chunk = _chunk(call, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])
        if call.continuous_usage:
            chunk["usage"] = call.usage() | {"completion_tokens_details": None}
        return [chunk | {"prompt_token_ids": None, "prompt_text": None}]
    delta = {"reasoning_content": None, "role": "assistant", "content": ""}
    return [_chunk(call, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}])]


def token_event(call: Call, finish_reason: str | None) -> list[dict[str, Any]]:
    """The event of one more token; the last one carries the finish reason.

    SGLang's chat sends the reason in an event of its own.
    """
    text = word(call.number, len(call.sent))
    call.sent.append(text)
    if call.route == GENERATE:
        return [_generate_event(call, finish_reason)]
    if call.kind == "vllm":
        end: dict[str, Any] = {"logprobs": None, "finish_reason": finish_reason}
        if call.route == CHAT:
            end |= {"stop_reason": None} if finish_reason else {}
            chunk = _chunk(call, [{"index": 0, "delta": {"content": text}} | end | {"token_ids": None}])
        else:
            end |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
            chunk = _chunk(call, [{"index": 0, "text": text} | end])
        if call.continuous_usage:
            chunk["usage"] = call.usage() | {"completion_tokens_details": None}
        if finish_reason and not call.include_usage:
            chunk["system_fingerprint"] = call.fingerprint
        return [chunk]
    if call.route == COMPLETIONS:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
        return [_chunk(call, [choice]) | {"usage": None}]
    delta = {"reasoning_content": None, "content": text}
    chunk = _chunk(call, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, "matched_stop": None}])
    if call.continuous_usage:
        chunk["usage"] = call.usage()
    events = [chunk]
    if finish_reason:
        last = {"index": 0, "delta": {"reasoning_content": None}, "logprobs": None, "finish_reason": finish_reason, "matched_stop": None}
        events.append(_chunk(call, [last]))
    return events


def _generate_event(call: Call, finish_reason: str | None) -> dict[str, Any]:
    reason: dict[str, Any] | None = None
    if finish_reason:
        reason = {"type": finish_reason} | ({"length": len(call.sent)} if finish_reason == "length" else {})
    return {
        "text": "".join(call.sent),
        "output_ids": [1000 + index for index in range(len(call.sent))],
        "meta_info": {
            "id": call.identity,
            "finish_reason": reason,
            "prompt_tokens": len(call.tokens),
            "weight_version": "default",
            "num_retractions": call.retractions,
            "queue_time": call.queue_seconds,
            "reasoning_tokens": 0,
            "completion_tokens": len(call.sent),
            "cached_tokens": call.cached_tokens,
            "cached_tokens_details": {"device": call.cached_tokens, "host": 0},
            "dp_rank": None,
        },
    }


def closing(call: Call) -> list[dict[str, Any]]:
    """Events after the last token, before [DONE]: the usage chunk, when asked for."""
    if not call.include_usage or call.route == GENERATE:
        return []
    chunk = _chunk(call, []) | {"usage": call.usage()}
    if call.kind == "vllm":
        chunk["system_fingerprint"] = call.fingerprint
    return [chunk]


def whole(call: Call, finish_reason: str) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    text = "".join(call.sent)
    if call.route == GENERATE:
        return _generate_event(call, finish_reason)
    end: dict[str, Any] = {"logprobs": None, "finish_reason": finish_reason}
    if call.kind == "vllm":
        end |= {"stop_reason": None, "token_ids": None}
        if call.route == CHAT:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
            choice = {"index": 0, "message": message | {"function_call": None, "reasoning": None}} | end | {"routed_experts": None}
        else:
            choice = {"index": 0, "text": text} | end
        tail: dict[str, Any] = {"service_tier": None, "system_fingerprint": call.fingerprint}
        usage = call.usage() | {"prompt_tokens_details": None, "completion_tokens_details": None}
        rest = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None, "kv_transfer_params": None}
        body = _chunk(call, [choice]) | tail | {"usage": usage} | rest | {"metrics": None}
    else:
        end |= {"matched_stop": None}
        if call.route == CHAT:
            choice = {"index": 0, "message": {"role": "assistant", "content": text, "reasoning_content": None}} | end
        else:
            choice = {"index": 0, "text": text} | end
        body = _chunk(call, [choice]) | {"usage": call.usage(), "metadata": {"weight_version": "default"}}
    return body | {"object": "chat.completion" if call.route == CHAT else "text_completion"}
