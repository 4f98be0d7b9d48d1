"""What the rules may read: declared metrics only, and windowed gauges never in an aggregation."""

from __future__ import annotations

import re

import pytest

from llm_exporter import telemetry
from llm_exporter.expose import hardware, probes, targets
from llm_exporter.generate.alert import Alert
from llm_exporter.generate.alerts import ALERTS
from llm_exporter.generate.evidence import told
from llm_exporter.generate.recording import recording_groups
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.metrics import Metric
from llm_exporter.readings import Kind
from llm_exporter.report import directory
from llm_exporter.signals import derive
from llm_exporter.signals.recorded import RECORDED
from llm_exporter.signals.review_records import RECORDS
from promql_reading import aggregated, metrics_of, tokens

DECLARED: tuple[Metric, ...] = (
    *derive.METRICS,
    *targets.METRICS,
    *probes.METRICS,
    *hardware.METRICS,
    directory.LAST_SUCCESS,
    *telemetry.METRICS,
    targets.info_metric(("team",)),
)
# Published without a declaration of ours.
ELSEWHERE = {
    "up": "Prometheus' own",
}
PUBLISHED = {metric.name for metric in DECLARED if metric.kind is not Kind.HISTOGRAM} | {
    metric.name + suffix for metric in DECLARED if metric.kind is Kind.HISTOGRAM for suffix in ("_bucket", "_sum", "_count")
}
WINDOWED = {metric.name for metric in DECLARED if "window" in metric.labels}
RECORD_NAMES = {rule.record for rule in RECORDED}


def expressions() -> dict[str, str]:
    settings = RuleSettings()
    found = {alert.name: alert.expression(settings) for alert in ALERTS}
    for group in recording_groups(settings, RECORDS):
        found |= {rule["record"]: rule["expr"] for rule in group["rules"]}
    return found


EXPRESSIONS = expressions()


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_a_rule_names_only_metrics_that_somebody_declares(name: str) -> None:
    assert metrics_of(EXPRESSIONS[name]) <= PUBLISHED | set(ELSEWHERE) | RECORD_NAMES


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_no_rule_aggregates_a_metric_with_a_window(name: str) -> None:
    assert not aggregated(EXPRESSIONS[name]) & (WINDOWED - {"llm_signal_status"})


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_evidence_asks_for_metrics_that_somebody_declares_by_labels_that_they_have(alert: Alert) -> None:
    labels = {metric.name: metric.labels for metric in DECLARED}
    for piece in alert.evidence:
        assert piece.metric in PUBLISHED | set(ELSEWHERE)
        assert set(piece.on) <= {"job", "instance", *alert.labels}, "the alert has no such label"
        if piece.metric in labels:
            used = {*piece.on, *re.findall(r"(\w+)=", piece.matchers), *re.findall(r'label "(\w+)"', piece.show)}
            assert used <= {"job", "instance", *labels[piece.metric]}, piece


def test_what_is_listed_as_declared_elsewhere_is_not_declared_here() -> None:
    assert not set(ELSEWHERE) & PUBLISHED, "declared by now: take it off the list"


def test_everything_recorded_is_read_by_an_alert_or_meant_for_boards() -> None:
    assert all(rule.meaning.endswith(".") for rule in RECORDED)


def test_the_reader_sees_metrics_and_not_labels_functions_or_words() -> None:
    expression = 'sum by (a) (rate(x_total{b="sum(c)",d=~"e|f"}[5m] offset 1m)) / on (g) group_left (h) max without (i) (level:j:k) and time() > 5e3 or q unless r'
    assert metrics_of(expression) == {"x_total", "level:j:k", "q", "r"}
    assert aggregated(expression) == {"x_total", "level:j:k"}


def test_the_reader_sees_both_forms_of_an_aggregation() -> None:
    assert aggregated("avg(x) by (y) + z") == {"x"}
    assert aggregated("topk by (y) (1, last_over_time(x[5m])) * z") == {"x"}
    assert aggregated("avg_over_time(x[5m])") == set()


def test_the_reader_refuses_what_it_cannot_read() -> None:
    with pytest.raises(AssertionError, match="cannot read"):
        tokens("a ? b")


def test_the_evidence_of_an_alert_is_a_template_with_its_labels() -> None:
    alert = next(alert for alert in ALERTS if alert.name == "LLMTargetDown")
    text = told(RuleSettings(), alert.evidence[0])
    assert text.startswith(
        "reason: {{ with printf `last_over_time(llm_target_down_reason{job=%q,instance=%q,target=%q}[1m]) == 1` $labels.job"
    )
