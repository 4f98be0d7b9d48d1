"""All alerts of CONTRACT 7, pages first: what rules, runbooks, inhibition and tests are made of."""

from __future__ import annotations

from llm_exporter.generate import alerts_engine, alerts_exporter, alerts_gpu, alerts_latency, alerts_load, alerts_probe
from llm_exporter.generate.alert import Alert, Severity

_ORDER = {severity: position for position, severity in enumerate(Severity)}

ALERTS: tuple[Alert, ...] = tuple(
    sorted(
        (
            *alerts_engine.ALERTS,
            *alerts_load.ALERTS,
            *alerts_latency.ALERTS,
            *alerts_probe.ALERTS,
            *alerts_gpu.ALERTS,
            *alerts_exporter.ALERTS,
        ),
        key=lambda alert: _ORDER[alert.severity],
    )
)
ALERT = {alert.name: alert for alert in ALERTS}
assert len(ALERT) == len(ALERTS), "an alert is declared twice"
