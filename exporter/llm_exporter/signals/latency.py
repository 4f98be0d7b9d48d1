"""Latency signals: quantiles with their error, means with the counts behind them. They read the engines' histograms only.

Formulas: SIGNALS 1.2 and 6. The published quantile is PromQL's, so a board that computes it from the buckets shows the same number.
"""

from __future__ import annotations

from collections.abc import Callable

from llm_exporter.readings import Unit
from llm_exporter.signals.model import ModelView, Outcome, Signal, Status, WindowDerivation, known, unknown
from llm_exporter.state.window import Quantile, Window

QUANTILES: tuple[tuple[str, float], ...] = (("0.5", 0.5), ("0.9", 0.9), ("0.95", 0.95), ("0.99", 0.99))

# Fewer observations than this beyond the quantile and one request decides it (SIGNALS 6: N·(1−q) < 10).
TAIL_OBSERVATIONS = 10.0


def _quantiles(field: str, pick: Callable[[Quantile], float | None]) -> WindowDerivation:
    def derive(_: ModelView, window: Window) -> Outcome:
        gained = window.histogram(field)
        if gained is None:
            return unknown(Status.ONE_SCRAPE)
        if gained.count <= 0:
            return unknown(Status.NO_TRAFFIC)
        values: dict[tuple[str, ...], float] = {}
        for text, q in QUANTILES:
            quantile = window.quantile(field, q)
            picked = pick(quantile) if quantile is not None else None
            if picked is not None:
                values[(text,)] = picked
        few = gained.count * (1 - QUANTILES[-1][1]) < TAIL_OBSERVATIONS
        return Outcome(values, Status.LOW_N if few else None)

    return derive


def _value(quantile: Quantile) -> float | None:
    return quantile.value


def _saturated(quantile: Quantile) -> float | None:
    return float(quantile.saturated)


def _width(quantile: Quantile) -> float | None:
    # in the +inf bucket the error has no bound: absent, the flag beside it says so
    return None if quantile.saturated else quantile.width


def _mean(field: str) -> WindowDerivation:
    def derive(_: ModelView, window: Window) -> Outcome:
        gained = window.histogram(field)
        if gained is None:
            return unknown(Status.ONE_SCRAPE)
        mean = gained.mean
        return unknown(Status.NO_TRAFFIC) if mean is None else known(mean)

    return derive


def _count(field: str) -> WindowDerivation:
    def derive(_: ModelView, window: Window) -> Outcome:
        gained = window.histogram(field)
        return unknown(Status.ONE_SCRAPE) if gained is None else known(gained.count)

    return derive


_Q = "q (4) × window (2) per model"
_W = "window (2) per model"
_TTFT, _ITL, _E2E = ("time_to_first_token",), ("inter_token_latency",), ("e2e_request_latency",)

# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_time_to_first_token_quantile_seconds", Unit.SECONDS, "Quantile q of the time to first token in the window, by PromQL's interpolation; a lower bound where saturated is 1, uncertain by the error.", _TTFT, of_window=_quantiles("time_to_first_token", _value), labels=("q",), bound=_Q),
    Signal("llm_time_to_first_token_quantile_saturated", Unit.FLAG, "1 where the quantile lies in the +Inf bucket: its value is only a lower bound.", _TTFT, of_window=_quantiles("time_to_first_token", _saturated), labels=("q",), bound=_Q),
    Signal("llm_time_to_first_token_quantile_error_seconds", Unit.SECONDS, "Width of the bucket that holds the quantile: the true value lies somewhere in it. Absent where saturated.", _TTFT, of_window=_quantiles("time_to_first_token", _width), labels=("q",), bound=_Q),
    Signal("llm_inter_token_latency_quantile_seconds", Unit.SECONDS, "Quantile q of the gap between two outputs of a request in the window, by PromQL's interpolation.", _ITL, of_window=_quantiles("inter_token_latency", _value), labels=("q",), bound=_Q),
    Signal("llm_e2e_request_latency_quantile_seconds", Unit.SECONDS, "Quantile q of the whole latency of requests that finished in the window, by PromQL's interpolation.", _E2E, of_window=_quantiles("e2e_request_latency", _value), labels=("q",), bound=_Q),
    Signal("llm_time_to_first_token_mean_seconds", Unit.SECONDS, "Mean time to first token in the window.", _TTFT, of_window=_mean("time_to_first_token"), bound=_W),
    Signal("llm_inter_token_latency_mean_seconds", Unit.SECONDS, "Mean gap between two outputs of a request in the window.", _ITL, of_window=_mean("inter_token_latency"), bound=_W),
    Signal("llm_e2e_request_latency_mean_seconds", Unit.SECONDS, "Mean whole latency of requests that finished in the window.", _E2E, of_window=_mean("e2e_request_latency"), bound=_W),
    Signal("llm_first_tokens_in_window", Unit.COUNT, "First tokens in the window: the number behind the time to first token.", _TTFT, of_window=_count("time_to_first_token"), bound=_W),
    Signal("llm_inter_token_gaps_in_window", Unit.COUNT, "Gaps between outputs in the window: the number behind the inter-token latency.", _ITL, of_window=_count("inter_token_latency"), bound=_W),
    Signal("llm_requests_finished_in_window", Unit.COUNT, "Requests that finished in the window: the number behind the whole latency.", _E2E, of_window=_count("e2e_request_latency"), bound=_W),
)
