"""The frame around every signal: models, windows, absence, and the status of what is absent or doubtful.

In: a `TargetView`. Out: families for the page. Formulas never see a missing field; this module answers for it, and publishes the reason as
`llm_signal_status`. Called once per tick of a target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_exporter.engines.describe import help_suffix
from llm_exporter.metrics import Family, HistogramSample, Metric, Sample
from llm_exporter.readings import FIELD, FIELDS, RANK_METRICS, Kind, Unit
from llm_exporter.signals.catalogue import SIGNALS
from llm_exporter.signals.model import SCOPE_LABELS, ModelView, Outcome, Scope, Signal, Status, TargetView
from llm_exporter.state.store import WINDOWS

MODEL_LABELS = SCOPE_LABELS[Scope.MODEL]

STATUS_METRIC = Metric(
    "llm_signal_status",
    Kind.GAUGE,
    Unit.FLAG,
    "1 for the status of each signal that is absent or doubtful; signal is the metric's name without llm_, window is empty where it has none.",
    ("target", "signal", "window", "status"),
    "signals × windows, one status each",
)


def _bound(label: str, values: Sequence[str]) -> str:
    return f"{label} ({len(values) or 'as the engine names them'}) per model" if label else "1 per model"


CANONICAL: dict[str, Metric] = {
    row.name: Metric(
        row.metric,
        row.kind,
        row.unit,
        row.help + help_suffix(row.name),
        MODEL_LABELS + ((row.label,) if row.label else ()),
        _bound(row.label, row.values),
    )
    for row in FIELDS
    if row.metric
}
RANK: dict[str, Metric] = {
    field: Metric(name, Kind.GAUGE, CANONICAL[field].unit, f"{FIELD[field].help} One data-parallel rank.", (*MODEL_LABELS, "rank"), "ranks")
    for field, name in RANK_METRICS.items()
}

# Everything this module publishes, in the order of the page. Those in PERSISTENT stay when a scrape fails (CONTRACT 6).
METRICS: tuple[Metric, ...] = (*CANONICAL.values(), *RANK.values(), *(signal.metric for signal in SIGNALS), STATUS_METRIC)
PERSISTENT = frozenset({"llm_engine_state", "llm_engine_restarts_total", "llm_input_anomalies_total", STATUS_METRIC.name})


class Statuses:
    """Collects (signal, window, status); the first reason stands, since the nearest cause is found first."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Status] = {}

    def note(self, metric: str, window: str, status: Status) -> None:
        """`metric` by its full name."""
        self.found.setdefault((metric.removeprefix("llm_"), window), status)

    def family(self, target: str) -> Family:
        """The published form."""
        samples = [Sample((target, signal, window, status.value), 1.0) for (signal, window), status in sorted(self.found.items())]
        return Family(STATUS_METRIC, samples)


def derive(view: TargetView) -> list[Family]:
    """All families of one target: canonical, derived, and their status."""
    statuses = Statuses()
    models = view.models
    families = [*_canonical(view, models, statuses), *_ranks(view, models)]
    for signal in SIGNALS:
        samples = list(_samples(signal, view, models, statuses))
        if samples:
            families.append(Family(signal.metric, samples))
    if not view.fresh and view.store.latest is not None:
        for metric in METRICS:
            if metric.name not in PERSISTENT:
                for window in [name for name, _ in WINDOWS] if "window" in metric.labels else [""]:
                    statuses.note(metric.name, window, Status.STALE)
    families.append(statuses.family(view.config.name))
    return families


def _canonical(view: TargetView, models: Sequence[ModelView], statuses: Statuses) -> Iterable[Family]:
    for field, metric in CANONICAL.items():
        samples: list[Sample | HistogramSample] = []
        for model in models:
            absence = model.absence(field)
            if absence is not None:
                statuses.note(metric.name, "", Status(absence.value))
                continue
            labels = (view.config.name, view.store.engine, model.model)
            if metric.kind is Kind.HISTOGRAM:
                histograms = _histogram(model, field, labels)
                if not histograms:
                    statuses.note(metric.name, "", Status.NOT_EXPOSED)
                samples += histograms
            elif len(metric.labels) > len(MODEL_LABELS):
                samples += [Sample((*labels, label), value) for label, value in model.values(field).items()]
            else:
                value = model.value(field)
                samples += [] if value is None else [Sample(labels, value)]
        if samples:
            yield Family(metric, samples)


def _histogram(model: ModelView, field: str, labels: tuple[str, ...]) -> list[HistogramSample]:
    columns = model.columns(field)
    if columns is None or columns.sum_at < 0:  # a histogram without its sum is none for Prometheus
        return []
    published = model.merged.published
    counts = published[columns.first : columns.first + len(columns.bounds)]
    return [HistogramSample(labels, columns.bounds, counts, published[columns.sum_at])]


def _ranks(view: TargetView, models: Sequence[ModelView]) -> Iterable[Family]:
    for field, metric in RANK.items():
        samples = [
            Sample((view.config.name, view.store.engine, model.model, rank), model.merged.ranks[slot])
            for model in models
            for rank, slot in model.merged.table.ranks.get((model.model, field), {}).items()
        ]
        if samples:
            yield Family(metric, samples)


def _samples(signal: Signal, view: TargetView, models: Sequence[ModelView], statuses: Statuses) -> Iterable[Sample]:
    target = view.config.name
    if signal.of_target is not None:
        for own, value in _settled(signal, signal.of_target(view), "", statuses):
            yield Sample((target, *own), value)
        return
    for model in models:
        labels = (target, view.store.engine, model.model)
        absence = next((found for name in signal.reads if (found := model.absence(name)) is not None), None)
        if absence is not None:
            for name in [name for name, _ in WINDOWS] if signal.windowed else [""]:
                statuses.note(signal.name, name, Status(absence.value))
        elif signal.of_model is not None:
            for own, value in _settled(signal, signal.of_model(model), "", statuses):
                yield Sample(labels + own, value)
        else:
            assert signal.of_window is not None
            for name, _ in WINDOWS:
                window = model.window(name)
                # one scrape is no window: no rate, no ratio, no count of what happened "in" it
                outcome = signal.of_window(model, window) if window.scrapes > 1 else Outcome({}, Status.ONE_SCRAPE)
                for own, value in _settled(signal, outcome, name, statuses):
                    yield Sample((*labels, *own, name), value)


def _settled(signal: Signal, outcome: Outcome, window: str, statuses: Statuses) -> Iterable[tuple[tuple[str, ...], float]]:
    if outcome.status is not None:
        statuses.note(signal.name, window, outcome.status)
    return outcome.values.items()
