"""Alerts about the exporter itself: down, blind, or left with an old configuration."""

from __future__ import annotations

from llm_exporter.generate import evidence as say
from llm_exporter.generate.alert import Alert, Cause, Severity, Subject
from llm_exporter.generate.boards import CAPACITY, EXPORTER, FLEET
from llm_exporter.generate.fragments import last
from llm_exporter.generate.promql import either, equals, lines, on_target, one_of, over, pattern, selector
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import REVIEW_AGE

_HOUR, _DAY = 3600, 86_400
# Not a fault where the source was never there: a host without GPUs is one of these for ever.
_NEVER_THERE = ("driver_not_loaded", "library_not_found", "no_devices")


def _exporter_down(settings: RuleSettings) -> str:
    up = selector("up", equals("job", settings.job))
    return either(f"{over('last_over_time', up, settings.shortest)} == 0", over("absent_over_time", up, settings.shortest))


EXPORTER_DOWN = Alert(
    name="LLMExporterDown",
    severity=Severity.PAGE,
    subject=Subject.EXPORTER,
    summary="The exporter {{ $labels.job }} {{ $labels.instance }} is down: nobody watches the servers.",
    value="Prometheus could not read it for two minutes, or has no such job",
    evidence=(),
    meaning="Users feel nothing yet. But every other alert of these servers is blind now.",
    confirm=("Fetch `/-/healthy` of the exporter.", "Look at Prometheus' own page of targets: is the job there, and what is its error?"),
    causes=(
        Cause("The process ended or its host did.", EXPORTER, "Exporter up"),
        Cause("The job has another name in Prometheus than `generate.job`.", EXPORTER, "Exporter up"),
        Cause("Network or TLS between Prometheus and the exporter.", EXPORTER, "Exporter up"),
    ),
    action="Restart it; it needs no state. Read its log if it does not stay up: `llm-exporter check config` names what is wrong.",
    board=EXPORTER,
    hold=120,
    expression=_exporter_down,
    blind="One of several exporters that leaves Prometheus' discovery altogether.",
)


def _targets_missing(settings: RuleSettings) -> str:
    configured = (one_of("target", settings.targets),) if settings.targets else ()
    if settings.targets == ():
        return ""  # all targets are discovered
    was = over("last_over_time", selector("llm_target_up", *configured), settings.window(_HOUR))
    watched = last(settings, "up", equals("job", settings.job))
    parts = [was, f"{on_target('unless')} {last(settings, 'llm_target_up')}", f"and on (job, instance) ({watched} == 1)"]
    if settings.targets is None:
        # Which targets are configured is known from a configuration alone. Without one, an exporter that discovers targets is passed over.
        discovers = last(settings, "llm_exporter_source_up", pattern("source", ".*discovery.*"))
        parts.append(f"unless on (job, instance) {discovers}")
    return lines(*parts)


TARGETS_MISSING = Alert(
    name="LLMTargetsMissing",
    severity=Severity.PAGE,
    subject=Subject.EXPORTER,
    labels=("target",),
    summary="{{ $labels.target }} is no longer watched.",
    value="it was on the exporter's page within the hour and is not now",
    evidence=(),
    meaning="Users feel nothing yet. But no alert can come from this server any more.",
    confirm=("Look at `/` and `/config` of the exporter: is the target there?",),
    causes=(
        Cause("It was taken out of llm-exporter.yml, by mistake or on purpose.", FLEET, "Targets"),
        Cause("It was renamed: the old name is missing, the new one is there.", FLEET, "Targets"),
        Cause("The exporter was restarted with another configuration.", EXPORTER, "Configuration"),
    ),
    action="If it was on purpose, silence the alert for an hour; else put the target back and reload.",
    board=FLEET,
    hold=120,
    expression=_targets_missing,
    info_window=_HOUR,
    blind="Targets that were never on the page. Without "
    "`generate alerts --config.file`, exporters that also discover targets are passed over.",
)

RELOAD_FAILED = Alert(
    name="LLMExporterConfigReloadFailed",
    severity=Severity.TICKET,
    subject=Subject.EXPORTER,
    summary="The exporter {{ $labels.instance }} refused its new configuration and runs on with the old one.",
    value="llm_exporter_config_last_reload_successful {{ $value }}",
    meaning="Nobody is hurt. But changes to targets, SLOs and probes are not in force, and the next restart will fail.",
    confirm=("`llm-exporter check config FILE` names file, line, key, value and remedy.",),
    causes=(
        Cause("A mistake in the file.", EXPORTER, "Configuration"),
        Cause("A file or an environment variable that it names is missing.", EXPORTER, "Configuration"),
    ),
    action="Correct the file, then reload.",
    board=EXPORTER,
    hold=300,
    expression=lambda settings: f"{last(settings, 'llm_exporter_config_last_reload_successful')} == 0",
)


def _source_down(settings: RuleSettings) -> str:
    same = "unless on (job, instance, source)"
    reason = "llm_exporter_source_down_reason"
    was_up = over("max_over_time", "llm_exporter_source_up", settings.window(_DAY))
    return lines(
        f"{last(settings, 'llm_exporter_source_up')} == 0",
        f"{same} ({last(settings, reason, equals('reason', 'disabled'))} == 1)",
        f"{same} (({last(settings, reason, one_of('reason', _NEVER_THERE))} == 1) {same} ({was_up} == 1))",
    )


SOURCE_DOWN = Alert(
    name="LLMExporterSourceDown",
    severity=Severity.TICKET,
    subject=Subject.EXPORTER,
    labels=("source",),
    summary="The exporter {{ $labels.instance }} cannot read {{ $labels.source }}.",
    value="llm_exporter_source_up {{ $value }}",
    evidence=(say.SOURCE_REASON,),
    meaning="Nobody is hurt. But what comes from this source (GPUs, host, discovery) is not watched.",
    confirm=("The exporter's log says why, once, at the moment it changed.",),
    causes=(
        Cause("lib_rm_version_mismatch: the driver was upgraded without a restart of the host.", EXPORTER, "Sources"),
        Cause("no_permission, other_pid_namespace: the container lacks the host's PID namespace or devices.", EXPORTER, "Sources"),
        Cause("gpu_lost: see LLMGPULost.", EXPORTER, "Sources"),
        Cause("discovery: a file or an address cannot be read.", EXPORTER, "Sources"),
    ),
    action="Do what the reason says; docs/deploy.md has a table of what a container needs.",
    board=EXPORTER,
    hold=600,
    expression=_source_down,
    blind="A source that is switched off, and a driver or GPU that was never there in the last day.",
)

REVIEW_MISSING = Alert(
    name="LLMCapacityReviewMissing",
    severity=Severity.TICKET,
    subject=Subject.EXPORTER,
    summary="The capacity review of {{ $labels.instance }} has not been written.",
    value=f"the last one is {{{{ $value | humanizeDuration }}}} old, limit {REVIEW_AGE.text}",
    meaning="Nobody is hurt. But nobody is told either when the servers will no longer be enough.",
    confirm=("Run `llm-exporter report --config.file FILE` by hand: it says what is missing.",),
    causes=(
        Cause("Prometheus cannot be reached, or has too little history.", EXPORTER, "Tasks"),
        Cause("The directory cannot be written.", EXPORTER, "Tasks"),
        Cause("The exporter was down at the scheduled time.", CAPACITY, "Coverage"),
    ),
    action="Run it by hand and read its warnings.",
    board=EXPORTER,
    hold=600,
    expression=lambda settings: (
        f"time() - ({last(settings, 'llm_report_last_success_timestamp_seconds')} > 0) > {settings.age(REVIEW_AGE)}"
    ),
    thresholds=(REVIEW_AGE,),
    blind="A schedule of less than once a week opens it although all is well; one that never succeeded since it was set up is silent.",
)

ALERTS: tuple[Alert, ...] = (EXPORTER_DOWN, TARGETS_MISSING, RELOAD_FAILED, SOURCE_DOWN, REVIEW_MISSING)
