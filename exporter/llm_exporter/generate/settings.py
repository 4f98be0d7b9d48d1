"""What the rules depend on: ranges, the job's name, links, and what a configuration adds to the generic rules.

In: a `Config` or nothing. Out: `RuleSettings`, which every expression is built with. Without a configuration the rules read objectives
and targets from the metrics, so that a user who edits llm-exporter.yml need not generate anything; with one, the objectives and the
configured targets stand in the rules as literals.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from llm_exporter.config.model import Config
from llm_exporter.generate.promql import Matcher, duration, none_of, number, one_of
from llm_exporter.generate.thresholds import Threshold

LEAST_SCRAPES = 4  # a range holds at least so many scrapes: one may be lost, and a rate needs two
DEFAULT_GRAFANA = "http://localhost:3000"  # where the Compose file puts it
DEFAULT_RUNBOOKS = "docs/runbooks"  # of this repository


class Objective(NamedTuple):
    """Targets that promise the same for an SLO of the same name."""

    slo: str
    objective: Decimal
    targets: tuple[str, ...]

    @property
    def matchers(self) -> tuple[Matcher, ...]:
        """What selects the series of this objective."""
        return (Matcher("slo", "=", self.slo), one_of("target", self.targets))


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSettings:
    """How rules are written.

    Attributes:
        least_range: R in seconds: no range is shorter.
        targets: names of the configured targets; None where no configuration is known.
        discovers: the configuration finds further targets.
        objectives: of the configured targets; None where no configuration is known.
        scale: every window, `for` and interval is divided by it.
        changed: values that take the place of thresholds, by name: for the tests of the tests.
    """

    least_range: Decimal = Decimal(60)
    job: str = "llm-exporter"
    alert_labels: tuple[str, ...] = ()
    grafana_url: str = DEFAULT_GRAFANA
    runbook_base_url: str = DEFAULT_RUNBOOKS
    targets: tuple[str, ...] | None = None
    discovers: bool = False
    objectives: tuple[Objective, ...] | None = None
    scale: Decimal = Decimal(1)
    changed: Mapping[str, Decimal] = field(default_factory=dict)

    def window(self, seconds: Decimal | int) -> str:
        """A range of at least R."""
        return duration(max(Decimal(seconds), self.least_range) / self.scale)

    @property
    def shortest(self) -> str:
        """R, through which gauges are read."""
        return self.window(0)

    def span(self, seconds: Decimal | int) -> str:
        """A `for`, interval or offset."""
        return duration(Decimal(seconds) / self.scale)

    def age(self, threshold: Threshold) -> str:
        """A threshold that is an age in seconds: it shrinks with the scale as windows do."""
        return number((self.changed.get(threshold.name, threshold.value) / self.scale).quantize(Decimal("0.001")))

    def limit(self, threshold: Threshold) -> str:
        """A threshold as a literal."""
        return number(self.changed.get(threshold.name, threshold.value))

    def elsewhere(self) -> tuple[Matcher, ...]:
        """What selects the targets that no configuration names: discovered ones."""
        return (none_of("target", self.targets),) if self.targets else ()


def settings_of(config: Config | None, scale: Decimal = Decimal(1)) -> RuleSettings:
    """Settings for a configuration, or generic ones."""
    if config is None:
        return RuleSettings(scale=scale)
    wanted = config.generate
    interval = max(Decimal(str(wanted.prometheus_scrape_interval)), Decimal(str(config.global_.scrape_interval)))
    return RuleSettings(
        least_range=LEAST_SCRAPES * interval,
        job=wanted.job,
        alert_labels=wanted.alert_labels,
        grafana_url=(wanted.grafana_url or DEFAULT_GRAFANA).rstrip("/"),
        runbook_base_url=(wanted.runbook_base_url or DEFAULT_RUNBOOKS).rstrip("/"),
        targets=tuple(target.name for target in config.targets),
        discovers=bool(config.file_sd_configs or config.http_sd_configs),
        objectives=_objectives(config),
        scale=scale,
    )


def _objectives(config: Config) -> tuple[Objective, ...]:
    found: dict[tuple[str, Decimal], list[str]] = {}
    for target in config.targets:
        for slo in target.slos:
            found.setdefault((slo.name, Decimal(str(slo.objective))), []).append(target.name)
    return tuple(Objective(slo, objective, tuple(targets)) for (slo, objective), targets in sorted(found.items()))
