"""Series that recording rules make of counters and histograms, for alerts and fleet boards: names, expressions, meanings.

In: nothing. Out: `RECORDED`, written as rules by `generate/recording.py`. Windows stand as `[5m]` in the templates; the generator lengthens
the ones that are too short for the scrape interval. Parts are summed first and divided last; `engine` is dropped, so that a target whose
engine is exchanged stays one series; labels that a server adds survive. No template reads a metric with the label `window`.
"""

from __future__ import annotations

from typing import NamedTuple

FAST, SLOW = 30, 120  # seconds between two evaluations; long windows are dear and change slowly


class Recorded(NamedTuple):
    """One recording rule.

    Attributes:
        record: `level:metric:operations`; the level names what is left of the labels (target: all but model).
        template: PromQL.
        meaning: a sentence for people.
        every: seconds between two evaluations.
    """

    record: str
    template: str
    meaning: str
    every: int = FAST


def _rate(metric: str, window: str, *dropped: str) -> str:
    return f"sum without ({', '.join(('engine', *dropped))}) (rate({metric}[{window}]))"


def _increase(metric: str, window: str, *dropped: str) -> str:
    return f"sum without ({', '.join(('engine', *dropped))}) (increase({metric}[{window}]))"


def slow_ratio(window: str) -> str:
    """Name of the slow share of an SLO's requests in a window."""
    return f"target_model:llm_slo_slow:ratio_rate{window}"


def slow_requests(window: str) -> str:
    """Name of the number of an SLO's slow requests in a window."""
    return f"target_model:llm_slo_slow_requests:increase{window}"


ERROR_BUDGET = "target_model:llm_slo_error_budget:ratio"
HIT_RATIO_NOW, HIT_RATIO_BEFORE = "target_model:llm_prefix_cache_hit:ratio_rate30m", "target_model:llm_prefix_cache_hit:ratio_rate1d"


def ttft_quantile(percent: int) -> str:
    """Name of a quantile of the time to first token over five minutes."""
    return f"target_model:llm_time_to_first_token_seconds:p{percent}_rate5m"


def _slo(window: str) -> tuple[Recorded, Recorded]:
    total, good = "llm_slo_requests_total", "llm_slo_good_requests_total"
    every = SLOW if window in ("6h", "3d") else FAST
    return (
        Recorded(
            slow_ratio(window),
            f"1 - {_rate(good, window)} / ({_rate(total, window)} > 0)",
            f"Share of an SLO's requests in {window} that were slower than its threshold; absent without requests.",
            every,
        ),
        Recorded(
            slow_requests(window),
            f"{_increase(total, window)} - {_increase(good, window)}",
            f"Requests of an SLO in {window} that were slower than its threshold.",
            every,
        ),
    )


def _quantiles(metric: str, *percents: int) -> tuple[Recorded, ...]:
    return tuple(
        Recorded(
            f"target_model:{metric}:p{percent}_rate5m",
            f"histogram_quantile({percent / 100:g}, {_rate(metric + '_bucket', '5m')})",
            f"P{percent} of {metric} over 5 minutes, interpolated within a bucket; the highest edge where the rank lies above it.",
        )
        for percent in percents
    )


def _hit_ratio(record: str, window: str, meaning: str, every: int, offset: str = "") -> Recorded:
    hit = f"sum without (engine) (rate(llm_prefix_cache_hit_tokens_total[{window}]{offset}))"
    queried = f"sum without (engine) (rate(llm_prefix_cache_queried_tokens_total[{window}]{offset}))"
    return Recorded(record, f"{hit} / ({queried} > 0)", meaning, every)


RECORDED: tuple[Recorded, ...] = (
    *(rule for window in ("5m", "30m", "1h", "6h", "3d") for rule in _slo(window)),
    Recorded(
        ERROR_BUDGET,
        "1 - max without (engine) (last_over_time(llm_slo_objective_ratio[1h]))",
        "Share of an SLO's requests that may be slow; kept for an hour after the target has gone.",
    ),
    *_quantiles("llm_time_to_first_token_seconds", 50, 95, 99),
    *_quantiles("llm_inter_token_latency_seconds", 50, 95, 99),
    *_quantiles("llm_e2e_request_latency_seconds", 50, 95, 99),
    Recorded(
        "target_model:llm_first_tokens:rate5m", _rate("llm_time_to_first_token_seconds_count", "5m"), "First tokens a second: requests served."
    ),
    Recorded("target_model:llm_generation_tokens:rate5m", _rate("llm_generation_tokens_total", "5m"), "Output tokens a second."),
    Recorded("target_model:llm_prompt_tokens:rate5m", _rate("llm_prompt_tokens_total", "5m"), "Prompt tokens a second, cached ones included."),
    Recorded("target_model:llm_prompt_tokens_computed:rate5m", _rate("llm_prompt_tokens_computed_total", "5m"), "Prompt tokens computed a second."),
    Recorded("target_model:llm_preemptions:rate5m", _rate("llm_preemptions_total", "5m"), "Preemptions a second."),
    _hit_ratio("target_model:llm_prefix_cache_hit:ratio_rate5m", "5m", "Prefix-cache hit ratio by tokens over 5 minutes.", FAST),
    _hit_ratio(HIT_RATIO_NOW, "30m", "Prefix-cache hit ratio by tokens over 30 minutes.", FAST),
    _hit_ratio(HIT_RATIO_BEFORE, "1d", "Prefix-cache hit ratio by tokens over the day that ended half an hour ago.", SLOW, " offset 30m"),
)  # fmt: skip


def _check() -> None:
    names = [rule.record for rule in RECORDED]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"recorded twice: {sorted(twice)}")


_check()
