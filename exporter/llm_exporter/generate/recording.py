"""Recording rules as data of a rule group: the alerts' and boards' own (`signals/recorded.py`), and those of the capacity review.

In: `RuleSettings`, and what the review reads, handed in by the command line since the rooms do not know each other. Out: rule groups.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from llm_exporter.config.durations import parse_duration
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.signals.recorded import FAST, RECORDED, SLOW, Recorded

_WINDOW = re.compile(r"\[(\w+)\]")
_OFFSET = re.compile(r" offset (\w+)")
_REVIEW_SECONDS = 300
_COARSE_SECONDS = 3600

Group = dict[str, Any]


class ReviewRecord(Protocol):
    """What the review declares of each series that it reads."""

    @property
    def record(self) -> str:
        """Name of the recorded series; empty where the raw metric is read."""

    @property
    def coarse(self) -> bool:
        """One value an hour is enough."""

    def expression(self, window: str = ..., matchers: str = ...) -> str:
        """PromQL over the raw metrics."""


def expression(rule: Recorded, settings: RuleSettings) -> str:
    """The template with windows of at least R, scaled."""
    text = _WINDOW.sub(lambda found: f"[{settings.window(round(parse_duration(found[1])))}]", rule.template)
    return _OFFSET.sub(lambda found: f" offset {settings.span(round(parse_duration(found[1])))}", text)


def recording_groups(settings: RuleSettings, review: Sequence[ReviewRecord] = ()) -> list[Group]:
    """Groups by how often they are evaluated."""
    groups = [
        {
            "name": name,
            "interval": settings.span(every),
            "rules": [{"record": rule.record, "expr": expression(rule, settings)} for rule in RECORDED if rule.every == every],
        }
        for name, every in (("llm-recorded", FAST), ("llm-recorded-long", SLOW))
    ]
    for name, seconds, coarse in (("llm-review", _REVIEW_SECONDS, False), ("llm-review-coarse", _COARSE_SECONDS, True)):
        rules = [_review_rule(record, settings) for record in review if record.record and record.coarse == coarse]
        if rules:
            # Read back by the review through ranges, so an interval longer than the lookback of an instant query does no harm.
            groups.append({"name": name, "interval": settings.span(seconds), "rules": rules})
    return groups


def _review_rule(record: ReviewRecord, settings: RuleSettings) -> dict[str, str]:
    text = record.expression(window="5m")
    return {"record": record.record, "expr": _WINDOW.sub(lambda found: f"[{settings.window(round(parse_duration(found[1])))}]", text)}
