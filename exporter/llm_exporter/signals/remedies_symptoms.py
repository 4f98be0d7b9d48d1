"""Symptoms of a live (or replayed) server: what the table of remedies needs, from one target's view.

In: a `TargetView` with its decision. Out: `Symptoms`. Several models on one page: sums of counts, the worst of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from llm_exporter.signals.evidence import gather
from llm_exporter.signals.model import ModelView, TargetView
from llm_exporter.signals.phases import SIGNALS as PHASES
from llm_exporter.signals.remedies_model import Symptoms
from llm_exporter.state.window import Window

WINDOW = "1m"
_Item = TypeVar("_Item")
_PHASES = next(signal.of_window for signal in PHASES if signal.name == "llm_request_phase_mean_seconds")


def symptoms_of(view: TargetView, restarts: int = 0) -> Symptoms:
    """Symptoms of the last minute. `restarts`: how many were seen while somebody watched."""
    models = view.models
    if not models:
        return Symptoms(restarts=float(restarts))
    windows = [model.window(WINDOW) for model in models]
    phases = _phases(models, windows)
    gaps = [g for w in windows if (g := w.histogram("inter_token_latency")) is not None and g.count > 0]
    tails = [(q.value, g.count) for g in gaps if (q := g.quantile(0.99)) is not None]
    ttft = [g.mean for w in windows if (g := w.histogram("time_to_first_token")) is not None]
    prompts = [g.mean for w in windows if (g := w.histogram("request_prompt_tokens")) is not None]
    decision = view.decision
    return Symptoms(
        engine=view.store.engine,
        cause=decision.cause if decision else "unknown",
        why=decision.why if decision else (),
        evidence=gather(view),
        ttft=_most(ttft),
        queue=phases.get("queue"),
        prefill=phases.get("prefill"),
        frontend=phases.get("frontend"),
        inter_token_mean=_most(g.mean for g in gaps),
        inter_token_p99=max(tails)[0] if tails else None,
        inter_token_gaps=max(tails)[1] if tails else None,
        prompt_tokens_mean=_most(prompts),
        prefill_rate=_rate(windows, "prompt_tokens_computed"),
        waiting=_sum(models, lambda m: m.value("requests_waiting_capacity")),
        deferred=_sum(models, lambda m: m.value("requests_deferred")),
        running=_sum(models, lambda m: m.value("requests_running")),
        running_limit=_limit(view, models),
        disaggregated=_sum(models, lambda m: sum(found.values()) if (found := m.values("disaggregated_queue_requests")) else None),
        rejected=_increase(windows, "requests_rejected"),
        server_errors=_sum(windows, lambda w: w.increases("http_responses").get("5xx")),
        evicted=_increase(windows, "evicted_tokens"),
        restarts=float(restarts),
        graphless=_graphless(windows),
        hit_ratio=_hit_ratio(windows),
        cache_on=_cache_on(models),
        throttle_reasons=dict(view.gpu.throttled or {}) if view.gpu is not None else {},
        cores_available=view.host.cpus_available if view.host is not None else None,
    )


def phases_of(view: TargetView) -> dict[str, float]:
    """Mean seconds by phase (queue, prefill, decode, frontend) over the last minute; only what is known."""
    models = view.models
    return _phases(models, [model.window(WINDOW) for model in models])


def _phases(models: Iterable[ModelView], windows: list[Window]) -> dict[str, float]:
    assert _PHASES is not None
    found: dict[str, float] = {}
    for model, window in zip(models, windows, strict=True):
        for (phase,), value in _PHASES(model, window).values.items():
            found[phase] = max(value, found.get(phase, 0.0))
    return found


def _limit(view: TargetView, models: Iterable[ModelView]) -> float | None:
    told = _sum(models, lambda m: m.value("requests_running_limit"))
    configured = view.config.limits.running
    return told if told is not None else None if configured is None else float(configured)


def _graphless(windows: list[Window]) -> float | None:
    passes: dict[str, float] = {}
    for window in windows:
        for mode, gained in window.increases("graph_passes").items():
            passes[mode] = passes.get(mode, 0.0) + gained
    decode = {mode: gained for mode, gained in passes.items() if mode.startswith("decode_")}
    total = sum(decode.values())
    return decode.get("decode_none", 0.0) / total if total > 0 else None


def _hit_ratio(windows: list[Window]) -> float | None:
    hit, queried = _increase(windows, "prefix_cache_hit_tokens"), _increase(windows, "prefix_cache_queried_tokens")
    return min(1.0, hit / queried) if hit is not None and queried else None


def _cache_on(models: Iterable[ModelView]) -> bool | None:
    told = _sum(models, lambda m: m.value("prefix_cache_enabled"))
    return None if told is None else told > 0


def _rate(windows: list[Window], field: str) -> float | None:
    gained, spent = _increase(windows, field), max((w.seconds for w in windows), default=0.0)
    return gained / spent if gained is not None and spent > 0 else None


def _increase(windows: list[Window], field: str) -> float | None:
    return _sum((w for w in windows if w.scrapes > 1), lambda w: w.increase(field))


def _sum(items: Iterable[_Item], value: Callable[[_Item], float | None]) -> float | None:
    known = [found for item in items if (found := value(item)) is not None]
    return sum(known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
