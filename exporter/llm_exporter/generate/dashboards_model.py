"""What a dashboard is made of, in our own words: sheets of rows of panels of queries.

In: nothing. Out: types. The modules `dashboards_*.py` declare the sheets, `panels.py` turns one into Grafana's JSON. No panel can be
declared without saying what it means, what to do, and why it may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from llm_exporter.generate.boards import Board
from llm_exporter.generate.thresholds import Threshold
from llm_exporter.readings import Unit

WIDTH = 24  # columns of Grafana's grid


class Kind(StrEnum):
    """Panel types that Grafana 10 to 13 all have; the values are theirs."""

    TIME_SERIES = "timeseries"
    STAT = "stat"
    STATES = "state-timeline"
    HEAT_MAP = "heatmap"
    TABLE = "table"
    BARS = "bargauge"


class Needs(StrEnum):
    """What must be there for a panel to show anything; the value is what it says while it is empty."""

    EXPORTER = "No exporter is scraped under this job: is it up, and is the variable job right?"
    TARGET = "No target: is one configured, and do the variables select it?"
    TRAFFIC = "No requests in this time, or the engine does not expose this: see Signal status on the Exporter board"
    RULES = "No requests in this time, or alerts/recording.yml is not loaded in Prometheus"
    SLO = "No SLO is configured (targets: slos:), no requests, or alerts/recording.yml is not loaded"
    GPU = "No readings of a GPU: see Sources on the Exporter board"
    GPM = "This GPU or driver does not measure it (GPM needs Hopper or newer): see Sources on the Exporter board"
    GPU_COUNT = "gpu: expected_count: is not set in llm-exporter.yml"
    GPU_MEMORY_ERRORS = "This GPU does not count memory errors"
    GPU_EVENT = "None seen since the exporter was started"
    GPU_OF_TARGET = "No GPU of this host serves a selected target: see Sources on the Exporter board"
    HOST = "No process of the target was found on this host: see Sources on the Exporter board"
    PROBE = "No probe ran: name a probe module in the target's probes: to get one"
    LADDER = "No probe with several prompt lengths ran: add a module such as ladder to the target's probes:"
    PROBE_CLOCK = "The engine does not say its own times (vLLM: --enable-per-request-metrics; SGLang: endpoint /generate)"
    RANKS = "One rank only, or the engine does not tell its ranks apart"
    DISAGGREGATED = "Not a disaggregated server"
    ENGINE_SPECIFIC = "This engine does not expose it"
    REVIEW = "The recording rules of the capacity review are not loaded, or there is no history yet"
    REPORT = "No capacity review is scheduled (report: schedule:)"
    NOTHING_WRONG = "Nothing: all is well"
    HISTORY = "Not enough history yet"


class Query(NamedTuple):
    """One query of a panel.

    Attributes:
        expr: PromQL with Grafana's variables.
        legend: Grafana's template of a series' name; in a table the name of the column that holds the value.
        instant: only the last value.
        needs: what this query needs beyond its panel.
    """

    expr: str
    legend: str = ""
    instant: bool = False
    needs: Needs | None = None


class Code(NamedTuple):
    """A number that stands for a word."""

    value: int
    text: str
    color: str


class Look(StrEnum):
    """How a series is drawn where it is not a plain line."""

    BAND = "band"  # filled down to the series named after it
    EDGE = "edge"  # thin, no legend
    LIMIT = "limit"  # dashed
    BARS = "bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        title: unique on its sheet; runbooks name it.
        unit: Grafana's word for the unit of the values; `unit_of` gives that of a declared unit.
        means, do: the description: what it shows, and what to do when it looks wrong.
        alerts: whose runbooks it links to.
        thresholds: the alerts' own fields, drawn as lines and colours, mildest first.
        falling: bad is below the threshold, not above.
        codes: words for values.
        looks: series by legend that are drawn otherwise; of a BAND the second word is the lower edge's legend.
        columns: of a table: labels in the order wanted; those of `units` have their own unit.
        number: of a table: the column that is a number, to sort by.
        row_link: of a table or stat: the board that a row leads to, and the columns that fill its variables.
        by_series: a heat map whose rows are the series, not buckets.
        no_value: takes the place of what `needs` says.
    """

    title: str
    kind: Kind
    queries: tuple[Query, ...]
    unit: str = "short"
    means: str
    do: str
    needs: Needs
    alerts: tuple[str, ...] = ()
    thresholds: tuple[Threshold, ...] = ()
    falling: bool = False
    codes: tuple[Code, ...] = ()
    looks: tuple[tuple[str, Look, str], ...] = ()
    columns: tuple[str, ...] = ()
    units: tuple[tuple[str, str], ...] = ()
    number: str = ""
    row_link: tuple[Board, tuple[str, ...]] | None = None
    width: int = 8
    height: int = 8
    least: float | None = None
    most: float | None = None
    stacked: bool = False
    log_scale: bool = False
    by_series: bool = False
    time_from: str = ""
    no_value: str = ""

    @property
    def empty_text(self) -> str:
        """What stands in the panel while it has nothing to show."""
        return self.no_value or self.needs.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A heading and what stands below it; `repeat` names a variable for each of whose values the row stands once."""

    title: str
    panels: tuple[Panel, ...]
    repeat: str = ""


class Variable(NamedTuple):
    """A variable filled from labels. `single` admits one value only, and is used with `=`; all others with `=~`."""

    name: str
    label: str
    query: str
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One dashboard."""

    board: Board
    purpose: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]
    since: str = "now-1h"
    refresh: str = "30s"
    tags: tuple[str, ...] = field(default=("llm-exporter",))

    def panels(self) -> Iterator[Panel]:
        """All panels, in order."""
        for row in self.rows:
            yield from row.panels


_UNITS = {
    Unit.SECONDS: "s",
    Unit.TIMESTAMP: "dateTimeAsIso",
    Unit.TOKENS: "short",
    Unit.REQUESTS: "short",
    Unit.RATIO: "percentunit",
    Unit.BYTES: "bytes",
    Unit.WATTS: "watt",
    Unit.JOULES: "joule",
    Unit.CELSIUS: "celsius",
    Unit.HERTZ: "hertz",
    Unit.TOKENS_PER_SECOND: "suffix: tok/s",
    Unit.REQUESTS_PER_SECOND: "reqps",
    Unit.BYTES_PER_SECOND: "binBps",
    Unit.CORES: "suffix: cores",
    Unit.COUNT: "short",
    Unit.INFO: "none",
}


def unit_of(unit: Unit) -> str:
    """Grafana's word for one of our units."""
    return _UNITS[unit]


SECONDS, RATIO, BYTES = unit_of(Unit.SECONDS), unit_of(Unit.RATIO), unit_of(Unit.BYTES)
TOKENS_PER_SECOND, REQUESTS_PER_SECOND = unit_of(Unit.TOKENS_PER_SECOND), unit_of(Unit.REQUESTS_PER_SECOND)

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_BRACES = re.compile(r"\{[^{}]*\}")
_RANGE = re.compile(r"\[[^\[\]]*\]|\boffset\s+\S+")
_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^()]*\)")
_WORD = re.compile(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()")
_KEYWORDS = frozenset(
    ("and", "or", "unless", "bool", "by", "without", "on", "ignoring", "group_left", "group_right", "offset", "inf", "nan")
)


def metrics_in(expr: str) -> tuple[str, ...]:
    """Names of the series that an expression of ours reads, in order, each once."""
    bare = expr
    for noise in (_QUOTED, _BRACES, _RANGE, _LISTS):
        bare = noise.sub(" ", bare)
    return tuple(dict.fromkeys(word for word in _WORD.findall(bare) if word.lower() not in _KEYWORDS))
