"""Remembers what the probes saw: last readings, counters, a histogram per length and cache state. Thread-safe.

`probing/runner.py` writes; `expose/probes.py` reads `snapshot()`. Counters live as long as the exporter, and end with their target.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from llm_exporter.sources.probe import ProbeReading
from llm_exporter.sources.probe_record import TTFT_BOUNDS, ProbeCell, ProbeRecord


@dataclass(slots=True)
class _Cell:
    last: ProbeReading
    counts: list[int] = field(default_factory=lambda: [0] * len(TTFT_BOUNDS))
    sum: float = 0.0


@dataclass(slots=True)
class _Entry:
    last_result: str = ""
    success: bool | None = None
    results: Counter[str] = field(default_factory=Counter)
    sent_prompt_tokens: int = 0
    last_run_at: float | None = None
    cells: dict[tuple[int, str], _Cell] = field(default_factory=dict)


class ResultStore:
    """All results, by (target, module)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], _Entry] = {}

    def register(self, target: str, module: str) -> None:
        """From now on the counters of this pair are known, and stand at 0."""
        with self._lock:
            self._entries.setdefault((target, module), _Entry())

    def keep_only(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Forgets every pair that is not in the configuration any more, and registers those that are."""
        wanted = set(pairs)
        with self._lock:
            self._entries = {pair: entry for pair, entry in self._entries.items() if pair in wanted}
            for pair in wanted:
                self._entries.setdefault(pair, _Entry())

    def note_sent(self, target: str, module: str, result: str, prompt_tokens: int) -> None:
        """One request was made; `prompt_tokens` is 0 where it never reached the server."""
        with self._lock:
            entry = self._entries.setdefault((target, module), _Entry())
            entry.results[result] += 1
            entry.sent_prompt_tokens += prompt_tokens

    def note_reading(self, target: str, module: str, prompt_tokens: int, cache: str, reading: ProbeReading) -> None:
        """One measured request of a cell."""
        with self._lock:
            entry = self._entries.setdefault((target, module), _Entry())
            cell = entry.cells.setdefault((prompt_tokens, cache), _Cell(reading))
            cell.last = reading
            ttft = reading.time_to_first_token_seconds
            if ttft is not None:
                cell.counts[bisect.bisect_left(TTFT_BOUNDS, ttft)] += 1
                cell.sum += ttft

    def note_run(self, target: str, module: str, result: str, *, success: bool, ended_at: float) -> None:
        """A run that was sent has ended; `ended_at` is unix seconds."""
        with self._lock:
            entry = self._entries.setdefault((target, module), _Entry())
            entry.last_result, entry.success, entry.last_run_at = result, success, ended_at

    def note_skip(self, target: str, module: str, result: str) -> None:
        """A run was not sent. What the last sent one showed stays."""
        with self._lock:
            self._entries.setdefault((target, module), _Entry()).last_result = result

    def snapshot(self, target: str | None = None, module: str | None = None) -> tuple[ProbeRecord, ...]:
        """Copies of all records, or of one target's, or of one pair's."""
        with self._lock:
            return tuple(
                _record(*pair, entry) for pair, entry in self._entries.items() if target in (None, pair[0]) and module in (None, pair[1])
            )


def _record(target: str, module: str, entry: _Entry) -> ProbeRecord:
    cells = []
    for (prompt_tokens, cache), cell in sorted(entry.cells.items()):
        total, cumulative = 0, []
        for count in cell.counts:
            total += count
            cumulative.append(float(total))
        cells.append(ProbeCell(prompt_tokens, cache, cell.last, cumulative, cell.sum))
    return ProbeRecord(
        target=target,
        module=module,
        last_result=entry.last_result,
        success=entry.success,
        results=dict(entry.results),
        sent_prompt_tokens=entry.sent_prompt_tokens,
        last_run_at=entry.last_run_at,
        cells=tuple(cells),
    )
