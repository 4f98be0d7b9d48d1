"""Where a request's time goes: queue, prefill, decode, and the frontend's rest; and the share of prefill.

Phases are observed at different moments (SIGNALS 0.1): the first token when it comes, vLLM's phases when the request finishes, SGLang's
queue at the first forward pass. Means of different populations must not be subtracted; the skew check below says when they differ too much.
"""

from __future__ import annotations

from llm_exporter.readings import Unit
from llm_exporter.signals.model import ModelView, Outcome, Signal, Status, unknown
from llm_exporter.state.window import HistogramIncrease, Window

# Populations that differ by more than this share are not subtracted from each other (SIGNALS 0.1).
SKEW_LIMIT = 0.1
# A rest is not told where the drift of what is subtracted could make more than this share of it. The frontend's is small, and half of it
# still tells a slow one from a fast one; a decode time that may be wrong by more than a tenth looks better than it is.
FRONTEND_DRIFT_LIMIT = 0.5
DECODE_DOUBT_LIMIT = 0.1
# Fewer scrapes cannot be halved.
DRIFT_SCRAPES = 4


def population_skew(counts: list[float]) -> float:
    """How far the smallest population is from the largest, as a share of the largest; 0 without any."""
    largest = max(counts)
    return (largest - min(counts)) / largest if largest > 0 else 0.0


def ttft_residual(ttft: HistogramIncrease, parts: list[HistogramIncrease]) -> float | None:
    """Mean time to first token less the means of its known parts, in seconds.

    Returns: None where a mean is missing, where the populations are skewed, or where the rest is negative (skew that counts do not show).
    """
    means = [part.mean for part in parts]
    whole = ttft.mean
    if whole is None or any(mean is None for mean in means):
        return None
    rest = whole - sum(mean for mean in means if mean is not None)
    return rest if rest >= 0 else None


def drift_seconds(window: Window, field: str, lag: float) -> float:
    """By how much the mean of a histogram may have moved within `lag` seconds, judged by the two halves of the window; 0 where not known.

    Two metrics that book the same requests `lag` seconds apart see different requests. While a queue grows, the later ones waited longer, and
    the difference of the two means is that growth and nothing else; counts, which agree, do not show it.
    """
    frames = window.frames
    if len(frames) < DRIFT_SCRAPES or window.seconds <= 0:
        return 0.0
    middle = len(frames) // 2
    halves = [Window(part, window.model).histogram(field) for part in (frames[: middle + 1], frames[middle:])]
    means = [half.mean for half in halves if half is not None and half.mean is not None]
    return abs(means[1] - means[0]) / (window.seconds / 2) * lag if len(means) == 2 else 0.0


def _phases(view: ModelView, window: Window) -> Outcome:
    values: dict[tuple[str, ...], float] = {}
    status: Status | None = None
    ttft = window.histogram("time_to_first_token")
    queue = window.histogram("request_queue_time")
    prefill = window.histogram("request_prefill_time")
    decode = window.histogram("request_decode_time")
    for phase, gained in (("queue", queue), ("prefill", prefill), ("decode", decode)):
        if gained is not None and gained.mean is not None:
            values[(phase,)] = gained.mean
    if decode is None:
        rest = _decode_by_difference(window)
        if isinstance(rest, Status):
            status = rest
        elif rest is not None:
            values[("decode",)] = rest
    if ttft is not None and queue is not None and prefill is not None and ttft.count and queue.count and prefill.count:
        handover = window.histogram("request_process_time")  # SGLang: between the HTTP server and the queue
        parts = [queue, prefill] + ([handover] if handover is not None and handover.count else [])
        rest = None
        if population_skew([ttft.count, *(part.count for part in parts)]) <= SKEW_LIMIT:
            rest = ttft_residual(ttft, parts)
        # where the phases come when a request finishes, they lag by its decode time behind the first token
        lag = decode.mean if decode is not None and decode.mean is not None else 0.0
        if rest is None or drift_seconds(window, "request_queue_time", lag) > FRONTEND_DRIFT_LIMIT * rest:
            status = Status.SKEWED
        else:
            values[("frontend",)] = rest
    if queue is None and prefill is None and decode is None and not values:
        absence = view.absence("request_prefill_time")
        return unknown(status or (Status(absence.value) if absence is not None else Status.ONE_SCRAPE))
    if not values and status is None:
        return unknown(Status.ONE_SCRAPE if window.scrapes < 2 else Status.NO_TRAFFIC)
    return Outcome(values, status)


def _whole_latency(window: Window) -> HistogramIncrease | None:
    """Of the requests whose first tokens are known: streams only, where the engine tells them apart."""
    streamed = window.histogram("streamed_request_latency")
    return streamed if streamed is not None else window.histogram("e2e_request_latency")


def _decode_by_difference(window: Window) -> float | Status | None:
    """Mean decode time where the engine has no metric of it (SGLang): whole latency less time to first token, of matching populations."""
    whole, ttft = _whole_latency(window), window.histogram("time_to_first_token")
    if whole is None or ttft is None or whole.mean is None or ttft.mean is None:
        return None
    if population_skew([whole.count, ttft.count]) > SKEW_LIMIT or whole.mean < ttft.mean:
        return Status.SKEWED
    rest = whole.mean - ttft.mean
    # requests that were given up, perhaps before their first token, are in the whole latency alone
    given_up = window.increases("requests_finished").get("abort", 0.0) / whole.count * whole.mean
    doubt = drift_seconds(window, "time_to_first_token", rest) + given_up
    return Status.SKEWED if doubt > DECODE_DOUBT_LIMIT * rest else rest


def _prefill_share(_: ModelView, window: Window) -> Outcome:
    values: dict[tuple[str, ...], float] = {}
    status: Status | None = None
    prefill, decode = window.histogram("request_prefill_time"), window.histogram("request_decode_time")
    spent_decoding = decode.sum if decode is not None else None
    if prefill is not None and decode is None:
        rest = _decode_by_difference(window)
        whole = window.histogram("e2e_request_latency")
        if isinstance(rest, Status):
            status = rest
        elif rest is not None and whole is not None:
            spent_decoding = rest * whole.count
    if prefill is not None and prefill.sum is not None and spent_decoding is not None and prefill.sum + spent_decoding > 0:
        values[("request_time",)] = prefill.sum / (prefill.sum + spent_decoding)
    timer = {category: s for category, s in window.increases("forward_execution_seconds").items() if category != "idle"}
    if sum(timer.values()) > 0:
        values[("device_timer",)] = (timer.get("extend", 0.0) + timer.get("split_prefill", 0.0)) / sum(timer.values())
    if not values:
        return unknown(status or (Status.ONE_SCRAPE if window.scrapes < 2 else Status.NO_TRAFFIC))
    return Outcome(values, status)


# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_request_phase_mean_seconds", Unit.SECONDS, "Mean time of requests by phase in the window: queue, prefill, decode, and frontend (time to first token less queue and prefill: tokenising, API server, event loop).", of_window=_phases, labels=("phase",), bound="phase (4) × window (2) per model", uses=("request_queue_time", "request_prefill_time", "request_decode_time", "time_to_first_token", "e2e_request_latency", "streamed_request_latency", "request_process_time")),
    Signal("llm_prefill_time_share_ratio", Unit.RATIO, "Share of prefill: by request_time, prefill ÷ (prefill + decode) of requests' time, which is not GPU time; by device_timer, of GPU time, where the engine has it.", of_window=_prefill_share, labels=("method",), bound="method (2) × window (2) per model", uses=("request_prefill_time", "request_decode_time", "e2e_request_latency", "streamed_request_latency", "time_to_first_token", "forward_execution_seconds")),
)
