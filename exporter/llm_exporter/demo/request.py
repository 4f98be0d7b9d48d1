"""One simulated request, one engine step, and the interface of those who watch them.

Times are seconds of the model's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum


class State(StrEnum):
    """Where a request is. Every request ends in exactly one of the last three."""

    ARRIVING = "arriving"
    FRONTEND = "frontend"
    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"
    REJECTED = "rejected"


ENDED = (State.FINISHED, State.ABORTED, State.REJECTED)

CHAT = "/v1/chat/completions"

# Called for requests from outside: (kind, new tokens, when the front end sends it). kind: token, finish, abort, reject.
Sink = Callable[[str, int, float], None]


class Request:
    """One request, from its arrival to its end.

    Attributes:
        keys: chained block keys of the leading blocks that others may share (see `blocks.py`).
        output_tokens: where it ends; below `max_tokens` it stops by itself.
        publish_output: keep prompt and output in the cache under these keys when it ends (a conversation goes on).
        hit_tokens: prompt tokens found in the prefix cache at first admission; None before it.
        target: tokens to compute before the next token can come (prompt, after a preemption output too).
        computed: tokens whose KV is in the cache; `generated`: output tokens so far, kept while decoding by
            `Engine.generated`.
        epoch: rises at each preemption, so that what was planned before is void.
    """

    __slots__ = (
        "abort_at",
        "arrived_at",
        "computed",
        "epoch",
        "finished_at",
        "first_token_at",
        "first_token_sent_at",
        "generated",
        "hit_tokens",
        "identity",
        "joined",
        "keys",
        "last_token_at",
        "max_tokens",
        "output_tokens",
        "plain",
        "preemptions",
        "prompt_tokens",
        "publish_output",
        "queued_at",
        "route",
        "scheduled_at",
        "sink",
        "state",
        "streaming",
        "taken",
        "target",
    )

    def __init__(
        self,
        prompt_tokens: int,
        output_tokens: int,
        *,
        keys: Sequence[int] = (),
        max_tokens: int = 0,
        streaming: bool = True,
        publish_output: Sequence[int] = (),
        abort_at: float | None = None,
        sink: Sink | None = None,
        route: str = CHAT,
    ) -> None:
        self.identity = 0  # given by the engine at arrival
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.max_tokens = max(max_tokens, output_tokens)
        self.keys = keys
        self.streaming = streaming
        self.publish_output = publish_output
        self.abort_at = abort_at
        self.sink = sink
        self.route = route
        self.state = State.ARRIVING
        self.arrived_at = 0.0
        self.queued_at = 0.0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.first_token_sent_at: float | None = None
        self.last_token_at = 0.0
        self.finished_at: float | None = None
        self.hit_tokens: int | None = None
        self.target = prompt_tokens
        self.computed = 0
        self.generated = 0
        self.joined = 0
        self.taken: list[int] = []
        self.plain = 0
        self.epoch = 0
        self.preemptions = 0

    @property
    def finish_reason(self) -> str:
        """`length` where the client's limit ended it, else `stop`."""
        return "length" if self.output_tokens >= self.max_tokens else "stop"


class Step:
    """One forward pass.

    Attributes:
        seconds: wall time from its start to its end; `gpu_seconds` of it the GPU was at work.
        compute_seconds, memory_seconds: how the GPU time divides (prefill-like, decode-like work).
        prefill_tokens: prompt tokens computed; `decodes`: sequences that got one more token; `context`: tokens whose
            KV was read.
        chunks: (request, tokens, epoch) of the prefill part.
    """

    __slots__ = (
        "chunks",
        "communication_seconds",
        "compute_seconds",
        "context",
        "decodes",
        "gpu_seconds",
        "host_seconds",
        "memory_seconds",
        "prefill_tokens",
        "seconds",
        "started_at",
    )

    def __init__(self, started_at: float, chunks: list[tuple[Request, int, int]], prefill_tokens: int, decodes: int, context: int) -> None:
        self.started_at = started_at
        self.chunks = chunks
        self.prefill_tokens = prefill_tokens
        self.decodes = decodes
        self.context = context
        self.seconds = 0.0
        self.gpu_seconds = 0.0
        self.compute_seconds = 0.0
        self.memory_seconds = 0.0
        self.communication_seconds = 0.0
        self.host_seconds = 0.0

    @property
    def ends_at(self) -> float:
        """When the step ends, if nothing hangs."""
        return self.started_at + self.seconds


class Observer:
    """Watches one engine. A page, the truth log and the GPU override what they need."""

    def arrived(self, request: Request, now: float) -> None:
        """The server has the request; its front end will tokenise it."""

    def queued(self, request: Request, now: float) -> None:
        """The scheduler has the request."""

    def rejected(self, request: Request, now: float, in_stream: bool) -> None:
        """A queue limit refused it; `in_stream`: the answer had begun with status 200."""

    def scheduled(self, request: Request, now: float) -> None:
        """It left the queue for the first time; `hit_tokens` is known."""

    def resumed(self, request: Request, now: float, hit_tokens: int) -> None:
        """It left the queue again after a preemption."""

    def first_token(self, request: Request, now: float) -> None:
        """Its first token was computed; the front end sends it at `first_token_sent_at`."""

    def gaps(self, seconds: float, count: int) -> None:
        """`count` requests got a further token `seconds` after the one before."""

    def finished(self, request: Request, now: float) -> None:
        """It ended by itself, at `finished_at` in the front end."""

    def aborted(self, request: Request, now: float, before: State) -> None:
        """Its client went away."""

    def preempted(self, request: Request, now: float, generated: int) -> None:
        """Thrown back to the queue for want of blocks."""

    def step_ended(self, step: Step, now: float) -> None:
        """A forward pass ended; called after the calls about its requests."""

    def idle(self, now: float) -> None:
        """No work is left."""
