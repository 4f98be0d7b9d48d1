"""Burn rates, P99, silence, errors."""

from __future__ import annotations

from rules.series import MODEL, RESET, TARGET, Case, Cases, Number, counter, gauge, m, t

SLO = {**TARGET, "model": "m", "slo": "ttft"}
BARE = {**TARGET, "model": "m"}


def slo(
    good: tuple[object, ...], total: tuple[object, ...], objective: Number = 0.99, minutes: Number = 0, step: int = 15
) -> dict[str, str]:
    """Counters of one objective; `minutes`: how long the objective is on the page, 0 for as long as the counters."""
    length = minutes or sum((float(s[0]) for s in total if not isinstance(s, str)), 0.0)  # type: ignore[index]
    return {
        m("llm_slo_requests_total", slo="ttft"): counter(*total, step=step),  # type: ignore[arg-type]
        m("llm_slo_good_requests_total", slo="ttft"): counter(*good, step=step),  # type: ignore[arg-type]
        m("llm_slo_objective_ratio", slo="ttft"): gauge((length, objective), step=step),
    }


def probes(minutes: Number, per_minute: Number, step: int = 15) -> dict[str, str]:
    return {t("llm_probe_requests_total", module="short", result="success"): counter((minutes, per_minute), step=step)}


def burn(tier: str, scale: int, step: int, factor: float, floor: int) -> Cases:
    """`scale`: minutes of the long window. Rates are per minute."""
    long, end = scale, scale + max(60, scale // 6)

    def rate(count: float) -> float:
        return count / long

    # tests a hair above and below the factor: 4 % either way
    above, below = 60 * factor * 0.01 * 1.04, 60 * factor * 0.01 * 0.94
    few, total = rate(floor), rate(4 * floor)
    one = rate(floor - 1)
    at = end - 1 - (end - 1) % (step / 60)
    hit = (SLO,)
    return Cases(
        f"LLMSLOBudgetBurn{tier}",
        (
            Case("fires", slo(((end, 60 - above),), ((end, 60),), step=step), at, hit, step),
            Case("fires", slo(((end, total - few),), ((end, total),), step=step), at, hit, step, "just enough slow requests"),
            Case("just_below", slo(((end, 60 - below),), ((end, 60),), step=step), at, (), step),
            Case("just_below", slo(((end, 4 * one - one),), ((end, 4 * one),), step=step), at, (), step, "one slow request too few"),
            Case(
                "just_below",
                {**slo(((end, total - 2 * few),), ((end, total),), step=step), **probes(end, total - one, step)},
                at,
                (),
                step,
                "all but a few requests are probes",
            ),
            Case(
                "fires",
                {**slo(((end, total - 2 * few),), ((end, total),), step=step), **probes(end, total - few, step)},
                at,
                hit,
                step,
                "probes beside just enough requests of users",
            ),
            Case(
                "just_below", slo(((end, 0),), ((end, 60),), objective=1 - 0.81 / factor, step=step), at, (), step, "refused: cannot fire"
            ),
            Case("no_data", {m("llm_slo_objective_ratio", slo="ttft"): gauge((end, 0.99), step=step)}, at, (), step),
            Case("idle", slo(((end, 0),), ((end, 0),), step=step), at, (), step),
            Case("counter_reset", slo(((long, 60), RESET, (end, 60)), ((long, 60), RESET, (end, 60)), step=step), long + 60, (), step),
        ),
    )


def joined(base: Cases, *more: Case) -> Cases:
    return Cases(base.alert, (*base.cases, *more), base.without)


BURN_FAST = joined(
    burn("Fast", 60, 60, 14.4, 5),
    Case("too_short", slo(((90, 60), (8, 0)), ((98, 60),), step=60), 98, step=60, about="everything slow for less than 8.64 minutes"),
    Case("fires", slo(((90, 60), (15, 0)), ((105, 60),), step=60), 102, (SLO,), 60, about="everything slow for 8.64 and 2 minutes"),
    Case("too_short", slo(((90, 60), (12, 0)), ((102, 60),), step=60), 100, step=60, about="for less than two minutes"),
    Case("target_gone", slo(((80, 0), (30, None)), ((80, 60), (30, None)), minutes=80, step=60), 100, step=60),
    Case("too_short", slo(((60, 0), (40, 60)), ((100, 60),), step=60), 70, step=60, about="over: the short window ends it"),
)
BURN_MEDIUM = joined(
    burn("Medium", 360, 300, 6, 10),
    Case("too_short", slo(((400, 60), (30, 0)), ((430, 60),), step=300), 430, step=300),
    Case("target_gone", slo(((380, 50), (60, None)), ((380, 60), (60, None)), minutes=380, step=300), 430, step=300),
)
_DAYS = 3 * 1440
BURN_SLOW = joined(
    burn("Slow", _DAYS, 1800, 1, 20),
    Case(
        "too_short",
        slo(((_DAYS, 50), (420, 60)), ((_DAYS + 420, 60),), step=1800),
        _DAYS + 390,
        step=1800,
        about="over: the short window ends it",
    ),
    Case("too_short", slo(((_DAYS, 60), (90, 0)), ((_DAYS + 90, 60),), step=1800), _DAYS + 60, step=1800),
    Case("target_gone", slo(((_DAYS, 50), (500, None)), ((_DAYS, 60), (500, None)), minutes=_DAYS, step=1800), _DAYS + 450, step=1800),
)


def buckets(minutes: Number, per_minute: float, shares: tuple[tuple[str, float], ...], *, after: tuple[object, ...] = ()) -> dict[str, str]:
    found = {
        m("llm_time_to_first_token_seconds_bucket", le=le): counter((minutes, per_minute * share), *after)  # type: ignore[arg-type]
        for le, share in (*shares, ("+Inf", 1.0))
    }
    return {**found, m("llm_time_to_first_token_seconds_count"): counter((minutes, per_minute), *after)}  # type: ignore[arg-type]


ABOVE = (("2.5", 0.5), ("5", 0.9875), ("7.5", 1.0))  # P99 5.5 s
UNDER = (("2.5", 0.95), ("5", 1.0), ("7.5", 1.0))  # P99 4.5 s
TTFT_P99 = Cases(
    "LLMTTFTP99High",
    (
        Case("fires", buckets(20, 60, ABOVE), 15, (BARE,)),
        Case("fires", buckets(20, 22, ABOVE), 15, (BARE,), about="110 requests in 5 minutes"),
        Case("just_below", buckets(20, 60, UNDER), 15),
        Case("just_below", buckets(20, 18, ABOVE), 15, about="90 requests in 5 minutes"),
        Case("just_below", {**buckets(20, 22, ABOVE), **probes(20, 3)}, 15, about="95 requests of users"),
        Case("too_short", buckets(20, 60, ABOVE), 4),
        Case("no_data", {}, 15),
        Case("target_gone", buckets(10, 60, ABOVE, after=((20, None),)), 25),
        Case("counter_reset", buckets(10, 60, UNDER, after=(RESET, (20, 0))), 12),
        Case("idle", buckets(20, 0, ABOVE), 15),
    ),
)


def stream(*flow: tuple[Number, Number | None], waiting: str, tokens: tuple[tuple[Number, Number | None], ...] = ()) -> dict[str, str]:
    return {
        m("llm_requests_waiting"): waiting,
        m("llm_requests_running"): waiting,
        m("llm_time_to_first_token_seconds_count"): counter(*flow),
        m("llm_inter_token_latency_seconds_count"): counter(*flow),
        m("llm_generation_tokens_total"): counter(*(tokens or flow)),
    }


NO_FIRST_TOKENS = Cases(
    "LLMNoFirstTokens",
    (
        Case("fires", stream((10, 60), (20, 0), waiting=gauge((30, 4))), 15, (MODEL,)),
        Case("fires", {m("llm_requests_waiting"): gauge((30, 1))}, 6, (MODEL,), about="an engine that hung before its first token"),
        Case("just_below", stream((10, 60), (20, 0), waiting=gauge((30, 4)), tokens=((30, 1),)), 15, about="a token a minute for somebody"),
        *(
            Case(
                "just_below", {**stream((10, 60), (20, 0), waiting=gauge((30, 4))), m(moves): counter((30, 1))}, 15, about=f"{moves} moves"
            )
            for moves in ("llm_time_to_first_token_seconds_count", "llm_inter_token_latency_seconds_count")
        ),
        Case("just_below", stream((10, 60), (20, 0), waiting=gauge((12, 4), (0.25, 0), (18, 4))), 15, about="the queue was empty once"),
        Case("too_short", stream((10, 60), (2, 0), (20, 60), waiting=gauge((32, 4))), 13),
        Case("too_short", stream((10, 60), (20, 0), waiting=gauge((30, 4))), 13.5),
        Case("no_data", {}, 15),
        Case("target_gone", stream((10, 60), (2, 0), (20, None), waiting=gauge((12, 4), (20, None))), 20),
        Case(
            "counter_reset",
            stream((10, 60), waiting=gauge((30, 4))) | stream((10, 60), waiting=gauge((30, 4)), tokens=((10, 600), (20, 60))),
            15,
        ),
        Case("idle", stream((10, 60), (20, 0), waiting=gauge((10, 4), (20, 0))), 25),
    ),
)


def http(*failing: tuple[Number, Number | None] | str, fine: tuple[tuple[Number, Number | None] | str, ...]) -> dict[str, str]:
    return {
        m("llm_http_responses_total", code="5xx"): counter(*failing),
        m("llm_http_responses_total", code="2xx"): counter(*fine),
        m("llm_http_responses_total", code="4xx"): counter((30, 0)),
    }


def ended(error: Number, stop: Number, rejected: Number | None = None) -> dict[str, str]:
    found = {
        m("llm_requests_finished_total", outcome="error"): counter((30, error)),
        m("llm_requests_finished_total", outcome="stop"): counter((30, stop)),
    }
    return found if rejected is None else {**found, m("llm_requests_rejected_total", reason="queue_full"): counter((30, rejected))}


ERROR_RATE = Cases(
    "LLMErrorRateHigh",
    (
        Case("fires", http((30, 3.6), fine=((30, 56.4),)), 15, (BARE,)),
        Case("fires", http((30, 0.44), fine=((30, 3.96),)), 15, (BARE,), about="22 requests in 5 minutes"),
        Case("fires", ended(3.6, 56.4), 15, (BARE,), about="no status codes, but outcomes"),
        Case("fires", ended(0, 56.4, 3.6), 15, (BARE,), about="refused at the door"),
        Case("just_below", http((30, 2.7), fine=((30, 57.3),)), 15),
        Case("just_below", ended(2.7, 57.3), 15),
        Case("just_below", ended(0.36, 3.24), 15, about="18 requests in 5 minutes"),
        Case("just_below", http((30, 0.36), fine=((30, 3.24),)), 15, about="18 requests in 5 minutes"),
        Case("just_below", {**http((30, 0.44), fine=((30, 3.96),)), **probes(30, 1)}, 15, about="17 requests of users"),
        Case("too_short", http((10, 0), (5, 3.6), (15, 0), fine=((10, 60), (5, 56.4), (15, 60))), 15.5),
        Case("no_data", {}, 15),
        Case("target_gone", http((10, 3.6), (20, None), fine=((10, 56.4), (20, None))), 20),
        Case("counter_reset", http((10, 0), RESET, (20, 0), fine=((10, 60), RESET, (20, 60))), 14),
        Case("idle", http((30, 0), fine=((30, 0),)), 15),
    ),
)

CASES = (BURN_FAST, BURN_MEDIUM, BURN_SLOW, TTFT_P99, NO_FIRST_TOKENS, ERROR_RATE)
