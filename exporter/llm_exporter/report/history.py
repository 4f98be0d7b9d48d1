"""What Prometheus remembers of our targets, laid on one grid.

In: `Prometheus`, a span of time. Out: `History`: per record the series of each target, counters turned into increases. Called by
`review.py`. Reads the recorded series where the rules ran and the raw metrics for the rest of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import tzinfo

import numpy as np

from llm_exporter.errors import FetchError
from llm_exporter.report.grid import Floats, Grid, stamp
from llm_exporter.report.query import Prometheus
from llm_exporter.report.wire import Series
from llm_exporter.signals.review_records import COARSE_SECONDS, FACTS, RECORD, RECORDS, STEP_SECONDS, Record

THREADS = 3
_MEANT = ("target", "model", "engine", "slo", "outcome", "reason", "le", "cause", "engine_version", "service")


@dataclass(frozen=True)
class Trace:
    """One series on the grid.

    Attributes:
        labels: as Prometheus had them, without the name.
        values: per window the mean, or the increase where the record is a counter; NaN where unknown. Shape (grid.count,).
        carried: per window an increase that came after a gap: right in a total, but not the work of that window alone. None for means.
    """

    labels: Mapping[str, str]
    values: Floats
    carried: Floats | None = None

    def label(self, name: str) -> str:
        """A label's value, "" where it is missing."""
        return self.labels.get(name, "")

    @property
    def source(self) -> tuple[tuple[str, str], ...]:
        """What tells apart two exporters that report one target: job, instance and whatever the server added."""
        return tuple(sorted((name, value) for name, value in self.labels.items() if name not in _MEANT))


@dataclass
class History:
    """All that was read.

    Attributes:
        grid: five-minute windows.
        coarse: hourly windows over the same span.
        traces: by record key.
        warnings: sentences for the reader.
    """

    grid: Grid
    coarse: Grid
    traces: dict[str, list[Trace]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def of(self, key: str) -> list[Trace]:
        """Series of a record; empty where Prometheus had none."""
        return self.traces.get(key, [])


def increases(levels: Floats) -> tuple[Floats, Floats]:
    """Increases of a counter between even samples.

    A fall is a restart: what was counted before the first sample after it is lost, and the increase is that sample. Over a gap the
    increase is known but not when it came: it goes to `carried` at the first window after the gap.

    Args:
        levels: counter as read, NaN where there was no sample, shape (n + 1,).

    Returns:
        increase per window with NaN where unknown, and carried increases with 0 elsewhere; both shape (n,).
    """
    windows = np.full(levels.size - 1, np.nan)
    carried = np.zeros(levels.size - 1)
    at = np.flatnonzero(np.isfinite(levels))
    if at.size < 2:
        return windows, carried
    seen = levels[at]
    rise = np.diff(seen)
    rise = np.where(rise < 0, seen[1:], rise)
    adjacent = np.diff(at) == 1
    ends = at[1:] - 1
    windows[ends[adjacent]] = rise[adjacent]
    carried[ends[~adjacent]] = rise[~adjacent]
    return windows, carried


def total(traces: Iterable[Trace], where: np.ndarray | None = None) -> float | None:
    """Sum of all increases, those after gaps included; None where no series says anything."""
    amount, known = 0.0, False
    for trace in traces:
        values = trace.values if where is None else trace.values[where]
        known = known or bool(np.isfinite(values).any())
        amount += float(np.nansum(values))
        if trace.carried is not None:
            carried = trace.carried if where is None else trace.carried[where]
            amount += float(carried.sum())
            known = known or bool(carried.any())
    return amount if known else None


class _Sheet:
    """Collects the pieces of one record into arrays on a grid, one per label set."""

    def __init__(self, record: Record, grid: Grid) -> None:
        self.record = record
        self.grid = grid
        self.extra = 1 if record.level else 0
        self.points = 0
        self.rows: dict[tuple[tuple[str, str], ...], Floats] = {}

    def add(self, series: list[Series]) -> None:
        for one in series:
            labels = tuple(sorted((name, value) for name, value in one.labels.items() if name != "__name__"))
            row = self.rows.get(labels)
            if row is None:
                row = self.rows[labels] = np.full(self.grid.count + self.extra, np.nan)
            at = np.rint((one.times - self.grid.start) / self.grid.step).astype(np.int64) - 1 + self.extra
            inside = (at >= 0) & (at < row.size)
            row[at[inside]] = one.values[inside]
            self.points += int(inside.sum())

    def traces(self) -> Iterator[Trace]:
        for labels, row in self.rows.items():
            if self.record.level:
                windows, carried = increases(row)
                yield Trace(dict(labels), windows, carried)
            else:
                yield Trace(dict(labels), row)


def read_history(
    prometheus: Prometheus, start: int, end: int, zone: tzinfo, *, progress: Callable[[str, int, int], None] = lambda *_: None
) -> History:
    """Read every record from start to end.

    Args:
        prometheus: the server.
        start: unix seconds.
        end: unix seconds; both are moved down to a multiple of the step.
        zone: the reader's time zone.
        progress: told the record's name, how many are done, and how many there are.

    Raises:
        FetchError: the server gave nothing usable, or holds nothing of ours in this span.
    """
    end -= end % STEP_SECONDS
    start -= (start - end) % STEP_SECONDS
    hours = (end - start) // COARSE_SECONDS
    grid = Grid(start, (end - start) // STEP_SECONDS, STEP_SECONDS, zone)
    history = History(grid, Grid(end - hours * COARSE_SECONDS, hours, COARSE_SECONDS, zone))
    spans = _spans(prometheus, history)
    todo = (*RECORDS, *FACTS)
    done = 0

    def read(record: Record) -> tuple[Record, _Sheet]:
        sheet = _Sheet(record, history.coarse if record.coarse else grid)
        for begin, stop, recorded in spans:
            _read_span(prometheus, record, sheet, begin, stop, recorded=recorded)
        return record, sheet

    with ThreadPoolExecutor(THREADS, thread_name_prefix="query") as pool:
        for record, sheet in pool.map(read, todo):
            history.traces[record.key] = list(sheet.traces())
            done += 1
            progress(record.key, done, len(todo))
    return history


def _read_span(prometheus: Prometheus, record: Record, sheet: _Sheet, begin: int, stop: int, *, recorded: bool) -> None:
    matchers = prometheus.connection.matchers
    grid = sheet.grid
    # First and last point of this record's grid within the span; a level needs the point at the very start too.
    first = grid.start + max(0, -(-(begin - grid.start) // grid.step)) * grid.step
    if not record.level and first == grid.start:
        first += grid.step
    if first > stop:
        return
    before = sheet.points
    if recorded and record.record:
        prometheus.range(record.selector(matchers), first, stop, grid.step, sink=sheet.add)
    if sheet.points == before:  # no such rule (or no such metric at all: one question more)
        prometheus.range(record.expression(matchers=matchers), first, stop, grid.step, sink=sheet.add)


def _spans(prometheus: Prometheus, history: History) -> list[tuple[int, int, bool]]:
    """Cut the span into parts with and without recorded series: (begin, end, recorded)."""
    grid = history.grid
    up = RECORD["up"]
    matchers = prometheus.connection.matchers
    seen: list[tuple[float, float] | None] = []
    for expression in (up.selector(matchers), f"count({up.expression('1h', matchers)})"):
        times: list[float] = []

        def note(series: list[Series], times: list[float] = times) -> None:
            times.extend(float(edge) for one in series if one.times.size for edge in (one.times[0], one.times[-1]))

        prometheus.range(expression, grid.end - history.coarse.count * COARSE_SECONDS, grid.end, COARSE_SECONDS, sink=note)
        seen.append((min(times), max(times)) if times else None)
    recorded, raw = seen
    if recorded is None and raw is None:
        chosen = f" that match {{{matchers}}}" if matchers else ""
        raise FetchError(
            "no_history",
            f"{prometheus.connection.url} answers, but holds no llm_target_up{chosen} between {stamp(grid.start)} and {stamp(grid.end)}",
            hint="is llm-exporter scraped by this server, and do report.prometheus.matchers fit?",
        )
    if recorded is None:
        history.warnings.append(
            "No recording rules found (target:llm_…): figures were computed from raw metrics, which is slower for the server. "
            "Load the file that `llm-exporter generate alerts` writes."
        )
        return [(grid.start, grid.end, False)]
    begin, stop = grid.start, grid.end
    if raw is not None and recorded[0] > raw[0] + COARSE_SECONDS:
        begin = int(recorded[0])
    if raw is not None and recorded[1] < raw[1] - COARSE_SECONDS:
        stop = int(recorded[1])
    spans = [(begin, stop, True)]
    if begin > grid.start:
        spans.insert(0, (grid.start, begin - STEP_SECONDS, False))
    if stop < grid.end:
        spans.append((stop + STEP_SECONDS, grid.end, False))
    if len(spans) > 1:
        history.warnings.append(
            f"Recording rules cover {stamp(begin)} to {stamp(stop)}; the rest was computed from raw metrics, which is slower."
        )
    return spans
