"""What is published: a metric is declared once as a `Metric`; rooms hand `Family` objects to `expose/page.py`.

No room writes exposition text itself, and none touches prometheus_client but `expose/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from llm_exporter.readings import Kind, Unit


class Metric(NamedTuple):
    """One published metric.

    Attributes:
        name: full name with unit suffix; counters end in `_total`.
        kind: counter, gauge or histogram.
        unit: checked against the name by a test.
        help: one sentence; says the source where it is not plain.
        labels: label names in the order in which samples give the values.
        bound: in words, what bounds the number of series per target ("3 values of q × 2 windows").
    """

    name: str
    kind: Kind
    unit: Unit
    help: str
    labels: tuple[str, ...] = ()
    bound: str = ""


class Sample(NamedTuple):
    """One value of a counter or gauge; `labels` are values in the order of `Metric.labels`."""

    labels: tuple[str, ...]
    value: float


class HistogramSample(NamedTuple):
    """One classic histogram. `bounds` ascend and end in +inf, `cumulative` has one count per bound."""

    labels: tuple[str, ...]
    bounds: Sequence[float]
    cumulative: Sequence[float]
    sum: float


class Family(NamedTuple):
    """All samples of one metric that one room publishes."""

    metric: Metric
    samples: Sequence[Sample | HistogramSample]
