"""The real child process."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from fakes.servers import FakeServer, drip_head
from fakes.stream_player import Play, Step, StreamPlayer, chat_play
from llm_exporter.errors import FetchError
from llm_exporter.probing import worker
from llm_exporter.probing.pool import ProbePool, ProbeProcessLost
from llm_exporter.sources.probe import SENT_RESULTS, ProbeCall, ProbeReading, TlsSettings


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


def test_a_child_that_is_killed_is_started_again_and_what_it_had_sent_counts_and_is_not_sent_again() -> None:
    with ProbePool() as pool, StreamPlayer(Play([Step(60.0, None)])) as hung, StreamPlayer(chat_play()) as healthy:
        results: list[ProbeReading] = []
        threads = [threading.Thread(target=lambda: results.append(pool.measure(call(hung.url)))) for _ in range(3)]
        for thread in threads:
            thread.start()
        while len(hung.posts) < 3:
            time.sleep(0.01)
        assert pool.pid is not None
        os.kill(pool.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
        assert [(reading.result, reading.request_sent) for reading in results] == [("truncated", True)] * 3
        assert all(reading.duration_seconds > 0 for reading in results)
        assert pool.measure(call(healthy.url)).success
        assert (len(hung.posts), len(healthy.posts), pool.starts) == (3, 1, 2)


def test_a_list_that_drips_disturbs_no_other_probe() -> None:
    with ProbePool() as pool, FakeServer(drip_head(0.05)) as drips, StreamPlayer(chat_play(ttft=1.5)) as slow:
        results: list[ProbeReading] = []
        thread = threading.Thread(target=lambda: results.append(pool.measure(call(slow.url))))
        thread.start()
        with pytest.raises(FetchError) as caught:
            pool.list_models(drips.url, {}, TlsSettings(), 0.3)
        thread.join(30)
        assert caught.value.reason == "timeout"
        assert [reading.result for reading in results] == ["success"]
        assert pool.starts == 1


COMES_UP = """
import sys
print('{"ready": true}', flush=True)
"""
HAS_A_BUG = """
import sys, json
for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"], "error": {"reason": "bug", "detail": "ValueError in the probe process"}}), flush=True)
"""
CHILDREN = {
    "dies on each request": ("import sys; sys.stdin.readline()", "truncated", True),
    "answers nonsense": ("import sys; sys.stdin.readline(); print('nonsense', flush=True); sys.stdin.read()", "truncated", True),
    "is stuck": ("import sys; sys.stdin.read()", "timeout", True),
    "has a bug": (HAS_A_BUG, "truncated", True),
}


@pytest.mark.parametrize(("code", "result", "sent"), CHILDREN.values(), ids=CHILDREN)
def test_a_probe_that_the_child_loses_is_a_failed_reading(code: str, result: str, sent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_exporter.probing.pool._GRACE_SECONDS", 0.2)
    with ProbePool([sys.executable, "-c", COMES_UP + code]) as pool:
        reading = pool.measure(call("http://127.0.0.1:1", 0.5))
        assert (reading.result, reading.request_sent) == (result, sent)
        assert reading.result in SENT_RESULTS
        with pytest.raises(FetchError) as caught:
            pool.list_models("http://127.0.0.1:1", {}, TlsSettings(), 0.5)
        assert caught.value.reason == result
        assert pool.starts == (1 if code == HAS_A_BUG else 2)


def test_a_child_that_is_long_in_coming_up_gets_its_requests_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a starved machine the imports alone took longer than a request may wait in the pipe, and each child was killed for it."""
    monkeypatch.setattr("llm_exporter.probing.pool._GRACE_SECONDS", 0.2)
    late = "import time; time.sleep(1.0); from llm_exporter.probing.worker import main; main()"
    prompt = f'{{"prompt": "{"word " * 100_000}"}}'  # more than a pipe takes
    with ProbePool([sys.executable, "-c", late]) as pool, StreamPlayer(chat_play()) as server:
        assert pool.measure(ProbeCall(server.url, "/v1/chat/completions", prompt, {}, timeout_seconds=10.0)).success
        assert pool.starts == 1


@pytest.mark.parametrize(("code", "starts", "words"), [("pass", 2, "takes no requests"), ("import sys; sys.stdin.read()", 1, "come up")])
def test_a_child_that_never_comes_up_is_a_probe_that_was_not_sent(
    code: str, starts: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_exporter.probing.pool._START_SECONDS", 0.3 if starts == 1 else 30.0)
    with ProbePool([sys.executable, "-c", code]) as pool:
        reading = pool.measure(call("http://127.0.0.1:1"))
        assert (reading.result, reading.request_sent) == ("connect", False)
        assert words in reading.detail
        assert pool.starts >= starts


def test_a_child_that_cannot_be_started_is_a_probe_that_was_not_sent() -> None:
    with ProbePool(["/nonexistent/python"]) as pool:
        reading = pool.measure(call("http://127.0.0.1:1"))
        assert (reading.result, reading.request_sent) == ("connect", False)
        assert "cannot be started" in reading.detail


class Output:
    """What a worker has said."""

    def __init__(self) -> None:
        self.lines: queue.Queue[dict[str, Any]] = queue.Queue()

    def write(self, text: str) -> None:
        self.lines.put(json.loads(text))

    def flush(self) -> None:
        pass


def request_line(number: int, seconds: float = 5.0) -> str:
    return json.dumps({"id": number, "op": "probe", "call": asdict(call("http://127.0.0.1:1", seconds))}) + "\n"


def test_a_request_whose_thread_hangs_is_answered_for_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    release, now, output = threading.Event(), [100.0], Output()

    def hang(asked: ProbeCall) -> ProbeReading:
        if asked.timeout_seconds == 5.0:
            release.wait(10)
        return ProbeReading("success")

    monkeypatch.setattr(worker, "measure", hang)
    child = worker.Worker(output, clock=lambda: now[0])  # type: ignore[arg-type]
    child.serve([request_line(1), request_line(2, 60.0)])  # type: ignore[arg-type]
    assert output.lines.get(timeout=5)["id"] == 2
    now[0] += 5.0
    child.look()
    assert output.lines.empty()
    now[0] += worker.OVERDUE_SECONDS + 0.1
    child.look()
    child.look()
    assert output.lines.get(timeout=5) == {
        "id": 1,
        "error": {"reason": "timeout", "detail": "the probe process gave up waiting for its own request"},
    }
    release.set()
    for thread in threading.enumerate():
        if thread.name == "probe-1":
            thread.join(5)
    assert output.lines.empty(), "each request is answered once"


@pytest.mark.parametrize("outcome", [ValueError("x"), MemoryError(), ProbeReading("success", completion_tokens=10**5000)])
def test_a_bug_in_the_child_is_an_answer(outcome: Exception | ProbeReading, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: ProbeCall) -> ProbeReading:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(worker, "measure", broken)
    output = Output()
    worker.Worker(output).serve(["{half a line\n", request_line(7)])  # type: ignore[arg-type]
    answer = output.lines.get(timeout=5)
    assert (answer["id"], answer["error"]["reason"]) == (7, "bug")


def test_after_the_end_no_child_is_started_again() -> None:
    pool = ProbePool()
    pool.start()
    pool.close()
    with pytest.raises(ProbeProcessLost, match="was ended"):
        pool.measure(call("http://127.0.0.1:1"))
    assert (pool.pid, pool.starts) == (None, 1)


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_child_that_is_stopped_does_not_hold_the_end(size: int) -> None:
    """The long prompt fills the pipe, so that whoever writes it holds the pool's lock."""
    lost: list[ProbeProcessLost] = []
    pool = ProbePool()
    with StreamPlayer(chat_play()) as server:
        assert pool.measure(call(server.url)).success
        assert pool.pid is not None
        os.kill(pool.pid, signal.SIGSTOP)

        def measure() -> None:
            with pytest.raises(ProbeProcessLost) as caught:
                pool.measure(replace(call(server.url), body=" " * size))
            lost.append(caught.value)

        thread = threading.Thread(target=measure)
        thread.start()
        deadline = time.monotonic() + 5
        while not (pool._waiting or time.monotonic() > deadline):
            threading.Event().wait(0.01)
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began < 1.9
        thread.join(5)
    assert pool.pid is None
    assert len(lost) == 1


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
