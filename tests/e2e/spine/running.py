"""A running exporter and small players of captured pages, for end-to-end tests: real processes and sockets, loopback only."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.request import Request, urlopen

from fakes.servers import FakeServer, Handler, page, routes, then

VERSIONS = {"/version": b'{"version": "0.32.0"}', "/server_info": b'{"version": "0.5.23"}'}


def until(true: Callable[[], object], seconds: float = 10.0, *, what: str = "the condition") -> None:
    """Waits for a condition; fails after `seconds`."""
    end, pause = time.monotonic() + seconds, threading.Event()
    while not true():
        assert time.monotonic() < end, f"{what} did not come true within {seconds} s"
        pause.wait(0.01)


def player(pages: Iterable[Path | bytes]) -> FakeServer:
    """A server that plays captured pages in order, one per scrape; the last one stays. It tells its version like the engines do."""
    bodies = [one if isinstance(one, bytes) else one.read_bytes() for one in pages]
    versions: dict[str, Handler] = {path: page(body, content_type="application/json") for path, body in VERSIONS.items()}
    return FakeServer(routes({"/metrics": then(*(page(body) for body in bodies)), **versions}))


class Exporter:
    """`llm-exporter serve` in a process of its own, on a port that the kernel chooses.

    Args:
        config: the configuration file.
        arguments: further flags.
    """

    def __init__(self, config: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "llm_exporter", "serve", "--config.file", str(config), "--web.listen-address", "127.0.0.1:0"]
        self.log: list[str] = []
        self._process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line)

    def __enter__(self) -> Self:
        try:
            until(lambda: self._listening() or self._process.poll() is not None, 30, what="listening")
            assert self.port, "".join(self.log)
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def _listening(self) -> bool:
        found = next((m for line in self.log if (m := re.search(r"listens on port (\d+)", line))), None)
        self.port = int(found[1]) if found else 0
        return found is not None

    @property
    def pid(self) -> int:
        return self._process.pid

    def said(self, text: str) -> int:
        """How many lines of the log hold the text."""
        return sum(text in line for line in self.log)

    def get(self, path: str = "/metrics", **headers: str) -> str:
        request = Request(f"http://127.0.0.1:{self.port}{path}", headers={name.replace("_", "-"): value for name, value in headers.items()})
        with urlopen(request, timeout=10) as answer:
            body: bytes = answer.read()
        return body.decode()

    def targets(self) -> dict[str, dict[str, object]]:
        return {row["name"]: row for row in json.loads(self.get("/api/v1/targets"))["targets"]}

    def hup(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def terminate(self) -> float:
        """Sends SIGTERM; returns the seconds until the process had ended. Its exit code must be 0."""
        began = time.monotonic()
        self._process.terminate()
        assert self._process.wait(15) == 0
        return time.monotonic() - began

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(10)
        self._reader.join(5)
        assert self._process.stderr is not None
        self._process.stderr.close()
