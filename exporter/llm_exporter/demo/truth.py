"""What really happened in a simulated server: the yardstick for the exporter's signals.

`TruthLog` watches an engine and keeps running totals, sampled once a second; `TruthLog.window(start, end)` says what
the totals moved by. It counts on its own, not through the pages, so that a page that lies is found out.
"""

# ruff: noqa: D102, ARG002 - the methods of an Observer are described there and take what it passes
from __future__ import annotations

import bisect
from array import array
from collections import deque
from dataclasses import asdict, dataclass
from itertools import islice

from llm_exporter.demo.model import Engine
from llm_exporter.demo.request import Observer, Request, State, Step

_TOTALS = (
    "arrived",
    "queued",
    "rejected",
    "scheduled",
    "first_tokens",
    "finished",
    "aborted",
    "preempted",
    "steps",
    "decode_steps",
    "prompt_tokens",
    "hit_tokens",
    "queried_tokens",
    "computed_tokens",
    "generated_tokens",
    "frontend_seconds",
    "queue_seconds",
    "prefill_seconds",
    "ttft_seconds",
    "finished_queue_seconds",
    "finished_prefill_seconds",
    "finished_decode_seconds",
    "finished_e2e_seconds",
    "work_seconds",
    "gpu_seconds",
    "compute_seconds",
    "memory_seconds",
    "waiting_area",
    "running_area",
    "throttled_seconds",
    "frontend_busy_seconds",
)


@dataclass(frozen=True, slots=True)
class Truth:
    """What was true between two moments. Means are None where nothing was there to average.

    Attributes:
        queue_time, prefill_time, decode_time: means of the requests that finished in the window, seconds (vLLM's
            histograms see the same).
        started_queue_time: mean of the requests that left the queue in the window.
        first_token_prefill_time: mean of the requests whose first token came in the window (SGLang's histograms see the two).
        ttft, frontend_time: means of the first tokens sent in the window; front end = TTFT - queue - prefill.
        hit_ratio: hit ÷ queried prompt tokens of the requests admitted in the window.
        work_ratio: share of the time with a request in the engine; `gpu_ratio`: with the GPU at work;
            `gap_ratio`: with a request in the engine and nothing on the GPU.
        compute_ratio: share of the GPU's time that was prefill-like arithmetic.
        waiting, running: time means; `waiting_end`, `running_end`, `kv_usage`: at the end of the window;
            `kv_usage_max`: the highest of the samples in it.
        throttled_ratio: share of the time in which the cgroup kept the server from running.
        frontend_busy_ratio: share of a core that the front end used.
    """

    seconds: float
    queue_time: float | None
    started_queue_time: float | None
    prefill_time: float | None
    first_token_prefill_time: float | None
    decode_time: float | None
    e2e: float | None
    ttft: float | None
    frontend_time: float | None
    hit_ratio: float | None
    arrivals_per_second: float
    first_tokens_per_second: float
    finished_per_second: float
    prefill_tokens_per_second: float
    prompt_tokens_per_second: float
    generation_tokens_per_second: float
    work_ratio: float
    gpu_ratio: float
    gap_ratio: float
    compute_ratio: float | None
    waiting: float
    running: float
    waiting_end: int
    running_end: int
    kv_usage: float
    kv_usage_max: float
    preemptions: int
    rejections: int
    aborts: int
    throttled_ratio: float
    frontend_busy_ratio: float

    def as_dict(self) -> dict[str, float | None]:
        """All fields by name, for `meta.json`."""
        return asdict(self)


class TruthLog(Observer):
    """Running totals of one engine.

    Args:
        engine: the engine to watch; the log adds itself to its observers.
        keep_seconds: how far back `window` can look.
    """

    def __init__(self, engine: Engine, keep_seconds: int = 7200) -> None:
        self._engine = engine
        self.total: dict[str, float] = dict.fromkeys(_TOTALS, 0.0)
        self.waiting = 0
        self.running = 0
        self._changed_at = engine.now
        self._times: deque[float] = deque(maxlen=keep_seconds)
        self._rows: deque[tuple[array[float], int, int, float]] = deque(maxlen=keep_seconds)
        engine.observers.append(self)
        self.sample(engine.now)

    # -- events ----------------------------------------------------------------------------------------------

    def _moved(self, now: float, waiting: int, running: int) -> None:
        passed = now - self._changed_at
        total = self.total
        total["waiting_area"] += self.waiting * passed
        total["running_area"] += self.running * passed
        if self.waiting or self.running:
            total["work_seconds"] += passed
        self._changed_at = now
        self.waiting += waiting
        self.running += running

    def arrived(self, request: Request, now: float) -> None:
        self.total["arrived"] += 1

    def queued(self, request: Request, now: float) -> None:
        self._moved(now, 1, 0)
        self.total["queued"] += 1

    def rejected(self, request: Request, now: float, in_stream: bool) -> None:
        self.total["rejected"] += 1

    def scheduled(self, request: Request, now: float) -> None:
        self._moved(now, -1, 1)
        total = self.total
        total["scheduled"] += 1
        total["queue_seconds"] += now - request.queued_at
        total["queried_tokens"] += request.prompt_tokens
        total["hit_tokens"] += request.hit_tokens or 0

    def resumed(self, request: Request, now: float, hit_tokens: int) -> None:
        self._moved(now, -1, 1)

    def first_token(self, request: Request, now: float) -> None:
        total = self.total
        assert request.scheduled_at is not None
        assert request.first_token_sent_at is not None
        ttft = request.first_token_sent_at - request.arrived_at
        queue, prefill = request.scheduled_at - request.queued_at, now - request.scheduled_at
        total["first_tokens"] += 1
        total["generated_tokens"] += 1
        total["prompt_tokens"] += request.prompt_tokens
        total["ttft_seconds"] += ttft
        total["prefill_seconds"] += prefill
        total["frontend_seconds"] += ttft - queue - prefill

    def gaps(self, seconds: float, count: int) -> None:
        self.total["generated_tokens"] += count

    def finished(self, request: Request, now: float) -> None:
        self._moved(now, 0, -1)
        total = self.total
        assert request.scheduled_at is not None
        assert request.first_token_at is not None
        assert request.finished_at is not None
        total["finished"] += 1
        total["finished_queue_seconds"] += request.scheduled_at - request.queued_at
        total["finished_prefill_seconds"] += request.first_token_at - request.scheduled_at
        total["finished_decode_seconds"] += request.last_token_at - request.first_token_at
        total["finished_e2e_seconds"] += request.finished_at - request.arrived_at

    def aborted(self, request: Request, now: float, before: State) -> None:
        if before is State.WAITING:
            self._moved(now, -1, 0)
        elif before in (State.PREFILL, State.DECODE):
            self._moved(now, 0, -1)
        self.total["aborted"] += 1

    def preempted(self, request: Request, now: float, generated: int) -> None:
        self._moved(now, 1, -1)
        self.total["preempted"] += 1

    def step_ended(self, step: Step, now: float) -> None:
        total = self.total
        total["steps"] += 1
        total["decode_steps"] += step.decodes > 0
        total["computed_tokens"] += step.prefill_tokens
        total["gpu_seconds"] += step.gpu_seconds
        total["compute_seconds"] += step.compute_seconds
        total["memory_seconds"] += step.memory_seconds

    # -- reading ---------------------------------------------------------------------------------------------

    def sample(self, now: float) -> None:
        """Remember the totals at `now`, the step under way counted in part. Call it once a second."""
        self._moved(now, 0, 0)
        total = dict(self.total)
        total["throttled_seconds"] = self._engine.throttled_seconds
        total["frontend_busy_seconds"] = self._engine.frontend_busy_seconds
        step = self._engine.step
        if step is not None and step.seconds > 0:
            done = min(1.0, (now - step.started_at) / step.seconds)
            total["gpu_seconds"] += step.gpu_seconds * done
            total["compute_seconds"] += step.compute_seconds * done
            total["memory_seconds"] += step.memory_seconds * done
        self._times.append(now)
        pool = self._engine.pool
        self._rows.append((array("d", (total[name] for name in _TOTALS)), self.waiting, self.running, pool.in_use / pool.capacity))

    def window(self, start: float, end: float) -> Truth:
        """What was true between the samples next to `start` and `end` (seconds of the model's clock)."""
        times = list(self._times)
        first = max(0, bisect.bisect_right(times, start + 1e-6) - 1)
        last = max(first, bisect.bisect_right(times, end + 1e-6) - 1)
        before, _, _, _ = self._rows[first]
        after, waiting, running, usage = self._rows[last]
        seconds = times[last] - times[first]
        moved = {name: new - old for name, old, new in zip(_TOTALS, before, after, strict=True)}
        per = 1.0 / seconds if seconds else 0.0

        def mean(total: str, count: str) -> float | None:
            return moved[total] / moved[count] if moved[count] else None

        return Truth(
            seconds=seconds,
            queue_time=mean("finished_queue_seconds", "finished"),
            started_queue_time=mean("queue_seconds", "scheduled"),
            prefill_time=mean("finished_prefill_seconds", "finished"),
            first_token_prefill_time=mean("prefill_seconds", "first_tokens"),
            decode_time=mean("finished_decode_seconds", "finished"),
            e2e=mean("finished_e2e_seconds", "finished"),
            ttft=mean("ttft_seconds", "first_tokens"),
            frontend_time=mean("frontend_seconds", "first_tokens"),
            hit_ratio=mean("hit_tokens", "queried_tokens"),
            arrivals_per_second=moved["arrived"] * per,
            first_tokens_per_second=moved["first_tokens"] * per,
            finished_per_second=moved["finished"] * per,
            prefill_tokens_per_second=moved["computed_tokens"] * per,
            prompt_tokens_per_second=moved["prompt_tokens"] * per,
            generation_tokens_per_second=moved["generated_tokens"] * per,
            work_ratio=moved["work_seconds"] * per,
            gpu_ratio=moved["gpu_seconds"] * per,
            gap_ratio=max(0.0, moved["work_seconds"] - moved["gpu_seconds"]) * per,
            compute_ratio=mean("compute_seconds", "gpu_seconds"),
            waiting=moved["waiting_area"] * per,
            running=moved["running_area"] * per,
            waiting_end=waiting,
            running_end=running,
            kv_usage=usage,
            kv_usage_max=max(row[3] for row in islice(self._rows, first, last + 1)),
            preemptions=round(moved["preempted"]),
            rejections=round(moved["rejected"]),
            aborts=round(moved["aborted"]),
            throttled_ratio=moved["throttled_seconds"] * per,
            frontend_busy_ratio=moved["frontend_busy_seconds"] * per,
        )
