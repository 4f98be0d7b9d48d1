"""Counters on a grid: restarts, gaps, the field case SCH-04."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_exporter.report.grid import Grid
from llm_exporter.report.history import Trace, increases, total

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
NAN = float("nan")


def test_a_week_with_two_restarts_and_a_gap_adds_up() -> None:
    """SCH-04: last minus first would give 420000; the increases give 1500000."""
    with (CASES / "SCH-04" / "week.csv").open() as file:
        rows = list(csv.DictReader(file))
    levels = np.array([float(row["generation_tokens_total"] or "nan") for row in rows])
    up = np.array([float(row["up"]) for row in rows])
    windows, carried = increases(levels)
    expect = {check["signal"]: check for check in json.loads((CASES / "SCH-04" / "expect.json").read_text())["checks"]}
    assert total([Trace({}, windows, carried)]) == expect["weekly_generation_tokens"]["value"]
    assert up.mean() == pytest.approx(expect["weekly_availability"]["value"], abs=expect["weekly_availability"]["tol"])
    gap = np.flatnonzero(~np.isfinite(levels)) - 1
    assert np.isnan(windows[gap]).all(), "what happened inside the gap is unknown, not zero"
    assert np.isnan(windows[gap[-1] + 1]), "the first window after it is not that window's work alone"


def test_a_restart_counts_from_zero() -> None:
    windows, carried = increases(np.array([100.0, 130.0, 20.0, 25.0]))
    assert windows.tolist() == [30, 20, 5]
    assert not carried.any()


def test_the_first_sight_of_a_counter_is_no_increase() -> None:
    windows, carried = increases(np.array([NAN, NAN, 5000.0, 5010.0]))
    assert np.nansum(windows) + carried.sum() == 10


def test_nothing_known_is_unknown_and_not_zero() -> None:
    assert total([Trace({}, *increases(np.array([NAN, 7.0, NAN])))]) is None
    assert total([]) is None


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=60), st.data())
def test_gaps_never_change_the_total_of_a_rising_counter(steps: list[int], data: st.DataObject) -> None:
    levels = np.concatenate([[0.0], np.cumsum(steps)]).astype(float)
    holes = data.draw(st.sets(st.integers(1, len(levels) - 2), max_size=len(levels) - 2)) if len(levels) > 2 else set()
    gappy = levels.copy()
    gappy[list(holes)] = NAN
    windows, carried = increases(gappy)
    assert np.nansum(windows) + carried.sum() == levels[-1]


def test_a_night_of_23_hours_has_23_hours_of_windows() -> None:
    zone = ZoneInfo("Europe/Helsinki")
    start = int(datetime(2027, 3, 28, tzinfo=zone).timestamp())
    grid = Grid(start, 23 * 12, 300, zone)
    assert set(grid.day.tolist()) == {datetime(2027, 3, 28, tzinfo=zone).toordinal()}
    assert grid.end == datetime(2027, 3, 29, tzinfo=zone).timestamp()
    assert 3 + 6 * 24 not in grid.hour_of_week.tolist(), "03:00 does not exist in that night"


def test_a_window_is_named_by_its_end() -> None:
    grid = Grid(3000, 4, 300)
    assert grid.times.tolist() == [3300, 3600, 3900, 4200]
    assert grid.within(3300, 3900).tolist() == [False, True, True, False]
