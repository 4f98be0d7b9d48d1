"""What is played for the alerts: the demo's scenarios, and faults that the demo does not show but its model can have."""

from __future__ import annotations

from dataclasses import replace

from llm_exporter.demo.scenarios import SCENARIOS, Change, Scenario, Side
from llm_exporter.demo.traffic import Load

STARTS, ENDS = 60.0, 180.0  # of the trouble, in every scenario of the demo but the tour, which plays the same troubles in turn
QUIET_FROM = 290.0
DEMO = tuple(scenario for name, scenario in SCENARIOS.items() if name != "tour")

_CALM = SCENARIOS["queue"].vllm.load


def _fault(name: str, *changes: Change, load: Load = _CALM, **side: object) -> Scenario:
    played = replace(Side("h200-8b", load, changes), **side)  # type: ignore[arg-type]
    return Scenario(name, name, (), played, played, QUIET_FROM)


THROTTLED = _fault(
    "throttled",
    Change(STARTS, conditions={"clock_ratio": 0.5, "throttle_reason": 0x40}),
    Change(ENDS, conditions={"clock_ratio": 1.0, "throttle_reason": 0}),
)
FOREIGN = _fault("foreign", Change(STARTS, conditions={"foreign_share": 0.3}), Change(ENDS, conditions={"foreign_share": 0.0}))
# a short queue that refuses what is above it
REFUSING = _fault(
    "refusing", Change(STARTS, load=replace(_CALM, rate=26.0)), Change(ENDS, load=_CALM), overrides={"max_running": 24}, queue_limit=8
)
# the way to it is cut by the test from STARTS to ENDS
GONE = _fault("gone")
FAULTS = (THROTTLED, FOREIGN, REFUSING, GONE)


def hang(starts: float, ends: float) -> Scenario:
    """The stalled scenario in a minute, for the short run."""
    changes = (Change(starts, hung=True), Change(ends, hung=False))
    return Scenario("stalled", "the engine hangs", (), Side("h200-8b", _CALM, changes), Side("h100-8b", _CALM, changes), ends)
