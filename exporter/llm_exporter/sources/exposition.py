"""Bytes of a Prometheus text page → `Page`: which series it has (a `Shape`, shared by like pages) and their values.

A scraper reads the same page every few seconds, and from one to the next only some values differ. `PageParser` keeps the lines of the
last page: an equal line keeps its value, a line that differs only behind its last space costs one `float`; a known series that has
moved is found by the bytes before its value. All else goes through `exposition_lines.read_line`, which knows the whole format.
A page is taken whole or refused whole. `sources/engine.py` and `replay` call this, one parser per target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import ne
from typing import Any, NamedTuple

from llm_exporter.errors import ParseError
from llm_exporter.sources.exposition_lines import NUMBER, BadLineError, Comment, Series, read_comment, read_sample, refuse_after_end

__all__ = ["Page", "PageParser", "Series", "Shape"]

DIGITS = b"0123456789.eE+-"
"""Bytes of ordinary numbers: what else is in a value (NaN, +Inf, a blank, an underscore) is looked at more closely."""

BLANK = (b"", b" ", b"\t", b"\r", b"\x0b", b"\x0c")

KNOWN_SHAPES = 8
"""Shapes kept per target: several API servers behind one port answer in turn; a page that changes for ever must not fill memory."""

LINE_SHOWN = 120
"""Characters of an offending line that an error quotes."""


class Shape:
    """What a page is made of. Pages of one parser with the same series in the same order, types and HELP share one Shape object.

    Attributes:
        series: one per value of the page, in the page's order.
        types: family name as written → type ("counter", "gauge", "histogram", "summary", "untyped", "unknown", …).
        helps: family name as written → HELP text, unescaped.
        plans: room for callers to keep what they work out from the shape, under a key of their own.
    """

    __slots__ = ("helps", "plans", "series", "types")

    def __init__(self, series: tuple[Series, ...], types: Mapping[str, str], helps: Mapping[str, str]) -> None:
        self.series = series
        self.types = types
        self.helps = helps
        self.plans: dict[object, Any] = {}


class Page(NamedTuple):
    """One parsed page.

    Attributes:
        shape: which series there are.
        values: one per series, in the same order; NaN and infinities as the page has them.
        oldest_timestamp: oldest timestamp on the page in unix seconds; None where no sample has one.
    """

    shape: Shape
    values: list[float]
    oldest_timestamp: float | None


class PageParser:
    """Parses the pages of one target. Not for use by two threads at once.

    A last line without its newline is accepted if it is complete, as Prometheus does; that a body was cut is for the transport to
    notice (length, chunks). An OpenMetrics page must end in `# EOF`.
    """

    def __init__(self) -> None:
        self._memo: dict[bytes, Series] = {}
        self._comments: dict[bytes, Comment] = {}
        self._shapes: dict[tuple[object, ...], Shape] = {}
        # The last page, as far as it can serve for the next: its lines, and per line the bytes before the value with the space
        # (None where the line is no sample, or no plain one) and the value's position.
        self._lines: list[bytes] = []
        self._heads: list[bytes | None] = []
        self._positions: list[int] = []
        self._page: Page | None = None
        self._openmetrics = False

    def parse(self, body: bytes, content_type: str = "") -> Page:
        """One page.

        Args:
            body: the page, decompressed.
            content_type: header of the answer; only "openmetrics" in it matters.

        Raises:
            ParseError: reason "not_metrics" where nothing looks like an exposition (an HTML page), else "parse"; names the line.
        """
        lines = body.split(b"\n")
        openmetrics = "openmetrics" in content_type.lower() or body.rstrip().endswith(b"\n# EOF") or body.strip() == b"# EOF"
        last = self._page
        if last is not None and len(lines) == len(self._lines) and openmetrics == self._openmetrics:
            page = self._repeat(last, lines)
            if page is not None:
                return page
        return self._whole(lines, openmetrics)

    def _repeat(self, last: Page, lines: list[bytes]) -> Page | None:
        """The page by comparison with the last one; None where more than plain values has changed."""
        values = last.values.copy()
        heads = self._heads
        positions = self._positions
        for number, changed in enumerate(map(ne, lines, self._lines)):
            if changed:
                head = heads[number]
                line = lines[number]
                if head is None or not line.startswith(head):
                    return None
                text = line[len(head) :]
                if text.translate(None, DIGITS) and not NUMBER.fullmatch(text):
                    return None
                try:
                    values[positions[number]] = float(text)
                except ValueError:
                    return None
        self._lines = lines
        self._page = page = Page(last.shape, values, None)
        return page

    def _whole(self, lines: list[bytes], openmetrics: bool) -> Page:
        """The page line by line. Keeps what the next page can use only when the whole page is good."""
        memo = self._memo
        comments = self._comments if openmetrics == self._openmetrics else {}
        used: dict[bytes, Series] = {}
        used_comments: dict[bytes, Comment] = {}
        heads: list[bytes | None] = [None] * len(lines)
        positions: list[int] = [0] * len(lines)
        series: list[Series] = []
        values: list[float] = []
        types: dict[str, str] = {}
        helps: dict[str, str] = {}
        oldest = math.inf
        ended = False
        for number, line in enumerate(lines):
            try:
                start = line[:1]
                if start in BLANK:
                    start = line.strip()[:1]
                    if not start:
                        continue
                if ended:
                    refuse_after_end()
                if start == b"#":
                    comment = used_comments[line] = comments.get(line) or read_comment(line, openmetrics)
                    if comment.kind == "TYPE":
                        types[comment.name] = comment.text
                    elif comment.kind == "HELP":
                        helps[comment.name] = comment.text
                    else:
                        ended = comment.kind == "EOF"
                    continue
                head, _, text = line.rpartition(b" ")
                known = memo.get(head)
                plain = known is not None and NUMBER.fullmatch(text) is not None
                if known is not None and plain:
                    values.append(float(text))
                else:
                    known, value, timestamp, plain_head = read_sample(line, openmetrics)
                    values.append(value)
                    if timestamp is not None:
                        oldest = min(oldest, timestamp)
                    plain = plain_head is not None and plain_head == head
                if plain:
                    used[head] = known
                    heads[number] = head + b" "
                    positions[number] = len(series)
                series.append(known)
            except BadLineError as problem:
                raise self._refusal(problem, number, line, seen=bool(series or types)) from None
        if openmetrics and not ended:
            raise ParseError("parse", "the page is OpenMetrics and does not end in # EOF: it was cut", hint="")
        shape = self._shape(tuple(series), types, helps)
        self._memo, self._comments = used, used_comments
        self._openmetrics = openmetrics
        page = Page(shape, values, None if oldest == math.inf else oldest)
        if page.oldest_timestamp is None:
            self._lines, self._heads, self._positions, self._page = lines, heads, positions, page
        else:
            self._page = None  # a page with timestamps is read in full each time
        return page

    def _shape(self, series: tuple[Series, ...], types: dict[str, str], helps: dict[str, str]) -> Shape:
        key = (series, tuple(types.items()), tuple(helps.items()))
        shape = self._shapes.pop(key, None)
        if shape is None:
            if len(set(series)) < len(series):
                raise ParseError("parse", f"the series {_first_duplicate(series)} is on the page twice")
            shape = Shape(series, types, helps)
            while len(self._shapes) >= KNOWN_SHAPES:
                del self._shapes[next(iter(self._shapes))]
        self._shapes[key] = shape  # last used is last
        return shape

    @staticmethod
    def _refusal(problem: BadLineError, number: int, line: bytes, *, seen: bool) -> ParseError:
        shown = line[:LINE_SHOWN].decode("utf-8", "backslashreplace")
        if seen:
            return ParseError("parse", f"line {number + 1}: {problem}: {shown!r}")
        return ParseError(
            "not_metrics",
            f"line {number + 1}: {problem}: {shown!r}",
            hint="the address answers with something else than metrics: check url and metrics_path",
        )


def _first_duplicate(series: tuple[Series, ...]) -> Series:
    seen: set[Series] = set()
    for one in series:
        if one in seen:
            return one
        seen.add(one)
    raise AssertionError("no duplicate")
