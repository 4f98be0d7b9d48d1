"""Where the GPU-hours and the money went.

In: a `Service`, the window, its `Load`. Out: `Ledger` and cost. Called by `review.py`. Each five-minute window of each target is split
into four parts that add up: starved (not busy while called starved), throttled (busy but slowed by heat or a brake), idle (the rest of
not busy), useful (the rest of busy).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from llm_exporter.report.finding import Finding, Span, unknown
from llm_exporter.report.fleet import Service, TargetFacts, add, highest
from llm_exporter.report.grid import Bools, Floats, Ints
from llm_exporter.report.load import Load
from llm_exporter.report.statistics import split_cost

NO_CURRENCY = "no report.currency is configured"
KINDS = ("useful", "idle", "starved", "throttled")


@dataclass
class Ledger:
    """GPU-hours of a service in the window.

    Attributes:
        finding: `gpu_hours` of the report.
        reserve: idle hours that the loss of one replica needs.
        down: hours (in idle) of targets that did not answer.
        by_day: hours of KINDS by local day, shape (4, days); `days` are the ordinals.
        prices: hours × price, by target, all and idle; None where a price is missing.
        approximate: no GPU readings, so busy was taken from running requests.
    """

    finding: Finding
    reserve: float = 0.0
    down: float = 0.0
    days: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    by_day: Floats = field(default_factory=lambda: np.zeros((4, 0)))
    spent: float | None = None
    spent_idle: float | None = None
    approximate: bool = False


def split(busy: Floats, starved: Floats, throttled: Floats) -> Floats:
    """Shares of KINDS, which add up to 1, shape (4, n).

    Args:
        busy: share of time in which the GPU had work resident.
        starved: share of time in which the target was called starved.
        throttled: share of time slowed by heat or a brake.
    """
    free = 1 - busy
    hungry = starved * free
    slowed = np.minimum(throttled, busy)
    return np.array([busy - slowed, free - hungry, hungry, slowed])


def review_waste(service: Service, span: Span) -> Ledger:
    """Make the ledger; unknown where the number of GPUs is."""
    where = service.grid.within(span.start, span.end)
    ledger = Ledger(unknown(("total", *KINDS), "the number of GPUs is not known: neither gpu_count nor GPU readings"))
    days = service.grid.day[where]
    if not days.size:
        return ledger
    ledger.days, inverse = np.unique(days, return_inverse=True)
    ledger.by_day = np.zeros((4, ledger.days.size))
    hours_per_window = service.grid.step / 3600
    whole, known_hours, prices = 0.0, 0.0, []
    for index, target in enumerate(service.targets):
        gpus = service.gpus_of(target)
        if gpus is None:
            return Ledger(ledger.finding)
        gpus *= service.share.get(target, 1.0)
        exists = service.exists[index][where]
        shares, approximate = _shares(service, index, gpus, where)
        known = np.isfinite(shares[0]) & exists
        ledger.approximate |= approximate
        hours = gpus * hours_per_window * np.where(known, shares, 0.0)
        scale = exists.sum() / known.sum() if known.any() else 0.0
        mine = np.array([np.bincount(inverse, weights=row, minlength=ledger.days.size) for row in hours]) * scale
        ledger.by_day += mine
        whole += gpus * hours_per_window * float(exists.sum())
        known_hours += gpus * hours_per_window * float(known.sum())
        down = exists & np.isfinite(service.up[index][where]) & ~service.alive[index][where]
        ledger.down += gpus * hours_per_window * float(down.sum())
        price = service.facts.get(target, TargetFacts()).gpu_cost_per_hour
        if price is not None:
            prices.append((price * float(mine.sum()), price * float(mine[1].sum())))
    if known_hours <= 0:
        ledger.finding = unknown(("total", *KINDS), "no GPU reading and no count of running requests in this window")
        return ledger
    sums = ledger.by_day.sum(axis=1)
    ledger.finding = Finding({"total": float(sums.sum()), **{kind: float(value) for kind, value in zip(KINDS, sums, strict=True)}})
    n = len(service.targets)
    ledger.reserve = float(min(sums[1], sums.sum() / n)) if n > 1 else 0.0
    if len(prices) == n:
        ledger.spent, ledger.spent_idle = (float(sum(column)) for column in zip(*prices, strict=True))
    ledger.finding.basis = (
        f"{100 * known_hours / whole:.1f} % of the hours were observed, the rest is taken to be alike. "
        + (
            "Without GPU readings a GPU counts as busy while requests run. "
            if ledger.approximate
            else "Busy is the active share of the GPU. "
        )
        + f"Idle holds {ledger.reserve:,.0f} h that the loss of one replica needs, and {ledger.down:,.0f} h of servers that were down."
    )
    return ledger


def _shares(service: Service, index: int, gpus: float, where: Bools) -> tuple[Floats, bool]:
    """Shares of KINDS of one target per window, NaN where unknown; and whether busy had to be guessed."""
    target = service.targets[index]
    count = int(where.sum())

    def row(key: str, combine: Callable[[list[Floats]], Floats | None]) -> Floats | None:
        found = combine([trace.values for trace in service.history.of(key) if trace.label("target") == target])
        return None if found is None else found[where]

    counted = row("gpus", add)
    busy, running = row("busy", add), row("running", add)
    approximate = busy is None
    if busy is not None:
        seen = np.full(count, np.nan) if counted is None else counted
        busy = (busy / np.where(seen > 0, seen, max(gpus, 1.0))).clip(0, 1)
    elif running is not None:
        busy = running.clip(0, 1)
    else:
        busy = np.full(count, np.nan)
    # A server that does not answer does nothing; without its readings the GPU counts as idle.
    down = np.isfinite(service.up[index][where]) & ~service.alive[index][where]
    busy = np.where(down & ~np.isfinite(busy), 0.0, busy)
    starved, throttled = row("starved", highest), row("throttled", add)
    zero = np.zeros(count)
    slowed = zero if throttled is None else np.nan_to_num(throttled) / max(gpus, 1.0)
    return split(busy, zero if starved is None else np.nan_to_num(starved), slowed.clip(0, 1)), approximate


def review_cost(service: Service, span: Span, load: Load, ledger: Ledger, currency: str | None) -> Finding:
    """Money per million tokens, with idle money on its own line."""
    keys = ("per_million_prompt_tokens", "per_million_generated_tokens", "idle")
    if ledger.spent is None or ledger.spent_idle is None:
        reason = (
            "no gpu_cost_per_hour is configured for these targets" if ledger.finding["total"] is not None else "GPU-hours are not known"
        )
        finding = unknown(keys, reason)
        finding.numbers["currency"] = currency
        finding.why["currency"] = NO_CURRENCY
        return finding
    where = service.grid.within(span.start, span.end)
    computed = service.total("computed_tokens", where)
    prompt = computed if computed is not None else service.total("prompt_tokens", where)
    generated = service.total("generation_tokens", where)
    share, method = _prompt_share(service, span, load, prompt, generated)
    finding = Finding({keys[0]: None, keys[1]: None, keys[2]: ledger.spent_idle, "currency": currency}, {"currency": NO_CURRENCY})
    if share is None or prompt is None or generated is None:
        finding.why.update(dict.fromkeys(keys[:2], "the split between prompt and output work is not known"))
        return finding
    finding.numbers[keys[0]], finding.numbers[keys[1]] = split_cost(ledger.spent - ledger.spent_idle, share, prompt, generated)
    finding.why.update({key: "no such tokens in this window" for key in keys[:2] if finding.numbers[key] is None})
    finding.basis = (
        f"Money of all hours but idle ones, {100 * share:.0f} % of it for prompts ({method}); per million computed prompt tokens "
        f"({prompt / 1e6:,.1f} M; cached ones cost next to nothing) and output tokens ({generated / 1e6:,.1f} M)."
    )
    return finding


def _prompt_share(service: Service, span: Span, load: Load, prompt: float | None, generated: float | None) -> tuple[float | None, str]:
    """Part of the work that prompts are, and by which method."""
    if load.cost is not None and load.cost.separable and prompt and generated:
        work = load.cost.per_prompt * prompt
        return work / (work + load.cost.per_generated * generated), f"least squares on GPU time, R² {load.cost.r2:.2f}"
    where = service.history.coarse.within(span.start, span.end)
    prefill, decode = service.total("prefill_sum", where), service.total("decode_sum", where)
    if prefill is not None and decode is not None and prefill + decode > 0:
        return prefill / (prefill + decode), "time of requests in prefill and decode, low confidence"
    return None, ""
