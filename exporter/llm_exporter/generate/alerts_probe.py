"""Alerts of the synthetic probes: the only look from outside, and the only one when there are no users."""

from __future__ import annotations

from llm_exporter.generate import evidence as say
from llm_exporter.generate.alert import Alert, Cause, Flags, Severity, Subject
from llm_exporter.generate.boards import PROBE, TARGET
from llm_exporter.generate.fragments import PROBES, last
from llm_exporter.generate.promql import either, none_of, one_of, over, selector, without
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import PROBE_BAD_RATIO, PROBE_RUNS

# Results that say that the probe, not the server, has to be put right: they never page.
MISCONFIGURED = ("http_400", "http_401", "http_403", "http_404", "http_405", "http_422", "not_streaming", "tls_verify")
_LABELS = ("target", "module")
_RECENT, _LATELY = 300, 1800  # seconds: the second for modules that run less than thrice in the first


def _failing(settings: RuleSettings) -> str:
    limit, runs = settings.limit(PROBE_BAD_RATIO), settings.limit(PROBE_RUNS)

    def bad(seconds: int) -> str:
        window = settings.window(seconds)
        failed = without("sum", ("result",), over("increase", selector(PROBES, none_of("result", ("success", *MISCONFIGURED))), window))
        sent = without("sum", ("result",), over("increase", PROBES, window))
        return f"({failed} / {sent} >= {limit} and (round({sent}) >= {runs}))"

    return either(bad(_RECENT), f"{bad(_LATELY)} and ({last(settings, 'llm_probe_success')} == 0)")


FAILING = Alert(
    name="LLMProbeFailing",
    severity=Severity.PAGE,
    subject=Subject.PROBE,
    labels=_LABELS,
    summary="Test requests to {{ $labels.target }} fail (module {{ $labels.module }}).",
    value=f"{{{{ $value | humanizePercentage }}}} of the test requests failed, limit {PROBE_BAD_RATIO.text} of at least {PROBE_RUNS.text}",
    evidence=(say.PROBE_RESULT, say.STATE, say.STALLED, say.WAITING_BY_MODEL),
    meaning="A small, ordinary request from outside gets no answer: so do users, or it is the way there that fails.",
    confirm=("Run it by hand: `llm-exporter probe URL --prompt-tokens 64 --repeat 3`.", "Read the result: it says where it failed."),
    causes=(
        Cause("timeout: the engine hangs, or its queue is longer than the probe's patience.", TARGET, "Queue"),
        Cause("connect, dns, tls: the way from the exporter to the server.", PROBE, "Probe phases"),
        Cause("http_5xx, http_429: the server or a proxy refuses.", TARGET, "Answers by status"),
        Cause("in_band_error, truncated, no_output: the stream broke; users see half an answer with status 200.", PROBE, "Results"),
    ),
    action="Do what the result says; with a timeout see LLMEngineStalled and the queue first.",
    flags=Flags(vllm=("--max-num-queued-reqs, if the queue is the reason",), sglang=("--max-queued-requests, if the queue is the reason",)),
    board=PROBE,
    hold=60,
    expression=_failing,
    thresholds=(PROBE_BAD_RATIO, PROBE_RUNS),
    blind="Targets without probes. Modules that send fewer than three requests in half an hour. "
    "Requests that are refused for what the probe "
    "itself asks or shows (401, 404 and the like) open LLMProbeMisconfigured, also where users are refused alike.",
)

MISCONFIGURED_PROBE = Alert(
    name="LLMProbeMisconfigured",
    severity=Severity.TICKET,
    subject=Subject.PROBE,
    labels=(*_LABELS, "result"),
    summary="The probe {{ $labels.module }} of {{ $labels.target }} cannot work as it is configured.",
    value="its last result is {{ $labels.result }}",
    evidence=(say.STATE, say.VERSION),
    meaning="Nobody is hurt, but this target is not being tested.",
    confirm=("Run it by hand: `llm-exporter probe URL --endpoint … --model …`; the error names the server's words.",),
    causes=(
        Cause("http_404, http_400, http_422: another model or endpoint than the server has.", PROBE, "Results"),
        Cause("http_401, http_403: the token.", PROBE, "Results"),
        Cause("tls_verify: the certificate is not trusted or names another host.", PROBE, "Probe phases"),
        Cause("not_streaming: a proxy or gateway answers in one piece.", PROBE, "Results"),
        Cause("skipped_unknown_engine: the engine was not recognised; set `engine:`.", PROBE, "Results"),
        Cause("skipped_context: every length in `prompt_tokens` is beyond the model's context.", PROBE, "Results"),
    ),
    action="Correct `probe_modules` or the target's `authorization` and `tls_config` in llm-exporter.yml.",
    board=PROBE,
    hold=600,
    expression=lambda settings: (
        f"{last(settings, 'llm_probe_last_result', one_of('result', (*MISCONFIGURED, 'skipped_unknown_engine', 'skipped_context')))} == 1"
    ),
)

ALERTS: tuple[Alert, ...] = (FAILING, MISCONFIGURED_PROBE)
