"""The parent's side of the probe process: starts it, gives it requests, waits for answers with a deadline, starts it again when it dies.

What may have reached a server is never sent again: it counts as sent, and its reading says how it was lost.
Used by `probing/runner.py` in the daemon and by the command line. Thread-safe. Secrets go through the pipe, never on a command line.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Any, Protocol, Self

from llm_exporter.errors import FetchError, LlmExporterError
from llm_exporter.probing.worker import READY
from llm_exporter.sources.probe import SENT_RESULTS, ProbeCall, ProbeReading, TlsSettings

# Beyond the probe's own deadline: the child answers by then even for a thread that hangs, unless it is stuck as a whole.
_GRACE_SECONDS = 5.0
# A child that is being started on a starved machine takes long to import its modules; until then it can read nothing.
_START_SECONDS = 30.0
# A child whose pipe has ended goes at once and has nothing to save; one that does not is ended.
_END_SECONDS = 0.5
_CHILD = (sys.executable, "-m", "llm_exporter.probing.worker")
# Reasons of `list_models` beside http_NNN; a bug of ours is none of them.
_REASONS = frozenset({*SENT_RESULTS} - {"success"})


class ProbeProcessLost(LlmExporterError):
    """The pool was closed, so the probe is given up: the exporter ends."""


class _Lost(Exception):
    """A request has no answer. Never leaves this module.

    Attributes:
        result, detail: as of a reading.
        sent: the server may have got it.
    """

    def __init__(self, result: str, detail: str, *, sent: bool) -> None:
        super().__init__(detail)
        self.result, self.detail, self.sent = result, detail, sent


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
    """Owns the one child process. Started at first use; `close` ends it.

    Args:
        command: of the child; tests have children of their own.
    """

    def __init__(self, command: Sequence[str] = _CHILD) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._process: subprocess.Popen[str] | None = None
        self._reads = threading.Event()  # the present child reads its pipe, or has ended
        self._waiting: dict[int, _Waiting] = {}
        self._closed = False
        self.starts = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Starts the child unless it runs. Where it cannot be started now, the next probe tries again and says so."""
        with self._lock, contextlib.suppress(_Lost):
            self._closed = False
            self._running()

    def close(self) -> None:
        """Ends the child; requests that wait are told that it died."""
        process = self._process
        if not self._lock.acquire(timeout=_END_SECONDS):  # somebody writes to a child that does not read
            if process is not None:
                process.kill()
            self._lock.acquire()
        try:
            process, self._process = self._process, None
            self._closed = True
        finally:
            self._lock.release()
        if process is not None:
            _end(process)

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while none runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def measure(self, call: ProbeCall) -> ProbeReading:
        """Sends one probe and waits for its end. One that the probe process loses is a failed reading.

        Raises:
            ProbeProcessLost: the pool is closed.
        """
        began = time.monotonic()
        try:
            answer = self._ask({"op": "probe", "call": asdict(call)}, call.timeout_seconds)
            if "reading" in answer:
                return ProbeReading.from_json(answer["reading"])
            problem = answer["error"]
            lost = _Lost("timeout" if problem["reason"] == "timeout" else "truncated", problem["detail"], sent=True)
        except _Lost as error:
            lost = error
        return ProbeReading(lost.result, lost.detail, duration_seconds=time.monotonic() - began, request_sent=lost.sent)

    def list_models(self, url: str, headers: Mapping[str, str], tls: TlsSettings, timeout_seconds: float) -> tuple[list[str], int | None]:
        """Served names and the context limit of the first.

        Raises:
            FetchError: the list does not come; by the words of the probe's results.
            ProbeProcessLost: the pool is closed.
        """
        request = {"op": "models", "url": url, "headers": dict(headers), "tls": asdict(tls), "timeout_seconds": timeout_seconds}
        try:
            answer = self._ask(request, timeout_seconds)
        except _Lost as lost:
            raise FetchError(lost.result, lost.detail) from None
        if "error" in answer:
            reason, detail = answer["error"]["reason"], answer["error"]["detail"]
            raise FetchError(reason if reason in _REASONS or reason.startswith("http_") else "truncated", detail)
        return list(answer["models"]), answer["context_tokens"]

    def _ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        for _ in range(2):  # a second time only where the first child cannot have read the request
            process = self._started()
            with self._lock:
                if self._closed:
                    raise ProbeProcessLost("the probe process was ended, so this probe is given up")
                if self._process is not process:
                    continue
                waiting = _Waiting(process)
                number = next(self._ids)
                self._waiting[number] = waiting
                if not self._write(process, json.dumps({"id": number, **request}) + "\n"):
                    del self._waiting[number]
                    continue
            answered = waiting.ready.wait(seconds + _GRACE_SECONDS)
            with self._lock:
                self._waiting.pop(number, None)
                closed = self._closed
                if waiting.answer is None and not answered:
                    self._replace(process)
            if waiting.answer is not None:
                return waiting.answer
            if closed:
                raise ProbeProcessLost("the probe process was ended, so this probe is given up")
            if answered:
                raise _Lost("truncated", "the probe process ended while this probe ran", sent=True)
            raise _Lost("timeout", "the probe process was stuck and is started again", sent=True)
        raise _Lost("connect", "the probe process takes no requests; see its messages on stderr", sent=False)

    def _started(self) -> subprocess.Popen[str]:
        """The child, once it reads its pipe."""
        with self._lock:
            if self._closed:
                raise ProbeProcessLost("the probe process was ended, so this probe is given up")
            process, reads = self._running(), self._reads
        if reads.wait(_START_SECONDS):
            return process
        with self._lock:
            self._replace(process)
        raise _Lost("connect", f"the probe process does not come up within {_START_SECONDS:.0f} s", sent=False)

    def _write(self, process: subprocess.Popen[str], line: str) -> bool:
        """Puts a request into the child's pipe; False where the child cannot have got all of it, and it is replaced.

        The lock is held: a stuck child that does not read a long prompt must not keep it.
        """
        assert process.stdin is not None
        watch = threading.Timer(_GRACE_SECONDS, process.kill)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except (OSError, ValueError):  # ValueError: the reader's end has closed it
            self._replace(process)  # half a line may be in its pipe
            return False
        finally:
            watch.cancel()
        return True

    def _replace(self, process: subprocess.Popen[str]) -> None:
        """Ends a child, which gets no further request; the reader's end tells all who still wait for it. The lock is held."""
        if self._process is process:
            self._process = None
        process.kill()

    def _running(self) -> subprocess.Popen[str]:
        """The child, started again where it has ended. The lock is held."""
        if self._process is not None and self._process.poll() is None:
            return self._process
        try:
            self._process = process = subprocess.Popen(  # noqa: S603  # the command is our own
                list(self._command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        except OSError as error:
            raise _Lost("connect", f"the probe process cannot be started: {error.strerror}", sent=False) from None
        self.starts += 1
        self._reads = reads = threading.Event()
        threading.Thread(target=self._read, args=(process, reads), daemon=True, name="probe-answers").start()
        return process

    def _read(self, process: subprocess.Popen[str], reads: threading.Event) -> None:
        """Hands out the answers of one child; at its end, tells all who still wait for it."""
        assert process.stdout is not None
        with contextlib.suppress(ValueError, OSError):  # the pipe was closed under us
            for line in process.stdout:
                answer = json.loads(line)
                if answer == READY:
                    reads.set()
                    continue
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
        reads.set()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdout.close()
