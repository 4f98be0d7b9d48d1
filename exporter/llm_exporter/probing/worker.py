"""The child process that sends the probes: JSON lines in on stdin, JSON lines out on stdout.

In: `{"id", "op": "probe", "call": {…}}` or `{"id", "op": "models", "url", "headers", "tls", "timeout_seconds"}`.
Out: `{"id", "reading": {…}}`, `{"id", "models": […]}` or `{"id", "error": {"reason", "detail"}}`. Started by `probing/pool.py`; ends when
stdin ends. It lives apart so that the exporter's parsing never holds the interpreter while a first token arrives.

One thread per request, since a hung target must not delay the heartbeat of another; a thread does next to nothing while its clock runs,
and arrivals carry the kernel's time. The garbage collector runs only when no probe does.
"""

from __future__ import annotations

import gc
import json
import signal
import sys
import threading
from typing import Any, TextIO

from llm_exporter.errors import FetchError
from llm_exporter.probing.servers import Asker, list_models
from llm_exporter.sources.probe import ProbeCall, TlsSettings, measure

_MOST_AT_ONCE = 256
_COLLECT_EVERY = 50


class Worker:
    """Answers requests, each in its own thread.

    Args:
        output: where the answers go, one line each.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._writing = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._active, self._done = 0, 0
        self._counting = threading.Lock()

    def serve(self, lines: TextIO) -> None:
        """Until the parent closes the pipe."""
        for line in lines:
            if line.strip():
                self._places.acquire()
                request = json.loads(line)
                threading.Thread(target=self._answer, args=(request,), daemon=True, name=f"probe-{request['id']}").start()

    def _answer(self, request: dict[str, Any]) -> None:
        with self._counting:
            self._active += 1
        try:
            answer = answer_to(request)
        except FetchError as error:
            answer = {"error": {"reason": error.reason, "detail": error.detail}}
        except Exception as error:  # noqa: BLE001  # a bug must reach the parent instead of leaving it waiting
            answer = {"error": {"reason": "bug", "detail": f"{type(error).__name__} in the probe process"}}
        finally:
            self._places.release()
        text = json.dumps({"id": request["id"], **answer})
        with self._writing:
            self._output.write(text + "\n")
            self._output.flush()
        with self._counting:
            self._active -= 1
            self._done += 1
            if self._active == 0 and self._done % _COLLECT_EVERY == 0:
                gc.collect()


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
    Worker(sys.stdout).serve(sys.stdin)


if __name__ == "__main__":
    main()
