"""The child process that sends the probes: JSON lines in on stdin, JSON lines out on stdout.

In: `{"id", "op": "probe", "call": {…}}` or `{"id", "op": "models", "url", "headers", "tls", "timeout_seconds"}`.
Out: READY once, then `{"id", "reading": {…}}`, `{"id", "models": […]}` or `{"id", "error": {"reason", "detail"}}`.
Started by `probing/pool.py`; ends when stdin ends. It lives apart so that the exporter's
parsing never holds the interpreter while a first token arrives.

One thread per request, since a hung target must not delay the heartbeat of another; a thread does next to nothing while its clock runs,
and arrivals carry the kernel's time. The garbage collector runs when no probe does, and seldom otherwise.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from llm_exporter.errors import FetchError
from llm_exporter.probing.servers import Asker, list_models
from llm_exporter.sources.probe import ProbeCall, TlsSettings, measure

READY = {"ready": True}  # the first line that is said: requests are read from now on
_MOST_AT_ONCE = 1024  # above what the parent's scheduler and `/probe` send at once
_COLLECT_EVERY = 50
_COLLECT_AT_LATEST = 500  # probes, though others run: a hung one must not let the memory grow
# Every request has a deadline of its own. A thread that has not answered so much later hangs, and is answered for.
OVERDUE_SECONDS = 2.0
_LOOK_SECONDS = 1.0


class Worker:
    """Answers requests, each in its own thread, and each exactly once.

    Args:
        output: where the answers go, one line each.
        clock: monotonic seconds.
    """

    def __init__(self, output: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._output, self._clock = output, clock
        self._writing = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._open: dict[int, float] = {}  # id → moment from which its thread counts as hanging
        self._done = self._collected_at = 0
        self._counting = threading.Lock()

    def serve(self, lines: TextIO) -> None:
        """Until the parent closes the pipe."""
        for line in lines:
            try:
                request = json.loads(line)
            except ValueError:
                continue  # the parent died while it wrote
            self._places.acquire()
            self._open[request["id"]] = self._clock() + _seconds_of(request) + OVERDUE_SECONDS
            threading.Thread(target=self._answer, args=(request,), daemon=True, name=f"probe-{request['id']}").start()

    def look(self) -> None:
        """Answers for the requests whose thread hangs, so that one of them never looks like a process that is stuck."""
        now = self._clock()
        for number, until in list(self._open.items()):
            if now > until:
                self._tell(number, _error("timeout", "the probe process gave up waiting for its own request"))

    def look_always(self) -> None:
        """`look`, for ever; a thread of its own runs it."""
        while True:
            time.sleep(_LOOK_SECONDS)
            self.look()

    def _answer(self, request: dict[str, Any]) -> None:
        try:
            answer = answer_to(request)
            json.dumps(answer)
        except FetchError as error:
            answer = _error(error.reason, error.detail)
        except Exception as error:  # noqa: BLE001  # a bug must reach the parent instead of leaving it waiting
            answer = _error("bug", f"{type(error).__name__} in the probe process")
        self._tell(request["id"], answer)

    def _tell(self, number: int, answer: dict[str, Any]) -> None:
        with self._counting:
            if self._open.pop(number, None) is None:
                return  # its thread was answered for
            self._done += 1
            uncollected = self._done - self._collected_at
            collect = uncollected >= (_COLLECT_AT_LATEST if self._open else _COLLECT_EVERY)
            if collect:
                self._collected_at = self._done
        self._places.release()
        with self._writing:
            self._output.write(json.dumps({"id": number, **answer}) + "\n")
            self._output.flush()
        if collect:
            gc.collect()


def _error(reason: str, detail: str) -> dict[str, Any]:
    return {"error": {"reason": reason, "detail": detail}}


def _seconds_of(request: dict[str, Any]) -> float:
    """The request's own deadline."""
    return float(request["timeout_seconds"] if request["op"] == "models" else request["call"]["timeout_seconds"])


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """What one request gives.

    Raises:
        FetchError: no list of models.
    """
    if request["op"] == "models":
        tls = TlsSettings(**request["tls"])
        asker = Asker(request["url"], request["headers"], tls, request["timeout_seconds"])
        models, context = list_models(asker)
        return {"models": models, "context_tokens": context}
    call = dict(request["call"])
    call["tls"] = TlsSettings(**call["tls"])
    return {"reading": measure(ProbeCall(**call)).as_json()}


def main() -> None:
    """Entry point of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C goes to the parent, which closes the pipe
    sys.setswitchinterval(0.001)
    gc.collect()
    gc.freeze()
    gc.disable()
    worker = Worker(sys.stdout)
    threading.Thread(target=worker.look_always, daemon=True, name="overdue").start()
    sys.stdout.write(json.dumps(READY) + "\n")
    sys.stdout.flush()
    worker.serve(sys.stdin)


if __name__ == "__main__":
    main()
