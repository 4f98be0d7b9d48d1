"""The real child process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.stream_player import Play, Step, StreamPlayer, chat_chunk, chat_play
from llm_exporter.errors import FetchError
from llm_exporter.probing.pool import ProbePool, ProbeProcessLost
from llm_exporter.sources.probe import ProbeCall, TlsSettings


@pytest.fixture(scope="module")
def pool() -> Iterator[ProbePool]:
    with ProbePool() as pool:
        yield pool


def call(url: str, timeout: float = 5.0) -> ProbeCall:
    headers = {"Authorization": "Bearer sk-hidden"}
    return ProbeCall(url, "/v1/chat/completions", '{"stream": true}', headers, timeout_seconds=timeout)


def test_a_probe_goes_through_the_child(pool: ProbePool) -> None:
    with StreamPlayer(chat_play(ttft=0.05)) as server:
        reading = pool.measure(call(server.url))
        assert server.posts[0].headers["authorization"] == "Bearer sk-hidden"
    assert reading.success
    assert reading.time_to_first_token_seconds == pytest.approx(0.05, abs=0.04)


def test_no_secret_is_on_the_childs_command_line(pool: ProbePool) -> None:
    with StreamPlayer(chat_play()) as server:
        pool.measure(call(server.url))
    assert b"hidden" not in Path(f"/proc/{pool.pid}/cmdline").read_bytes()


def test_the_list_of_models_comes_through_the_child(pool: ProbePool) -> None:
    with StreamPlayer(chat_play()) as server:
        assert pool.list_models(server.url, {}, TlsSettings(), 5.0) == (["acme/chat-8b"], 40960)


@pytest.mark.parametrize(("pages", "reason"), [({}, "http_404"), ({"/v1/models": (503, b"")}, "http_503")])
def test_a_missing_list_has_a_reason(pool: ProbePool, pages: dict[str, bytes | tuple[int, bytes]], reason: str) -> None:
    with StreamPlayer(chat_play(), pages=pages) as server, pytest.raises(FetchError) as caught:
        pool.list_models(server.url, {}, TlsSettings(), 5.0)
    assert caught.value.reason == reason


def test_a_hung_target_does_not_delay_another(pool: ProbePool) -> None:
    with StreamPlayer(Play([Step(60.0, None)])) as hung, StreamPlayer(chat_play()) as healthy:
        thread = threading.Thread(target=pool.measure, args=(call(hung.url, 1.5),))
        thread.start()
        started = time.monotonic()
        assert pool.measure(call(healthy.url)).success
        assert time.monotonic() - started < 1.2
        thread.join()


def test_a_child_that_is_killed_is_started_again_and_the_probe_is_repeated() -> None:
    play = Play([Step(0.3, chat_chunk({"content": "x"})), Step(0.3, chat_chunk({}, "stop") + b"data: [DONE]\n\n")])
    with ProbePool() as pool, StreamPlayer(play) as server:
        results = []
        thread = threading.Thread(target=lambda: results.append(pool.measure(call(server.url)).result))
        thread.start()
        while not server.posts:
            time.sleep(0.01)
        assert pool.pid is not None
        os.kill(pool.pid, signal.SIGKILL)
        thread.join(60)
        assert results == ["success"]
        assert pool.starts == 2


def test_after_the_end_no_child_is_started_again() -> None:
    pool = ProbePool()
    pool.start()
    pool.close()
    with pytest.raises(ProbeProcessLost, match="was ended"):
        pool.measure(call("http://127.0.0.1:1"))
    assert (pool.pid, pool.starts) == (None, 1)


def test_the_child_ends_with_its_parent() -> None:
    code = (
        "from llm_exporter.probing.pool import ProbePool\nimport os\n"
        "p = ProbePool(); p.start(); print(p.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(out.stdout)
    for _ in range(200):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.02)
    pytest.fail("the probe process outlived its parent")


def test_the_child_and_the_daemons_side_import_no_numpy() -> None:
    code = (
        "import sys, llm_exporter.probing.worker, llm_exporter.probing.runner, llm_exporter.probing.pool, llm_exporter.expose.probes\n"
        "print([name for name in ('numpy', 'scipy', 'matplotlib', 'rich') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_a_child_that_does_not_read_a_long_prompt_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_exporter.probing.pool._GRACE_SECONDS", 0.5)
    prompt = f'{{"stream": true, "prompt": "{"word " * 100_000}"}}'  # more than a pipe takes
    with ProbePool() as pool, StreamPlayer(chat_play()) as server:
        pool.measure(call(server.url))
        stuck = pool.pid
        assert stuck is not None
        os.kill(stuck, signal.SIGSTOP)
        reading = pool.measure(ProbeCall(server.url, "/v1/chat/completions", prompt, {}, timeout_seconds=10.0))
        assert reading.success
        assert pool.pid != stuck
