"""Every threshold of alerts and panels, once: value, unit, meaning, and where the number comes from.

Read by the alerts (through `RuleSettings.limit`), by their annotations and runbooks, and by the panels, so that a line in a graph is where
the alert is. Numbers marked "starting value" are judgement, not measurement.
"""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

from llm_exporter.generate.burnrate import TIERS
from llm_exporter.readings import Unit

_MEBIBYTE = 2**20
_STARTING = "starting value"


class Threshold(NamedTuple):
    """One number that decides.

    Attributes:
        name: by which tests change it.
        value: in base units.
        unit: of the value.
        meaning: a sentence for people.
        source: where the number comes from.
    """

    name: str
    value: Decimal
    unit: Unit
    meaning: str
    source: str = _STARTING

    @property
    def text(self) -> str:
        """The value with its unit, for people."""
        value, unit = self.value, self.unit
        if unit is Unit.RATIO:
            return f"{(value * 100).normalize():f} %"
        if unit is Unit.SECONDS:
            for size, word in ((86_400, "d"), (3600, "h"), (60, "min")):
                if value >= size and value % size == 0:
                    return f"{value // size:f} {word}"
            return f"{value.normalize():f} s"
        if unit is Unit.BYTES:
            return f"{value / _MEBIBYTE:f} MiB"
        return f"{value.normalize():f} {unit.value}".rstrip()


def _ratio(name: str, value: str, meaning: str, source: str = _STARTING) -> Threshold:
    return Threshold(name, Decimal(value), Unit.RATIO, meaning, source)


def _count(name: str, value: int, meaning: str, source: str = _STARTING, unit: Unit = Unit.COUNT) -> Threshold:
    return Threshold(name, Decimal(value), unit, meaning, source)


def _seconds(name: str, value: str, meaning: str, source: str = _STARTING) -> Threshold:
    return Threshold(name, Decimal(value), Unit.SECONDS, meaning, source)


TTFT_P99 = _seconds("ttft_p99", "5", "P99 of the time to first token above which people leave")
TTFT_P99_REQUESTS = _count(
    "ttft_p99_requests", 100, "requests below which a P99 is the time of one request", "N × (1 − 0.99) ≥ 1", Unit.REQUESTS
)
ERROR_RATIO = _ratio("error_ratio", "0.05", "share of requests that fail on the server's side")
ERROR_REQUESTS = _count("error_requests", 20, "requests below which one failure is no rate", unit=Unit.REQUESTS)
PROBE_BAD_RATIO = _ratio("probe_bad_ratio", "0.6", "share of probes that fail", "three of five: one lost probe never calls")
PROBE_RUNS = _count("probe_runs", 3, "probes below which nothing is said", unit=Unit.REQUESTS)
QUEUE_GROWTH = Threshold("queue_growth", Decimal("0.02"), Unit.REQUESTS_PER_SECOND, "growth of the queue, more than one request a minute")
KV_USAGE = _ratio("kv_usage", "0.95", "used share of the KV cache")
PREEMPTION_RATIO = _ratio("preemption_ratio", "0.05", "preemptions per first token", "1 % is worth a look, 5 % is a storm: starting value")
PREEMPTIONS = _count("preemptions", 10, "preemptions below which nothing is said")
HIT_RATIO_DROP = _ratio("hit_ratio_drop", "0.15", "fall of the prefix-cache hit ratio below that of the day before")
HIT_RATIO_REQUESTS = _count("hit_ratio_requests", 20, "requests below which a hit ratio is chance", unit=Unit.REQUESTS)
THROTTLED = _ratio("throttled", "0.1", "share of time with clocks held down by heat or a brake")
FOREIGN_MEMORY = Threshold(
    "foreign_memory",
    Decimal(512 * _MEBIBYTE),
    Unit.BYTES,
    "GPU memory of a process that belongs to no target",
    "a bare CUDA context takes about that: starting value",
)
XID_AGE = _seconds("xid_age", "900", "age of an XID event until which it is worth a ticket")
SCRAPE_SECONDS = _seconds("scrape_seconds", "2", "mean time of a scrape; a healthy engine takes milliseconds")
RESTARTS = _count("restarts", 2, "restarts within an hour", "a deployment restarts once")
REVIEW_AGE = _seconds("review_age", str(8 * 86_400), "age of the last capacity review", "a week and a day")
STARTING_GRACE = _seconds(
    "starting_grace",
    "900",
    "time for which a loading engine is nobody's fault",
    "large models load in minutes; a longer start is an outage",
)

BURN_FACTOR = {
    tier.name: Threshold(f"burn_{tier.name}", tier.factor, Unit.COUNT, f"burn rate of the {tier.name} tier", "SRE workbook, chapter 5")
    for tier in TIERS
}
BURN_FLOOR = {
    tier.name: _count(
        f"burn_{tier.name}_floor", tier.floor, f"slow requests below which the {tier.name} tier is silent", "simulated", Unit.REQUESTS
    )
    for tier in TIERS
}

THRESHOLDS: tuple[Threshold, ...] = (
    TTFT_P99, TTFT_P99_REQUESTS, ERROR_RATIO, ERROR_REQUESTS, PROBE_BAD_RATIO, PROBE_RUNS, QUEUE_GROWTH, KV_USAGE, PREEMPTION_RATIO,
    PREEMPTIONS, HIT_RATIO_DROP, HIT_RATIO_REQUESTS, THROTTLED, FOREIGN_MEMORY, XID_AGE, SCRAPE_SECONDS, RESTARTS,
    REVIEW_AGE, STARTING_GRACE, *BURN_FACTOR.values(), *BURN_FLOOR.values(),
)  # fmt: skip
THRESHOLD = {threshold.name: threshold for threshold in THRESHOLDS}
