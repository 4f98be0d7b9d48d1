"""The running batch of one server: who prefills, who decodes, whose blocks are whose.

A decode step costs the same work for one sequence or for hundreds: a request knows at which decode step it joined,
and the steps at which it ends or needs its next block are planned when it joins. `model.py` moves a batch through
time; nothing here knows another clock than the `now` it is given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from llm_exporter.demo.blocks import BlockPool
from llm_exporter.demo.frontend import Frontend
from llm_exporter.demo.hardware import Hardware
from llm_exporter.demo.request import Observer, Request, State


class Batch:
    """Requests that wait and run.

    Attributes:
        pool: the KV cache.
        waiting: the scheduler's queue, its head first.
        running: requests in the batch, oldest first; `prefilling`: those without their next token yet.
        decoding: how many decode; `context`: tokens in their KV.
        decode_steps: decode steps so far.
        observers: told of every event.
    """

    def __init__(self, hardware: Hardware, frontend: Frontend, now: float) -> None:
        self.hardware = hardware
        self.frontend = frontend
        self.pool = BlockPool(hardware.kv_blocks)
        self.observers: list[Observer] = []
        self.waiting: deque[Request] = deque()
        self.running: dict[Request, None] = {}
        self.prefilling: list[Request] = []
        self.decoding = 0
        self.context = 0
        self.decode_steps = 0
        self._fresh: list[Request] = []  # joined the decode batch after the last decode step
        self._last_decode_at = now
        self._ends: dict[int, list[tuple[Request, int]]] = {}
        self._growths: dict[int, list[tuple[Request, int]]] = {}
        self._streams: dict[Request, None] = {}  # decoding requests from outside: each token is told

    # -- tokens ----------------------------------------------------------------------------------------------

    def decode(self, now: float) -> int:
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
            sent = self.frontend.sends_at(now)
            for request in self._streams:
                if request.sink is not None:
                    request.sink("token", 1, sent)
        for request, epoch in self._ends.pop(index, ()):
            if request.epoch == epoch and request.state is State.DECODE:
                self._finish(request, now)
        return count

    def generated(self, request: Request) -> int:
        """Output tokens of a request so far."""
        if request.state is State.DECODE:
            return request.generated + self.decode_steps - request.joined
        return request.generated

    def token_after_prefill(self, request: Request, now: float) -> None:
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
            request.first_token_sent_at = self.frontend.sends_at(now)
            for observer in self.observers:
                observer.first_token(request, now)
        else:
            for observer in self.observers:
                observer.gaps(now - request.last_token_at, 1)
        request.last_token_at = now
        if request.sink is not None:
            request.sink("token", 1, self.frontend.sends_at(now))
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

    # -- blocks ----------------------------------------------------------------------------------------------

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

    # -- in and out ------------------------------------------------------------------------------------------

    def preempt(self, request: Request, now: float) -> None:
        """Throw a running request back: its blocks are free, what it had computed must be computed again."""
        generated = self.generated(request)
        self.leave_batch(request)
        request.state = State.WAITING
        request.epoch += 1
        request.preemptions += 1
        request.computed = 0
        request.target = request.prompt_tokens + request.generated
        for observer in self.observers:
            observer.preempted(request, now, generated)

    def admit(self, request: Request, hit_blocks: int, now: float) -> None:
        """Move a waiting request into the batch with its cached prefix; its own blocks are taken by the caller."""
        self.pool.hold(request.keys[:hit_blocks])
        request.taken = list(request.keys[:hit_blocks])
        request.computed = hit_blocks * self.hardware.block_tokens
        request.state = State.PREFILL
        self.running[request] = None
        self.prefilling.append(request)
        if request.scheduled_at is None:
            request.scheduled_at = now
            request.hit_tokens = request.computed
            for observer in self.observers:
                observer.scheduled(request, now)
        else:
            for observer in self.observers:
                observer.resumed(request, now, request.computed)

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
        request.last_token_at = now
        request.finished_at = self.frontend.sends_at(now)
        for observer in self.observers:
            observer.finished(request, now)
        if request.sink is not None:
            request.sink("finish", 0, request.finished_at)
