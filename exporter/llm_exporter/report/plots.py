"""Plots of the review as PNG: readable without colour, in print and on a small screen.

In: `ModelReview`. Out: PNG bytes by plot name. Called by `write.py`. Lines differ by style and bars by hatch; no global state of
matplotlib is used.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta, tzinfo
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from llm_exporter.report.grid import Floats
from llm_exporter.report.review import ModelReview, Review
from llm_exporter.report.story import unit
from llm_exporter.report.waste import KINDS

DPI = 120
FEWEST_FOR_WORKERS = 4  # models; under that, starting workers costs more than it saves
MOST_WORKERS = 4
INK, MIDDLE, PALE, ACCENT = "#1b1b1b", "#6f6f6f", "#c9c9c9", "#0b5394"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "path.simplify": True,
}
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
HATCHES = {"useful": "", "idle": "", "starved": "////", "throttled": "xxxx"}
FILLS = {"useful": "#4a4a4a", "idle": "#ffffff", "starved": "#bdbdbd", "throttled": "#8fb3d9"}


def draw_all(review: Review) -> list[dict[str, bytes]]:
    """Plots of every model, in order; several at a time where there are cores, since drawing is most of the work of a large review."""
    workers = min(MOST_WORKERS, os.cpu_count() or 1, len(review.models))
    # A fork shares what was read without copying it; it is safe only while no other thread runs.
    if sys.platform != "linux" or workers < 2 or len(review.models) < FEWEST_FOR_WORKERS or threading.active_count() > 1:
        return [draw(one, review) for one in review.models]
    _shared.append(review)
    try:
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            return pool.map(_draw_shared, range(len(review.models)), chunksize=1)
    finally:
        _shared.clear()


_shared: list[Review] = []  # what the forked workers draw


def _draw_shared(position: int) -> dict[str, bytes]:
    return draw(_shared[0].models[position], _shared[0])


def draw(one: ModelReview, review: Review) -> dict[str, bytes]:
    """All plots that this model has data for."""
    makers: dict[str, Callable[[Any, ModelReview, Review], bool]] = {
        "week": _week,
        "capacity": _capacity,
        "history": _history,
        "ledger": _ledger,
    }
    plots = {}
    with rc_context(STYLE):
        for name, maker in makers.items():
            figure = Figure(figsize=(8.2, 2.9), dpi=DPI)
            FigureCanvasAgg(figure)
            axes = figure.add_axes((0.085, 0.17, 0.9, 0.68))
            if maker(axes, one, review):
                buffer = io.BytesIO()
                figure.savefig(buffer, format="png", pil_kwargs={"compress_level": 2})
                plots[name] = buffer.getvalue()
    return plots


def _legend(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, fontsize=8.5, handlelength=2.6, borderaxespad=0.2, columnspacing=1.2)


def _limit(axes: Any, one: ModelReview) -> None:
    """Sustainable load: a dotted line, its interval hatched."""
    found = one.sustainable.finding
    if found["value"] is None:
        return
    label = "at least" if found["censored"] else "sustainable"
    axes.axhline(found["value"], color=INK, linestyle=":", linewidth=1.6, label=label)
    if found["lower"] is not None and found["upper"] is not None:
        axes.axhspan(found["lower"], found["upper"], facecolor="none", edgecolor=MIDDLE, hatch="////", linewidth=0)


def _week(axes: Any, one: ModelReview, _: Review) -> bool:
    profile = one.load.profile
    if profile is None:
        return False
    x = np.arange(one.load.cells + 1)
    for row, style, label in ((1, {"color": ACCENT, "linestyle": "--"}, "95th percentile"), (0, {"color": INK}, "median")):
        axes.step(x, np.append(profile[row], profile[row][-1]), where="post", linewidth=1.3, label=label, **style)
    _limit(axes, one)
    step = 24 if one.load.cells == 168 else 6
    ticks = np.arange(0, one.load.cells + 1, step)
    names = [*DAYS, ""] if one.load.cells == 168 else [f"{hour % 24:02d} h" for hour in ticks]
    axes.set_xticks(ticks, names, ha="left" if one.load.cells == 168 else "center")
    axes.set_xlim(0, one.load.cells)
    if one.load.cells == 48:
        axes.axvline(24, color=MIDDLE, linewidth=0.8)
        axes.text(24.3, axes.get_ylim()[1], "week-end", va="top", color=MIDDLE)
    axes.grid(axis="x", color=PALE, linewidth=0.5)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit(one))
    _legend(axes)
    return True


def _capacity(axes: Any, one: ModelReview, _: Review) -> bool:
    fit = one.sustainable.fit
    if fit is None or not fit.load.size or one.sustainable.objective is None:
        return False
    limit = 100 * (1 - one.sustainable.objective)
    axes.plot(
        fit.load, 100 * fit.slow, linestyle="none", marker="o", markersize=3.2, markerfacecolor="none", color=MIDDLE, label="load bins"
    )
    axes.plot(fit.load, 100 * fit.fitted, color=ACCENT, linewidth=1.5, label="never-falling fit")
    axes.axhline(limit, color=INK, linestyle="--", linewidth=1.1, label=f"SLO: {limit:g} % slow")
    if fit.value is not None:
        axes.axvline(fit.value, color=INK, linestyle=":", linewidth=1.6, label="at least" if fit.censored else "sustainable")
        if fit.lower is not None and fit.upper is not None:
            axes.axvspan(fit.lower, fit.upper, facecolor="none", edgecolor=MIDDLE, hatch="////", linewidth=0)
    # The limit is what matters: keep it readable when overload goes to 100 %.
    axes.set_ylim(0, min(100.0, max(6 * limit, 100 * float(np.percentile(fit.slow, 75)))))
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit(one)} per live replica")
    axes.set_ylabel("slow requests, %")
    _legend(axes)
    return True


def _hourly_mean(values: Floats) -> Floats:
    rows = values[: values.size // 12 * 12].reshape(-1, 12)
    known = np.isfinite(rows)
    n = known.sum(axis=1)
    sums: Floats = np.where(known, rows, 0.0).sum(axis=1)
    return np.where(n >= 6, sums / np.maximum(n, 1), np.nan)


def _history(axes: Any, one: ModelReview, review: Review) -> bool:
    if one.load.offered is None:
        return False
    grid = one.service.grid
    hourly = _hourly_mean(one.load.offered)
    x = grid.start + 3600 * (np.arange(hourly.size) + 0.5)
    axes.axvspan(review.span.start, review.span.end, color="#ececec", linewidth=0)
    axes.plot(x, hourly, color=MIDDLE, linewidth=0.8, label="hourly (grey: this review)")
    growth = one.growth
    if growth.days.size:
        noon = np.array([_noon(day, review.zone) for day in growth.days])
        axes.plot(noon, growth.daily, linestyle="none", marker="s", markersize=3, color=INK, label="95th percentile of the day")
        if growth.trend is not None:
            line = growth.trend.level + growth.trend.slope * (growth.days - growth.days[-1])
            axes.plot(noon, line, color=ACCENT, linestyle="--", linewidth=1.6, label="trend, weekdays evened out")
    _limit(axes, one)
    first = datetime.fromtimestamp(grid.start, review.zone).date()
    mondays = [first + timedelta(days=(7 - first.weekday()) % 7 + 7 * week) for week in range(60)]
    ticks = [
        at for at in (datetime(day.year, day.month, day.day, tzinfo=review.zone).timestamp() for day in mondays) if at <= grid.end - 86_400
    ]
    if len(ticks) < 2:
        ticks = [grid.start, grid.end - 86_400]
    axes.set_xticks(ticks, [datetime.fromtimestamp(at, review.zone).strftime("%a %d %b") for at in ticks])
    axes.set_xlim(grid.start, grid.end)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit(one))
    _legend(axes)
    return True


def _noon(day: int, zone: tzinfo) -> float:
    at = date.fromordinal(int(day))
    return datetime(at.year, at.month, at.day, 12, tzinfo=zone).timestamp()


def _ledger(axes: Any, one: ModelReview, _: Review) -> bool:
    ledger = one.ledger
    if ledger.finding["total"] is None or not ledger.days.size:
        return False
    base = np.zeros(ledger.days.size)
    x = np.arange(ledger.days.size)
    for row, kind in enumerate(KINDS):
        hours = ledger.by_day[row]
        axes.bar(x, hours, bottom=base, width=0.72, facecolor=FILLS[kind], edgecolor=INK, linewidth=0.7, hatch=HATCHES[kind], label=kind)
        base = base + hours
    every = max(1, ledger.days.size // 10)
    axes.set_xticks(x[::every], [date.fromordinal(int(day)).strftime("%a %d %b") for day in ledger.days[::every]])
    axes.set_ylim(0, 1.04 * max(1e-9, float(base.max())))
    axes.set_ylabel("GPU-hours a day")
    _legend(axes)
    return True
