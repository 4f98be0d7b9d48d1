"""Remembers what the probes saw: last readings, counters, a histogram per length and cache state. Thread-safe.

`probing/run.py` writes; `expose/probes.py` reads `snapshot()`. Counters live as long as the exporter, and end with their target.
"""

from __future__ import annotations

import bisect
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from llm_exporter.probing.manners import ProbeModule
from llm_exporter.sources.probe import ProbeReading
from llm_exporter.sources.probe_record import TTFT_BOUNDS, ProbeCell, ProbeRecord

_MOST_FOREIGN = 256


@dataclass(slots=True)
class _Cell:
    last: ProbeReading | None = None
    running: list[ProbeReading] = field(default_factory=list)  # of the run that has not ended yet
    ended: list[ProbeReading] = field(default_factory=list)  # of the last run that has
    counts: list[int] = field(default_factory=lambda: [0] * len(TTFT_BOUNDS))
    sum: float = 0.0
    left_out: bool = False  # the server's context does not hold this length, so nothing is said of it

    def count(self, reading: ProbeReading) -> None:
        """Adds a reading's time to first token, where it has one, to the histogram."""
        ttft = reading.time_to_first_token_seconds
        if ttft is not None:
            self.counts[bisect.bisect_left(TTFT_BOUNDS, ttft)] += 1
            self.sum += ttft


@dataclass(slots=True)
class _Entry:
    last_result: str = ""
    success: bool | None = None
    results: Counter[str] = field(default_factory=Counter)
    sent_prompt_tokens: int = 0
    completion_tokens: int = 0
    # (result, prompt tokens, completion tokens) of each request: of the run that has not ended yet, and of the last one that has
    running: list[tuple[str, int, int]] = field(default_factory=list)
    ended: list[tuple[str, int, int]] = field(default_factory=list)
    last_run_at: float | None = None
    cells: dict[tuple[int, str], _Cell] = field(default_factory=dict)


class ResultStore:
    """All results, by (target, module)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._configured: frozenset[tuple[str, str]] | None = None  # None: nobody has said what is

    def register(self, target: str, module_name: str, module: ProbeModule) -> None:
        """From now on the counters of this pair are known, and stand at 0."""
        with self._lock:
            self._register(target, module_name, module)

    def keep_only(self, wanted: Mapping[tuple[str, str], ProbeModule], moved: Collection[str] = ()) -> None:
        """Forgets every (target, module) that is not in the configuration any more, and registers those that are.

        `moved` targets have another address than before: what the old server showed is forgotten too.
        """
        with self._lock:
            self._configured = frozenset(wanted)
            self._entries = {pair: entry for pair, entry in self._entries.items() if pair in wanted and pair[0] not in moved}
            for (target, module_name), module in wanted.items():
                self._register(target, module_name, module)

    def _register(self, target: str, module_name: str, module: ProbeModule) -> None:
        if self._configured is not None and (target, module_name) not in self._configured:
            self._make_room()
        cells = self._entries.setdefault((target, module_name), _Entry()).cells
        wanted = [(length, cache) for length in module.prompt_tokens for cache in module.cache]
        for key in wanted:
            cells.setdefault(key, _Cell())
        for key in set(cells) - set(wanted):  # the module was changed by a reload
            del cells[key]

    def begin_run(self, target: str, module: str) -> Recording:
        """What the run that begins now is written into. What an earlier one left that never ended is dropped."""
        with self._lock:
            entry = self._entries.setdefault((target, module), _Entry())
            entry.running = []
            for cell in entry.cells.values():
                cell.running = []
        return Recording(self._lock, target, module, entry)

    def note_skip(self, target: str, module: str, result: str) -> None:
        """A run was not sent. What the last sent one showed stays."""
        with self._lock:
            entry = self._entries.get((target, module))
            if entry is not None:
                entry.last_result = result

    def snapshot(self, target: str | None = None, module: str | None = None) -> tuple[ProbeRecord, ...]:
        """Copies of one target's records, or of one pair's; of all that are configured without a name.

        What `/probe` did for a URL that is no target is in its own answer only.
        """

        def asked_for(pair: tuple[str, str]) -> bool:
            configured = self._configured is None or pair in self._configured
            return (pair[0] == target or (target is None and configured)) and module in (None, pair[1])

        with self._lock:
            return tuple(_record(*pair, entry) for pair, entry in self._entries.items() if asked_for(pair))

    def last_run(self, target: str, module: str) -> ProbeRecord:
        """The last run that was sent, alone: its requests, its tokens, its times to first token."""
        with self._lock:
            entry = self._entries.get((target, module))
            return ProbeRecord(target, module) if entry is None else _last_run(target, module, entry)

    def _make_room(self) -> None:
        """Forgets the oldest entries of URLs that are no targets, so that nobody can fill the memory through `/probe`."""
        foreign = [pair for pair in self._entries if self._configured is not None and pair not in self._configured]
        for pair in foreign[: max(0, len(foreign) - _MOST_FOREIGN + 1)]:
            del self._entries[pair]


class Recording:
    """One run, written down as it goes. Thread-safe.

    It holds the entry that it began with: where the target has left the configuration meanwhile, or has moved to another server, what the
    run still brings is written where nobody reads it.
    """

    def __init__(self, lock: threading.Lock, target: str, module: str, entry: _Entry) -> None:
        self._lock, self._target, self._module, self._entry = lock, target, module, entry

    def leave_out(self, lengths: Collection[int]) -> None:
        """These lengths are not sent to this server; the others are."""
        with self._lock:
            for (prompt_tokens, _), cell in self._entry.cells.items():
                cell.left_out = prompt_tokens in lengths

    def sent(self, result: str, prompt_tokens: int, completion_tokens: int) -> None:
        """One request was made; `prompt_tokens` is 0 where it never reached the server."""
        with self._lock:
            self._entry.results[result] += 1
            self._entry.sent_prompt_tokens += prompt_tokens
            self._entry.completion_tokens += completion_tokens
            self._entry.running.append((result, prompt_tokens, completion_tokens))

    def reading(self, prompt_tokens: int, cache: str, reading: ProbeReading) -> None:
        """One measured request of a cell; of one that a reload took away, nothing is kept."""
        with self._lock:
            cell = self._entry.cells.get((prompt_tokens, cache))
            if cell is not None:
                cell.running.append(reading)
                cell.count(reading)

    def ended(self, result: str, *, success: bool, ended_at: float) -> None:
        """The run was sent and has ended; `ended_at` is unix seconds."""
        with self._lock:
            entry = self._entry
            entry.last_result, entry.success, entry.last_run_at = result, success, ended_at
            entry.ended, entry.running = entry.running, []
            for cell in entry.cells.values():
                cell.last, cell.ended, cell.running = _representative(cell.running), cell.running, []

    def skipped(self, result: str) -> None:
        """The run was not sent, or the rest of it."""
        with self._lock:
            self._entry.last_result = result

    def record(self) -> ProbeRecord:
        """The last run of this target and module that was sent, alone."""
        with self._lock:
            return _last_run(self._target, self._module, self._entry)


def _last_run(target: str, module: str, entry: _Entry) -> ProbeRecord:
    cells = {key: _alone(cell) for key, cell in entry.cells.items()}
    results = Counter(result for result, _, _ in entry.ended)
    prompt, completion = sum(tokens for _, tokens, _ in entry.ended), sum(tokens for _, _, tokens in entry.ended)
    return _record(target, module, replace(entry, results=results, sent_prompt_tokens=prompt, completion_tokens=completion, cells=cells))


def _alone(cell: _Cell) -> _Cell:
    alone = _Cell(last=cell.last, left_out=cell.left_out)
    for reading in cell.ended:
        alone.count(reading)
    return alone


def _representative(readings: list[ProbeReading]) -> ProbeReading | None:
    """A failed one, else the one with the median TTFT, else one that was read too late to have a TTFT.

    None where the run did not come to this cell: an old value is none.
    """
    failed = [reading for reading in readings if not reading.success]
    if failed:
        return failed[-1]
    timed = [(ttft, place) for place, reading in enumerate(readings) if (ttft := reading.time_to_first_token_seconds) is not None]
    if timed:
        return readings[sorted(timed)[(len(timed) - 1) // 2][1]]
    return readings[-1] if readings else None


def _record(target: str, module: str, entry: _Entry) -> ProbeRecord:
    cells = []
    for (prompt_tokens, cache), cell in sorted(entry.cells.items()):
        if cell.left_out:
            continue
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
        completion_tokens=entry.completion_tokens,
        last_run_at=entry.last_run_at,
        cells=tuple(cells),
    )
