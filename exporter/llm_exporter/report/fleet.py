"""From series to the models we review: which targets serve a model, and what they did together in each window.

In: `History`. Out: one `Service` per model (or per model and configured service). Called by `review.py`; the analyses read only this.
Numbers of replicas are added first and divided last. A replica that is down adds nothing; one whose numbers are unknown makes the
window unknown, since half a sum looks like a quiet hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from llm_exporter.report.grid import Bools, Floats, Grid
from llm_exporter.report.history import History, Trace, total


@dataclass(frozen=True)
class TargetFacts:
    """What the configuration says about a target, where there is one."""

    gpu_count: float | None = None
    gpu_cost_per_hour: float | None = None


@dataclass
class Service:
    """One model as its users see it: all targets that serve it.

    Attributes:
        model: the model's name.
        targets: names, sorted.
        engine: vllm, sglang, or unknown; of the target seen last.
        history: everything that was read.
        facts: by target.
        share: by target, the part of its tokens that belongs to this model (1 where it serves one model).
    """

    model: str
    targets: tuple[str, ...]
    engine: str
    history: History
    facts: Mapping[str, TargetFacts] = field(default_factory=dict)
    share: Mapping[str, float] = field(default_factory=dict)

    @property
    def grid(self) -> Grid:
        """Five-minute windows."""
        return self.history.grid

    def traces(self, key: str, target: str = "", **labels: str) -> list[Trace]:
        """Series of this service: of one target, or of all."""
        wanted = (target,) if target else self.targets
        return [
            trace
            for trace in self.history.of(key)
            if trace.label("target") in wanted
            and trace.labels.get("model", self.model) == self.model
            and all(trace.label(name) == value for name, value in labels.items())
        ]

    def summed(self, key: str, target: str = "", **labels: str) -> Floats | None:
        """Sum over series per window; NaN where none is known, None where there is no series at all."""
        return add([trace.values for trace in self.traces(key, target, **labels)])

    def total(self, key: str, where: Bools, **labels: str) -> float | None:
        """Sum of a counter's increases in these windows, those after gaps included."""
        return total(self.traces(key, **labels), where)

    @cached_property
    def up(self) -> Floats:
        """Share of each window in which each target could be read, shape (targets, windows); NaN where nobody asked."""
        rows = [highest([trace.values for trace in self.history.of("up") if trace.label("target") == name]) for name in self.targets]
        empty = np.full(self.grid.count, np.nan)
        return np.array([empty if row is None else row for row in rows])

    @cached_property
    def exists(self) -> Bools:
        """From the first to the last window in which a target was asked, shape (targets, windows)."""
        known = np.isfinite(self.up)
        after = np.maximum.accumulate(known, axis=1)
        before = np.maximum.accumulate(known[:, ::-1], axis=1)[:, ::-1]
        both: Bools = after & before
        return both

    @cached_property
    def alive(self) -> Bools:
        """Targets that answered for most of the window, shape (targets, windows)."""
        return np.nan_to_num(self.up) >= 0.5

    @cached_property
    def weights(self) -> Floats:
        """Capacity of each target relative to the others: its GPUs, or 1 where those are unknown of any. Shape (targets,)."""
        counts = [self.gpus_of(name) for name in self.targets]
        if any(count is None or count <= 0 for count in counts):
            return np.ones(len(self.targets))
        values: Floats = np.array(counts, dtype=np.float64)
        return np.asarray(values / values.mean(), dtype=np.float64)

    @cached_property
    def live(self) -> Floats:
        """Weight of the targets that are up, per window."""
        return np.asarray(self.weights @ self.alive, dtype=np.float64)

    def gpus_of(self, target: str) -> float | None:
        """GPUs of a target: as configured, else as seen."""
        stated = self.facts.get(target, TargetFacts()).gpu_count
        if stated is not None:
            return stated
        seen = [trace.values for trace in self.history.of("gpus") if trace.label("target") == target]
        row = add(seen)
        known = row[np.isfinite(row)] if row is not None else np.zeros(0)
        return float(np.median(known)) if known.size else None

    @cached_property
    def observed(self) -> Bools:
        """Windows in which every target that was up also told its tokens: the only ones fit for statistics of load."""
        fit: Bools = np.asarray(self.alive.any(axis=0))
        for index, name in enumerate(self.targets):
            tokens = self.summed("generation_tokens", name)
            known = np.isfinite(tokens) if tokens is not None else np.zeros(self.grid.count, dtype=bool)
            unsaid = self.exists[index] & ~np.isfinite(self.up[index])
            fit &= ~unsaid & (~self.alive[index] | known)
        return fit

    def rate(self, key: str, **labels: str) -> Floats | None:
        """Increase per second, summed over targets, NaN where unknown."""
        row = self.summed(key, **labels)
        return None if row is None else np.where(self.observed, row / self.grid.step, np.nan)

    def gauge(self, key: str) -> Floats | None:
        """A mean gauge, summed over targets, NaN where unknown."""
        row = self.summed(key)
        return None if row is None else np.where(self.observed, row, np.nan)


def add(rows: Sequence[Floats]) -> Floats | None:
    """Sum that ignores unknown parts; NaN where all are unknown; None for no rows."""
    if not rows:
        return None
    stack = np.array(rows)
    known = np.isfinite(stack)
    sums: Floats = np.where(known, stack, 0.0).sum(axis=0)
    return np.where(known.any(axis=0), sums, np.nan)


def highest(rows: Sequence[Floats]) -> Floats | None:
    """Largest known value per window; NaN where all are unknown; None for no rows."""
    return None if not rows else np.fmax.reduce(np.array(rows), axis=0)


def services(history: History, facts: Mapping[str, TargetFacts] | None = None) -> list[Service]:
    """Group the targets of a history by model.

    Targets whose configured service differs from their name are replicas of that service; where nobody configured one, all targets
    of a model count as replicas, and a warning says so.
    """
    targets_of: dict[str, set[str]] = defaultdict(set)
    tokens: dict[tuple[str, str], float] = defaultdict(float)
    for key in ("generation_tokens", "prompt_tokens", "running"):
        for trace in history.of(key):
            target, model = trace.label("target"), trace.label("model")
            if target and np.isfinite(trace.values).any():
                targets_of[model].add(target)
                if key == "generation_tokens":
                    tokens[target, model] += float(np.nansum(trace.values))
    service_of, engine_of = _info(history)
    found: list[Service] = []
    for model, targets in sorted(targets_of.items()):
        configured = any(service_of.get(target, target) != target for target in targets)
        groups: dict[str, list[str]] = defaultdict(list)
        for target in sorted(targets):
            groups[service_of.get(target, target) if configured else ""].append(target)
        if not configured and len(targets) > 1:
            names = ", ".join(sorted(targets))
            history.warnings.append(f"{model}: no `service` is configured, so {names} are taken as replicas of one service.")
        for _, members in sorted(groups.items()):
            shares = {}
            for target in members:
                whole = sum(amount for (name, _), amount in tokens.items() if name == target)
                shares[target] = tokens[target, model] / whole if whole > 0 else 1.0
            engines = [engine_of[target] for target in members if target in engine_of]
            found.append(Service(model, tuple(members), engines[-1] if engines else "unknown", history, facts or {}, shares))
    _warn_of_twins(history)
    return found


def _info(history: History) -> tuple[dict[str, str], dict[str, str]]:
    """Service and engine by target, from the info series seen last."""
    latest: dict[str, tuple[int, Trace]] = {}
    for trace in history.of("info"):
        known = np.flatnonzero(np.isfinite(trace.values))
        if known.size and known[-1] >= latest.get(trace.label("target"), (-1, trace))[0]:
            latest[trace.label("target")] = (int(known[-1]), trace)
    services = {target: trace.label("service") or target for target, (_, trace) in latest.items()}
    return services, {target: trace.label("engine") or "unknown" for target, (_, trace) in latest.items()}


def _warn_of_twins(history: History) -> None:
    """Say when one target's name is reported by several exporters at the same time."""
    by_target: dict[str, list[Trace]] = defaultdict(list)
    for trace in history.of("up"):
        by_target[trace.label("target")].append(trace)
    for target, traces in sorted(by_target.items()):
        together = np.isfinite(np.array([trace.values for trace in traces])).sum(axis=0)
        if (together > 1).sum() > 12:
            history.warnings.append(
                f"Target {target} is reported by {int(together.max())} exporters at the same time; their numbers are added. "
                "If they watch one server, choose one with report.prometheus.matchers."
            )
