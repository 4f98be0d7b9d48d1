"""GPU performance monitoring (Hopper and newer): the numbers between two samples that we keep ourselves.

One `GpmSampler` per GPU or MIG device, driven by `sources/nvml.py` once a second; it needs no privileges and no DCGM.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from llm_exporter.sources.gpu_fields import GPM_IDS, GpuField

# Two samples of nearly the same instant give zeros and NaN (seen on an H200): wait for a pair that is further apart.
LEAST_INTERVAL_SECONDS = 0.2
# A pair that is far apart averages over a gap in which nobody looked (a suspended process): start anew.
MOST_INTERVAL_SECONDS = 30.0


class GpmSampler:
    """Keeps the older sample of a pair.

    Args:
        library: the NVML binding.
        handle: the physical GPU, also for a MIG device.
        gpu_instance: GPU instance of a MIG device, None for a whole GPU.

    Raises (all methods): whatever the binding raises; the caller decides what it means.
    """

    def __init__(self, library: Any, handle: Any, gpu_instance: int | None = None) -> None:
        self._library = library
        self._handle = handle
        self._gpu_instance = gpu_instance
        self._older: Any = None
        self._newer: Any = None
        self._older_at: float | None = None
        request = library.c_nvmlGpmMetricsGet_t()
        request.version = getattr(library, "NVML_GPM_METRICS_GET_VERSION", 1)
        request.numMetrics = len(GPM_IDS)
        for position, metric_id in enumerate(GPM_IDS):
            request.metrics[position].metricId = metric_id
        self._request = request
        try:
            self._older = library.nvmlGpmSampleAlloc()
            self._newer = library.nvmlGpmSampleAlloc()
        except BaseException:
            self.close()
            raise

    def read(self, now: float) -> Mapping[str, float]:
        """Means since the sample before, by name of `GpuReading`; empty until there are two samples."""
        interval = None if self._older_at is None else now - self._older_at
        if interval is not None and interval < LEAST_INTERVAL_SECONDS:
            return {}
        self._take(self._newer)
        values: Mapping[str, float] = {}
        if interval is not None and interval <= MOST_INTERVAL_SECONDS:
            self._request.sample1, self._request.sample2 = self._older, self._newer
            self._library.nvmlGpmMetricsGet(self._request)
            answers = [self._request.metrics[position] for position in range(len(GPM_IDS))]
            values = plausible([(GPM_IDS[a.metricId], float(a.value)) for a in answers if a.nvmlReturn == 0])
        self._older, self._newer, self._older_at = self._newer, self._older, now
        return values

    def close(self) -> None:
        """Give the samples back; safe to call twice and on a broken device."""
        samples, self._older, self._newer = (self._older, self._newer), None, None
        for sample in samples:
            if sample is not None:
                try:
                    self._library.nvmlGpmSampleFree(sample)
                except Exception:  # noqa: BLE001, S112  the device may be gone; nothing is left to free then
                    continue

    def _take(self, sample: Any) -> None:
        if self._gpu_instance is None:
            self._library.nvmlGpmSampleGet(self._handle, sample)
        else:
            self._library.nvmlGpmMigSampleGet(self._handle, self._gpu_instance, sample)


def plausible(answers: list[tuple[GpuField, float]]) -> dict[str, float]:
    """Scaled values by name: NaN and negative ones are absent, ratios end at 1.

    If there is a NaN and all else is zero, the pair was no pair: nothing is known.
    """
    finite = [(row, value) for row, value in answers if math.isfinite(value) and value >= 0]
    if len(finite) < len(answers) and not any(value for _, value in finite):
        return {}
    return {row.name: min(1.0, value * row.scale) if row.name.endswith("_ratio") else value * row.scale for row, value in finite}
