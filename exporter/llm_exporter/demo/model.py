"""The discrete-event model of one server: front end, waiting queue, steps of continuous batching, decode bookkeeping.

`Engine.advance(now)` runs all events up to `now`; nothing here reads a clock. Requests come from a traffic source
(`traffic.py`) and, in the demo, from outside through `submit`. Which request runs in a step is the subclass's part
(`scheduling.py`). Observers see every event.

A decode step costs the same work for one sequence or for hundreds: a request knows at which decode step it joined,
and the steps at which it ends or needs its next block are planned when it joins.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from llm_exporter.demo.blocks import BlockPool
from llm_exporter.demo.hardware import Conditions, Hardware
from llm_exporter.demo.request import ENDED, Observer, Request, State, Step

_SHARE_SECONDS = 2.0  # memory of the front end's recent share of a core


class Traffic(Protocol):
    """Where requests come from."""

    next_at: float

    def draw(self) -> Request:
        """The request that arrives at `next_at`; moves `next_at` on."""


class Engine:
    """One server.

    Args:
        hardware: the cost model.
        conditions: changed by scenarios while the model runs.
        traffic: open-loop arrivals, None for a server that only hears from outside.
        queue_limit: most waiting requests; above, requests are refused (vLLM's --max-num-queued-reqs); None for no
            limit.

    Attributes:
        now: the model's clock, seconds.
        began_at: where that clock stood at the start.
        running: requests in the batch, oldest first.
        decoding: how many of them decode; `context`: tokens in their KV.
        decode_steps: decode steps so far.
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
        self.hardware = hardware
        self.conditions = conditions
        self.traffic = traffic
        self.queue_limit = queue_limit
        self.now = self.began_at = now
        self.pool = BlockPool(hardware.kv_blocks)
        self.observers: list[Observer] = []
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.prefilling: list[Request] = []
        self.decoding = 0
        self.context = 0
        self.decode_steps = 0
        self.step: Step | None = None
        self.frontend_free_at = now
        self.frontend_busy_seconds = 0.0
        self.host_busy_seconds = 0.0
        self.throttled_seconds = 0.0
        self._frontend_share = 0.0  # recent share of a core that the front end wants, kept only where there is a quota
        self._frontend_share_at = now
        self._frontend: deque[tuple[float, Request]] = deque()
        self._aborts: list[tuple[float, int, Request]] = []
        self._late_aborts: list[Request] = []  # clients that left while the engine hung
        self._fresh: list[Request] = []  # joined the decode batch after the last decode step
        self._last_decode_at = now
        self._ends: dict[int, list[tuple[Request, int]]] = {}
        self._growths: dict[int, list[tuple[Request, int]]] = {}
        self._streams: dict[Request, None] = {}  # decoding requests from outside: each token is told
        self._identity = 0
        self._was_idle = True

    # -- clock -----------------------------------------------------------------------------------------------

    def next_event_at(self) -> float:
        """When something happens next, inf if nothing will by itself."""
        at = self.traffic.next_at if self.traffic is not None else math.inf
        if self.step is not None and not self.conditions.hung and self.step.started_at + self.step.seconds < at:
            at = self.step.started_at + self.step.seconds
        if self._frontend and self._frontend[0][0] < at:
            at = self._frontend[0][0]
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
        elif self._frontend and self._frontend[0][0] <= now:
            self._enqueue(self._frontend.popleft()[1])
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
        work = self.hardware.tokenise_seconds + request.prompt_tokens * self.hardware.tokenise_token_seconds
        self._frontend.append((self.frontend(work * self.conditions.tokenise_factor), request))

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

    def frontend(self, work: float) -> float:
        """Book `work` CPU seconds on the single front-end process; returns when it is done."""
        self.frontend_busy_seconds += work
        if self.conditions.quota_cores is not None:
            faded = math.exp((self._frontend_share_at - self.now) / _SHARE_SECONDS)
            self._frontend_share = self._frontend_share * faded + work / _SHARE_SECONDS
            self._frontend_share_at = self.now
        start = self.frontend_free_at if self.frontend_free_at > self.now else self.now
        self.frontend_free_at = start + work / self._frontend_speed()
        return self.frontend_free_at

    def _frontend_speed(self) -> float:
        conditions = self.conditions
        speed = 1.0 - conditions.run_delay * 0.5
        if conditions.quota_cores is not None:
            speed *= self.quota_share()
        return speed

    def quota_share(self) -> float:
        """Share of the time in which the cgroup lets the server run: its quota against what its busy threads want."""
        quota = self.conditions.quota_cores
        if quota is None:
            return 1.0
        wanted = self._frontend_share + (1.0 if self.running or self.waiting else 0.05)
        return min(1.0, quota / wanted)

    @property
    def in_frontend(self) -> int:
        """Requests that are not tokenised yet."""
        return len(self._frontend)

    def _enqueue(self, request: Request) -> None:
        if request.state is not State.FRONTEND or self._refuses(request, in_stream=request.streaming):
            return
        request.state = State.WAITING
        request.queued_at = request.waiting_since = self.now
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
        self.host_busy_seconds += step.host_seconds
        if step.decodes:
            outputs = self._decode(now)
        for request, tokens, epoch in step.chunks:
            if request.epoch != epoch or request.state is not State.PREFILL:
                continue
            request.computed += tokens
            if request.computed >= request.target:
                self.prefilling.remove(request)
                self._token_after_prefill(request, now)
                outputs += 1
        if outputs:
            work = outputs * self.hardware.chunk_seconds
            self.frontend(work)
        for observer in self.observers:
            observer.step_ended(step, now)

    def _decode(self, now: float) -> int:
        """One more token for every decoding request; returns how many got one."""
        self.decode_steps = index = self.decode_steps + 1
        count = self.decoding
        regular = count
        observers = self.observers
        if self._fresh:
            for request in self._fresh:
                if request.state is State.DECODE:
                    regular -= 1
                    for observer in observers:
                        observer.gaps(now - request.last_token_at, 1)
            self._fresh.clear()
        if regular > 0:
            gap = now - self._last_decode_at
            for observer in observers:
                observer.gaps(gap, regular)
        self._last_decode_at = now
        self.context += count
        if self._streams:
            sent = self.frontend_free_at if self.frontend_free_at > now else now
            for request in self._streams:
                if request.sink is not None:
                    request.sink("token", 1, sent + self.hardware.chunk_seconds)
        for request, epoch in self._ends.pop(index, ()):
            if request.epoch == epoch and request.state is State.DECODE:
                self._finish(request, now)
        return count

    def generated(self, request: Request) -> int:
        """Output tokens of a request so far."""
        if request.state is State.DECODE:
            return request.generated + self.decode_steps - request.joined
        return request.generated

    def _token_after_prefill(self, request: Request, now: float) -> None:
        """A prefill is complete: its first (after a preemption, next) token exists, and it decodes from now on."""
        if request.keys:
            more = self.pool.publish(request.keys, request.plain)
            request.taken += more
            request.plain -= len(more)
        request.generated += 1
        request.joined = self.decode_steps
        request.state = State.DECODE
        self.decoding += 1
        self.context += request.target
        if request.first_token_at is None:
            request.first_token_at = now
            sent = self.frontend_free_at if self.frontend_free_at > now else now
            request.first_token_sent_at = sent + self.hardware.chunk_seconds
            for observer in self.observers:
                observer.first_token(request, now)
        else:
            for observer in self.observers:
                observer.gaps(now - request.last_token_at, 1)
        request.last_token_at = now
        if request.sink is not None:
            sent = self.frontend_free_at if self.frontend_free_at > now else now
            request.sink("token", 1, sent + self.hardware.chunk_seconds)
        if request.generated >= request.output_tokens:
            self._finish(request, now)
            return
        self._fresh.append(request)
        if request.sink is not None:
            self._streams[request] = None
        plan = (request, request.epoch)
        self._ends.setdefault(self.decode_steps + request.output_tokens - request.generated, []).append(plan)
        held = len(request.taken) + request.plain
        self.plan_growth(self.decode_steps + held * self.hardware.block_tokens - request.target + 1, plan)

    def plan_growth(self, decode_step: int, plan: tuple[Request, int]) -> None:
        """The request needs one more block before that decode step."""
        self._growths.setdefault(decode_step, []).append(plan)

    def due_growths(self) -> Sequence[tuple[Request, int]]:
        """Who needs a block before the next decode step."""
        return [
            (request, epoch)
            for request, epoch in self._growths.pop(self.decode_steps + 1, ())
            if request.epoch == epoch and request.state is State.DECODE
        ]

    def grown(self, request: Request) -> None:
        """The block was taken; the next one is due a block later."""
        request.plain += 1
        self.plan_growth(self.decode_steps + 1 + self.hardware.block_tokens, (request, request.epoch))

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return -(-tokens // self.hardware.block_tokens)

    # -- ends ------------------------------------------------------------------------------------------------

    def leave_batch(self, request: Request, *, keep: Sequence[int] = ()) -> None:
        """Take a running request out of the batch and give its blocks back.

        Args:
            request: a running one.
            keep: keys under which the blocks that it computed stay in the cache.
        """
        del self.running[request]
        if request.state is State.DECODE:
            request.generated = self.generated(request)
            if request.joined < self.decode_steps:
                request.last_token_at = self._last_decode_at
            self.decoding -= 1
            self.context -= request.target + self.decode_steps - request.joined
            self._streams.pop(request, None)
        elif request in self.prefilling:
            self.prefilling.remove(request)
        if keep:
            more = self.pool.publish(keep, request.plain)
            request.taken += more
            request.plain -= len(more)
        self.pool.release(request.taken, request.plain, -request.identity)
        request.taken, request.plain = [], 0

    def _finish(self, request: Request, now: float) -> None:
        self.leave_batch(request, keep=request.publish_output)
        request.state = State.FINISHED
        sent = self.frontend_free_at if self.frontend_free_at > now else now
        request.last_token_at = now
        request.finished_at = sent + self.hardware.chunk_seconds
        for observer in self.observers:
            observer.finished(request, now)
        if request.sink is not None:
            request.sink("finish", 0, request.finished_at)

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

    def preempt(self, request: Request) -> None:
        """Throw a running request back: its blocks are free, what it had computed must be computed again."""
        generated = self.generated(request)
        self.leave_batch(request)
        request.state = State.WAITING
        request.epoch += 1
        request.preemptions += 1
        request.computed = 0
        request.target = request.prompt_tokens + request.generated
        request.waiting_since = self.now
        for observer in self.observers:
            observer.preempted(request, self.now, generated)

    def admit(self, request: Request, hit_blocks: int) -> None:
        """Move a waiting request into the batch with its cached prefix; its own blocks are taken by the caller."""
        self.pool.hold(request.keys[:hit_blocks])
        request.taken = list(request.keys[:hit_blocks])
        request.computed = hit_blocks * self.hardware.block_tokens
        request.state = State.PREFILL
        self.running[request] = None
        self.prefilling.append(request)
        if request.scheduled_at is None:
            request.scheduled_at = self.now
            request.hit_tokens = request.computed
            for observer in self.observers:
                observer.scheduled(request, self.now)
        else:
            for observer in self.observers:
                observer.resumed(request, self.now, request.computed)
