"""Open-loop load: when the next request comes, how long it is, and what it shares with others.

Poisson arrivals whose rate a scenario may change at any moment, with optional bursts and a daily shape. Prompts
begin with one of a few shared prefixes (a system prompt, a document); a part of the requests continues a
conversation, whose whole history is then a prefix.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

from llm_exporter.demo.request import Request

_CONVERSATION, _SALTED, _SHARED = 0, 1, 2  # kinds of text, for the keys


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients do.

    Attributes:
        rate: requests per second, mean.
        prompt_tokens, output_tokens: medians of log-normal lengths, shared prefix not included; `spread` is their
            sigma.
        prefixes, prefix_tokens: number and length of the shared prefixes; 0 tokens: nothing is shared.
        salted: every request has its own prefix text: nothing can hit although the prompts look alike.
        conversations: share of requests that continue an earlier one.
        stop_share: share that ends by itself before `max_tokens`.
        abort_share: share whose client leaves after `patience` seconds (mean).
        streaming_share: share that streams.
        burst_every, burst_seconds, burst_factor: the rate is multiplied for so long, so often; 0: no bursts.
        day_seconds, day_depth: a sine of that period lowers the rate by up to that share; 0: no daily shape.
    """

    rate: float
    prompt_tokens: int = 400
    output_tokens: int = 180
    spread: float = 0.5
    prefixes: int = 4
    prefix_tokens: int = 800
    salted: bool = False
    conversations: float = 0.2
    stop_share: float = 0.8
    abort_share: float = 0.01
    patience: float = 2.0
    streaming_share: float = 0.9
    burst_every: float = 0.0
    burst_seconds: float = 0.0
    burst_factor: float = 1.0
    day_seconds: float = 0.0
    day_depth: float = 0.0

    def rate_at(self, now: float) -> float:
        """Requests per second at that moment."""
        rate = self.rate
        if self.burst_every and now % self.burst_every < self.burst_seconds:
            rate *= self.burst_factor
        if self.day_seconds:
            rate *= 1.0 - self.day_depth * (0.5 + 0.5 * math.cos(2 * math.pi * now / self.day_seconds))
        return rate

    @property
    def peak_rate(self) -> float:
        """Highest rate that `rate_at` can give."""
        return self.rate * (self.burst_factor if self.burst_every else 1.0)


class PoissonTraffic:
    """Arrivals of one server, deterministic for a seed.

    Args:
        load: what the clients do; replace it with `change`.
        block_tokens, context_tokens: of the server.
        seed: of all randomness.
        now: the model's clock.
    """

    def __init__(self, load: Load, *, block_tokens: int, context_tokens: int, seed: int, now: float = 0.0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a simulation, no secret
        self._block = block_tokens
        self._context = context_tokens
        self._histories: deque[tuple[int, int]] = deque(maxlen=64)  # (conversation, tokens so far)
        self._serial = 0
        self.load = load
        self.next_at = math.inf
        self.change(load, now)

    def change(self, load: Load, now: float) -> None:
        """Another load from now on; the wait for the next arrival starts anew, as a Poisson process allows."""
        self.load = load
        self._plan(now)

    def _plan(self, now: float) -> None:
        """Next arrival by thinning: candidates at the peak rate, kept with the share of the rate at their time."""
        peak = self.load.peak_rate
        if peak <= 0:
            self.next_at = math.inf
            return
        at = now
        for _ in range(10_000):
            at += self._random.expovariate(peak)
            if self._random.random() * peak <= self.load.rate_at(at):
                break
        self.next_at = at

    def draw(self) -> Request:
        """The request that arrives at `next_at`."""
        at, load, rng = self.next_at, self.load, self._random
        self._plan(at)
        self._serial += 1
        limit = max(1, round(rng.lognormvariate(math.log(load.output_tokens), load.spread)))
        unique = max(4, round(rng.lognormvariate(math.log(load.prompt_tokens), load.spread)))
        room = self._context - 64
        limit = min(limit, room // 2)
        keys: list[int] = []
        prefix = load.prefix_tokens
        conversation = self._serial
        history = 0
        if load.salted:
            keys = _keys(_SALTED, self._serial, prefix // self._block)
        elif self._histories and rng.random() < load.conversations:
            conversation, history = self._histories.popleft()
            prefix = history
            keys = _keys(_CONVERSATION, conversation, history // self._block)
        elif prefix:
            keys = _keys(_SHARED, rng.randrange(load.prefixes), prefix // self._block)
        prompt = min(prefix + unique, room - limit)
        del keys[max(0, prompt - 1) // self._block :]
        stops = rng.random() < load.stop_share
        output = limit
        max_tokens = limit * 2 if stops else limit
        end = prompt + output
        publish: list[int] = []
        if load.conversations and end < room // 2:
            publish = _keys(_CONVERSATION, conversation, end // self._block)
            self._histories.append((conversation, end))
        return Request(
            prompt,
            output,
            keys=keys,
            max_tokens=max_tokens,
            streaming=rng.random() < load.streaming_share,
            publish_output=publish,
            abort_at=at + rng.expovariate(1.0 / load.patience) if rng.random() < load.abort_share else None,
        )


def _keys(kind: int, stream: int, blocks: int) -> list[int]:
    """Chained keys of the first blocks of a text; the same text gives the same keys. No negative number: hash(-1) is hash(-2)."""
    return [hash((kind, stream, position)) for position in range(blocks)]
