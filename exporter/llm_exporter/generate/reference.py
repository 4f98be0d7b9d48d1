"""Reference documents from the declarations: docs/metrics.md, and the table of signals in README between two marks.

Everything here is written by `generate docs` and checked by `generate docs --check`; no number and no name is typed twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from llm_exporter.engines.describe import TITLES, upstream
from llm_exporter.errors import UsageError
from llm_exporter.metrics import Metric
from llm_exporter.readings import FIELD, FIELDS
from llm_exporter.signals.catalogue import SIGNALS
from llm_exporter.signals.derive import CANONICAL, RANK, STATUS_METRIC
from llm_exporter.signals.model import Status

GENERATED = "<!-- Written by `llm-exporter generate docs` from the declarations in the code; edit those. -->\n"
WINDOW_NOTE = """\
Label `window` is "1m" or "5m". These serve people, the API and the verdict, for one target; alerts and fleet boards use the counters and
histograms above.
"""
BEGIN, END = "<!-- signals: begin -->", "<!-- signals: end -->"

STATUS_MEANING: dict[Status, str] = {
    Status.ONE_SCRAPE: "Only one good page so far (or the first after the buckets changed): a window needs two.",
    Status.NO_TRAFFIC: "Nothing happened in the window that could be measured.",
    Status.LOW_N: "Published, but few observations decide it.",
    Status.NOT_SUPPORTED: "This engine or release never has it.",
    Status.NOT_EXPOSED: "It should be on the page and is not: the engine changed its metrics, or they are filtered.",
    Status.FEATURE_OFF: "The server was started without it.",
    Status.STALE: "The last scrape failed, or the page's own timestamps are more than 5 minutes old.",
    Status.SKEWED: "The numbers behind it are of different requests, so they must not be subtracted or divided.",
    Status.NEEDS_GPU: "Cannot be told without readings of the GPU.",
    Status.THRESHOLD_NOT_AN_EDGE: "The SLO's threshold is no bucket edge; the highest edge below it is used.",
}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _metric_row(metric: Metric) -> tuple[str, ...]:
    return (f"`{metric.name}`", metric.kind.value, ", ".join(metric.labels), metric.bound, metric.help)


def _from_engines() -> str:
    rows = []
    for row in FIELDS:
        if not row.metric:
            continue
        cells = {found.engine: found for found in upstream(row.name)}
        ways = []
        for engine in TITLES:
            found = cells.get(engine)
            if found is None:
                ways.append("–")
                continue
            text = "; else ".join(f"`{way}`" for way in found.ways) + f" ({found.counted})"
            ways.append(text + (f" {found.note}" if found.note else "") + (f" Needs {found.flag}." if found.flag else ""))
        rows.append((f"`{row.metric}`", *ways))
    return _table(("metric", *TITLES.values()), rows)


def metrics_markdown(others: Sequence[tuple[str, Sequence[Metric]]]) -> str:
    """docs/metrics.md. `others`: (title, metrics) of the rooms beside the engine's signals, in order."""
    canonical = [*CANONICAL.values(), *RANK.values()]
    head = ("metric", "type", "labels", "series", "meaning")
    parts = [
        "# Metrics\n",
        GENERATED,
        "Absent means unknown: a series that is missing has its reason in `llm_signal_status`. *series* is the number per target.\n",
        "## From the engine, cumulative\n",
        "The engine's own values, ranks merged, never re-based: they fall when the engine restarts.\n",
        _table(head, map(_metric_row, canonical)),
        "## Where each comes from\n",
        "The first way that the page allows is used; releases are never asked for.\n",
        _from_engines(),
        "## Derived\n",
        WINDOW_NOTE,
        _table(head, (_metric_row(signal.metric) for signal in SIGNALS)),
        "## Why a value is absent or doubtful\n",
        _table(head, [_metric_row(STATUS_METRIC)]),
        _table(("status", "meaning"), [(f"`{status.value}`", STATUS_MEANING[status]) for status in Status]),
    ]
    for title, metrics in others:
        parts += [f"## {title}\n", _table(head, map(_metric_row, metrics))]
    return "\n".join(parts)


def signals_table() -> str:
    """The short table for README: derived signals and what they read."""
    rows = [(f"`{s.name}`", s.help, ", ".join(f"`{FIELD[f].metric or f}`" for f in (*s.reads, *s.uses))) for s in SIGNALS]
    return _table(("signal", "meaning", "reads"), rows)


def with_signals_table(readme: str) -> str:
    """README with the table between the marks renewed. Raises: UsageError where the marks are missing."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"README.md: the marks {BEGIN} and {END} are missing; put them where the table of signals shall stand")
    return f"{before}{BEGIN}\n{signals_table()}{END}{after}"
