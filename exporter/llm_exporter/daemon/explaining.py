"""The path of one value, beyond the metric: what it is made of, and which panels and alerts read it. For `llm-exporter explain`.

In: a name as a person types it. Out: facts from the declarations. The live part, raw line to metric, is `trace.py`'s.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from llm_exporter.config.model import Config
from llm_exporter.daemon.published import declared
from llm_exporter.errors import LlmExporterError, UsageError
from llm_exporter.metrics import Metric
from llm_exporter.readings import FIELD
from llm_exporter.signals.catalogue import SIGNALS
from llm_exporter.signals.model import Signal
from llm_exporter.signals.recorded import RECORDED

_SIGNAL = {signal.name: signal for signal in SIGNALS}


class Use(NamedTuple):
    """A panel or an alert that reads a metric. `through`: the recorded series in between, "" without one; `role`: how, for alerts."""

    where: str
    through: str = ""
    role: str = ""


def metric_named(text: str) -> Metric:
    """The published metric that a person means: with or without `llm_`, or a canonical field's name.

    Raises:
        UsageError: there is none; the message suggests near ones.
    """
    metrics = {metric.name: metric for metric in declared()}
    name = re.sub(r"\{.*", "", text.strip())
    for tried in (name, f"llm_{name}", *(re.sub(r"_(bucket|sum|count)$", "", n) for n in (name, f"llm_{name}"))):
        if tried in metrics:
            return metrics[tried]
    field = FIELD.get(name)
    if field is not None and field.metric in metrics:
        return metrics[field.metric]
    if field is not None:
        readers = ", ".join(signal.name for signal in SIGNALS if name in signal.reads + signal.uses)
        raise UsageError(f"{name} is not published; it is evidence for {readers or 'nothing yet'}: explain one of those")
    wanted = name.removeprefix("llm_")
    near = difflib.get_close_matches(wanted, [n.removeprefix("llm_") for n in metrics], n=4, cutoff=0.55)
    near += [n.removeprefix("llm_") for n in metrics if wanted and wanted in n and n.removeprefix("llm_") not in near][: 4 - len(near)]
    hint = f"; did you mean {', '.join(near)}?" if near else "; docs/metrics.md lists all"
    raise UsageError(f"there is no signal {text!r}{hint}")


def signal_of(metric: Metric) -> Signal | None:
    """The derivation behind a metric; None where it is published as the engine (or the machine) gives it."""
    return _SIGNAL.get(metric.name)


def derivation_of(signal: Signal) -> str:
    """Where the formula stands."""
    formula = signal.of_window or signal.of_model or signal.of_target
    where = getattr(formula, "__module__", "").removeprefix("llm_exporter.")
    return f"{'over a window' if signal.windowed else 'from the newest page and its memory'}, in {where}"


def counters_of(metric: Metric) -> list[Metric]:
    """The published metrics that a signal cannot do without; none for a metric that is no signal."""
    signal = signal_of(metric)
    names = {FIELD[name].metric for name in signal.reads} if signal is not None else set()
    return [other for other in declared() if other.name in names]


def panels_of(metric: Metric) -> list[Use]:
    """Panels that read the metric. Raises: LlmExporterError where this installation has no dashboards."""
    found: dict[Use, None] = {}
    for sheet in _part("dashboards", "SHEETS"):
        for row in sheet.rows:
            for panel in row.panels:
                for query in panel.queries:
                    for through in _reads(query.expr, metric.name):
                        found[Use(f"{sheet.board.title} / {panel.title}", through)] = None
    return list(found)


def alerts_of(metric: Metric, config: Config | None) -> list[Use]:
    """Alerts that decide on the metric or quote it. Raises: LlmExporterError where this installation has no alerts."""
    settings = _part("settings", "settings_of")(config)
    found: dict[Use, None] = {}
    for alert in _part("alerts", "ALERTS"):
        decides = _reads(alert.expression(settings), metric.name)
        for through in decides:
            found[Use(f"{alert.name} ({alert.severity.value})", through, "decides")] = None
        if not decides and any(evidence.metric == metric.name for evidence in alert.evidence):
            found[Use(f"{alert.name} ({alert.severity.value})", "", "quotes it")] = None
    return list(found)


def _part(module: str, name: str) -> Any:
    """Something of the generators, imported late: they are dear, and may be missing from a slim installation."""
    try:
        return getattr(importlib.import_module(f"llm_exporter.generate.{module}"), name)
    except (ImportError, AttributeError) as error:
        raise LlmExporterError(f"not available in this installation ({error})") from None


def _reads(expression: str, metric: str) -> Sequence[str]:
    """How an expression reads a metric: "" for itself, else the recorded series that it reads instead."""
    found = [""] if _mentions(expression, (metric,)) else []
    return found + [rule.record for rule in RECORDED if rule.record in expression and _mentions(rule.template, (metric,))]


def _mentions(expression: str, names: Iterable[str]) -> bool:
    return any(re.search(rf"(?<![\w:]){re.escape(name)}(_bucket|_sum|_count)?(?![\w:])", expression) for name in names)
