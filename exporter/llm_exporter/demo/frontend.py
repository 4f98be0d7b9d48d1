"""The single front-end process of a server: it tokenises requests one after the other and sends every output.

When it is slow, requests wait here before the scheduler knows of them, which no histogram of the scheduler shows. `model.py` owns one.
"""

from __future__ import annotations

import math
from collections import deque

from llm_exporter.demo.hardware import Conditions, Hardware
from llm_exporter.demo.request import Request

_SHARE_SECONDS = 2.0  # memory of the recent share of a core


class Frontend:
    """A queue of CPU work with one worker.

    Attributes:
        busy_seconds: CPU seconds booked since the start; a backlog is in it already.
        tokenising: (when it is done, request), in that order.
    """

    def __init__(self, hardware: Hardware, conditions: Conditions, now: float) -> None:
        self._hardware = hardware
        self._conditions = conditions
        self._free_at = now
        self.busy_seconds = 0.0
        self.tokenising: deque[tuple[float, Request]] = deque()
        self._share = 0.0  # kept only where there is a quota
        self._share_at = now

    def accept(self, request: Request, now: float, running_share: float) -> None:
        """Queue a request for tokenisation."""
        work = self._hardware.tokenise_seconds + request.prompt_tokens * self._hardware.tokenise_token_seconds
        self._book(work * self._conditions.tokenise_factor, now, running_share)
        self.tokenising.append((self._free_at, request))

    def send(self, outputs: int, now: float, running_share: float) -> None:
        """Book the sending of so many outputs."""
        self._book(outputs * self._hardware.chunk_seconds, now, running_share)

    def sends_at(self, now: float) -> float:
        """When an output that exists now is on the wire."""
        return max(self._free_at, now) + self._hardware.chunk_seconds

    def _book(self, work: float, now: float, running_share: float) -> None:
        self.busy_seconds += work
        if self._conditions.quota_cores is not None:
            self._share = self.recent_share(now) + work / _SHARE_SECONDS
            self._share_at = now
        speed = (1.0 - 0.5 * self._conditions.run_delay) * running_share
        self._free_at = max(self._free_at, now) + work / speed

    def recent_share(self, now: float) -> float:
        """Share of a core that it wanted in the last seconds."""
        return self._share * math.exp((self._share_at - now) / _SHARE_SECONDS)
