"""How the two engines choose the work of a step, and what they do when the KV cache is full.

vLLM mixes: every step decodes all running requests and spends what is left of its token budget on prefill chunks;
when a decode finds no block, the youngest request is preempted and computed again later. SGLang takes prefill first,
in steps of their own; it admits by an estimate of the room that running requests will need, and when that was too
bold it retracts the requests with the least output.
"""

from __future__ import annotations

from typing import ClassVar

from llm_exporter.demo.model import Engine
from llm_exporter.demo.request import Request, Step


class VllmEngine(Engine):
    """First come, first served; chunked prefill in mixed steps; preemption by recomputation."""

    def schedule(self) -> Step | None:
        """Decodes first, then prefill chunks within the token budget."""
        preempted = False
        for request, epoch in self.due_growths():
            if request.epoch != epoch:
                continue  # preempted for one that came before it in this loop
            while not self.pool.take(1):
                victim = next(reversed(self.running))
                self._throw_back(victim)
                preempted = True
                if victim is request:
                    break
            else:
                self.grown(request)
        budget = self.hardware.step_tokens - self.decoding
        chunks: list[tuple[Request, int, int]] = []
        prefilled = 0
        for request in self.prefilling:
            tokens = min(budget, request.target - request.computed)
            if tokens <= 0 or not self._take_for(request, tokens):
                break
            chunks.append((request, tokens, request.epoch))
            prefilled += tokens
            budget -= tokens
        while budget > 0 and self.waiting and not preempted and len(self.running) < self.hardware.max_running:
            request = self.waiting[0]
            hits = self.hits(request)
            tokens = min(budget, request.target - hits * self.hardware.block_tokens)
            need = self.blocks_for(hits * self.hardware.block_tokens + tokens) - hits
            if need + self.pool.idle_among(request.keys[:hits]) > self.pool.free:
                break
            self.waiting.popleft()
            self.admit(request, hits, self.now)
            self._take_for(request, tokens)
            chunks.append((request, tokens, request.epoch))
            prefilled += tokens
            budget -= tokens
        if not chunks and not self.decoding:
            if self.prefilling:  # nobody decodes and the oldest prefill finds no block: the youngest makes room
                self._throw_back(next(reversed(self.running)))
                return self.schedule()
            return None
        return Step(self.now, chunks, prefilled, self.decoding, self.context)

    def _throw_back(self, victim: Request) -> None:
        self.preempt(victim, self.now)
        self.waiting.appendleft(victim)

    def _take_for(self, request: Request, tokens: int) -> bool:
        need = self.blocks_for(request.computed + tokens) - len(request.taken) - request.plain
        if need > 0:
            if not self.pool.take(need):
                return False
            request.plain += need
        return True

    def hits(self, request: Request) -> int:
        """Leading blocks of its prompt that are cached; the last token is always computed."""
        most = (request.target - 1) // self.hardware.block_tokens
        return self.pool.match(request.keys[:most])


class SglangEngine(VllmEngine):
    """Prefill before decode, in steps of their own; admission by estimated room; retraction.

    Attributes:
        new_token_ratio: share of a request's `max_tokens` for which room is reserved; falls while all goes well,
            rises at a retraction.
    """

    RATIO_START: ClassVar[float] = 0.7
    RATIO_FLOOR: ClassVar[float] = 0.098
    RATIO_DECAY: ClassVar[float] = 0.001
    RETRACT_STEPS: ClassVar[int] = 20
    new_token_ratio: float = RATIO_START

    def schedule(self) -> Step | None:
        """A prefill step where one is possible, else a decode step."""
        chunks = self._prefill()
        if chunks:
            return Step(self.now, chunks, sum(tokens for _, tokens, _ in chunks), 0, 0)
        if not self.decoding:
            return None
        for request, epoch in self.due_growths():
            if request.epoch != epoch:
                continue
            while not self.pool.take(1):
                if self._retract() is request:
                    break
            else:
                self.grown(request)
        if not self.decoding:
            return self.schedule()
        self.new_token_ratio = max(self.RATIO_FLOOR, self.new_token_ratio - self.RATIO_DECAY)
        return Step(self.now, [], 0, self.decoding, self.context)

    def _prefill(self) -> list[tuple[Request, int, int]]:
        budget = self.hardware.step_tokens
        chunks: list[tuple[Request, int, int]] = []
        for request in self.prefilling:
            tokens = min(budget, request.target - request.computed)
            if tokens <= 0 or not self._take_for(request, tokens):
                break
            chunks.append((request, tokens, request.epoch))
            budget -= tokens
        if budget <= 0 or not self.waiting:
            return chunks
        block = self.hardware.block_tokens
        reserved = sum(self._reserve(request) for request in self.running)
        while budget > 0 and self.waiting and len(self.running) < self.hardware.max_running:
            request = self.waiting[0]
            hits = self.hits(request)
            fresh = self.blocks_for(request.target) - hits
            room = self.pool.free - self.pool.idle_among(request.keys[:hits]) - reserved / block
            if fresh + self._reserve(request) / block > room and self.running:
                break
            if fresh + self.pool.idle_among(request.keys[:hits]) > self.pool.free:
                break
            self.waiting.popleft()
            self.admit(request, hits, self.now)
            tokens = min(budget, request.target - request.computed)
            self._take_for(request, tokens)
            reserved += self._reserve(request) + (request.target - request.computed - tokens)
            chunks.append((request, tokens, request.epoch))
            budget -= tokens
        return chunks

    def _reserve(self, request: Request) -> float:
        return min(4096, request.max_tokens - self.generated(request)) * self.new_token_ratio

    def _retract(self) -> Request:
        """Throw back the decoding request with the least output; raise the reserve to what the rest will need."""
        victim = min(self.running, key=lambda request: (self.generated(request), -request.prompt_tokens))
        self.preempt(victim, self.now)
        self.waiting.append(victim)
        decoded = sum(self.generated(request) for request in self.running)
        promised = sum(request.max_tokens for request in self.running)
        if promised:
            self.new_token_ratio = min(1.0, (decoded + self.RETRACT_STEPS * len(self.running)) / promised)
        return victim
