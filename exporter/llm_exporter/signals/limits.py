"""What limits the server: stall, starvation, and the bottleneck verdict with its evidence, as published signals."""

from __future__ import annotations

from llm_exporter.readings import Unit
from llm_exporter.signals.bottleneck import CAUSES
from llm_exporter.signals.model import NOTHING, Outcome, Signal, Status, TargetView, known, unknown

_WORK = ("requests_running", "requests_waiting_capacity", "generation_tokens", "first_tokens", "steps", "http_requests_active")
_EVIDENCE = (
    "requests_running",
    "requests_waiting_capacity",
    "kv_cache_usage",
    "preemptions",
    "steps",
    "inter_token_latency",
    "time_to_first_token",
    "request_queue_time",
    "request_prefill_time",
    "forward_execution_seconds",
    "scheduler_stage_seconds",
    "scheduler_idle_seconds",
)


def stalled(view: TargetView) -> bool:
    """Whether work is there and nothing has moved for `stall.after`; a GPU that shows real work (a long prefill) is no stall."""
    if view.state != "ready" or view.gpu_works:
        return False
    return view.store.progress.still_seconds(view.at) >= view.stall_after


def _stalled(view: TargetView) -> Outcome:
    return known(float(stalled(view))) if view.fresh else NOTHING


def _starved(view: TargetView) -> Outcome:
    if view.decision is None:
        return NOTHING
    return unknown(_no_gap(view)) if view.decision.starved is None else known(float(view.decision.starved))


def _no_gap(view: TargetView) -> Status:
    """Why nothing is known of the GPU beside the work: there is no work to compare with before the second scrape."""
    return Status.NEEDS_GPU if view.gpu is None or len(view.store.frames) > 1 else Status.ONE_SCRAPE


def _starved_ratio(view: TargetView) -> Outcome:
    if view.decision is None:
        return NOTHING
    if view.decision.gap is None:
        return unknown(_no_gap(view))
    return Outcome({(window,): gap for window, gap in view.decision.gaps.items()})


def _verdict(view: TargetView) -> Outcome:
    if view.decision is None:
        return NOTHING
    needs_gpu = view.decision.cause == "unknown" and view.decision.gap is None
    return Outcome({(cause,): float(cause == view.decision.cause) for cause in CAUSES}, _no_gap(view) if needs_gpu else None)


def _scores(view: TargetView) -> Outcome:
    return NOTHING if view.decision is None else Outcome({(cause,): value for cause, value in view.decision.scores.items()})


def _evidence(view: TargetView) -> Outcome:
    return NOTHING if view.decision is None else Outcome(view.decision.evidence)


def _confidence(view: TargetView) -> Outcome:
    return NOTHING if view.decision is None or view.decision.confidence is None else known(view.decision.confidence)


# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_engine_stalled", Unit.FLAG, "1 while work is there and nothing has moved for stall.after; a long prefill on a busy GPU is not a stall.", of_target=_stalled, bound="1", uses=_WORK),
    Signal("llm_gpu_starved", Unit.FLAG, "1 while the GPU waits for the CPU: on after 3 decisions at least 10 s apart, off after 4. Absent without readings of the GPU.", of_target=_starved, bound="1", uses=_EVIDENCE),
    Signal("llm_gpu_starved_ratio", Unit.RATIO, "Share of time in which the GPU had nothing resident although the engine had work.", of_target=_starved_ratio, labels=("window",), bound="window (2)", uses=_EVIDENCE),
    Signal("llm_bottleneck_verdict", Unit.FLAG, "1 for what limits the server, over the last 30 s; a change is published when two ticks agree.", of_target=_verdict, labels=("cause",), bound="cause (14)", uses=_EVIDENCE),
    Signal("llm_bottleneck_score_ratio", Unit.RATIO, "How much speaks for each cause, 0 to 1, reduced where most of its evidence is missing; absent where all of it is.", of_target=_scores, labels=("cause",), bound="cause (12)", uses=_EVIDENCE),
    Signal("llm_bottleneck_evidence_ratio", Unit.RATIO, "The pieces of evidence behind each score, as memberships from 0 to 1 (a ramp over the measured value, not the value itself).", of_target=_evidence, labels=("cause", "evidence"), bound="pieces of evidence (about 40)", uses=_EVIDENCE),
    Signal("llm_bottleneck_confidence_ratio", Unit.RATIO, "How sure the verdict is: evidence that was there × distance to the next cause.", of_target=_confidence, bound="1", uses=_EVIDENCE),
)
