"""When do we run out: headroom now and with one replica lost, and the trend.

In: a `Service`, its `Load` and `Sustainable`. Out: headroom numbers, `Growth`. Called by `review.py` and by the coverage study. The trend
is Theil–Sen over daily 95th percentiles freed of the weekday pattern; its interval is widened by the autocorrelation of what is left.
Under 14 days there is no forecast. Capacity that is only known from below gives no date.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from llm_exporter.report.finding import Finding, unknown
from llm_exporter.report.fleet import Service
from llm_exporter.report.grid import Floats, Ints
from llm_exporter.report.load import Load
from llm_exporter.report.statistics import effective_n, headroom, headroom_after_loss, lag_one, theil_sen, weeks_until
from llm_exporter.report.sustainable import Sustainable

MIN_DAYS = 14
WEEKDAY_DAYS = 28  # from here on each weekday has four values; with three, its factor swallows too much of the noise
MIN_DAY_COVERAGE = 0.8
HORIZON_WEEKS = 52.0
WINDOWS_PER_DAY = 288
KEYS = ("per_week_ratio", "lower", "upper", "weeks_to_exhaustion", "weeks_lower", "weeks_upper")


@dataclass
class Trend:
    """A straight line through daily values.

    Attributes:
        slope, lower, upper: per day, in the unit of the values.
        level: of the line on the last day.
        r1: autocorrelation of what the line and the weekdays leave.
        days: values used.
    """

    slope: float
    lower: float
    upper: float
    level: float
    r1: float
    days: int


@dataclass
class Growth:
    """Answer with what a plot needs: days (ordinals), their values, and the trend."""

    finding: Finding
    days: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    daily: Floats = field(default_factory=lambda: np.zeros(0))
    trend: Trend | None = None


def fit_trend(day: Ints, value: Floats) -> Trend | None:
    """Trend of daily values.

    Args:
        day: ordinals, ascending, gaps allowed (ordinal % 7 is the weekday).
        value: one per day, above 0.
    """
    n = day.size
    if n == 0 or day[-1] - day[0] + 1 < MIN_DAYS or n < 0.7 * MIN_DAYS:
        return None
    x = (day - day[-1]).astype(np.float64)
    if day[-1] - day[0] + 1 >= WEEKDAY_DAYS:
        return _deseasonalised(day % 7, x, value)
    return _weekday_differences(day, x, value)


def _deseasonalised(weekday: Ints, x: Floats, value: Floats) -> Trend:
    """Theil–Sen on values divided by their weekday's factor.

    The factors are taken against a first line from pairs of the same weekday, so that they cannot swallow growth within the week.
    """
    later, earlier = np.nonzero((np.subtract.outer(x, x) > 0) & np.equal.outer(weekday, weekday))
    logs = np.log(value)
    line = np.exp(float(np.median((logs[later] - logs[earlier]) / (x[later] - x[earlier]))) * x)
    factor = np.ones(7)
    for which in np.unique(weekday):
        factor[which] = np.median(value[weekday == which] / line[weekday == which])
    factor /= np.exp(np.mean(np.log(factor[np.unique(weekday)])))
    clean = value / factor[weekday]
    slope, level, lower, upper = theil_sen(x, clean)
    r1 = lag_one(clean - (level + slope * x))
    r1 = min(0.9, r1 + (1 + 4 * r1) / value.size) if r1 > 0 else 0.0  # once more: weekdays were fitted as well as a line
    # The weekday factors took up to six degrees of freedom out of the residuals.
    wider = math.sqrt((1 + r1) / (1 - r1)) * math.sqrt(value.size / max(4.0, value.size - 8.0))
    return Trend(slope, slope - (slope - lower) * wider, slope + (upper - slope) * wider, level, r1, value.size)


def _weekday_differences(day: Ints, x: Floats, value: Floats) -> Trend | None:
    """Two or three weeks: each day against the same weekday a week before."""
    at = {int(which): index for index, which in enumerate(day)}
    pairs = [(index, at[int(which) - 7]) for index, which in enumerate(day) if int(which) - 7 in at]
    if len(pairs) < 5:
        return None
    # Ratios, not differences: a quiet Sunday and a busy Monday grow alike. Small at this length, so log ≈ share of the level.
    changes = np.array([math.log(value[now] / value[then]) / 7 for now, then in pairs])
    rate = float(np.median(changes))
    r1 = lag_one(changes - rate)
    worth = max(2.0, effective_n(changes.size, r1))
    spread = float(stats.median_abs_deviation(changes, scale="normal"))
    half = float(stats.t.ppf(0.95, max(1.0, worth - 1))) * 1.2533 * spread / math.sqrt(worth)
    # The last week, moved to the last day along the trend; its mean is the level that the weekdays vary around.
    level = float(np.exp(np.mean(np.log(value[-7:]) - rate * x[-7:])))
    return Trend(rate * level, (rate - half) * level, (rate + half) * level, level, r1, value.size)


def daily_p95(service: Service, load: Load) -> tuple[Ints, Floats]:
    """95th percentile of the offered work of each local day that is mostly known."""
    assert load.offered is not None
    known = np.isfinite(load.offered)
    days, inverse, windows = np.unique(service.grid.day, return_inverse=True, return_counts=True)
    seen = np.bincount(inverse, weights=known)
    # Short days at both ends of the span are no days; 23 and 25 hours are.
    keep = np.flatnonzero((seen >= MIN_DAY_COVERAGE * windows) & (windows >= MIN_DAY_COVERAGE * WINDOWS_PER_DAY))
    values = np.array([np.percentile(load.offered[(inverse == index) & known], 95) for index in keep])
    positive = values > 0 if values.size else np.zeros(0, dtype=bool)
    return days[keep][positive], values[positive]


def review_growth(service: Service, load: Load, capacity: Sustainable) -> Growth:
    """Trend and time to exhaustion."""
    if load.offered is None:
        finding = unknown(KEYS, "no token counters in this span")
        finding.numbers["days_of_history"] = 0
        return Growth(finding)
    days, daily = daily_p95(service, load)
    history = int(days[-1] - days[0] + 1) if days.size else 0
    trend = fit_trend(days, daily)
    if trend is None or trend.level <= 0:
        reason = f"{history} days of history: no forecast under {MIN_DAYS} days" if history < MIN_DAYS else "too many days are incomplete"
        finding = unknown(KEYS, reason, f"{history} days of history.")
        finding.numbers["days_of_history"] = history
        return Growth(finding, days, daily)
    week = 7 / trend.level
    numbers: dict[str, float | int | None] = dict.fromkeys(KEYS)
    numbers.update(per_week_ratio=trend.slope * week, lower=trend.lower * week, upper=trend.upper * week, days_of_history=history)
    why = _weeks(numbers, load, capacity)
    basis = (
        f"Theil–Sen over {days.size} daily 95th percentiles"
        + (", weekday pattern taken out" if history >= WEEKDAY_DAYS else " against the same weekday a week before")
        + f"; 90 % interval, widened for an autocorrelation of {trend.r1:.2f} between neighbouring days. "
        "A straight line: it knows of no launch."
    )
    return Growth(Finding(dict(numbers), why, basis), days, daily, trend)


def _weeks(numbers: dict[str, float | int | None], load: Load, capacity: Sustainable) -> dict[str, str]:
    """Fill in the weeks until the peak reaches the capacity; returns the reasons for those left out."""
    three = ("weeks_to_exhaustion", "weeks_lower", "weeks_upper")
    peak, found = load.finding["peak"], capacity.finding
    if found["value"] is None or found["censored"] or peak is None:
        reason = "capacity is only known to be at least what was seen" if found["censored"] else "capacity is not known"
        return dict.fromkeys(three, reason)
    per_day = {name: float(numbers[name] or 0.0) * peak / 7 for name in ("per_week_ratio", "lower", "upper")}
    weeks = {
        "weeks_to_exhaustion": weeks_until(found["value"], peak, per_day["per_week_ratio"]),
        "weeks_lower": weeks_until(found["lower"], peak, per_day["upper"]),
        "weeks_upper": math.inf if found["upper"] is None else weeks_until(found["upper"], peak, per_day["lower"]),
    }
    why = {}
    for name, value in weeks.items():
        if value <= HORIZON_WEEKS:
            numbers[name] = value
        elif name == "weeks_upper":
            why[name] = (
                "no exhaustion within the horizon at 90 %: the lower bound of the growth is not above 0, or capacity has no upper bound"
            )
            if math.isfinite(value):
                why[name] = f"beyond {HORIZON_WEEKS:.0f} weeks"
        else:
            why[name] = (
                "load does not grow" if math.isinf(value) else f"beyond {HORIZON_WEEKS:.0f} weeks: this history says nothing about it"
            )
    return why


def review_headroom(service: Service, load: Load, capacity: Sustainable) -> Finding:
    """Headroom of the peak now, and with the largest replica lost."""
    keys = ("headroom_ratio", "headroom_one_replica_lost_ratio")
    found, peak = capacity.finding, load.finding.numbers.get("peak")
    if found["value"] is None:
        return unknown(keys, "capacity is not known: " + found.why.get("value", ""))
    if found["censored"]:
        return unknown(keys, "the SLO never broke, so capacity is only known to be at least the highest load seen")
    if peak is None or found["value"] <= 0:
        return unknown(keys, "no load is known in this window")
    finding = Finding({keys[0]: headroom(peak, found["value"]), keys[1]: None})
    weight = capacity.weight_now
    live = service.weights[(service.alive[:, -WINDOWS_PER_DAY:].mean(axis=1) >= 0.5)]
    if live.size > 1:
        finding.numbers[keys[1]] = headroom_after_loss(peak, found["value"], weight, float(live.max()))
    else:
        finding.why[keys[1]] = "one replica: losing it loses the service"
    finding.basis = "1 − peak ÷ sustainable; the peak is the 99th percentile of five-minute means in this window."
    return finding
