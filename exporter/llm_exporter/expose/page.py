"""The page for Prometheus, from memory: families in, exposition text out.

Rooms publish families under an owner's name. Each family is turned into bytes once, when it is published, so that a scrape only joins
pieces, and a slow or failing target can neither block the page nor take anything from it. prometheus_client is the reference: the page is a
collector in its registry (a name declared twice fails at start), it negotiates the format, and a property test holds our bytes equal to
those of its encoders.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as ClientMetric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from llm_exporter.metrics import Family, HistogramSample, Metric, Sample
from llm_exporter.readings import Kind

# A gzip level that halves transfer for a tenth of the time of the best one.
GZIP_LEVEL = 1

_go_float = cast("Callable[[float], str]", floatToGoString)


def escape_label(value: str) -> str:
    """A label value as the text formats want it: backslash, newline and quote escaped, everything else as UTF-8."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def escape_help(text: str, *, openmetrics: bool) -> str:
    """HELP text: the two formats differ in the quote."""
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if openmetrics else text


def _labels(metric: Metric, sample: Sample | HistogramSample, **further: str) -> str:
    """Labels in braces, sorted by name as the reference sorts them; "" without any."""
    pairs = sorted({**dict(zip(metric.labels, sample.labels, strict=True)), **further}.items())
    inside = ",".join(f'{name}="{escape_label(value)}"' for name, value in pairs)
    return f"{{{inside}}}" if inside else ""


def _number(value: float) -> str:
    """As the reference writes it; below a million that is Python's own form."""
    return repr(float(value)) if value < 1e6 else _go_float(value)


_Key = tuple[str, tuple[str, ...], tuple[str, ...], tuple[float, ...] | None]


class _Written(NamedTuple):
    """What was written of one sample: the unchanging part of each line, and the lines for these values."""

    prefixes: list[str]
    values: list[float]
    text: str


class LineWriter:
    """Turns families into lines. It remembers what it wrote of each sample: labels rarely change, and many values stay as they are.

    One per owner.
    """

    def __init__(self) -> None:
        self._memory: dict[_Key, _Written] = {}

    def write(self, families: Iterable[Family]) -> dict[str, bytes]:
        """Metric name → its sample lines."""
        memory = self._memory
        used: dict[_Key, _Written] = {}
        written: dict[str, bytes] = {}
        for metric, samples in families:
            texts: list[str] = []
            for sample in samples:
                if isinstance(sample, HistogramSample):
                    bounds = tuple(sample.bounds)
                    values = [*sample.cumulative, sample.cumulative[-1], sample.sum]
                else:
                    bounds, values = None, [sample.value]
                key = (metric.name, metric.labels, sample.labels, bounds)
                known = memory.get(key)
                if known is None or known.values != values:
                    prefixes = _prefixes(metric, sample) if known is None else known.prefixes
                    text = "".join([prefix + _number(value) + "\n" for prefix, value in zip(prefixes, values, strict=True)])
                    known = _Written(prefixes, values, text)
                used[key] = known
                texts.append(known.text)
            if texts:
                written[metric.name] = written.get(metric.name, b"") + "".join(texts).encode()
        self._memory = used  # series that are gone leave the memory
        return written


def _prefixes(metric: Metric, sample: Sample | HistogramSample) -> list[str]:
    labels = _labels(metric, sample)
    if isinstance(sample, Sample):
        return [f"{metric.name}{labels} "]
    buckets = [f"{metric.name}_bucket{_labels(metric, sample, le=_go_float(bound))} " for bound in sample.bounds]
    return [*buckets, f"{metric.name}_count{labels} ", f"{metric.name}_sum{labels} "]


class _Owned(NamedTuple):
    lines: Mapping[str, bytes]
    until: float | None  # monotonic seconds; after it the lines are too old to be shown


class Page(Collector):
    """Everything that is published, ready to be joined.

    Args:
        metrics: every metric that may be published, in the order of the page.
        clock: monotonic seconds.
        own: registry of prometheus_client metrics that are rendered in front (the exporter's own).
    """

    def __init__(self, metrics: Sequence[Metric], clock: Callable[[], float], own: CollectorRegistry | None = None) -> None:
        self.metrics = tuple(metrics)
        self._clock = clock
        self._own = own
        self._owned: dict[str, _Owned] = {}
        self._families: dict[str, Sequence[Family]] = {}
        self._writers: dict[str, LineWriter] = {}
        self._lock = threading.Lock()
        self._headers = {openmetrics: [_header(m, openmetrics=openmetrics) for m in self.metrics] for openmetrics in (False, True)}

    # -- writing -------------------------------------------------------------------------------------------------------------------

    def put(self, owner: str, families: Sequence[Family], until: float | None = None) -> None:
        """Replaces what the owner publishes. Called by the owner's thread only; `until` is when it becomes too old to show."""
        with self._lock:
            writer = self._writers.setdefault(owner, LineWriter())
        lines = writer.write(families)
        with self._lock:
            if owner in self._writers:  # not dropped in between
                self._owned[owner] = _Owned(lines, until)
                self._families[owner] = tuple(families)

    def drop(self, owner: str) -> None:
        """Forgets an owner and all its series."""
        with self._lock:
            for memory in (self._owned, self._families, self._writers):
                memory.pop(owner, None)

    # -- reading -------------------------------------------------------------------------------------------------------------------

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """The page and its content type, in the format that the Accept header asks for."""
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is none: prometheus_client compares it all the same
            encoder, content_type = choose_encoder("")
        openmetrics = content_type.startswith("application/openmetrics-text")
        pieces: list[bytes] = []
        if self._own is not None:
            own: bytes = encoder(self._own)
            pieces.append(own.removesuffix(b"# EOF\n"))
        owned = [lines for _, lines in self._current()]
        for metric, header in zip(self.metrics, self._headers[openmetrics], strict=True):
            found = [lines[metric.name] for lines in owned if metric.name in lines]
            if found:
                pieces.append(header)
                pieces += found
        if openmetrics:
            pieces.append(b"# EOF\n")
        return b"".join(pieces), content_type

    def of(self, owner: str) -> Sequence[Family]:
        """What one owner publishes; nothing when it is unknown or its series are too old."""
        now = self._clock()
        with self._lock:
            piece = self._owned.get(owner)
            if piece is None or (piece.until is not None and now > piece.until):
                return ()
            return self._families[owner]

    def families(self) -> Iterator[Family]:
        """What is published now, merged by metric, in the order of the page: for JSON, the status page and tests."""
        current = [self._families.get(owner, ()) for owner, _ in self._current()]
        by_name: dict[str, list[Sample | HistogramSample]] = {}
        for families in current:
            for family in families:
                by_name.setdefault(family.metric.name, []).extend(family.samples)
        for metric in self.metrics:
            if by_name.get(metric.name):
                yield Family(metric, by_name[metric.name])

    def _current(self) -> list[tuple[str, Mapping[str, bytes]]]:
        now = self._clock()
        with self._lock:
            return [(owner, piece.lines) for owner, piece in self._owned.items() if piece.until is None or now <= piece.until]

    # -- as a collector of prometheus_client -------------------------------------------------------------------------------------------

    def describe(self) -> Iterator[ClientMetric]:
        """Names and types of everything, so that a clash is an error at registration."""
        for metric in self.metrics:
            yield _client_metric(Family(metric, ()))

    def collect(self) -> Iterator[ClientMetric]:
        """The slow path through prometheus_client's own classes: the reference for `render`."""
        for family in self.families():
            yield _client_metric(family)


def _header(metric: Metric, *, openmetrics: bool) -> bytes:
    name = metric.name.removesuffix("_total") if openmetrics and metric.kind is Kind.COUNTER else metric.name
    return f"# HELP {name} {escape_help(metric.help, openmetrics=openmetrics)}\n# TYPE {name} {metric.kind.value}\n".encode()


def _client_metric(family: Family) -> ClientMetric:
    metric, samples = family
    if metric.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for sample in samples:
            assert isinstance(sample, HistogramSample)
            buckets = [(_go_float(b), c) for b, c in zip(sample.bounds, sample.cumulative, strict=True)]
            histogram.add_metric(sample.labels, buckets, sample.sum)
        return histogram
    scalar: CounterMetricFamily | GaugeMetricFamily
    if metric.kind is Kind.COUNTER:
        scalar = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
    else:
        scalar = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
    for sample in samples:
        assert isinstance(sample, Sample)
        scalar.add_metric(sample.labels, sample.value)
    return scalar


def compressed(body: bytes) -> bytes:
    """The body for `Content-Encoding: gzip`; no timestamp, so equal pages are equal bytes."""
    return gzip.compress(body, GZIP_LEVEL, mtime=0)
