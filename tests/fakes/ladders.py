"""Ladders as if they had been measured: cells of given times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llm_exporter.probing.ladder import Cell, Ladder, Plan, Server
from llm_exporter.probing.servers import ServerFacts
from llm_exporter.sources.probe import ProbeReading

LATE = "this machine read the first token up to 9 ms late"


def reading_of(ttft: float | None, *, counted: int | None = None, cached: int | None = None) -> ProbeReading:
    detail = f"{LATE}, so there is no time to first token" if ttft is None else ""
    return ProbeReading("success", detail, time_to_first_token_seconds=ttft, prompt_tokens=counted, cached_tokens=cached)


def cell_of(
    tokens: int,
    cache: str,
    samples: Sequence[float | Sequence[float | None] | None],
    *,
    counted: int | None = None,
    cached: int | None = None,
) -> Cell:
    """A sample is one time, or several of requests that were sent at once; None was read late."""
    groups = [list(sample) if isinstance(sample, Sequence) else [sample] for sample in samples]
    return Cell(tokens, cache, [[reading_of(ttft, counted=counted, cached=cached) for ttft in group] for group in groups])


def ladder_of(*cells: Cell, conditions: Mapping[str, str] | None = None, model: str = "m", url: str = "http://a") -> Ladder:
    facts = ServerFacts(models=(model,), engine="vllm", engine_version="0.32.0", conditions=conditions or {})
    lengths = tuple(dict.fromkeys(cell.prompt_tokens for cell in cells))
    return Ladder(Server(url, facts, model), Plan(lengths), cells)
