"""What the differences of two servers say, in plain words: what is real and where, or what could not have been seen and why.

In: the names of two servers and their `Difference`s, judged. Out: a few sentences. Called by `cli/compare.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llm_exporter.probing.compare import FEWEST_SAMPLES, SIGNIFICANCE, Difference
from llm_exporter.probing.fit import CONTENDED_SPREAD
from llm_exporter.probing.statistics import fewest_samples
from llm_exporter.wording import plain_seconds, three_figures


def conclusion(name_a: str, name_b: str, rows: Sequence[Difference], looked_at: int | None = None) -> str:
    """What the differences say. `looked_at` points were judged together, those of other servers included; default: these."""
    if not rows:
        return "Nothing can be compared: no length was measured on both servers."
    unlike = [row for row in rows if row.reason]
    like = [row for row in rows if not row.reason]
    parts = [_unlike(unlike)] if unlike else []
    if like:
        parts.append(_of_like(name_a, name_b, like, looked_at or len(like)))
        parts += _contention(like)
    return " ".join(parts)


def _unlike(rows: Sequence[Difference]) -> str:
    """Prompts of different lengths: only the time per token can be set side by side."""
    told = []
    for row in rows:
        assert row.counted_tokens is not None
        counts = " against ".join(f"{count:.0f}" for count in row.counted_tokens)
        each = " against ".join(plain_seconds(time / count) for time, count in zip(row.seconds, row.counted_tokens, strict=True))
        told.append(f"{counts} tokens at {row.prompt_tokens} {row.cache} ({each} per token)")
    return (
        "The servers counted different prompt lengths, so their times to first token cannot be compared there: "
        + ", ".join(told)
        + ". Measure where one tokenizer serves both."
    )


def _of_like(name_a: str, name_b: str, rows: Sequence[Difference], looked_at: int) -> str:
    tested = [row for row in rows if row.p_value is not None]
    few = [row for row in rows if row.p_value is None]
    lost = _lost(name_a, name_b, few)
    if not tested:
        if lost:
            return f"Too few good samples to tell {name_a} and {name_b} apart: {lost}."
        return f"Too few samples to tell {name_a} and {name_b} apart: use --repeat {FEWEST_SAMPLES} or more."
    told = _of_tested(name_a, name_b, tested, looked_at)
    return f"{told} Too few good samples at the other points: {lost}." if lost else told


def _lost(name_a: str, name_b: str, rows: Sequence[Difference]) -> str:
    """What became of the samples that are missing; more of them would not help."""
    told = []
    for row in rows:
        sides = [f"{name} has {words}" for name, words in zip((name_a, name_b), row.lost, strict=True) if words]
        if sides:
            told.append(f"at {row.prompt_tokens} {row.cache} " + ", ".join(sides))
    return "; ".join(told)


def _of_tested(name_a: str, name_b: str, rows: Sequence[Difference], looked_at: int) -> str:
    real = [row for row in rows if row.real]
    if real:
        return _real(name_a, name_b, rows, real)
    alone = [row for row in rows if row.by_itself]
    if alone:
        repeat = max(fewest_samples(looked_at, SIGNIFICANCE), 2 * min(row.samples for row in rows))
        where = ", ".join(f"{row.prompt_tokens} {row.cache}" for row in alone)
        return (
            f"No difference between {name_a} and {name_b} is certain: {where} would look different alone, but among {looked_at} points"
            f" chance brings such a one. Use more samples: --repeat {repeat}."
        )
    text = f"No real difference between {name_a} and {name_b}: chance explains what was seen at all {len(rows)} points."
    visible = [(row.smallest_visible_seconds, row.seconds[0]) for row in rows]
    seconds = sorted(width for width, _ in visible if width is not None)
    shares = sorted(width / base * 100 for width, base in visible if width is not None and base > 0)
    if seconds and shares:
        text += f" A shift below {_span(seconds, plain_seconds)} ({_span(shares, _percent)}) would not have been seen."
    return text


def _real(name_a: str, name_b: str, rows: Sequence[Difference], real: Sequence[Difference]) -> str:
    parts = []
    for rows_of, verb in (
        ([row for row in real if row.ttft_shift_seconds < 0], "sooner"),
        ([row for row in real if row.ttft_shift_seconds >= 0], "later"),
    ):
        if rows_of:
            shifts = sorted(abs(row.ttft_shift_seconds) for row in rows_of)
            shares = sorted(abs(row.ratio - 1) * 100 for row in rows_of)
            where = ", ".join(f"{row.prompt_tokens} {row.cache}" for row in rows_of)
            parts.append(f"its first token comes {_span(shifts, plain_seconds)} ({_span(shares, _percent)}) {verb} at {where}")
    rest = len(rows) - len(real)
    tail = f" At the other {rest} of {len(rows)} points chance explains the difference." if rest else ""
    return f"{name_b} differs from {name_a}: " + "; ".join(parts) + "." + tail


def _contention(rows: Sequence[Difference]) -> list[str]:
    spread = max(row.spread_ratio for row in rows)
    if spread <= CONTENDED_SPREAD:
        return []
    return [f"Samples of one length differ by up to ±{spread * 100:.0f} %: other work ran meanwhile, and hides small differences."]


def _span(values: Sequence[float], show: Callable[[float], str]) -> str:
    low, high = show(values[0]), show(values[-1])
    return low if low == high else f"{low} to {high}"


def _percent(value: float) -> str:
    return f"{three_figures(value)} %"
