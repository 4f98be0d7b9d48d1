"""Throughput: work per second, from counters only (an engine's own throughput gauges keep their last value while it idles)."""

from __future__ import annotations

from llm_exporter.readings import Unit
from llm_exporter.signals.model import ModelView, Outcome, Signal, Status, WindowDerivation, known, unknown
from llm_exporter.state.window import Window


def per_second(field: str) -> WindowDerivation:
    """Increase of the counter `field` ÷ the window's true span. 0 is a real 0: the counter was there and stood still."""

    def derive(_: ModelView, window: Window) -> Outcome:
        gained = window.increase(field)
        if gained is None or window.seconds <= 0:
            return unknown(Status.ONE_SCRAPE)
        return known(gained / window.seconds)

    return derive


_W = "window (2) per model"

# fmt: off
SIGNALS: tuple[Signal, ...] = (
    Signal("llm_prefill_tokens_per_second", Unit.TOKENS_PER_SECOND, "Prompt tokens computed per second; cache hits excluded.", ("prompt_tokens_computed",), of_window=per_second("prompt_tokens_computed"), bound=_W),
    Signal("llm_prompt_tokens_per_second", Unit.TOKENS_PER_SECOND, "Prompt tokens per second, cached ones included.", ("prompt_tokens",), of_window=per_second("prompt_tokens"), bound=_W),
    Signal("llm_generation_tokens_per_second", Unit.TOKENS_PER_SECOND, "Output tokens per second.", ("generation_tokens",), of_window=per_second("generation_tokens"), bound=_W),
)
