"""Five weeks of our metrics that never happened, with a truth that is known.

In: `Scenario`s. Out: series on five-minute steps under the recorded names, as arrays, as OpenMetrics text for `promtool tsdb
create-blocks-from openmetrics`, or laid straight onto a `History`. Known truth: growth, week-end pattern, cost of a token, the load at
which the SLO breaks, a regression, a starved night, a lost replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
from scipy import special

from llm_exporter.report.grid import Grid
from llm_exporter.report.history import History, _Sheet
from llm_exporter.report.wire import Series
from llm_exporter.signals.review_records import COARSE_SECONDS, FACTS, RECORD, RECORDS, STEP_SECONDS

BERLIN = ZoneInfo("Europe/Berlin")
WEEK = 7 * 86_400
EDGES = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, np.inf)
ITL_EDGES = (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.2, np.inf)
CAUSES = ("none", "idle", "queue", "kv_cache", "prefill_compute", "decode_memory", "host_starved", "unknown")
PER_PROMPT, PER_GENERATED = 6e-5, 5e-4  # GPU-seconds per token: the truth behind `busy`
SLOW_FLOOR, SLOW_WIDTH, SLOW_TOP = 0.002, 0.02, 0.3


@dataclass(frozen=True)
class Scenario:
    """One service.

    Attributes:
        base: mean offered work in GPU-seconds per second of the whole service in week 0.
        knee: work per second and replica at which the slow share starts to climb.
        growth: per week, of week 0.
        weekend: load of week-ends against weekdays.
        regression: factor on time to first token from `regression_at` on.
        lost: (target, from, to), unix seconds: the replica does not answer.
        starved: (target, from, to).
    """

    model: str
    targets: tuple[str, ...]
    engine: str = "vllm"
    gpus: int = 1
    base: float = 0.5
    knee: float = 0.7
    growth: float = 0.0
    weekend: float = 0.5
    regression: float = 1.0
    regression_at: float = np.inf
    lost: tuple[str, float, float] | None = None
    starved: tuple[str, float, float] | None = None
    objective: float = 0.99
    seed: int = 7


def slow_share(load: np.ndarray, knee: float) -> np.ndarray:
    """Share of requests that miss the SLO at this load per replica."""
    return SLOW_FLOOR + SLOW_TOP * special.expit((load - knee) / SLOW_WIDTH - 4.0)


def true_capacity(scenario: Scenario) -> float:
    """Load per replica at which the slow share is 1 − objective."""
    return float(scenario.knee + SLOW_WIDTH * (4.0 + special.logit((1 - scenario.objective - SLOW_FLOOR) / SLOW_TOP)))


@dataclass
class Written:
    """Series by record key: labels and values on the levels' grid (count + 1 points, the first at the very start)."""

    grid: Grid
    series: list[tuple[str, dict[str, str], np.ndarray]] = field(default_factory=list)

    def add(self, key: str, values: np.ndarray, **labels: str) -> None:
        self.series.append((key, labels, values))


def simulate(scenarios: tuple[Scenario, ...], end: int, weeks: float = 5, zone: tzinfo = BERLIN) -> Written:
    """Make the series of all services."""
    count = int(weeks * WEEK) // STEP_SECONDS
    written = Written(Grid(end - count * STEP_SECONDS, count, STEP_SECONDS, zone))
    for scenario in scenarios:
        _simulate(scenario, written)
    return written


def _simulate(scenario: Scenario, written: Written) -> None:
    grid = written.grid
    random = np.random.default_rng(scenario.seed)
    begins = grid.times - grid.step
    hour = grid.hour_of_week % 24 + (begins % 3600) / 3600
    week = (begins - grid.start) / WEEK
    shape = 1 + 0.55 * np.sin((hour - 9) / 24 * 2 * np.pi)
    shape *= np.where(grid.weekday >= 5, scenario.weekend, 1.0)
    noise = np.exp(_red_noise(random, grid.count, 0.97, 0.06) + random.normal(0, 0.05, grid.count))
    whole = scenario.base * (1 + scenario.growth * week) * shape * noise
    up = np.ones((len(scenario.targets), grid.count), dtype=bool)
    for index, target in enumerate(scenario.targets):
        if scenario.lost is not None and scenario.lost[0] == target:
            up[index] = ~((begins >= scenario.lost[1]) & (begins < scenario.lost[2]))
    per_replica = whole / up.sum(axis=0)
    # The mix of requests moves for all replicas alike.
    lengths = 900 * np.exp(random.normal(0, 0.45, grid.count)), 220 * np.exp(random.normal(0, 0.45, grid.count))
    for index, target in enumerate(scenario.targets):
        _replica(scenario, written, target, per_replica, up[index], lengths, random)


def _replica(
    scenario: Scenario,
    written: Written,
    target: str,
    load: np.ndarray,
    up: np.ndarray,
    lengths: tuple[np.ndarray, np.ndarray],
    random: np.random.Generator,
) -> None:
    grid = written.grid
    begins = grid.times - grid.step
    load = load * np.exp(random.normal(0, 0.01, grid.count))  # the router is not quite fair
    starved = np.zeros(grid.count)
    if scenario.starved is not None and scenario.starved[0] == target:
        starved[(begins >= scenario.starved[1]) & (begins < scenario.starved[2])] = 1.0
    own = {"job": "llm-exporter", "instance": "exporter:9880", "target": target}
    model = {**own, "engine": scenario.engine, "model": scenario.model}
    prompt_length, output_length = lengths
    rate = load / (PER_PROMPT * prompt_length + PER_GENERATED * output_length)
    requests = random.poisson(rate * grid.step).astype(float)
    prompt, generated = requests * prompt_length, requests * output_length
    load = (PER_PROMPT * prompt + PER_GENERATED * generated) / grid.step  # what came, not what was meant to come
    slow = random.binomial(requests.astype(int), slow_share(load, scenario.knee))
    busy = (load * np.exp(random.normal(0, 0.03, grid.count)) * (1 - 0.2 * starved)).clip(0, scenario.gpus)

    def level(key: str, increase: np.ndarray, **labels: str) -> None:
        values = np.concatenate([[0.0], np.cumsum(increase)])
        back = np.flatnonzero(up & ~np.concatenate([[True], up[:-1]]))
        for at in back:  # the engine came back and counts from zero
            values[at + 1 :] -= values[at]
        values[1:][~up] = np.nan
        written.add(key, values + 1000.0 * (not back.size), **{**model, **labels})

    def gauge(key: str, values: np.ndarray, labels: dict[str, str], *, always: bool = False) -> None:
        known = values.astype(float).copy()
        if not always:
            known[~up] = np.nan
        written.add(key, np.concatenate([[np.nan], known]), **labels)

    level("prompt_tokens", prompt * 1.5)
    level("computed_tokens", prompt)
    level("queried_tokens", prompt * 1.5)
    level("hit_tokens", prompt * 0.5)
    level("generation_tokens", generated)
    level("received", requests)
    level("finished", requests, outcome="stop")
    level("first_tokens", requests)
    level("preemptions", np.zeros(grid.count))
    level("slo_requests", requests, slo="ttft")
    level("slo_good", requests - slow, slo="ttft")
    median = 0.22 * (1 + 0.5 * load / scenario.knee) * np.where(begins >= scenario.regression_at, scenario.regression, 1.0)
    _histogram(level, "ttft_bucket", EDGES, median, 0.35, requests, random)
    itl = 0.018 * (1 + 0.3 * load / scenario.knee)
    _histogram(level, "itl_bucket", ITL_EDGES, itl, 0.25, generated, random)
    level("ttft_sum", requests * median * 1.06)
    level("e2e_sum", requests * (median * 1.06 + 200 * itl))
    level("e2e_count", requests)
    level("queue_sum", requests * 0.02)
    level("queue_count", requests)
    level("prefill_sum", requests * median * 0.7)
    level("decode_sum", requests * 200 * itl)
    gauge("up", up.astype(float), own, always=True)
    gauge("running", rate * 4, model)
    gauge("waiting", np.zeros(grid.count), model)
    gauge("kv_usage", (0.2 + 0.5 * load / scenario.knee).clip(0, 0.95), model)
    gauge("starved", starved, own)
    gauge("gpus", np.full(grid.count, scenario.gpus), own, always=True)
    gauge("busy", np.where(up, busy, 0.0), own, always=True)
    gauge("throttled", np.zeros(grid.count), own, always=True)
    written.add("restarts", np.concatenate([[0.0], np.cumsum(up & ~np.concatenate([[True], up[:-1]]))]), **own)
    idle = (1 - load / scenario.gpus).clip(0, 1) * (1 - starved)
    shares = {"idle": idle, "host_starved": starved, "decode_memory": 1 - idle - starved}
    for cause in CAUSES:
        gauge("verdict", shares.get(cause, np.zeros(grid.count)), {**own, "cause": cause})
    gauge(
        "info",
        np.ones(grid.count),
        {**own, "engine": scenario.engine, "engine_version": "1.0", "service": scenario.model.split("/")[-1]},
        always=True,
    )
    gauge("slo_threshold", np.full(grid.count, 1.0), {**model, "slo": "ttft"}, always=True)
    gauge("slo_objective", np.full(grid.count, scenario.objective), {**model, "slo": "ttft"}, always=True)


def _histogram(
    level: object, key: str, edges: tuple[float, ...], median: np.ndarray, sigma: float, n: np.ndarray, random: np.random.Generator
) -> None:
    below = np.zeros_like(n)
    previous = np.zeros_like(n)
    for edge in edges:
        share = special.ndtr((np.log(edge) - np.log(median)) / sigma) if np.isfinite(edge) else np.ones_like(n)
        inside = n * (share - previous)
        # Poisson noise of the count in this bucket, but never more than there are.
        below = np.minimum(n, below + np.maximum(0.0, np.rint(inside + random.normal(0, 1, n.size) * np.sqrt(np.maximum(inside, 0)))))
        previous = share
        level(key, below if np.isfinite(edge) else n, le="+Inf" if not np.isfinite(edge) else f"{edge:g}")  # type: ignore[operator]


def _red_noise(random: np.random.Generator, n: int, r: float, sigma: float) -> np.ndarray:
    from scipy.signal import lfilter

    shocks = random.normal(0, sigma * np.sqrt(1 - r * r), n)
    shocks[0] = random.normal(0, sigma)
    out: np.ndarray = lfilter([1.0], [1.0, -r], shocks)
    return out


RAW_FACTS = {"info": "llm_target_info", "slo_threshold": "llm_slo_threshold_seconds", "slo_objective": "llm_slo_objective_ratio"}


def openmetrics(written: Written) -> Iterator[str]:
    """Lines for promtool: recorded names (facts under their raw names), one block of lines a series."""
    start, step = written.grid.start, written.grid.step
    for key, labels, values in sorted(written.series, key=lambda one: one[0]):
        name = RECORD[key].record or RAW_FACTS[key]
        inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
        head = f"{name}{{{inside}}} "
        # These are read once an hour; the rule would run more often, but the review does not look.
        stride = 12 if RECORD[key].coarse else 1
        first = (-(-start // (stride * step)) * stride * step - start) // step
        for at in range(first, values.size, stride):
            if np.isfinite(values[at]):
                yield f"{head}{values[at]:.10g} {start + at * step}\n"
    yield "# EOF\n"


def write_openmetrics(written: Written, path: Path) -> None:
    """Write the lines to a file."""
    with path.open("w") as file:
        file.writelines(openmetrics(written))


def to_history(written: Written) -> History:
    """The same, laid on a History without a server."""
    grid = written.grid
    hours = (grid.end - grid.start) // COARSE_SECONDS
    history = History(grid, Grid(grid.end - hours * COARSE_SECONDS, hours, COARSE_SECONDS, grid.zone))
    times = grid.start + grid.step * np.arange(grid.count + 1)
    sheets = {record.key: _Sheet(record, history.coarse if record.coarse else grid) for record in (*RECORDS, *FACTS)}
    for key, labels, values in written.series:
        step = sheets[key].grid.step
        fit = np.isfinite(values) & ((times - sheets[key].grid.start) % step == 0)
        sheets[key].add([Series(labels, times[fit].astype(float), values[fit])])
    history.traces = {key: list(sheet.traces()) for key, sheet in sheets.items()}
    return history


def berlin(text: str) -> int:
    """Unix time of a local time in Berlin, "2026-10-28 22:00"."""
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN).astimezone(UTC).timestamp())


# The last of the five weeks ends on a Monday after the clocks went back (25 October 2026).
END = berlin("2026-11-02 08:00")
START_OF_WEEK = berlin("2026-10-26 08:00")
REGRESSION_AT = berlin("2026-10-28 10:00")
LOST = ("chat-1", berlin("2026-10-27 22:00"), berlin("2026-10-28 06:00"))
STARVED = ("mini", berlin("2026-10-30 00:00"), berlin("2026-10-30 06:00"))
FIVE_WEEKS = (
    Scenario("acme/chat-70b", ("chat-0", "chat-1", "chat-2"), gpus=2, base=2.4, knee=1.55, growth=0.04, lost=LOST, seed=1),
    Scenario(
        "acme/code-8b", ("code",), engine="sglang", base=0.42, knee=0.68, weekend=0.6, regression=1.35, regression_at=REGRESSION_AT, seed=2
    ),
    Scenario("acme/mini-3b", ("mini",), base=0.4, knee=0.66, weekend=0.6, starved=STARVED, seed=3),
)
