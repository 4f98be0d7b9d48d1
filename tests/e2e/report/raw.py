"""The same history as raw metrics of the exporter, scraped once a minute: what a server without our rules holds.

In: `Written`. Out: OpenMetrics lines. Used by the end-to-end test of the way without recording rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from e2e.report.history import Written
from llm_exporter.signals.review_records import RECORD

SCRAPE_SECONDS = 60
PLAIN = re.compile(r"(?:last|avg)_over_time\((\w+)\$M\[(?:\$R|1h)\]\)")
PER_GPU = {"gpus": "llm_gpu_target", "busy": "llm_gpu_graphics_active_ratio", "throttled": "llm_gpu_throttled_seconds_total"}


def raw_openmetrics(written: Written) -> Iterator[str]:
    """Lines grouped by metric name: counters rise evenly between the points of the grid, gauges hold the value of their window."""
    grid = written.grid
    times = np.arange(grid.start, grid.end + 1, SCRAPE_SECONDS)
    points = grid.start + grid.step * np.arange(grid.count + 1)
    gpus = {labels["target"]: int(np.nanmax(values)) for key, labels, values in written.series if key == "gpus"}
    groups: dict[str, list[tuple[dict[str, str], np.ndarray]]] = {}
    for key, labels, values in written.series:
        record = RECORD[key]
        if record.level:  # noqa: SIM108  # one line would hide the difference
            spread = np.interp(times, points, values)
        else:
            spread = values[np.minimum(np.searchsorted(points, times), values.size - 1)]
        if key not in PER_GPU:
            match = PLAIN.fullmatch(record.template)
            assert match is not None, key
            groups.setdefault(match[1], []).append((labels, spread))
            continue
        count = gpus[labels["target"]]
        first = 8 * sorted(gpus).index(labels["target"])
        base = {name: value for name, value in labels.items() if name != "target" or key == "gpus"}
        for gpu in range(count):
            each = {**base, "gpu": str(first + gpu)} | ({"reason": "hw_thermal_slowdown"} if key == "throttled" else {})
            value = np.ones_like(spread) if key == "gpus" else spread / count
            groups.setdefault(PER_GPU[key], []).append((each, value))
    for name, rows in sorted(groups.items()):
        for labels, values in rows:
            inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
            head = f"{name}{{{inside}}} "
            for at in np.flatnonzero(np.isfinite(values)).tolist():
                yield f"{head}{values[at]:.10g} {times[at]}\n"
    yield "# EOF\n"
