"""The discrete-event model of one server: front end, waiting queue, steps.

`Engine.advance(now)` runs all events up to `now`; nothing here reads a clock. Requests come from a traffic source
(`traffic.py`) and, in the demo, from outside through `submit`. Which request runs in a step is the subclass's part
(`scheduling.py`). Observers see every event.
"""

from __future__ import annotations

import heapq
import math
from typing import Protocol

from llm_exporter.demo.batch import Batch
from llm_exporter.demo.frontend import Frontend
from llm_exporter.demo.hardware import Conditions, Hardware
from llm_exporter.demo.request import ENDED, Request, State, Step


class Traffic(Protocol):
    """Where requests come from."""

    next_at: float

    def draw(self) -> Request:
        """The request that arrives at `next_at`; moves `next_at` on."""


class Engine(Batch):
    """One server.

    Args:
        hardware: the cost model.
        conditions: changed by scenarios while the model runs.
        traffic: open-loop arrivals, None for a server that only hears from outside.
        queue_limit: most waiting requests; above, requests are refused (vLLM's --max-num-queued-reqs); None for no
            limit.

    Attributes:
        now: the model's clock, seconds.
        step: the forward pass under way.
        frontend: tokenises and sends.
    """

    def __init__(
        self,
        hardware: Hardware,
        conditions: Conditions,
        traffic: Traffic | None = None,
        *,
        queue_limit: int | None = None,
        now: float = 0.0,
    ) -> None:
        super().__init__(hardware, Frontend(hardware, conditions, now), now)
        self.conditions = conditions
        self.traffic = traffic
        self.queue_limit = queue_limit
        self.now = now
        self.step: Step | None = None
        self.throttled_seconds = 0.0
        self._aborts: list[tuple[float, int, Request]] = []
        self._late_aborts: list[Request] = []  # clients that left while the engine hung
        self._identity = 0
        self._was_idle = True

    # -- clock -----------------------------------------------------------------------------------------------

    def next_event_at(self) -> float:
        """When something happens next, inf if nothing will by itself."""
        at = self.traffic.next_at if self.traffic is not None else math.inf
        if self.step is not None and not self.conditions.hung and self.step.started_at + self.step.seconds < at:
            at = self.step.started_at + self.step.seconds
        tokenising = self.frontend.tokenising
        if tokenising and tokenising[0][0] < at:
            at = tokenising[0][0]
        if self._aborts and self._aborts[0][0] < at:
            at = self._aborts[0][0]
        return at

    def advance(self, now: float) -> None:
        """Run every event up to `now`, in order. A time before the last call is ignored."""
        while True:
            at = self.next_event_at()
            if at > now:
                break
            if at > self.now:
                self.now = at
            self._run_one()
            if self.step is None and not self.conditions.hung:
                self._begin_step()
        if now > self.now:
            self.now = now

    def _run_one(self) -> None:
        """The event that is due at `self.now`."""
        now = self.now
        step = self.step
        if step is not None and not self.conditions.hung and step.started_at + step.seconds <= now:
            self.step = None
            self._end_step(step)
        elif self.frontend.tokenising and self.frontend.tokenising[0][0] <= now:
            self._enqueue(self.frontend.tokenising.popleft()[1])
        elif self._aborts and self._aborts[0][0] <= now:
            self.abort(heapq.heappop(self._aborts)[2])
        elif self.traffic is not None:
            self._arrive(self.traffic.draw())

    def hang(self) -> None:
        """The engine stops in the middle of what it does."""
        self.conditions.hung = True

    def wake(self) -> None:
        """A hung engine goes on: the step that was under way ends now."""
        self.conditions.hung = False
        for request in self._late_aborts:
            self.abort(request)
        self._late_aborts.clear()
        if self.step is not None:
            self.step.seconds = min(self.step.seconds, self.now - self.step.started_at)
        else:
            self._begin_step()

    # -- front end -------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """A request from outside arrives now."""
        self._arrive(request)
        if self.step is None and not self.conditions.hung:
            self._begin_step()

    def _arrive(self, request: Request) -> None:
        now = self.now
        self._identity += 1
        request.identity = self._identity
        request.arrived_at = now
        for observer in self.observers:
            observer.arrived(request, now)
        if request.abort_at is not None:
            heapq.heappush(self._aborts, (request.abort_at, request.identity, request))
        if self._refuses(request, in_stream=False):
            return
        request.state = State.FRONTEND
        self.frontend.accept(request, now, self.quota_share())

    def _refuses(self, request: Request, *, in_stream: bool) -> bool:
        """A full queue refuses, at arrival or (in a burst, when the stream has begun) after tokenisation."""
        if self.queue_limit is None or len(self.waiting) < self.queue_limit:
            return False
        request.state = State.REJECTED
        for observer in self.observers:
            observer.rejected(request, self.now, in_stream)
        if request.sink is not None:
            request.sink("reject", 0, self.now)
        return True

    def quota_share(self) -> float:
        """Share of the time in which the cgroup lets the server run: its quota against what its busy threads want."""
        quota = self.conditions.quota_cores
        if quota is None:
            return 1.0
        wanted = self.frontend.recent_share(self.now) + (1.0 if self.running or self.waiting else 0.05)
        return min(1.0, quota / wanted)

    @property
    def frontend_busy_seconds(self) -> float:
        """CPU seconds of the front end since the start."""
        return self.frontend.busy_seconds

    def _enqueue(self, request: Request) -> None:
        if request.state is not State.FRONTEND or self._refuses(request, in_stream=request.streaming):
            return
        request.state = State.WAITING
        request.queued_at = self.now
        self.waiting.append(request)
        self._was_idle = False
        for observer in self.observers:
            observer.queued(request, self.now)

    # -- steps -----------------------------------------------------------------------------------------------

    def schedule(self) -> Step | None:
        """Choose the work of the next step; None where there is nothing to run. The subclass's part."""
        raise NotImplementedError

    def _begin_step(self) -> None:
        if not self.running and not self.waiting:
            if not self._was_idle:
                self._was_idle = True
                for observer in self.observers:
                    observer.idle(self.now)
            return
        step = self.schedule()
        if step is None:
            return
        hardware, conditions = self.hardware, self.conditions
        pairs = 0.0
        for request, tokens, _ in step.chunks:
            pairs += tokens * (request.computed + 0.5 * tokens)
        speed = conditions.clock_ratio * (1.0 - conditions.foreign_share)
        compute = hardware.compute_seconds(step.prefill_tokens, pairs) / speed
        memory = (hardware.weight_seconds + hardware.memory_seconds(step.decodes, step.context)) / (1.0 - conditions.foreign_share)
        # weights are read once; a large prefill hides that read behind its arithmetic
        step.compute_seconds = compute
        step.memory_seconds = memory - min(0.7 * compute, hardware.weight_seconds)
        step.communication_seconds = hardware.communication_seconds
        step.gpu_seconds = step.compute_seconds + step.memory_seconds + step.communication_seconds
        slower = 1.0 - conditions.run_delay
        step.host_seconds = hardware.host_seconds + hardware.host_overlapped_seconds + len(self.running) * hardware.host_sequence_seconds
        overlapped = (step.host_seconds - hardware.host_seconds) / slower
        step.seconds = max(step.gpu_seconds, overlapped) + hardware.host_seconds / slower
        if conditions.run_delay:
            # the thread that waits for the GPU has lost its core when the GPU is done
            step.seconds += 0.35 * conditions.run_delay * step.gpu_seconds
        share = self.quota_share()
        if share < 1.0:
            step.seconds /= share
            self.throttled_seconds += step.seconds * (1.0 - share)
        self.step = step

    def _end_step(self, step: Step) -> None:
        now = self.now
        outputs = 0
        if step.decodes:
            outputs = self.decode(now)
        for request, tokens, epoch in step.chunks:
            if request.epoch != epoch or request.state is not State.PREFILL:
                continue
            request.computed += tokens
            if request.computed >= request.target:
                self.prefilling.remove(request)
                self.token_after_prefill(request, now)
                outputs += 1
        if outputs:
            self.frontend.send(outputs, now, self.quota_share())
        for observer in self.observers:
            observer.step_ended(step, now)

    # -- ends ------------------------------------------------------------------------------------------------

    def abort(self, request: Request) -> None:
        """The client went away; the engine drops the request, unless it has ended."""
        if request.state in ENDED:
            return
        before = request.state
        if self.conditions.hung and before is not State.FRONTEND:
            self._late_aborts.append(request)  # a hung engine reads no message
            return
        if request in self.running:
            self.leave_batch(request)
        elif request.state is State.WAITING:
            self.waiting.remove(request)
        request.state = State.ABORTED
        request.epoch += 1
        for observer in self.observers:
            observer.aborted(request, self.now, before)
        if request.sink is not None:
            request.sink("abort", 0, self.now)
