"""What real servers say about themselves, and how requests to each endpoint look."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.servers import FakeServer, page, redirect, routes
from fakes.stream_player import Play, StreamPlayer
from llm_exporter.errors import FetchError
from llm_exporter.probing.calls import body_of, call_of
from llm_exporter.probing.servers import Asker, ServerFacts, describe, list_models
from llm_exporter.sources.probe import TlsSettings

FIXTURES = Path(__file__).parents[2] / "fixtures"


def facts_of(pages: dict[str, bytes | tuple[int, bytes]]) -> ServerFacts:
    with StreamPlayer(Play(), pages=pages) as server:
        return describe(Asker(server.url, {}, TlsSettings(), 5.0))


def test_vllm_tells_its_version_context_and_cache() -> None:
    labels = (
        'block_size="128",cache_dtype="auto",enable_prefix_caching="True",kv_cache_memory_bytes="1073741824",kv_cache_size_tokens="1048576"'
    )
    facts = facts_of(
        {
            "/v1/models": b'{"object":"list","data":[{"id":"tiny","max_model_len":2048},{"id":"second"}]}',
            "/version": b'{"version":"0.32.0"}',
            "/metrics": f'vllm:cache_config_info{{{labels},num_gpu_blocks_override="None"}} 1.0\n'.encode(),
        }
    )
    assert (facts.engine, facts.engine_version, facts.models, facts.context_tokens) == ("vllm", "0.32.0", ("tiny", "second"), 2048)
    assert (facts.kv_cache_capacity_tokens, facts.kv_cache_bytes) == (1_048_576, 2**30)
    assert facts.conditions == {"prefix_cache": "on", "kv_cache_dtype": "auto", "kv_cache_block_tokens": "128"}


def test_old_vllm_without_its_token_count_gives_blocks_times_size() -> None:
    page = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="27000",cache_dtype="None"} 1.0\n'
    facts = facts_of({"/v1/models": b'{"data":[]}', "/metrics": page})
    assert (facts.kv_cache_capacity_tokens, facts.kv_cache_bytes, facts.models) == (432_000, None, ())
    assert "kv_cache_dtype" not in facts.conditions


@pytest.mark.parametrize(("info", "server"), [("/model_info", "/server_info"), ("/get_model_info", "/get_server_info")])
def test_sglang_under_its_old_and_new_paths(info: str, server: str) -> None:
    facts = facts_of(
        {
            "/v1/models": b'{"data":[{"id":"tiny"}]}',
            info: b'{"model_path":"/m"}',
            server: json.dumps(
                {"version": "0.5.23", "context_length": 4096, "dtype": "float32", "disable_radix_cache": True, "quantization": None}
            ).encode(),
            "/metrics": b'sglang:max_total_num_tokens{a="b"} 8192.0\nsglang:kv_cache_memory_usage_gb{a="b"} 0.0625\n',
        }
    )
    assert (facts.engine, facts.engine_version, facts.context_tokens) == ("sglang", "0.5.23", 4096)
    assert (facts.kv_cache_capacity_tokens, facts.kv_cache_bytes) == (8192, 2**26)
    assert facts.conditions == {"precision": "float32", "prefix_cache": "off"}


@pytest.mark.parametrize(
    ("server", "gauge", "told"),
    [
        ({"page_size": 64}, "", "64"),
        ({}, "64.0", "64"),
        ({"page_size": 1}, "64.0", "1"),
        ({"page_size": None}, "", None),
        ({"page_size": "x"}, "nan", None),
    ],
)
def test_sglangs_page_is_a_block_of_the_kv_cache(server: dict[str, object], gauge: str, told: str | None) -> None:
    page = f'sglang:page_size{{a="b"}} {gauge}\n' if gauge else "sglang:num_running_reqs 1.0\n"
    facts = facts_of({"/model_info": b'{"model_path":"/m"}', "/server_info": json.dumps(server).encode(), "/metrics": page.encode()})
    assert facts.conditions.get("kv_cache_block_tokens") == told


def test_a_server_of_another_kind_still_gives_its_models() -> None:
    facts = facts_of({"/v1/models": b'{"data":[{"id":"m"}]}'})
    assert (facts.engine, facts.models, facts.conditions) == ("", ("m",), {})


@pytest.mark.parametrize("listing", [b"[]", b"no json", b'{"data": null}', b'{"data": [{"name": 1}]}'])
def test_a_strange_list_of_models_is_an_empty_one(listing: bytes) -> None:
    assert facts_of({"/v1/models": listing}).models == ()


def test_nothing_there_is_an_error_with_a_reason() -> None:
    with StreamPlayer(Play()) as server:
        url = server.url
    with pytest.raises(FetchError) as caught:
        describe(Asker(url, {"Authorization": "Bearer sk-hidden"}, TlsSettings(), 2.0))
    assert caught.value.reason == "connect"
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_with_credentials(status: int) -> None:
    """Not to another server, and not on the same one: what it says there is not what was asked for."""
    with FakeServer(page(b'{"data": [{"id": "elsewhere"}]}')) as other:
        table = {"/v1/models": redirect(f"{other.url}/v1/models", status), "/version": redirect("/v1/moved", status), "/v1/moved": page()}
        with FakeServer(routes(table)) as server:
            asker = Asker(server.url, {"Authorization": "Bearer x"}, TlsSettings(), 2.0)
            for path in ("/v1/models", "/version"):
                with pytest.raises(FetchError, match=f"http_{status}"):
                    asker.text(path)
            assert [request.path for request in server.requests] == ["/v1/models", "/version"]
        assert (other.connections, other.requests) == (0, [])


@contextlib.contextmanager
def dripping(first: bytes) -> Iterator[str]:
    """A server that sends `first` at once and then a byte every 20 ms, without end; its URL."""
    ended = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection:
                connection.sendall(first)
                while not ended.wait(0.02):
                    connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join(5)


@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"])
def test_a_list_that_drips_ends_with_the_deadline(first: bytes) -> None:
    with dripping(first) as url:
        began = time.monotonic()
        with pytest.raises(FetchError) as caught:
            list_models(Asker(url, {}, TlsSettings(), 0.3))
        assert time.monotonic() - began < 2.0
    assert caught.value.reason == "timeout"


@pytest.mark.parametrize("answer", [b"", "HTTP/1.1 ²00 OK\r\n\r\n".encode("latin-1"), b"220 smtp ready\r\n"])
def test_what_is_no_http_is_truncated_and_not_unreachable(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(FetchError) as caught:
            Asker(f"http://127.0.0.1:{listener.getsockname()[1]}", {}, TlsSettings(), 5.0).text("/v1/models")
        thread.join(5)
    assert caught.value.reason == "truncated"


@pytest.mark.parametrize("value", ["1e999", "1e+-5", "²", "nan", "-1", "0", "", "1" + "0" * 400])
def test_a_gauge_or_label_that_is_no_number_is_not_known(value: str) -> None:
    sglang = facts_of({"/metrics": f'sglang:max_total_num_tokens{{a="b"}} {value}\nsglang:kv_cache_memory_usage_gb {value}\n'.encode()})
    assert (sglang.engine, sglang.kv_cache_capacity_tokens, sglang.kv_cache_bytes) == ("sglang", None, None)
    for labels in (
        f'num_gpu_blocks="{value}",block_size="16"',
        f'num_gpu_blocks="16",block_size="{value}"',
        f'kv_cache_size_tokens="{value}",kv_cache_memory_bytes="{value}"',
    ):
        vllm = facts_of({"/metrics": f"vllm:cache_config_info{{{labels}}} 1.0\n".encode()})
        assert (vllm.engine, vllm.kv_cache_capacity_tokens, vllm.kv_cache_bytes) == ("vllm", None, None)


@pytest.mark.parametrize("value", ["1" + "0" * 400, "true", "-1", "0", "null", '"x"', "1e308", "NaN", "[1]"])
def test_a_context_that_no_server_can_have_is_not_known(value: str) -> None:
    listing = f'{{"data": [{{"id": "m", "max_model_len": {value}}}]}}'.encode()
    info = f'{{"model_path": "/m", "max_context_length": {value}}}'.encode()
    server = f'{{"max_total_num_tokens": {value}, "context_length": {value}}}'.encode()
    facts = facts_of({"/v1/models": listing, "/model_info": info, "/server_info": server})
    assert (facts.models, facts.context_tokens, facts.kv_cache_capacity_tokens) == (("m",), None, None)


def arguments(engine: str) -> dict[str, object]:
    return {"model": "m", "prompt": "p", "max_tokens": 8, "temperature": 0.0, "engine": engine}


def test_bodies_of_the_three_endpoints() -> None:
    chat = body_of("/v1/chat/completions", **arguments("vllm"))  # type: ignore[arg-type]
    assert chat["messages"] == [{"role": "user", "content": "p"}]
    assert (chat["stream"], chat["stream_options"], chat["max_tokens"], chat["ignore_eos"]) == (True, {"include_usage": True}, 8, True)
    completions = body_of("/v1/completions", **arguments(""))  # type: ignore[arg-type]
    assert completions["prompt"] == "p"
    assert "ignore_eos" not in completions  # an extension: a strict gateway would refuse it
    generate = body_of("/generate", **arguments("sglang"))  # type: ignore[arg-type]
    assert generate["text"] == "p"
    assert generate["sampling_params"]["max_new_tokens"] == 8


def test_a_call_never_shows_its_headers() -> None:
    call = call_of("http://a", "/v1/chat/completions", model="m", prompt="p", max_tokens=1, headers={"Authorization": "Bearer sk-hidden"})
    assert "hidden" not in repr(call)
