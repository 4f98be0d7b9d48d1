"""The review in words: sections in a reader's order, made once and rendered as HTML and as Markdown.

In: `Review`. Out: `Section`s of plain sentences and tables. Called by `html.py` and `markdown.py`. A number that is unknown is told with
its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from llm_exporter.report.finding import Finding
from llm_exporter.report.grid import local
from llm_exporter.report.load import GPU_SECONDS
from llm_exporter.report.review import ModelReview, Review
from llm_exporter.report.statistics import useful_hours
from llm_exporter.report.waste import KINDS

CAUSES = {
    "none": "nothing: as it should be",
    "idle": "no work",
    "queue": "requests queue for a place",
    "kv_cache": "KV cache is full",
    "prefill_compute": "prompts keep the GPU computing",
    "decode_memory": "decode keeps the memory busy: normal work",
    "host_starved": "the GPU waits for the CPU",
    "launch_bound": "kernels are launched too slowly",
    "frontend": "API server, tokenising",
    "communication": "GPUs wait for each other",
    "throttled": "heat, power brake",
    "foreign_process": "another process uses the GPU",
    "stalled": "the engine stood still",
    "unknown": "too little to judge by",
}


@dataclass
class Table:
    """Column heads and rows; `bars` gives each row a share to draw, where it makes sense."""

    heads: list[str]
    rows: list[list[str]]
    bars: list[float] = field(default_factory=list)


@dataclass
class Section:
    """One question and its answer: sentences, maybe a table and a plot, and the small print (window, n, doubt)."""

    title: str
    lines: list[str]
    table: Table | None = None
    plots: list[tuple[str, str]] = field(default_factory=list)  # (plot name, what it shows)
    basis: list[str] = field(default_factory=list)


def number(value: float | None, digits: int = 3) -> str:
    """A number that a person can read: three figures, thousands apart."""
    if value is None:
        return "unknown"
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def percent(value: float | None, digits: int = 0) -> str:
    """A ratio as per cent."""
    if value is None:
        return "unknown"
    text = f"{100 * value:.{digits}f}"
    return f"{'0' if float(text) == 0 else text}\N{NO-BREAK SPACE}%"


def reason(finding: Finding, key: str) -> str:
    """Why a number is unknown, as a clause."""
    return finding.why.get(key, "not known from this data")


def unit(one: ModelReview) -> str:
    """The unit of work, short."""
    return "GPU-s/s" if one.load.unit == GPU_SECONDS else "tokens/s"


def title(review: Review) -> str:
    """Head of the page."""
    start, end = (datetime.fromtimestamp(at, review.zone) for at in (review.span.start, review.span.end))
    return f"Capacity review, {start:%d %b %Y} to {end:%d %b %Y}"


def subtitle(review: Review) -> str:
    """Window and coverage."""
    start, end = local(review.span.start, review.zone), local(review.span.end, review.zone)
    return (
        f"{start} to {end} {review.zone_name} ({review.span.hours:.0f} h), five-minute steps, "
        f"{percent(review.coverage, 1)} observed. Intervals are at 90 %."
    )


def overview(review: Review) -> Table:
    """One row per model."""
    heads = ["Model", "SLO good", "Budget left", "Peak", "Sustainable", "Headroom", "One replica lost", "Growth a week", "Idle"]
    rows = []
    for one in review.models:
        slo = one.slos[0].finding if one.slos else None
        hours = one.ledger.finding
        capacity = one.sustainable.finding
        sustainable = number(capacity["value"])
        rows.append(
            [
                one.service.model or "(no model name)",
                percent(slo["good_ratio"], 2) if slo else "no SLO",
                percent(slo["budget_left_ratio"]) if slo else "–",
                f"{number(one.load.finding.numbers.get('peak'))}\N{NO-BREAK SPACE}{unit(one)}",
                f"≥ {sustainable}" if capacity["censored"] else sustainable,
                percent(one.headroom["headroom_ratio"]),
                percent(one.headroom["headroom_one_replica_lost_ratio"]),
                percent(one.growth.finding["per_week_ratio"], 1),
                percent(hours["idle"] / hours["total"]) if hours["total"] else "unknown",
            ]
        )
    return Table(heads, rows)


def sections(one: ModelReview, review: Review) -> list[Section]:
    """All answers about a model."""
    return [_slo(one, review), _load(one), _capacity(one), _runway(one), _waste(one), _changes(one), _limits(one), _actions(one)]


def _slo(one: ModelReview, review: Review) -> Section:
    section = Section("Are we within the SLO?", [])
    if not one.slos:
        section.lines.append("No SLO is configured for these targets, so there is no budget and no capacity to speak of.")
    for slo in one.slos:
        found = slo.finding
        if found["good_ratio"] is None:
            section.lines.append(f"{found['name']}: unknown ({reason(found, 'good_ratio')}).")
            continue
        left = found["budget_left_ratio"]
        word = "unknown" if left is None else "yes" if left >= 0 else "NO"
        line = (
            f"{found['name']} (first within {number(found['threshold_seconds'])} s for {percent(found['objective_ratio'], 1)}): {word}. "
            f"{percent(found['good_ratio'], 2)} were good; {percent(left)} of the error budget of this window is left."
        )
        if found["worst_hour"] is not None:
            worst = datetime.fromisoformat(found["worst_hour"]).timestamp()
            line += f" The worst hour began {local(worst, review.zone)}; "
            line += f"the worst five hours hold {percent(slo.worst_share)} of the slow requests."
        if len(slo.by_target) > 1:
            line += " Slow by replica: " + ", ".join(f"{name} {percent(share, 2)}" for name, share in slo.by_target.items()) + "."
        section.lines.append(line)
        section.basis.append(found.basis)
    if one.availability is not None:
        section.lines.append(f"Pages could be read for {percent(one.availability, 1)} of the time.")
    return section


def _load(one: ModelReview) -> Section:
    found = one.load.finding.numbers
    section = Section("What is the load, and when?", [], basis=[one.load.finding.basis])
    if one.load.offered is None:
        section.lines.append(f"Unknown: {reason(one.load.finding, 'p50')}.")
        return section
    section.lines.append(
        f"Typical {number(found['p50'])}, 95th percentile {number(found['p95'])}, peak {number(found['peak'])} {unit(one)}; "
        f"at peak {number(found['requests_per_second_peak'])} requests/s."
    )
    if one.load.weekend_ratio is not None:
        section.lines.append(f"Week-ends carry {percent(one.load.weekend_ratio)} of the load of weekdays.")
    section.plots.append(("week", "Load by hour of week: median and 95th percentile, against what is sustainable"))
    if one.load.profile is not None:
        counts = one.load.profile[2]
        kind = "hour of week" if one.load.cells == 168 else "hour of day, weekdays and week-end (under 14 days of history)"
        section.basis.append(f"Profile by {kind}: {int(counts.min())} to {int(counts.max())} windows a cell.")
    return section


def _capacity(one: ModelReview) -> Section:
    capacity, headroom = one.sustainable.finding, one.headroom
    section = Section("How much more can we take?", [], basis=[text for text in (capacity.basis, headroom.basis) if text])
    if capacity["value"] is None:
        section.lines.append(f"Unknown: {reason(capacity, 'value')}.")
    elif capacity["censored"]:
        section.lines.append(f"At least {number(capacity['value'])} {unit(one)}: the SLO never broke, and nothing is extrapolated.")
    else:
        upper = number(capacity["upper"]) if capacity["upper"] is not None else f"unknown ({reason(capacity, 'upper')})"
        section.lines.append(
            f"Sustainable at the SLO: {number(capacity['value'])} {unit(one)} (from {number(capacity['lower'])} to {upper})."
        )
    for key, words in (("headroom_ratio", "Headroom at peak"), ("headroom_one_replica_lost_ratio", "With one replica lost")):
        value = headroom[key]
        section.lines.append(f"{words}: {percent(value)}." if value is not None else f"{words}: unknown ({reason(headroom, key)}).")
    if one.sustainable.fit is not None and one.sustainable.fit.load.size:
        section.plots.append(("capacity", "Share of slow requests against load per replica, with the fitted curve"))
    return section


def _runway(one: ModelReview) -> Section:
    growth = one.growth.finding
    section = Section("When do we run out?", [], basis=[growth.basis] if growth.basis else [])
    if growth["per_week_ratio"] is None:
        section.lines.append(f"No forecast: {reason(growth, 'per_week_ratio')}.")
    else:
        section.lines.append(
            f"Load changes by {percent(growth['per_week_ratio'], 1)} a week "
            f"(from {percent(growth['lower'], 1)} to {percent(growth['upper'], 1)})."
        )
        weeks, lower, upper = growth["weeks_to_exhaustion"], growth["weeks_lower"], growth["weeks_upper"]
        if weeks is not None and weeks <= 0:
            section.lines.append("The peak is beyond the capacity already.")
        elif weeks is not None:
            low = "unknown" if lower is None else f"{lower:.1f}"
            high = "no bound" if upper is None else f"{upper:.1f}"
            section.lines.append(f"The peak meets the capacity in {weeks:.1f} weeks (from {low} to {high}).")
        else:
            section.lines.append(f"No date of exhaustion: {reason(growth, 'weeks_to_exhaustion')}.")
    if one.load.offered is not None:
        section.plots.append(("history", "Load over the whole history, hourly, with the daily trend and what is sustainable"))
    return section


def _waste(one: ModelReview) -> Section:
    hours = one.ledger.finding
    section = Section(
        "What did we waste?", [], basis=[text for text in (hours.basis, one.prefix_cache.basis, one.kv_cache.basis, one.cost.basis) if text]
    )
    if hours["total"] is None:
        section.lines.append(f"GPU-hours: unknown ({reason(hours, 'total')}).")
    else:
        beyond = max(0.0, hours["idle"] - one.ledger.reserve)
        _, lost = useful_hours(hours["total"], hours["idle"], hours["starved"], hours["throttled"])
        section.lines.append(
            f"Of {number(hours['total'])} GPU-hours, {number(hours['useful'])} were useful and {percent(lost)} were not; "
            f"idle beyond the reserve of one replica: {number(beyond)}."
        )
        shares = [hours[kind] / hours["total"] for kind in KINDS]
        section.table = Table(
            ["GPU-hours", "hours", "share"], [[k, number(hours[k]), percent(s, 1)] for k, s in zip(KINDS, shares, strict=True)], shares
        )
        section.plots.append(("ledger", "GPU-hours by day: useful, idle, starved, throttled"))
    cost = one.cost
    if cost["idle"] is None:
        section.lines.append(f"Cost: unknown ({reason(cost, 'idle')}).")
    else:
        money = cost["currency"] or ""
        section.lines.append(
            f"Cost: {number(cost['per_million_prompt_tokens'])} {money} per million computed prompt tokens, "
            f"{number(cost['per_million_generated_tokens'])} {money} per million output tokens; "
            f"idle hours cost {number(cost['idle'])} {money}."
        )
    hit = one.prefix_cache
    if hit["hit_ratio"] is None:
        section.lines.append(f"Prefix cache: unknown ({reason(hit, 'hit_ratio')}).")
    else:
        saved = hit["saved_gpu_hours"]
        told = f"saved about {number(saved)} GPU-hours" if saved is not None else f"saved hours unknown ({reason(hit, 'saved_gpu_hours')})"
        section.lines.append(f"Prefix cache: {percent(hit['hit_ratio'])} of the looked-up tokens were hits; {told}.")
    kv = one.kv_cache
    again = "" if one.facts.preemption_waste is None else f" ({percent(one.facts.preemption_waste, 1)} of prefill work done twice)"
    section.lines.append(
        f"KV cache: {percent(kv['usage_p95_ratio'])} used (95th percentile); {number(kv['preemptions'])} preemptions{again}."
    )
    return section


def _changes(one: ModelReview) -> Section:
    section = Section("What changed?", [], basis=[one.regressions.basis] if one.regressions.basis else [])
    section.lines += [headline.text for headline in one.headlines if headline.kind not in {"growth", "weekend", "slo_missed"}]
    if not one.regressions.found:
        section.lines.append("No significant regression." if one.regressions.comparisons else "Regressions: not testable.")
    if one.regressions.comparisons:
        rows = [
            [
                c.metric,
                f"{c.shift:+.3g}",
                f"{100 * c.shift_ratio:+.1f} %",
                f"{c.p_value:.2g}",
                str(c.pairs),
                "yes" if c in one.regressions.found else "no",
            ]
            for c in one.regressions.comparisons
        ]
        section.table = Table(["Against the week before", "shift", "shift", "p", "hours", "counts"], rows)
    return section


def _limits(one: ModelReview) -> Section:
    shares = one.bottlenecks.numbers
    section = Section("What limits us?", [], basis=[one.bottlenecks.basis])
    if not shares:
        section.lines.append("Unknown: no verdict was published.")
        return section
    rows = [[cause, CAUSES.get(cause, ""), percent(share, 1)] for cause, share in shares.items()]
    section.table = Table(["Verdict", "meaning", "share of time"], rows, list(shares.values()))
    return section


def _actions(one: ModelReview) -> Section:
    section = Section("What to do?", [])
    for advice in one.recommendations:
        section.lines.append(
            f"{advice['rank']}. {advice['action']} Because: {'; '.join(advice['because']).rstrip('.')}. Gain: {advice['gain']}."
        )
    if not one.recommendations:
        section.lines.append("Nothing: no rule matched.")
    else:
        section.basis.append("Rules are starting points for a person; this program changes nothing.")
    return section
