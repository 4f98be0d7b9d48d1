"""Episodes worth a date: a replica that was down, a starved night, heat, restarts, a change of version.

In: a `Service`, the window. Out: `Event`s in order of time. Called by `review.py`. Short flickers are joined and small ones dropped, so
that the page names what a person would remember.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import tzinfo
from itertools import pairwise

import numpy as np

from llm_exporter.report.finding import Span
from llm_exporter.report.fleet import Service, highest
from llm_exporter.report.grid import Bools, Floats, local

JOIN_SECONDS = 1800
LEAST_SECONDS = {"down": 900, "starved": 1800, "throttled": 1800, "unobserved": 3600}


@dataclass(frozen=True)
class Event:
    """One episode.

    Attributes:
        kind: down, starved, throttled, restarted, version_changed, unobserved.
        target: whose.
        start, end: unix seconds.
        detail: what else is known, empty or a clause.
    """

    kind: str
    target: str
    start: int
    end: int
    detail: str = ""

    def sentence(self, zone: tzinfo) -> str:
        """For people."""
        hours = (self.end - self.start) / 3600
        span = f"{local(self.start, zone)} to {local(self.end, zone)} ({hours:.1f} h)"
        text = {
            "down": f"{self.target} did not answer from {span}",
            "starved": f"{self.target} kept its GPUs waiting for the CPU from {span}",
            "throttled": f"{self.target} was slowed down by heat or a brake from {span}",
            "restarted": f"{self.target} restarted, between {local(self.start, zone)} and {local(self.end, zone)}",
            "version_changed": f"{self.target} changed at {local(self.start, zone)}",
            "unobserved": f"nothing is known of {self.target} from {span}",
        }[self.kind]
        return f"{text}{': ' + self.detail if self.detail else ''}."


def episodes(marked: Bools, step: int, least: int, join: int = JOIN_SECONDS) -> list[tuple[int, int]]:
    """Runs of marked windows as (first, last + 1); gaps up to `join` seconds are closed, runs under `least` seconds dropped."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    runs: list[tuple[int, int]] = []
    for first, stop in zip(edges[0::2].tolist(), edges[1::2].tolist(), strict=True):
        if runs and (first - runs[-1][1]) * step <= join:
            runs[-1] = (runs[-1][0], stop)
        else:
            runs.append((first, stop))
    return [(first, stop) for first, stop in runs if (stop - first) * step >= least]


def review_events(service: Service, span: Span) -> list[Event]:
    """All episodes of the service that touch the window."""
    found = [event for index in range(len(service.targets)) for event in _of_target(service, index, span)]
    outages = [event for event in found if event.kind == "down"]
    # A server that was down has restarted: once is enough.
    found = [
        event
        for event in found
        if event.kind != "restarted"
        or not any(down.target == event.target and down.start <= event.start <= down.end + JOIN_SECONDS for down in outages)
    ]
    found += version_changes(service)
    return sorted((event for event in found if event.end > span.start and event.start < span.end), key=lambda event: event.start)


def _of_target(service: Service, index: int, span: Span) -> Iterator[Event]:
    grid, target = service.grid, service.targets[index]
    where = grid.within(span.start, span.end)
    known = np.isfinite(service.up[index])

    def marked(kind: str, flags: Bools) -> Iterator[Event]:
        for first, stop in episodes(flags & where, grid.step, LEAST_SECONDS[kind]):
            yield Event(kind, target, grid.start + first * grid.step, grid.start + stop * grid.step)

    yield from marked("down", known & ~service.alive[index])
    yield from marked("unobserved", service.exists[index] & ~known)
    for kind, key, limit in (("starved", "starved", 0.5), ("throttled", "throttled", 0.2)):
        row = highest([trace.values for trace in service.history.of(key) if trace.label("target") == target])
        if row is not None:
            yield from marked(kind, np.nan_to_num(row) >= limit)
    for trace in service.history.of("restarts"):
        if trace.label("target") == target:
            yield from _restarts(trace.values, target, grid.start, grid.step, where)


def _restarts(values: Floats, target: str, start: int, step: int, where: Bools) -> Iterator[Event]:
    for at in np.flatnonzero(where & (np.nan_to_num(values) >= 1)).tolist():
        yield Event("restarted", target, start + at * step, start + (at + 1) * step)


def version_changes(service: Service) -> list[Event]:
    """Changes of engine or version over the whole history, at the hour in which the new one was first seen."""
    coarse = service.history.coarse
    changes = []
    for target in service.targets:
        seen: list[tuple[int, str]] = []
        for trace in service.history.of("info"):
            known = np.flatnonzero(np.isfinite(trace.values))
            if trace.label("target") == target and known.size and trace.label("engine") not in {"", "unknown"}:
                seen.append((int(known[0]), f"{trace.label('engine')} {trace.label('engine_version')}".strip()))
        seen.sort()
        for (_, old), (first, new) in pairwise(seen):
            if new != old:
                at = coarse.start + first * coarse.step
                changes.append(Event("version_changed", target, at, at + coarse.step, f"{old} to {new}"))
    return changes
