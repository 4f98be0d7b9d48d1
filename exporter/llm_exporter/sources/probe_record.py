"""What is remembered of the probes of one target and module, as plain data.

`probing/results.py` makes it, `expose/probes.py` turns it into metrics; the two do not know each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from llm_exporter.sources.probe import ProbeReading

# Fine where a time to first token usually lies, and with the edges of both engines' own histograms (0.1, 1, 10, 20, 40, 80 s) among them.
TTFT_BOUNDS = (
    0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5,
    10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 120.0, float("inf"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProbeCell:
    """One length and cache state of a module.

    Attributes:
        prompt_tokens: the configured length; the server's count is in `last`.
        last: of the last run: the failed request, else the one with the median TTFT. None where that run did not come so far.
        cumulative, sum: TTFT of all successful requests, one count per bound of TTFT_BOUNDS; seconds.
    """

    prompt_tokens: int
    cache: str
    last: ProbeReading | None
    cumulative: Sequence[float]
    sum: float


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """One target and module.

    Attributes:
        last_result: of the last run or skip; empty before the first.
        success: of the last run that was sent; None before the first.
        results: requests sent since start, by result, primings of the cache and lessons on its tokenizer included.
        sent_prompt_tokens: prompt tokens of those; the server's count where it gave one, else our estimate.
        completion_tokens: output tokens of those, where the server counted them.
        last_run_at: unix seconds of the last run that was sent.
    """

    target: str
    module: str
    last_result: str = ""
    success: bool | None = None
    results: Mapping[str, int] = field(default_factory=dict)
    sent_prompt_tokens: int = 0
    completion_tokens: int = 0
    last_run_at: float | None = None
    cells: tuple[ProbeCell, ...] = ()
