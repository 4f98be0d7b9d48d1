"""Real sockets: streams as captured, errors, refusals, clients that leave, a hung engine that still answers /health and /metrics."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from llm_exporter.demo.live import Pacer
from llm_exporter.demo.scenarios import SCENARIOS, Side
from llm_exporter.demo.server import EngineServer
from llm_exporter.demo.simulation import Simulation
from llm_exporter.demo.traffic import Load

Start = Callable[..., EngineServer]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server with no load of its own unless asked."""
    running: list[tuple[EngineServer, Pacer]] = []

    def run(kind: str, *, rate: float = 0.0, queue_limit: int | None = None, overrides: dict[str, Any] | None = None) -> EngineServer:
        hardware = "h200-8b" if kind == "vllm" else "h100-8b"
        side = Side(hardware, Load(rate=rate), queue_limit=queue_limit, overrides=overrides or {})
        simulation = Simulation(kind, replace(SCENARIOS["healthy"], vllm=side, sglang=side), wall_at=time.time())
        pacer = Pacer([simulation])
        server = EngineServer(simulation, pacer)
        running.append((server, pacer))
        pacer.start()
        server.start()
        return server

    yield run
    for server, pacer in running:
        server.stop()
        pacer.stop()


def connection(server: EngineServer) -> http.client.HTTPConnection:
    host, port = server.url.removeprefix("http://").split(":")
    return http.client.HTTPConnection(host, int(port), timeout=20)


def get(server: EngineServer, path: str) -> tuple[int, str, dict[str, str]]:
    link = connection(server)
    link.request("GET", path)
    answer = link.getresponse()
    body = answer.read().decode()
    link.close()
    return answer.status, body, {name.lower(): value for name, value in answer.getheaders()}


def post(server: EngineServer, path: str, body: Any) -> tuple[int, Any]:
    link = connection(server)
    link.request("POST", path, body if isinstance(body, str) else json.dumps(body), {"Content-Type": "application/json"})
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    return answer.status, json.loads(text) if text.startswith("{") else text


def chat(server: EngineServer, text: str = "hello the water prefix cache", **more: Any) -> dict[str, Any]:
    return {"model": server.simulation.model_name, "messages": [{"role": "user", "content": text}], "max_tokens": 8} | more


def events(server: EngineServer, path: str, body: dict[str, Any]) -> tuple[list[Any], str]:
    """Parsed events of a stream, [DONE] as text, and its content type."""
    link = connection(server)
    link.request("POST", path, json.dumps(body))
    answer = link.getresponse()
    assert answer.status == 200
    raw = answer.read().decode()
    link.close()
    assert raw.endswith("data: [DONE]\n\n")
    blocks = [block.removeprefix("data: ") for block in raw.strip().split("\n\n")]
    return [block if block == "[DONE]" else json.loads(block) for block in blocks], answer.getheader("content-type") or ""


def test_vllm_streams_chat_as_captured(start: Start) -> None:
    server = start("vllm")
    found, content_type = events(
        server, "/v1/chat/completions", chat(server, stream=True, ignore_eos=True, stream_options={"include_usage": True})
    )
    assert content_type == "text/event-stream; charset=utf-8"
    role, *tokens, usage, done = found
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert list(role) == ["id", "object", "created", "model", "choices", "prompt_token_ids", "prompt_text"]
    assert len(tokens) == 8
    assert all(event["choices"][0]["delta"]["content"] for event in tokens)
    assert [event["choices"][0]["finish_reason"] for event in tokens] == [None] * 7 + ["length"]
    assert list(tokens[0]["choices"][0]) == ["index", "delta", "logprobs", "finish_reason", "token_ids"]
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 13, "total_tokens": 21, "completion_tokens": 8}
    assert done == "[DONE]"


def test_vllm_streams_completions_and_answers_whole(start: Start) -> None:
    server = start("vllm")
    body = {"model": server.simulation.model_name, "prompt": "one two three", "max_tokens": 3, "ignore_eos": True}
    found, _ = events(server, "/v1/completions", body | {"stream": True})
    assert [event["choices"][0]["text"] for event in found[:-1]]
    assert found[0]["object"] == "text_completion"
    status, answer = post(server, "/v1/completions", body)
    assert status == 200
    assert answer["usage"]["completion_tokens"] == 3
    status, answer = post(server, "/v1/chat/completions", chat(server, ignore_eos=True))
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 8


def test_sglang_streams_as_captured(start: Start) -> None:
    server = start("sglang")
    found, _ = events(server, "/v1/chat/completions", chat(server, stream=True, ignore_eos=True, stream_options={"include_usage": True}))
    role, *tokens, finish, usage, _ = found
    assert role["choices"][0]["delta"] == {"reasoning_content": None, "role": "assistant", "content": ""}
    assert len(tokens) == 8
    assert finish["choices"][0] == {
        "index": 0,
        "delta": {"reasoning_content": None},
        "logprobs": None,
        "finish_reason": "length",
        "matched_stop": None,
    }
    assert usage["usage"]["completion_tokens"] == 8
    found, _ = events(
        server, "/generate", {"text": "one two three", "stream": True, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
    )
    assert [len(event["output_ids"]) for event in found[:-1]] == [1, 2, 3]
    assert found[2]["text"].startswith(found[1]["text"])
    assert found[2]["meta_info"]["finish_reason"] == {"type": "length", "length": 3}


def test_the_same_prompt_again_hits_the_cache(start: Start) -> None:
    server = start("sglang")
    body = {"text": "a long story about a cache " * 40, "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    first, second = post(server, "/generate", body)[1], post(server, "/generate", body)[1]
    assert first["meta_info"]["cached_tokens"] == 0
    assert second["meta_info"]["cached_tokens"] > 0.9 * second["meta_info"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"model": "nope"}, 404, "NotFoundError"),
        ({"max_tokens": 100_000}, 400, "BadRequestError"),
        ({"max_tokens": -1}, 400, "BadRequestError"),
        ({"temperature": -3}, 400, "BadRequestError"),
        ({"messages": None}, 400, "Bad Request"),
        ({"stream_options": {"include_usage": True}}, 400, "BadRequestError"),
        ({"messages": [{"role": "user", "content": "far too long " * 20_000}], "stream": True}, 400, "BadRequestError"),
    ],
)
def test_vllm_refuses_with_its_error_object(start: Start, change: dict[str, Any], status: int, kind: str) -> None:
    server = start("vllm")
    got, body = post(server, "/v1/chat/completions", chat(server) | change)
    assert got == status
    assert body["error"]["type"] == kind
    assert body["error"]["code"] == status
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert (
        f'http_requests_total{{handler="/v1/chat/completions",method="POST",status="{status // 100}xx"}} 1.0' in get(server, "/metrics")[1]
    )


def test_broken_json_and_unknown_routes(start: Start) -> None:
    vllm, sglang = start("vllm"), start("sglang")
    assert post(vllm, "/v1/chat/completions", "{not json")[0] == 400
    assert post(vllm, "/v1/nope", {}) == (404, {"detail": "Not Found"})
    assert post(sglang, "/v1/chat/completions", "{not json")[1]["object"] == "error"
    assert get(sglang, '/fake"}')[0] == 404
    assert "fake" not in get(sglang, "/metrics")[1]


def test_sglang_refuses_in_its_own_ways(start: Start) -> None:
    server = start("sglang")
    long = "far too long " * 20_000
    assert post(server, "/v1/chat/completions", chat(server, long, stream=True))[1]["code"] == 400
    found, _ = events(server, "/generate", {"text": long, "stream": True})
    assert found[0]["error"]["code"] == 400
    assert post(server, "/v1/chat/completions", chat(server, model="whatever"))[1]["model"] == "whatever"


def test_a_full_queue_answers_503(start: Start) -> None:
    server = start("vllm", queue_limit=0)
    status, body = post(server, "/v1/chat/completions", chat(server, stream=True))
    assert status == 503
    assert body["error"]["type"] == "Service Unavailable"
    assert (
        'admission_rejections_total{model_name="meta-llama/Llama-3.1-8B-Instruct",reason="max_num_queued_reqs"} 1.0'
        in get(server, "/metrics")[1]
    )


def test_a_burst_is_refused_inside_the_stream(start: Start) -> None:
    server = start("vllm", queue_limit=1, overrides={"max_running": 1, "tokenise_seconds": 0.3})
    links = []
    for _ in range(4):
        link = connection(server)
        link.request("POST", "/v1/chat/completions", json.dumps(chat(server, stream=True, max_tokens=2000, ignore_eos=True)))
        links.append(link)
    texts = []
    for link in links[2:]:
        answer = link.getresponse()
        assert answer.status == 200
        texts.append(answer.read().decode())
    for link in links:
        link.close()
    assert all('"code": 503' in text and text.endswith("data: [DONE]\n\n") for text in texts)


def test_a_client_that_leaves_frees_its_place(start: Start) -> None:
    server = start("vllm")
    link = connection(server)
    link.request("POST", "/v1/chat/completions", json.dumps(chat(server, stream=True, max_tokens=20_000, ignore_eos=True)))
    answer = link.getresponse()
    answer.read(300)
    engine = server.simulation.engine
    assert len(engine.running) == 1
    answer.close()
    link.close()
    deadline = time.monotonic() + 5.0
    while engine.running and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not engine.running


def test_tokens_come_at_the_pace_of_the_model(start: Start) -> None:
    server = start("vllm", rate=3.0)
    link = connection(server)
    began = time.monotonic()
    link.request("POST", "/v1/chat/completions", json.dumps(chat(server, stream=True, max_tokens=100, ignore_eos=True)))
    answer = link.getresponse()
    answer.read1(65536)
    first = time.monotonic() - began
    while answer.read1(65536):
        pass
    whole = time.monotonic() - began
    link.close()
    assert 0.005 < first < 1.0
    assert 0.4 < whole < 3.0  # 100 steps of 5 to 7 ms


def test_a_hung_vllm_says_it_is_healthy(start: Start) -> None:
    server = start("vllm", rate=10.0)
    time.sleep(0.3)
    with server.pacer.lock:
        server.simulation.engine.hang()
    assert get(server, "/health")[0] == 200
    first = get(server, "/metrics")
    link = connection(server)
    link.request("POST", "/v1/chat/completions", json.dumps(chat(server, stream=True)))
    assert link.getresponse().status == 200  # headers, and no token
    second = get(server, "/metrics")
    link.close()
    assert first[0] == second[0] == 200

    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.startswith("vllm:")]

    assert lines(first[1]) == lines(second[1])


@pytest.mark.parametrize(
    ("accept", "sample", "content_type"),
    [
        ("text/plain;version=0.0.4", "\nsglang:num_running_reqs{", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "\nsglang:num_running_reqs{", "text/plain; version=0.0.4; charset=utf-8"),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            "\nsglang_num_running_reqs{",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=underscores",
        ),
        (
            "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3",
            "\nsglang:num_running_reqs{",
            "application/openmetrics-text; version=1.0.0; charset=utf-8; escaping=allow-utf-8",
        ),
    ],
)
def test_the_names_of_sglang_depend_on_what_is_accepted(start: Start, accept: str, sample: str, content_type: str) -> None:
    link = connection(start("sglang"))
    link.request("GET", "/metrics", headers={"Accept": accept})
    answer = link.getresponse()
    text = answer.read().decode()
    link.close()
    assert sample in text
    assert answer.getheader("content-type") == content_type
    assert text.endswith("# EOF\n") == ("openmetrics" in content_type)
    assert "# TYPE sglang:num_running_reqs gauge" in text


def test_a_body_without_a_sound_length_is_refused(start: Start) -> None:
    server = start("vllm")
    for length in ("-1", "many", "99999999999"):
        link = connection(server)
        link.putrequest("POST", "/v1/chat/completions")
        link.putheader("Content-Length", length)
        link.endheaders()
        assert link.getresponse().status == 413
        link.close()


def test_what_the_servers_say_about_themselves(start: Start) -> None:
    vllm, sglang = start("vllm"), start("sglang")
    assert json.loads(get(vllm, "/version")[1]) == {"version": "0.32.0"}
    assert json.loads(get(vllm, "/v1/models")[1])["data"][0]["max_model_len"] == 32768
    assert get(vllm, "/metrics")[2]["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert get(vllm, "/server_info")[0] == 404
    for path in ("/server_info", "/get_server_info"):
        info = json.loads(get(sglang, path)[1])
        assert info["version"] == "0.5.23"
        assert info["max_total_num_tokens"] == 448_000
    assert json.loads(get(sglang, "/get_model_info")[1])["model_path"] == "Qwen/Qwen3-8B"
    assert json.loads(get(sglang, "/v1/loads")[1])["loads"][0]["num_running_reqs"] == 0
    assert get(sglang, "/ready")[0] == 200
    assert post(vllm, "/tokenize", {"prompt": "one two"})[1]["count"] == 2
