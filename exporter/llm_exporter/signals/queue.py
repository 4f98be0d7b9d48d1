"""Queue and limits: offered load, growth, the wait of a request that arrives now, and how near each limit is (SIGNALS 3).

Waiting means waiting for room (`requests_waiting_capacity`): requests deferred for a LoRA slot or a KV transfer are no sign of load.
"""

from __future__ import annotations

from itertools import combinations
from statistics import median

from llm_exporter.readings import Unit
from llm_exporter.signals.model import ModelView, Outcome, Signal, Status, known, unknown
from llm_exporter.state.window import Window

# A slope through fewer points is a guess.
SLOPE_POINTS = 3
# Pairs grow with the square: 31 points are 465 slopes, enough for a median that 1830 hardly move.
SLOPE_POINTS_MOST = 31


def theil_sen_slope(points: list[tuple[float, float]]) -> float | None:
    """Median of the slopes between all pairs of (seconds, value); None with too few points. Robust against single spikes.

    Cost: pairs; of more than SLOPE_POINTS_MOST points that many are taken, evenly, first and last among them.
    """
    if len(points) < 2:
        return None
    if all(value == points[0][1] for _, value in points):
        return 0.0
    if len(points) > SLOPE_POINTS_MOST:
        step = (len(points) - 1) / (SLOPE_POINTS_MOST - 1)
        points = [points[round(i * step)] for i in range(SLOPE_POINTS_MOST)]
    slopes = [(b - a) / (t2 - t1) for (t1, a), (t2, b) in combinations(points, 2) if t2 > t1]
    return median(slopes) if slopes else None


def starts(window: Window) -> float | None:
    """Requests that got their first token in the window, streaming or not; None where nothing tells."""
    first = window.increase("first_tokens")
    if first is None:
        gained = window.histogram("time_to_first_token")
        first = gained.count if gained is not None else None
    return first


def _offered(_: ModelView, window: Window) -> Outcome:
    waiting = window.gauge("requests_waiting")
    started = starts(window)
    if started is None or len(waiting) < 2 or window.seconds <= 0:
        return unknown(Status.ONE_SCRAPE)
    # flow balance: what came in = what started + what the queue gained. Aborts while queued are invisible, so this is a lower bound.
    return known(max(0.0, started + waiting[-1][1] - waiting[0][1]) / window.seconds)


def _growth(_: ModelView, window: Window) -> Outcome:
    points = window.gauge("requests_waiting")
    slope = theil_sen_slope(points)
    if slope is None:
        return unknown(Status.ONE_SCRAPE)
    return known(slope, Status.LOW_N if len(points) < SLOPE_POINTS else None)


def _wait_estimate(view: ModelView) -> Outcome:
    waiting = view.value("requests_waiting_capacity")
    if waiting is None:
        return unknown(Status.NOT_EXPOSED)
    if waiting == 0:
        return known(0.0)
    window = view.window("1m")
    started = starts(window)
    if started is None or window.seconds <= 0:
        return unknown(Status.ONE_SCRAPE)
    if started <= 0:  # nothing starts: a stall or a very long step, not an infinite wait
        return unknown(Status.NO_TRAFFIC)
    return known(waiting * window.seconds / started)


def running_limit(view: ModelView) -> float | None:
    """Most requests the batch may hold: the page's word, else the configuration's; None where neither says."""
    limit = view.value("requests_running_limit")
    return limit if limit is not None else view.target.config.limits.running


def _saturation(view: ModelView) -> Outcome:
    values: dict[tuple[str, ...], float] = {}
    usage = view.value("kv_cache_usage")
    if usage is not None:
        values[("kv_cache",)] = usage
    running, limit = view.value("requests_running"), running_limit(view)
    if running is not None and limit:
        values[("batch",)] = min(1.0, running / limit)
    waiting = view.window("1m").gauge("requests_waiting_capacity")
    if waiting:
        values[("queue",)] = sum(value > 0 for _, value in waiting) / len(waiting)
    return Outcome(values) if values else unknown(Status.NOT_EXPOSED)


_W = "window (2) per model"

# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_offered_requests_per_second", Unit.REQUESTS_PER_SECOND, "Requests that arrived per second by flow balance: first tokens plus growth of the queue; a lower bound where clients give up while queued.", ("requests_waiting",), of_window=_offered, bound=_W, uses=("first_tokens", "time_to_first_token")),
    Signal("llm_queue_growth_requests_per_second", Unit.REQUESTS_PER_SECOND, "Slope of the queue (Theil-Sen): above 0 it grows.", ("requests_waiting",), of_window=_growth, bound=_W),
    Signal("llm_queue_wait_estimate_seconds", Unit.SECONDS, "Wait of a request that arrives now, by Little's law: requests waiting for room ÷ first tokens per second of the last minute.", ("requests_waiting_capacity",), of_model=_wait_estimate, bound="1 per model", uses=("first_tokens", "time_to_first_token")),
    Signal("llm_saturation_ratio", Unit.RATIO, "How near each limit is, 0 to 1: kv_cache (use of the fullest rank), batch (running ÷ limit, where it is known), queue (share of the last minute's scrapes in which requests waited for room).", of_model=_saturation, labels=("limit",), bound="limit (3) per model", uses=("kv_cache_usage", "requests_running", "requests_running_limit", "requests_waiting_capacity")),
)
