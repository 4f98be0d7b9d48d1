"""Everything that the exporter may publish, in the order of the page: the one list that ties the rooms' declarations together."""

from __future__ import annotations

from collections.abc import Iterable

from llm_exporter.config.model import Target
from llm_exporter.expose import hardware, probes, targets
from llm_exporter.metrics import Metric
from llm_exporter.report import directory
from llm_exporter.signals import derive


def declared() -> tuple[Metric, ...]:
    """All metrics that rooms publish through the page (the exporter's own of prometheus_client come beside them)."""
    return (targets.info_metric(()), *targets.METRICS, *derive.METRICS, *hardware.METRICS, *probes.METRICS, directory.LAST_SUCCESS)


def label_names(configured: Iterable[Target]) -> tuple[str, ...]:
    """Names of all labels that targets configure: `llm_target_info` has one set for all."""
    return tuple(sorted({name for target in configured for name in target.labels}))
