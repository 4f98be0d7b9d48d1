"""What is published of a target itself (CONTRACT 6.5): up, why down, the scrape's cost, and who it is."""

from __future__ import annotations

from dataclasses import dataclass

from llm_exporter.config.model import Target
from llm_exporter.metrics import Family, Metric, Sample
from llm_exporter.readings import Kind, Unit

_G = Kind.GAUGE
_T = ("target",)

UP = Metric("llm_target_up", _G, Unit.FLAG, "1 if the last scrape of the target gave a valid page.", _T, "1")
DOWN_REASON = Metric(
    "llm_target_down_reason", _G, Unit.FLAG, "1 for the reason why the last scrape failed; absent while up.", ("target", "reason"), "1"
)
DURATION = Metric(
    "llm_target_scrape_duration_seconds",
    _G,
    Unit.SECONDS,
    "Time that the last scrape took, good or bad; an engine's event loop lag shows here.",
    _T,
    "1",
)
SAMPLES = Metric("llm_target_scrape_samples", _G, Unit.COUNT, "Samples on the last good page.", _T, "1")
LAST_SCRAPE = Metric(
    "llm_target_last_scrape_timestamp_seconds",
    _G,
    Unit.TIMESTAMP,
    "Wall time of the last good scrape: its age is the age of the engine's series.",
    _T,
    "1",
)
UNSTABLE = Metric(
    "llm_target_identity_unstable",
    _G,
    Unit.FLAG,
    "1 while several servers answer under this address in turn: its counters are not those of one server.",
    _T,
    "1",
)
INFO_LABELS = ("target", "engine", "engine_version", "url", "service")
INFO_NAME = "llm_target_info"
INFO_HELP = "Who the target is; further labels are those of its configuration. Join it on target."

METRICS: tuple[Metric, ...] = (UP, DOWN_REASON, DURATION, SAMPLES, LAST_SCRAPE, UNSTABLE)


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """What is known of a target after its last scrape.

    Attributes:
        up: None before the first scrape.
        reason, detail, hint: why it is down, or why its engine is unknown; empty when all is well.
        at: wall time of the last scrape; last_good_at: of the last good one.
        engine: vllm, sglang or unknown.
    """

    up: bool | None = None
    reason: str = ""
    detail: str = ""
    hint: str = ""
    at: float | None = None
    last_good_at: float | None = None
    duration_seconds: float | None = None
    samples: int | None = None
    engine: str = "unknown"
    engine_version: str = ""
    state: str = "unknown"
    identity_unstable: bool = False


def public_url(target: Target) -> str:
    """The target's URL without query, as label and on pages."""
    return target.url.split("?", 1)[0].rstrip("/")


def info_metric(labels: tuple[str, ...]) -> Metric:
    """`llm_target_info` with the configured labels of all targets (one family has one set of names)."""
    return Metric(INFO_NAME, _G, Unit.INFO, INFO_HELP, INFO_LABELS + labels, "1")


def families(target: Target, status: TargetStatus, extra_labels: tuple[str, ...]) -> list[Family]:
    """Families of one target. `extra_labels`: label names that any target configures; one that this target lacks is left empty."""
    name = (target.name,)
    info = (target.name, status.engine, status.engine_version, public_url(target), target.service or target.name)
    found = [Family(info_metric(extra_labels), [Sample(info + tuple(target.labels.get(label, "") for label in extra_labels), 1.0)])]
    if status.up is None:
        return found
    found.append(Family(UP, [Sample(name, float(status.up))]))
    if not status.up:
        found.append(Family(DOWN_REASON, [Sample((target.name, status.reason), 1.0)]))
    for metric, value in ((DURATION, status.duration_seconds), (SAMPLES, status.samples), (LAST_SCRAPE, status.last_good_at)):
        if value is not None:
            found.append(Family(metric, [Sample(name, float(value))]))
    found.append(Family(UNSTABLE, [Sample(name, float(status.identity_unstable))]))
    return found
