"""A /metrics page from a template: the lines of a captured page, in its order, whose numbers are set by name.

`templates/*.prom` are pages of real servers (first line: where from) with their values taken out. A line that begins
with `?` appears at its first event. Only what changed is formatted again, so a page of 800 lines costs a fraction of
a millisecond.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import chain

# Labels that are the same on all series of a page; they are not part of a key.
_CONSTANT = frozenset(
    ("model_name", "engine", "engine_type", "moe_ep_rank", "pp_rank", "tp_rank", "dp_rank", "pid", "forward_overlap", "cache_type")
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?')
_INFO = "cache_config_info"


def number_text(value: float) -> str:
    """A float as prometheus_client writes it (Go's way)."""
    if value == 0.0:
        return "0.0"
    text = repr(value)
    if text == "inf":
        return "+Inf"
    if text == "nan":
        return "NaN"
    dot = text.find(".")
    if value > 0 and dot > 6:
        mantissa = f"{text[0]}.{text[1:dot]}{text[dot + 1 :]}".rstrip("0.")
        return f"{mantissa}e+0{dot - 1}"
    return text


class Histogram:
    """Counts per bucket; `bounds` are the finite upper bounds, ascending."""

    __slots__ = ("bounds", "changed", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = list(bounds)
        self.counts = [0.0] * (len(self.bounds) + 1)
        self.sum = 0.0
        self.changed = True

    def observe(self, value: float, count: int = 1) -> None:
        """`count` observations of the same value; an upper bound belongs to its bucket."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count
        self.changed = True

    @property
    def count(self) -> float:
        """All observations."""
        return sum(self.counts)


class _Family:
    """Header and sample lines of one metric; `texts[i]` is "" while its series is absent."""

    __slots__ = ("always", "header", "prefixes", "texts")

    def __init__(self, header: str, *, always: bool) -> None:
        self.header = header
        self.always = always  # single-process registries write HELP and TYPE without samples, the multiprocess one does not
        self.prefixes: list[str] = []
        self.texts: list[str] = []

    def lines(self) -> Sequence[str]:
        if self.always or any(self.texts):
            return (self.header, *self.texts)
        return ()


_Cell = tuple[_Family, int]


class Page:
    """One page.

    Args:
        template: file name in `templates/`, without `.prom`.
        replacements: text for the @NAME@ marks.
        always_headers: write HELP and TYPE of families without samples (single-process registries do).
        created_at: unix time of all `_created` series.
        renames: plain text exchanges in the template, done first.
    """

    def __init__(
        self,
        template: str,
        replacements: Mapping[str, str],
        *,
        always_headers: bool,
        created_at: float,
        renames: Mapping[str, str] | None = None,
    ) -> None:
        text = (resources.files("llm_exporter.demo") / "templates" / f"{template}.prom").read_text()
        for old, new in (dict(renames or {}) | {f"@{name}@": value for name, value in replacements.items()}).items():
            text = text.replace(old, new)
        self._families: dict[str, _Family] = {}
        self._cells: dict[str, _Cell] = {}
        self._values: dict[str, float] = {}
        self._dirty: set[str] = set()
        self._histograms: dict[str, tuple[Histogram, list[_Cell], _Cell, _Cell]] = {}
        self._created_at = created_at
        self._always = always_headers
        self.unknown: set[str] = set()
        self._read(text)

    def _read(self, text: str) -> None:
        family = _Family("", always=False)
        buckets: dict[str, list[tuple[float, _Cell]]] = {}
        for line in text.splitlines():
            if line.startswith("# origin"):
                continue
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                family = _Family(line + "\n", always=self._always and not name.endswith("_created"))
                self._families[name] = family
            elif line.startswith("#"):
                family.header += line + "\n"
            else:
                series, _, value = line.removeprefix("?").rpartition(" ")
                key, bound = self._append(family, series, None if line.startswith("?") else float(value))
                if bound is not None:
                    buckets.setdefault(key, []).append((bound, self._cells.pop(f"{key}|{bound}")))
        for key, rows in buckets.items():
            self._add_histogram(key, rows)

    def _append(self, family: _Family, series: str, value: float | None) -> tuple[str, float | None]:
        """One more line; returns its key, and the bound where it is a bucket of a histogram."""
        name, labels = series, ""
        if series.endswith("}"):
            name, _, labels = series[:-1].partition("{")
        pairs = [] if _INFO in name else [(k, v) for k, v in _LABEL.findall(labels) if k not in _CONSTANT]
        bound = None
        if name.endswith("_bucket"):
            bound = next(float(v) for k, v in pairs if k == "le")
            pairs = [(k, v) for k, v in pairs if k != "le"]
            name = name.removesuffix("_bucket")
        key = series_key(name, dict(pairs))
        cell = (family, len(family.prefixes))
        family.prefixes.append(series + " ")
        if name.endswith("_created"):
            value = self._created_at
        family.texts.append("" if value is None else f"{series} {number_text(value)}\n")
        self._cells[key if bound is None else f"{key}|{bound}"] = cell
        if value is not None and bound is None:
            self._values[key] = value
        return key, bound

    def _add_histogram(self, key: str, rows: Sequence[tuple[float, _Cell]]) -> Histogram:
        name, brace, labels = key.partition("{")
        total, count = self._cells[f"{name}_sum{brace}{labels}"], self._cells[f"{name}_count{brace}{labels}"]
        histogram = Histogram([bound for bound, _ in rows if bound != float("inf")])
        histogram.changed = False
        self._histograms[key] = (histogram, [cell for _, cell in rows], total, count)
        return histogram

    # -- values ----------------------------------------------------------------------------------------------

    def __contains__(self, key: str) -> bool:
        return key in self._cells or key in self._histograms

    def set(self, key: str, value: float) -> None:
        """Give a series its value; a name that this release does not have is noted in `unknown` and left out."""
        if key not in self._cells:
            self.unknown.add(key)
        elif self._values.get(key) != value:
            self._values[key] = value
            self._dirty.add(key)

    def histogram(self, key: str) -> Histogram:
        """The histogram of that key; one that goes nowhere where this release does not have it."""
        if key not in self._histograms:
            self.unknown.add(key)
            return Histogram(())
        return self._histograms[key][0]

    def new_series(self, family: str, name: str, labels: Mapping[str, str]) -> str:
        """One more line in a family that grows with use; returns its key. The labels' order is kept."""
        text = ",".join(f'{label}="{value}"' for label, value in labels.items())
        return self._append(self._families[family], f"{name}{{{text}}}", None)[0]

    def new_histogram(self, family: str, labels: Mapping[str, str], bounds: Sequence[float]) -> Histogram:
        """One more histogram in a family that grows with use, written as single-process registries do."""
        rows = []
        for bound in (*bounds, float("inf")):
            key = self.new_series(family, f"{family}_bucket", dict(sorted({**labels, "le": number_text(bound)}.items())))
            rows.append((bound, self._cells.pop(f"{key}|{bound}")))
        for suffix in ("_count", "_sum"):
            self.new_series(family, family + suffix, labels)
        return self._add_histogram(series_key(family, labels), rows)

    def has_family(self, family: str) -> bool:
        """Does this release have the metric?"""
        return family in self._families

    def render(self) -> str:
        """The page as it stands."""
        for key in self._dirty:
            family, position = self._cells[key]
            family.texts[position] = f"{family.prefixes[position]}{number_text(self._values[key])}\n"
        self._dirty.clear()
        for histogram, cells, total, count in self._histograms.values():
            if histogram.changed:
                histogram.changed = False
                below = 0.0
                for (family, position), inside in zip(cells, histogram.counts, strict=True):
                    below += inside
                    family.texts[position] = f"{family.prefixes[position]}{number_text(below)}\n"
                for (family, position), value in ((total, histogram.sum), (count, below)):
                    family.texts[position] = f"{family.prefixes[position]}{number_text(value)}\n"
        return "".join(chain.from_iterable(family.lines() for family in self._families.values()))


def series_key(name: str, labels: Mapping[str, str]) -> str:
    """How a series is addressed: its name, and in the page's order the labels that tell it from others."""
    if not labels:
        return name
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in labels.items()) + "}"
