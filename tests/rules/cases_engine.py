"""The engine: reachable, alive, restarting, its queue and caches; and the probes."""

from __future__ import annotations

from rules.series import AT_ONCE, FLAG, MODEL, NO_COUNTER, RESET, TARGET, Case, Cases, Number, counter, gauge, m, t

BARE = {**TARGET, "model": "m"}

TARGET_DOWN = Cases(
    "LLMTargetDown",
    (
        Case("fires", {t("llm_target_up"): gauge((5, 1), (10, 0))}, 7, (TARGET,)),
        Case("too_short", {t("llm_target_up"): gauge((5, 1), (0.75, 0), (10, 1))}, 5.5),
        Case("too_short", {t("llm_target_up"): gauge((5, 1), (0.75, 0), (10, 1))}, 6.5),
        Case("no_data", {}, 7),
        Case("target_gone", {t("llm_target_up"): gauge((5, 1), (10, None))}, 8, about="LLMTargetsMissing speaks"),
        Case("idle", {t("llm_target_up"): gauge((15, 1))}, 7),
    ),
    {"just_below": FLAG, "counter_reset": NO_COUNTER},
)

STALLED = Cases(
    "LLMEngineStalled",
    (
        Case("fires", {t("llm_engine_stalled"): gauge((5, 0), (5, 1))}, 5.25, (TARGET,)),
        Case("fires", {t("llm_engine_stalled"): gauge((0.75, 0), (2, 1))}, 1.25, (TARGET,), about="HANG-01: told 75 s after tokens froze"),
        Case("too_short", {t("llm_engine_stalled"): gauge((5, 0), (0.25, 1), (5, 0))}, 5),
        Case("no_data", {}, 7),
        Case("target_gone", {t("llm_engine_stalled"): gauge((5, 0), (2, 1), (10, None))}, 9),
        Case("idle", {t("llm_engine_stalled"): gauge((10, 0))}, 7),
    ),
    {"just_below": FLAG, "counter_reset": NO_COUNTER},
)


def restarts(*steps: tuple[Number, Number]) -> dict[str, str]:
    """Minutes at each value."""
    return {t("llm_engine_restarts_total"): gauge(*steps)}


def loading(*steps: tuple[Number, Number | None]) -> dict[str, str]:
    return {t("llm_engine_state", state="loading"): gauge(*steps)}


STARTING = Cases(
    "LLMEngineStarting",
    (
        Case("fires", loading((5, 0), (5, 1)), 6, (TARGET,)),
        Case("fires", loading((5, 0), (25, 1)), 19, (TARGET,), about="14 minutes of loading"),
        Case("fires", restarts((10, 3), (20, 4)), 13, (TARGET,), about="first requests after a restart"),
        Case("just_below", loading((5, 0), (25, 1)), 21, about="16 minutes of loading are too many"),
        Case("just_below", restarts((10, 0), (10, 1), (20, 2)), 23, about="the second restart within the hour"),
        Case("no_data", {}, 6),
        Case("target_gone", loading((5, 1), (20, None)), 8),
        Case("counter_reset", restarts((10, 3), (20, 0)), 12, about="the exporter was restarted, not the engine"),
        Case("idle", {**loading((20, 0)), **restarts((20, 1))}, 15),
    ),
    {"too_short": AT_ONCE},
)

RESTARTING = Cases(
    "LLMEngineRestarting",
    (
        Case("fires", restarts((10, 0), (10, 1), (20, 2)), 25, (TARGET,)),
        Case("just_below", restarts((10, 0), (30, 1)), 25),
        Case("no_data", {}, 25),
        Case("target_gone", restarts((10, 0), (10, 1)), 25),
        Case("counter_reset", restarts((10, 7), (20, 0)), 25),
        Case("idle", restarts((30, 5)), 25),
    ),
    {"too_short": AT_ONCE},
)


def queue(*steps: tuple[Number, Number | None], start: Number = 5) -> dict[str, str]:
    return {m("llm_requests_waiting_capacity"): counter(*steps, start=start)}


QUEUE_GROWING = Cases(
    "LLMQueueGrowing",
    (
        Case("fires", queue((30, 1.3)), 20, (MODEL,)),
        Case("just_below", queue((30, 1.1)), 20),
        Case(
            "just_below",
            {m("llm_requests_waiting_capacity"): gauge((10, 0), (4, 20), (0.5, 0), (4, 40), (0.5, 0), (11, 60))},
            19,
            about="it empties",
        ),
        Case("too_short", {m("llm_requests_waiting_capacity"): counter((10, 0), (4, 6), RESET, (16, 0), start=5)}, 13.75),
        Case("too_short", {m("llm_requests_waiting_capacity"): counter((10, 0), (4, 6), RESET, (16, 0), start=5)}, 16),
        Case("no_data", {}, 20),
        Case("target_gone", queue((15, 1.3), (20, None)), 30),
        Case("idle", queue((30, 0), start=0), 20),
        Case("idle", queue((30, 0), start=50), 20, about="long and steady"),
    ),
    {"counter_reset": NO_COUNTER},
)


def kv(*steps: tuple[Number, Number | None]) -> dict[str, str]:
    return {m("llm_kv_cache_usage_ratio"): gauge(*steps)}


KV_FULL = Cases(
    "LLMKVCacheNearlyFull",
    (
        Case("fires", kv((30, 0.97)), 20, (MODEL,)),
        Case("just_below", kv((30, 0.93)), 20),
        Case("too_short", kv((10, 0.5), (8, 0.99), (20, 0.5)), 18),
        Case("too_short", kv((10, 0.5), (8, 0.99), (20, 0.5)), 22),
        Case("no_data", {}, 20),
        Case("target_gone", kv((15, 0.97), (20, None)), 25),
        Case("idle", kv((30, 0)), 20),
    ),
    {"counter_reset": NO_COUNTER},
)


def preempted(*thrown: tuple[Number, Number | None] | str, served: tuple[tuple[Number, Number | None] | str, ...]) -> dict[str, str]:
    return {m("llm_preemptions_total"): counter(*thrown), m("llm_time_to_first_token_seconds_count"): counter(*served)}


PREEMPTIONS = Cases(
    "LLMPreemptionsHigh",
    (
        Case("fires", preempted((40, 3.6), served=((40, 60),)), 30, (BARE,)),
        Case("fires", preempted((40, 1.1), served=((40, 5),)), 30, (BARE,), about="11 in 10 minutes"),
        Case("fires", preempted((40, 3.6), served=((40, 0),)), 30, (BARE,), about="thrown back, and nobody served"),
        Case("just_below", preempted((40, 2.7), served=((40, 60),)), 30),
        Case("just_below", preempted((40, 0.9), served=((40, 5),)), 30, about="9 in 10 minutes"),
        Case("too_short", preempted((20, 0), (10, 3.6), (20, 0), served=((50, 60),)), 31),
        Case("no_data", {}, 30),
        Case("target_gone", preempted((20, 3.6), (30, None), served=((20, 60), (30, None))), 35),
        Case("counter_reset", preempted((20, 0), RESET, (20, 0), served=((20, 60), RESET, (20, 60))), 25),
        Case("idle", preempted((40, 0), served=((40, 0),)), 30),
    ),
)

_DAY = 1470  # a day, and half an hour behind which the comparison ends


def cache(
    now: Number | None, before: Number = 80, finished: Number = 10, length: Number = 90, queried: Number | None = 100
) -> dict[str, str]:
    after = None if now is None else now
    return {
        m("llm_prefix_cache_hit_tokens_total"): counter((_DAY, before), (length, after), step=600),
        m("llm_prefix_cache_queried_tokens_total"): counter((_DAY, 100), (length, None if now is None else queried), step=600),
        m("llm_requests_finished_total", outcome="stop"): counter((_DAY, finished), (length, None if now is None else finished), step=600),
    }


HIT_RATIO = Cases(
    "LLMPrefixCacheHitRatioLow",
    (
        Case("fires", cache(63), _DAY + 50, (BARE,), 600),
        Case("fires", cache(63, finished=0.8), _DAY + 50, (BARE,), 600, "24 requests in half an hour"),
        Case("just_below", cache(67), _DAY + 50, (), 600),
        Case("just_below", cache(63, finished=0.6), _DAY + 50, (), 600, "18 requests in half an hour"),
        Case(
            "just_below",
            {
                **cache(63, finished=0.8),
                t("llm_probe_requests_total", module="short", result="success"): counter((_DAY + 90, 0.3), step=600),
            },
            _DAY + 50,
            (),
            600,
            "15 requests of users",
        ),
        Case(
            "fires",
            {
                **cache(63, finished=0.8),
                t("llm_probe_requests_total", module="short", result="connect"): counter((_DAY + 90, 0.3), step=600),
            },
            _DAY + 50,
            (BARE,),
            600,
            "24 requests of users, none of the probes arrived",
        ),
        Case("too_short", cache(0), _DAY + 10, (), 600),
        Case("no_data", {}, 60, (), 600),
        Case("target_gone", cache(None), _DAY + 50, (), 600),
        Case(
            "counter_reset",
            {
                m("llm_prefix_cache_hit_tokens_total"): counter((_DAY, 80), RESET, (60, 80), step=600),
                m("llm_prefix_cache_queried_tokens_total"): counter((_DAY, 100), RESET, (60, 100), step=600),
                m("llm_requests_finished_total", outcome="stop"): counter((_DAY, 10), RESET, (60, 10), step=600),
            },
            _DAY + 50,
            (),
            600,
        ),
        Case("idle", cache(0, queried=0), _DAY + 60, (), 600),
    ),
)


def status(what: str, *steps: tuple[Number, Number | None]) -> dict[str, str]:
    signal = "time_to_first_token_mean_seconds"
    return {t("llm_signal_status", signal=signal, window=window, status=what): gauge(*steps) for window in ("1m", "5m")}


SIGNALS_MISSING = Cases(
    "LLMSignalsMissing",
    (
        Case("fires", status("not_exposed", (20, 1)), 15, ({**TARGET, "status": "not_exposed"},)),
        Case("fires", status("stale", (20, 1)), 15, ({**TARGET, "status": "stale"},)),
        Case("just_below", status("not_supported", (20, 1)), 15, about="never there"),
        Case("just_below", {**status("stale", (15, 1), (10, None)), t("llm_target_up"): gauge((15, 0), (10, 1))}, 14, about="down"),
        Case("just_below", {**status("stale", (15, 1), (10, None)), t("llm_target_up"): gauge((15, 0), (10, 1))}, 15.5, about="back again"),
        Case(
            "fires",
            {**status("stale", (20, 1)), t("llm_target_up"): gauge((14, 1), (0.25, 0), (10, 1))},
            15,
            ({**TARGET, "status": "stale"},),
            about="a lost scrape",
        ),
        Case("too_short", status("stale", (5, None), (8, 1), (10, None)), 12.75),
        Case("no_data", {}, 15),
        Case("target_gone", status("stale", (5, 1), (20, None)), 15),
        Case("idle", {**status("no_traffic", (20, 1)), **status("feature_off", (20, 1))}, 15),
    ),
    {"counter_reset": NO_COUNTER},
)


def scrape(*steps: tuple[Number, Number | None]) -> dict[str, str]:
    return {t("llm_target_scrape_duration_seconds"): gauge(*steps)}


SCRAPE_SLOW = Cases(
    "LLMScrapeSlow",
    (
        Case("fires", scrape((20, 2.2)), 15, (TARGET,)),
        Case("just_below", scrape((20, 1.8)), 15),
        Case("too_short", scrape((10, 0.01), (4, 4), (20, 0.01)), 14),
        Case("too_short", scrape((10, 0.01), (4, 4), (20, 0.01)), 18),
        Case("no_data", {}, 15),
        Case("target_gone", scrape((10, 2.2), (20, None)), 20),
        Case("idle", scrape((20, 0.005)), 15),
    ),
    {"counter_reset": NO_COUNTER},
)


def runs(success: tuple[object, ...], timeout: tuple[object, ...], last: str = "", **more: str) -> dict[str, str]:
    found = {
        t("llm_probe_requests_total", module="short", result="success"): counter(*success),  # type: ignore[arg-type]
        t("llm_probe_requests_total", module="short", result="timeout"): counter(*timeout),  # type: ignore[arg-type]
    }
    return {**found, **({t("llm_probe_success", module="short"): last} if last else {}), **more}


SHORT = {**TARGET, "module": "short"}
PROBE_FAILING = Cases(
    "LLMProbeFailing",
    (
        Case("fires", runs(((20, 0.7),), ((20, 1.3),)), 15, (SHORT,)),
        Case("fires", runs(((60, 0),), ((60, 0.1),), gauge((60, 0))), 50, (SHORT,), about="three failures in half an hour"),
        Case("just_below", runs(((60, 0.9),), ((60, 1.1),), gauge((60, 0))), 50),
        Case("just_below", runs(((60, 0),), ((60, 0.0667),), gauge((60, 0))), 50, about="two failures in half an hour"),
        Case("just_below", runs(((60, 0),), ((60, 0.1),), gauge((45, 0), (15, 1))), 50, about="the last run was fine"),
        Case(
            "just_below",
            {t("llm_probe_requests_total", module="short", result="http_401"): counter((20, 2))},
            15,
            about="the probe is wrong, not the server",
        ),
        Case("too_short", runs(((10, 2), (20, 0)), ((10, 0), (20, 2))), 13.5),
        Case("no_data", {}, 15),
        Case("target_gone", runs(((10, 0), (20, None)), ((10, 2), (20, None))), 20),
        Case("counter_reset", runs(((10, 2), RESET, (20, 2)), ((10, 0), RESET, (20, 0))), 12),
        Case("idle", runs(((20, 0),), ((20, 0),)), 15),
    ),
)


def result(name: str, *steps: tuple[Number, Number | None]) -> dict[str, str]:
    return {t("llm_probe_last_result", module="short", result=name): gauge(*steps)}


PROBE_MISCONFIGURED = Cases(
    "LLMProbeMisconfigured",
    (
        Case("fires", result("http_404", (20, 1)), 15, ({**SHORT, "result": "http_404"},)),
        Case("fires", result("skipped_unknown_engine", (20, 1)), 15, ({**SHORT, "result": "skipped_unknown_engine"},)),
        Case("fires", result("skipped_context", (20, 1)), 15, ({**SHORT, "result": "skipped_context"},)),
        Case("too_short", result("http_404", (5, 0), (9, 1), (10, 0)), 13.75),
        Case("no_data", {}, 15),
        Case("target_gone", result("http_404", (5, 1), (20, None)), 15),
        Case("idle", {**result("http_404", (20, 0)), **result("timeout", (20, 1)), **result("skipped_busy", (20, 1))}, 15),
    ),
    {"just_below": FLAG, "counter_reset": NO_COUNTER},
)

CASES = (
    TARGET_DOWN, STALLED, STARTING, RESTARTING, QUEUE_GROWING, KV_FULL, PREEMPTIONS, HIT_RATIO, SIGNALS_MISSING, SCRAPE_SLOW,
    PROBE_FAILING, PROBE_MISCONFIGURED,
)  # fmt: skip
