"""Prefix cache: the share of looked-up tokens that hit, from counters only (SIGNALS 2)."""

from __future__ import annotations

from llm_exporter.readings import Unit
from llm_exporter.signals.model import NOTHING, ModelView, Outcome, Signal, Status, known, unknown
from llm_exporter.state.window import Window


def _hit_ratio(view: ModelView, window: Window) -> Outcome:
    if view.value("prefix_cache_enabled") == 0:
        return unknown(Status.FEATURE_OFF)
    hits, queried = window.increase("prefix_cache_hit_tokens"), window.increase("prefix_cache_queried_tokens")
    if hits is None or queried is None or window.scrapes < 2:
        return unknown(Status.ONE_SCRAPE)
    if queried <= 0:
        return unknown(Status.NO_TRAFFIC)
    if hits > queried:  # the counters were read a moment apart; the store counts it as an anomaly
        return unknown(Status.SKEWED)
    return known(hits / queried)


def _enabled(view: ModelView) -> Outcome:
    enabled = view.value("prefix_cache_enabled")
    return NOTHING if enabled is None else known(enabled)


# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_prefix_cache_hit_ratio", Unit.RATIO, "Hit tokens ÷ looked-up tokens of the prefix cache in the window; absent when nothing was looked up or the cache is off.", ("prefix_cache_hit_tokens", "prefix_cache_queried_tokens"), of_window=_hit_ratio, bound="window (2) per model"),
    Signal("llm_prefix_cache_enabled", Unit.FLAG, "1 where the server's prefix cache is on, 0 where it is off.", ("prefix_cache_enabled",), of_model=_enabled, bound="1 per model"),
)
