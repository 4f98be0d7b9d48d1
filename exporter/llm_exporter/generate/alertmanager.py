"""An Alertmanager configuration to start from: who is told, what is told together, and what mutes what.

In: the declared alerts. Out: YAML text for `amtool check-config`. Muting speaks of subjects (`alert.Subject`), so a new alert is muted with
its kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llm_exporter.generate.alert import Severity, Subject
from llm_exporter.generate.alerts import ALERTS
from llm_exporter.generate.promql import quoted
from llm_exporter.generate.rules import to_yaml

_EXPORTER = ("job", "instance")
_TARGET = (*_EXPORTER, "target")
_SLO = (*_TARGET, "model", "slo")
# What a server that is gone, hangs or starts sets off by itself.
_FELT = (Subject.LATENCY, Subject.STALL, Subject.ERRORS, Subject.PROBE, Subject.CACHE, Subject.GPU, Subject.SIGNALS)


class Inhibition(NamedTuple):
    """While an alert of `sources` fires, those of `muted` with the same values of `equal` tell nobody."""

    why: str
    sources: tuple[str, ...]
    muted: tuple[str, ...]
    equal: tuple[str, ...]


def _about(*subjects: Subject, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    return tuple(
        alert.name for alert in ALERTS if alert.subject in subjects and alert.severity is not Severity.NONE and alert.name not in but
    )


def _of(severity: Severity) -> tuple[str, ...]:
    return tuple(alert.name for alert in ALERTS if alert.severity is severity)


INHIBITIONS: tuple[Inhibition, ...] = (
    Inhibition(
        "An exporter that is down knows nothing of its targets.",
        ("LLMExporterDown",),
        tuple(alert.name for alert in ALERTS if alert.name != "LLMExporterDown"),
        _EXPORTER,
    ),
    Inhibition("A server that is down is neither slow nor starved.", ("LLMTargetDown",), _about(*_FELT), _TARGET),
    Inhibition("A server that starts is expected to be away, then slow.", ("LLMEngineStarting",), _about(Subject.DOWN, *_FELT), _TARGET),
    Inhibition(
        "A server that hangs starves its GPU, and its users get nothing.",
        ("LLMEngineStalled",),
        _about(Subject.GPU, Subject.LATENCY, Subject.STALL, Subject.PROBE, but=("LLMEngineStalled",)),
        _TARGET,
    ),
    Inhibition("Where nobody gets a token, slowness is no news.", ("LLMNoFirstTokens",), _about(Subject.LATENCY), _TARGET),
    Inhibition("A broken GPU is not a starved one.", _about(Subject.HARDWARE), _about(Subject.GPU), _TARGET),
    Inhibition("The faster burn says it all.", ("LLMSLOBudgetBurnFast",), ("LLMSLOBudgetBurnMedium", "LLMSLOBudgetBurnSlow"), _SLO),
    Inhibition("The faster burn says it all.", ("LLMSLOBudgetBurnMedium",), ("LLMSLOBudgetBurnSlow",), _SLO),
    Inhibition("Whoever is called reads the causes on the board: no tickets beside.", _of(Severity.PAGE), _of(Severity.TICKET), _TARGET),
)


def _named(names: tuple[str, ...]) -> list[str]:
    return [f"alertname={quoted(names[0])}" if len(names) == 1 else f"alertname=~{quoted('|'.join(names))}"]


def _receiver(name: str) -> dict[str, Any]:
    return {"name": name, "webhook_configs": [{"url": f"http://127.0.0.1:9099/{name}", "send_resolved": True}]}


def alertmanager_document() -> dict[str, Any]:
    """The configuration as data."""
    return {
        "route": {
            "receiver": "ticket",
            "group_by": ["job", "target", "severity"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [
                {"matchers": ['severity="none"'], "receiver": "nobody"},
                {"matchers": ['severity="page"'], "receiver": "page", "group_wait": "15s", "repeat_interval": "4h"},
                {"matchers": ['severity="ticket"'], "receiver": "ticket"},
            ],
        },
        "inhibit_rules": [
            {"source_matchers": _named(rule.sources), "target_matchers": _named(rule.muted), "equal": list(rule.equal)}
            for rule in INHIBITIONS
        ],
        "receivers": [{"name": "nobody"}, _receiver("page"), _receiver("ticket")],
    }


def alertmanager_file() -> str:
    """alerts/alertmanager.yml: an example; put your own receivers in the place of the web hooks."""
    return to_yaml(alertmanager_document())
