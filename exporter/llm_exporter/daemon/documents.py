"""Rows and documents about targets, for the status page and the JSON API; built from what is published, so they cannot differ from it."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from llm_exporter.daemon.pipeline import Pipeline
from llm_exporter.expose.page import Page
from llm_exporter.expose.targets import public_url
from llm_exporter.metrics import Family, HistogramSample, Sample
from llm_exporter.signals.bottleneck import CAUSE_WORDS
from llm_exporter.signals.slo import effective_edge

# On the status page: pieces of evidence below this say nothing, and more than a few are not read.
SHOWN_EVIDENCE = 0.2
MOST_EVIDENCE = 4
QUANTILES = ("0.5", "0.95", "0.99")
# The longest window that is kept; longer ones are for Prometheus.
SLO_WINDOW = "5m"

Values = Mapping[tuple[str, str], float]  # (metric, labels beyond the model's, joined by comma) → value


def published(page: Page) -> dict[str, list[Family]]:
    """Everything that the page holds about each target. One pass for all of them: a status page with hundreds asks for each."""
    found: dict[str, list[Family]] = {}
    for metric, samples in page.families():
        if "target" not in metric.labels:
            continue
        at = metric.labels.index("target")
        by_target: dict[str, list[Sample | HistogramSample]] = {}
        for sample in samples:
            if len(sample.labels) > at:
                by_target.setdefault(sample.labels[at], []).append(sample)
        for target, own in by_target.items():
            found.setdefault(target, []).append(Family(metric, own))
    return found


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def signals_document(families: Iterable[Family]) -> list[dict[str, Any]]:
    """JSON form of families: metric, labels, value; a histogram has count and sum."""
    rows: list[dict[str, Any]] = []
    for metric, samples in families:
        for sample in samples:
            row: dict[str, Any] = {"metric": metric.name, "labels": dict(zip(metric.labels, sample.labels, strict=False))}
            if isinstance(sample, HistogramSample):
                row["count"], row["sum"] = sample.cumulative[-1], sample.sum
            else:
                row["value"] = _number(sample.value)
            rows.append(row)
    return rows


def overview(pipeline: Pipeline, families: Sequence[Family], now: float) -> dict[str, Any]:
    """A row about one target: who it is, how it is, and the few numbers that on-call looks at first.

    `families` is what is published of it.
    """
    status, target = pipeline.status, pipeline.target
    latest = pipeline.store.latest_at
    return {
        "name": target.name,
        "url": public_url(target),
        "service": target.service or target.name,
        "labels": dict(target.labels),
        "engine": status.engine,
        "engine_version": status.engine_version,
        "up": status.up,
        "state": status.state,
        "reason": status.reason,
        "detail": status.detail,
        "hint": status.hint,
        "age_seconds": None if latest is None else round(now - latest, 3),
        "last_scrape_duration_seconds": status.duration_seconds,
        "identity_unstable": status.identity_unstable,
        "notes": notes(families),
        "verdict": verdict(families, _missing(pipeline)),
        "slos": objectives(pipeline, families),
        "models": [_model(name, values, ttft_bounds(families, name)) for name, values in by_model(families).items()],
    }


def by_model(families: Iterable[Family]) -> dict[str, dict[tuple[str, str], float]]:
    """Model → (metric, further labels joined by comma) → value, of everything with the label model."""
    found: dict[str, dict[tuple[str, str], float]] = {}
    for metric, samples in families:
        if "model" not in metric.labels:
            continue
        at = metric.labels.index("model")
        for sample in samples:
            if isinstance(sample, Sample):
                found.setdefault(sample.labels[at], {})[metric.name, ",".join(sample.labels[at + 1 :])] = sample.value
    return found


def ttft_bounds(families: Iterable[Family], model: str) -> tuple[float, ...]:
    """Bucket edges of the model's time to first token, seconds; empty where it has no histogram."""
    for metric, samples in families:
        if metric.name == "llm_time_to_first_token_seconds":
            at = metric.labels.index("model")
            return next((tuple(s.bounds) for s in samples if isinstance(s, HistogramSample) and s.labels[at] == model), ())
    return ()


def objectives(pipeline: Pipeline, families: Sequence[Family]) -> list[dict[str, Any]]:
    """How each objective stands over the last five minutes, model by model; nothing where there was no traffic or no fresh page.

    `good_ratio` is of requests within the highest bucket edge not above the threshold, as in llm_slo_good_requests_total.
    """
    view = pipeline.view
    if view is None or not any(metric.name == "llm_slo_requests_total" for metric, _ in families):
        return []  # also where the engine's series have gone from the page since the last scrape
    rows = []
    for model in view.models:
        for slo in pipeline.target.slos:
            columns, gained = model.columns(slo.metric), model.window(SLO_WINDOW).histogram(slo.metric)
            at = None if columns is None else effective_edge(columns, slo.threshold)
            if at is None or gained is None or gained.count <= 0:
                continue
            good = gained.cumulative[at] / gained.count
            rows.append(
                {
                    "slo": slo.name,
                    "model": model.model,
                    "window": SLO_WINDOW,
                    "threshold_seconds": slo.threshold,
                    "objective_ratio": slo.objective,
                    "good_ratio": good,
                    "requests": gained.count,
                    "met": good >= slo.objective,
                    "shown": f"{_share(good)} within {seconds_text(slo.threshold)} in {SLO_WINDOW}; objective {100 * slo.objective:g} %",
                }
            )
    return rows


def _share(ratio: float) -> str:
    """Per cent, rounded down: a share just below its objective must not read as the objective."""
    return f"{math.floor(1e4 * ratio + 1e-6) / 100:g} %"


def _model(name: str, values: Values, bounds: Sequence[float]) -> dict[str, Any]:
    return {
        "model": name,
        "time_to_first_token_seconds": {f"p{q[2:].ljust(2, '0')}": _quantile_document(values, q, bounds) for q in QUANTILES},
        "inter_token_latency_seconds": {
            f"p{q[2:].ljust(2, '0')}": _finite(values.get(("llm_inter_token_latency_quantile_seconds", f"{q},1m"))) for q in QUANTILES
        },
        "shown": {
            "ttft": [f"P{q[2:].ljust(2, '0')} {_quantile(values, q, bounds)}" for q in QUANTILES],
            "requests": _pair(values.get(("llm_requests_running", "")), values.get(("llm_requests_waiting", "")), "{:.0f}"),
            "kv_cache": _percent(values.get(("llm_kv_cache_usage_ratio", ""))),
            "hit_ratio": _percent(values.get(("llm_prefix_cache_hit_ratio", "1m"))),
            "tokens": _pair(
                values.get(("llm_prompt_tokens_per_second", "1m")), values.get(("llm_generation_tokens_per_second", "1m")), "{:,.0f}"
            ),
        },
    }


def _finite(value: float | None) -> float | None:
    return None if value is None else _number(value)


def _bucket(values: Values, q: str, bounds: Sequence[float]) -> tuple[float, float] | None:
    """Edges of the bucket that holds the quantile, seconds; None where they are not known."""
    value = values.get(("llm_time_to_first_token_quantile_seconds", f"{q},1m"))
    upper = bisect.bisect_left(bounds, value) if value is not None else len(bounds)
    if upper >= len(bounds) or not math.isfinite(bounds[upper]):
        return None
    return (bounds[upper - 1] if upper else 0.0), bounds[upper]


def _quantile_document(values: Values, q: str, bounds: Sequence[float]) -> dict[str, Any] | None:
    """A quantile in seconds, over the last minute, with its bucket; None where it is unknown."""
    value = values.get(("llm_time_to_first_token_quantile_seconds", f"{q},1m"))
    if value is None:
        return None
    saturated = bool(values.get(("llm_time_to_first_token_quantile_saturated", f"{q},1m")))
    bucket = None if saturated else _bucket(values, q, bounds)
    return {"value": _number(value), "lower_bound_only": saturated, "bucket": None if bucket is None else list(bucket)}


def seconds_text(value: float) -> str:
    """Seconds for people: three digits are enough."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def _quantile(values: Values, q: str, bounds: Sequence[float]) -> str:
    value = values.get(("llm_time_to_first_token_quantile_seconds", f"{q},1m"))
    if value is None:
        return "–"
    if values.get(("llm_time_to_first_token_quantile_saturated", f"{q},1m")):
        return f"≥ {seconds_text(value)}"
    bucket = _bucket(values, q, bounds)
    return seconds_text(value) if bucket is None else f"{seconds_text(value)} ({_interval(*bucket)})"


def _interval(low: float, high: float) -> str:
    """Edges of a bucket, in one unit."""
    return f"{1000 * low:g}–{1000 * high:g} ms" if high <= 1 else f"{low:g}–{high:g} s"


def _pair(first: float | None, second: float | None, form: str) -> str:
    return " / ".join("–" if value is None else form.format(value) for value in (first, second))


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f} %"


def notes(families: Iterable[Family]) -> list[str]:
    """Doubts that a person should know without asking: an SLO that is measured at another threshold than configured."""
    thresholds: dict[str, dict[str, float]] = {}
    for metric, samples in families:
        if metric.name in ("llm_slo_threshold_seconds", "llm_slo_effective_threshold_seconds"):
            at = metric.labels.index("slo")
            for sample in samples:
                if isinstance(sample, Sample):
                    thresholds.setdefault(sample.labels[at], {})[metric.name] = sample.value
    found = []
    for slo, pair in thresholds.items():
        wanted, measured = pair.get("llm_slo_threshold_seconds"), pair.get("llm_slo_effective_threshold_seconds")
        if wanted is not None and measured is None:
            found.append(f"SLO {slo}: {wanted:g} s lies below every bucket edge, so it cannot be measured")
        elif wanted is not None and measured is not None and abs(wanted - measured) > 1e-9 * wanted:
            found.append(f"SLO {slo}: measured at {measured:g} s, the highest bucket edge not above {wanted:g} s")
    return found


def verdict(families: Iterable[Family], missing: Sequence[str] = ()) -> dict[str, Any] | None:
    """The current bottleneck verdict with its evidence; None where there is none.

    `missing`: sources that could not be had, in words. An unknown verdict says by them, and by its signal status, what it waits for.
    """
    status = ""
    cause, confidence = None, None
    scores: dict[str, float] = {}
    evidence: dict[tuple[str, str], float] = {}
    for metric, samples in families:
        for sample in samples:
            if not isinstance(sample, Sample):
                continue
            if metric.name == "llm_bottleneck_verdict" and sample.value == 1:
                cause = sample.labels[-1]
            elif metric.name == "llm_bottleneck_confidence_ratio":
                confidence = sample.value
            elif metric.name == "llm_bottleneck_score_ratio":
                scores[sample.labels[-1]] = sample.value
            elif metric.name == "llm_bottleneck_evidence_ratio":
                evidence[sample.labels[-2], sample.labels[-1]] = sample.value
            elif metric.name == "llm_signal_status" and sample.labels[1] == "bottleneck_verdict":
                status = sample.labels[3]
    if cause is None:
        return None
    strongest = sorted(((value, name) for (of, name), value in evidence.items() if of == cause and value >= SHOWN_EVIDENCE), reverse=True)
    because = [f"{name.replace('_', ' ')} {100 * value:.0f} %" for value, name in strongest[:MOST_EVIDENCE]]
    return {
        "cause": cause,
        "meaning": CAUSE_WORDS.get(cause, ""),
        "confidence": confidence,
        "because": because,
        "why_unknown": _why_unknown(status, missing) if cause == "unknown" else "",
        "scores": scores,
        "evidence": [{"cause": of, "evidence": name, "ratio": value} for (of, name), value in evidence.items()],
    }


def _missing(pipeline: Pipeline) -> tuple[str, ...]:
    """What the last decision could not have, in words."""
    view = pipeline.view
    return () if view is None or view.decision is None else view.decision.missing


def _why_unknown(status: str, missing: Sequence[str]) -> str:
    """What an unknown verdict waits for."""
    if status == "needs_gpu" and not missing:
        return "missing: readings of the GPU"
    return f"missing: {', '.join(missing)}" if missing else "the GPU is busy, and what its driver counts does not say with what"


def target_document(pipeline: Pipeline, page: Page, now: float) -> dict[str, Any]:
    """Everything about one target: its row, every published value, and the status of what is absent."""
    families = published(page).get(pipeline.target.name, [])
    statuses = [
        {"signal": sample.labels[1], "window": sample.labels[2], "status": sample.labels[3]}
        for metric, samples in families
        if metric.name == "llm_signal_status"
        for sample in samples
    ]
    shown = [family for family in families if family.metric.name != "llm_signal_status"]
    return {**overview(pipeline, families, now), "signals": signals_document(shown), "absent": statuses}
