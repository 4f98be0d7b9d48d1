"""The parent's side of the probe process: starts it, gives it requests, waits for answers with a deadline, starts it again when it dies.

Used by `probing/runner.py` in the daemon and by the command line. Thread-safe. Secrets go through the pipe, never on a command line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any, Protocol, Self

from llm_exporter.errors import FetchError, LlmExporterError
from llm_exporter.sources.probe import ProbeCall, ProbeReading, TlsSettings

# Beyond the probe's own deadline: the child always answers by then, unless it is stuck.
_GRACE_SECONDS = 5.0


class ProbeProcessLost(LlmExporterError):
    """The probe process died or got stuck twice in a row on the same request."""


class Prober(Protocol):
    """What the runner needs of a pool; tests pass a fake."""

    def measure(self, call: ProbeCall) -> ProbeReading:
        """One probe."""
        ...

    def list_models(self, url: str, headers: Mapping[str, str], tls: TlsSettings, timeout_seconds: float) -> tuple[list[str], int | None]:
        """(served names, context limit of the first)."""
        ...


class _Waiting:
    """One request that waits for its answer."""

    __slots__ = ("answer", "process", "ready")

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.ready = threading.Event()
        self.answer: dict[str, Any] | None = None  # None: the process died


class ProbePool:
    """Owns the one child process. Started at first use; `close` ends it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[str] | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._closed = False
        self.starts = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Starts the child unless it runs."""
        with self._lock:
            self._closed = False
            self._running()

    def close(self) -> None:
        """Ends the child; requests that wait are told that it died."""
        with self._lock:
            process, self._process = self._process, None
            self._closed = True
        if process is not None:
            _end(process)

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while none runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def measure(self, call: ProbeCall) -> ProbeReading:
        """Sends one probe and waits for its end.

        Raises:
            ProbeProcessLost: twice no answer.
        """
        answer = self._ask({"op": "probe", "call": asdict(call)}, call.timeout_seconds)
        if "reading" not in answer:
            raise ProbeProcessLost(str(answer.get("error", {}).get("detail", "no reading")))
        return ProbeReading.from_json(answer["reading"])

    def list_models(self, url: str, headers: Mapping[str, str], tls: TlsSettings, timeout_seconds: float) -> tuple[list[str], int | None]:
        """Served names and the context limit of the first.

        Raises:
            FetchError: the list does not come.
            ProbeProcessLost: twice no answer.
        """
        request = {"op": "models", "url": url, "headers": dict(headers), "tls": asdict(tls), "timeout_seconds": timeout_seconds}
        answer = self._ask(request, 2 * timeout_seconds)
        if "error" in answer:
            raise FetchError(answer["error"]["reason"], answer["error"]["detail"])
        return list(answer["models"]), answer["context_tokens"]

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        for _ in range(2):
            with self._lock:
                if self._closed:
                    raise ProbeProcessLost("the probe process was ended, so this probe is given up")
                process = self._running()
                waiting = _Waiting(process)
                number = next(self._ids)
                self._waiting[number] = waiting
                self._write(process, json.dumps({"id": number, **request}) + "\n")
            if not waiting.ready.wait(seconds + _GRACE_SECONDS):
                process.kill()
            with self._lock:
                self._waiting.pop(number, None)
            if waiting.answer is not None:
                return waiting.answer
        raise ProbeProcessLost("the probe process gave no answer, twice; see its messages on stderr")

    @staticmethod
    def _write(process: subprocess.Popen[str], line: str) -> None:
        """Puts a request into the child's pipe. The lock is held: a stuck child that does not read a long prompt must not keep it."""
        assert process.stdin is not None
        watch = threading.Timer(_GRACE_SECONDS, process.kill)
        watch.daemon = True
        watch.start()
        # a pipe that broke just now: the reader's end tells all who wait
        with contextlib.suppress(OSError):
            process.stdin.write(line)
            process.stdin.flush()
        watch.cancel()

    def _running(self) -> subprocess.Popen[str]:
        """The child, started again where it has ended. The lock is held."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._process = process = subprocess.Popen(
            [sys.executable, "-m", "llm_exporter.probing.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self.starts += 1
        threading.Thread(target=self._read, args=(process,), daemon=True, name="probe-answers").start()
        return process

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Hands out the answers of one child; at its end, tells all who still wait for it."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # the pipe was closed under us
            for line in process.stdout:
                answer = json.loads(line)
                waiting = self._waiting.get(answer.pop("id"))
                if waiting is not None:
                    waiting.answer = answer
                    waiting.ready.set()
        with self._lock:
            # A process whose pipe has ended can still look alive for a moment: it must not get the next request.
            if self._process is process:
                self._process = None
            for waiting in self._waiting.values():
                if waiting.process is process:
                    waiting.ready.set()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(timeout=2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdout.close()
