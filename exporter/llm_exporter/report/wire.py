"""A matrix answer of the Prometheus HTTP API, turned into numpy arrays without a Python object per point.

In: the body as bytes. Out: `Series` (labels, times, values). Called by `query.py`. The fast way walks over the compact form that
Prometheus, VictoriaMetrics, Thanos and Mimir write (`{"metric":{…},"values":[[t,"v"],…]}`); whatever does not fit it takes `json.loads`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from llm_exporter.report.grid import Floats

_MATRIX = b'"resultType":"matrix"'
_RESULT = b'"result":['
_METRIC = b'{"metric":'
_VALUES = b',"values":[['
_DELETE = b'[]"'


class Series(NamedTuple):
    """One series: its labels, unix times in seconds and values, both shape (n,). NaN values (stale) are left out."""

    labels: dict[str, str]
    times: Floats
    values: Floats


class NotAMatrix(ValueError):
    """The body is JSON of another shape, or none."""


def parse_matrix(body: bytes) -> list[Series]:
    """All series of a query_range answer.

    Raises:
        NotAMatrix: the body is not a successful matrix answer.
    """
    try:
        return list(_fast(body))
    except _Unfit:
        return list(_slow(body))


class _Unfit(Exception):
    """The body is not in the compact form."""


def _fast(body: bytes) -> Iterator[Series]:
    head = body.find(_RESULT)
    if head < 0 or body.find(_MATRIX, 0, head) < 0 or not body.startswith(b'{"status":"success"'):
        raise _Unfit
    at = head + len(_RESULT)
    if body.startswith(b"]", at):
        return
    decode = json.JSONDecoder().raw_decode
    while True:
        if not body.startswith(_METRIC, at):
            raise _Unfit
        begin = at + len(_METRIC)
        # Labels are short: decode no more than the text up to the first values.
        stop = body.find(_VALUES, begin)
        if stop < 0:
            raise _Unfit
        while True:
            text = body[begin:stop].decode()
            try:
                labels, used = decode(text)
            except ValueError:
                used = -1
            if used == len(text):
                break
            stop = body.find(_VALUES, stop + 1)  # the mark stood inside a label's value
            if stop < 0:
                raise _Unfit
        first = stop + len(_VALUES)
        last = body.find(b"]]", first)
        if last < 0:
            raise _Unfit
        text = body[first:last].translate(None, _DELETE).decode("ascii")
        flat = np.fromstring(text, sep=",")
        if flat.size % 2 or flat.size != text.count(",") + 1:
            raise _Unfit
        yield _series(labels, flat[0::2], flat[1::2])
        at = last + 2
        if body.startswith(b"},", at):
            at += 2
        elif body.startswith(b"}]", at):
            return
        else:
            raise _Unfit


def _slow(body: bytes) -> Iterator[Series]:
    try:
        answer: Any = json.loads(body)
        if answer["status"] != "success" or answer["data"]["resultType"] != "matrix":
            raise NotAMatrix("not a matrix")  # noqa: TRY301  # one way out for every misfit
        for row in answer["data"]["result"]:
            pairs = row.get("values") or []
            yield _series(
                {str(name): str(value) for name, value in row["metric"].items()},
                np.array([float(pair[0]) for pair in pairs]),
                np.array([float(pair[1]) for pair in pairs]),
            )
    except NotAMatrix:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise NotAMatrix(str(error)) from error


def _series(labels: dict[str, str], times: Floats, values: Floats) -> Series:
    known = np.isfinite(values)
    return Series(labels, times, values) if known.all() else Series(labels, times[known], values[known])
