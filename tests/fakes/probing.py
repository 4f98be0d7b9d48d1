"""A module of the configuration, and a probe process that answers at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from llm_exporter.errors import FetchError
from llm_exporter.sources.probe import ProbeCall, ProbeReading, TlsSettings


@dataclass(frozen=True)
class Module:
    interval: float | None = 30.0
    timeout: float = 20.0
    prompt_tokens: tuple[int, ...] = (64,)
    cache: tuple[str, ...] = ("cold",)
    max_tokens: int = 8
    repeat: int = 1
    endpoint: str = "/v1/chat/completions"
    model: str | None = None
    temperature: float = 0.0
    schedule: str | None = None
    timezone: str = "UTC"
    max_waiting: int | None = None
    budget_tokens_per_hour: int | None = None
    language: str = "en"


LADDER = Module(
    interval=None,
    schedule="0 4 * * *",
    prompt_tokens=(2048, 8192, 16384, 32768),
    cache=("cold", "warm"),
    repeat=5,
    max_waiting=0,
    budget_tokens_per_hour=400_000,
)


def tokens_of(prompt: str) -> int:
    """The fake server's tokenizer and template."""
    return 10 + len(prompt) * 2 // 9


def good(prompt: str, ttft: float = 0.2) -> ProbeReading:
    return ProbeReading(
        "success",
        http_status=200,
        connect_seconds=0.001,
        first_chunk_seconds=ttft / 2,
        time_to_first_token_seconds=ttft,
        time_to_first_content_seconds=ttft,
        duration_seconds=ttft + 0.1,
        prompt_tokens=tokens_of(prompt),
        completion_tokens=8,
        buffered=False,
        request_sent=True,
    )


@dataclass
class FakeProber:
    answer: Callable[[str], ProbeReading] = good
    models: list[str] | FetchError = field(default_factory=lambda: ["m"])
    context_tokens: int | None = None
    calls: list[ProbeCall] = field(default_factory=list)
    listings: int = 0

    @property
    def prompts(self) -> list[str]:
        return [prompt_of(call) for call in self.calls]

    def measure(self, call: ProbeCall) -> ProbeReading:
        self.calls.append(call)
        return self.answer(prompt_of(call))

    def list_models(self, url: str, headers: Mapping[str, str], tls: TlsSettings, timeout_seconds: float) -> tuple[list[str], int | None]:
        self.listings += 1
        if isinstance(self.models, FetchError):
            raise self.models
        return self.models, self.context_tokens


def prompt_of(call: ProbeCall) -> str:
    body = json.loads(call.body)
    return str(body["messages"][0]["content"] if "messages" in body else body.get("prompt", body.get("text")))


def shared(texts: Sequence[str]) -> int:
    """Leading characters that all of them share."""
    return next((place for place, letters in enumerate(zip(*texts, strict=False)) if len(set(letters)) > 1), min(map(len, texts)))
