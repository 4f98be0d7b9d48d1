"""One target in depth: what limits it and why, where latency comes from, work done, queue, caches, probes.

It may show the gauges of a window, since it shows one target; what the engine does not expose is said by Signal status.
"""

from __future__ import annotations

from llm_exporter.generate.boards import TARGET
from llm_exporter.generate.dashboards_model import (
    RATIO,
    SECONDS,
    Kind,
    Look,
    Needs,
    Panel,
    Query,
    Row,
    Sheet,
)
from llm_exporter.generate.dashboards_parts import (
    DOWN_UP,
    ENGINE_STATES,
    INSTANCE,
    JOB,
    MODELS_OF_ONE,
    NO_YES,
    ONE_TARGET,
    VERDICTS,
    coded,
    mean_of,
    now,
    per,
)
from llm_exporter.generate.dashboards_target_work import LAST_MINUTE, MODEL, OTHER, QUEUE, TTFT, WHERE, WORK
from llm_exporter.generate.promql import equals, none_of
from llm_exporter.generate.thresholds import BURN_FACTOR, TTFT_P99
from llm_exporter.signals.recorded import ERROR_BUDGET, slow_ratio

_T = WHERE.less("model")


def _banded(q: str) -> tuple[Query, ...]:
    """A published quantile with its error: the true value is at most a bucket's width away."""
    matchers = (equals("q", q), LAST_MINUTE)
    value = WHERE.of("llm_time_to_first_token_quantile_seconds", *matchers)
    error = WHERE.of("llm_time_to_first_token_quantile_error_seconds", *matchers)
    return (Query(f"{value} + {error}", "at most"), Query(f"clamp_min({value} - {error}, 0)", "at least"))


_STATE = Row(
    title="State",
    panels=(
        Panel(
            title="Up",
            kind=Kind.STAT,
            queries=(now(_T.of("llm_target_up"), "{{instance}}"),),
            codes=DOWN_UP,
            unit="none",
            means="Whether the last scrape gave a valid page.",
            do="If it is down, the reason stands beside it.",
            needs=Needs.TARGET,
            alerts=("LLMTargetDown",),
            width=3,
            height=6,
        ),
        Panel(
            title="Why it is down",
            kind=Kind.TABLE,
            queries=(now(f"{_T.of('llm_target_down_reason')} == 1"),),
            columns=("reason", "instance"),
            means="The reason why the last scrape failed.",
            do="refused: no process; timeout: stuck or overloaded; http_401: a changed token; dns, tls: the way to it.",
            needs=Needs.NOTHING_WRONG,
            alerts=("LLMTargetDown",),
            width=5,
            height=6,
        ),
        Panel(
            title="Who it is",
            kind=Kind.TABLE,
            queries=(now(_T.of("llm_target_info")),),
            columns=("engine", "engine_version", "service", "url", "instance"),
            means="Engine, release and address.",
            do="Two rows are a change of release within the time range, or two exporters.",
            needs=Needs.TARGET,
            width=10,
            height=6,
        ),
        Panel(
            title="Restarts",
            kind=Kind.STAT,
            queries=(now(f"round(increase({_T.of('llm_engine_restarts_total')}[$__range]))", "{{instance}}"),),
            means="Restarts of the engine within the time range.",
            do="More than one that nobody ordered: read the log of the process before.",
            needs=Needs.TARGET,
            alerts=("LLMEngineRestarting",),
            width=3,
            height=6,
        ),
        Panel(
            title="Saturation",
            kind=Kind.BARS,
            queries=(now(WHERE.of("llm_saturation_ratio"), "{{limit}} {{model}}"),),
            unit=RATIO,
            least=0,
            most=1,
            means="How near each limit is: KV cache, places in the batch, share of the last minute with a queue.",
            do="The limit that is nearest to 100 % is the one to raise, or the reason to add a replica.",
            needs=Needs.TRAFFIC,
            width=3,
            height=6,
        ),
    ),
)
_LIMITED = Row(
    title="What limits it",
    panels=(
        Panel(
            title="Verdict",
            kind=Kind.STATES,
            queries=(Query(coded(_T, "llm_bottleneck_verdict", "cause", VERDICTS, "target"), "verdict ({{instance}})"),),
            codes=VERDICTS,
            unit="none",
            means="What limits the server, from 30 seconds of evidence; a change is shown when two ticks agree.",
            do="Read Scores and Evidence below; `llm-exporter diagnose URL` names the flags to change.",
            needs=Needs.TARGET,
            alerts=("LLMGPUStarvedByCPU",),
            width=12,
            height=5,
        ),
        Panel(
            title="Engine state",
            kind=Kind.STATES,
            queries=(Query(coded(_T, "llm_engine_state", "state", ENGINE_STATES, "target"), "state ({{instance}})"),),
            codes=ENGINE_STATES,
            unit="none",
            means="loading answers 503 or refuses while its process lives; unknown gives no page.",
            do="A state that flips back to loading is a restart.",
            needs=Needs.TARGET,
            alerts=("LLMEngineStarting", "LLMEngineRestarting"),
            width=6,
            height=5,
        ),
        Panel(
            title="Stalled",
            kind=Kind.STATES,
            queries=(Query(_T.of("llm_engine_stalled"), "stalled ({{instance}})"),),
            codes=NO_YES,
            unit="none",
            means="Work is there and nothing has moved for stall.after.",
            do="Take the server out of the router, dump the stacks of its processes, restart it.",
            needs=Needs.TARGET,
            alerts=("LLMEngineStalled",),
            width=6,
            height=5,
        ),
        Panel(
            title="Scores",
            kind=Kind.TIME_SERIES,
            queries=(Query(_T.of("llm_bottleneck_score_ratio"), "{{cause}} ({{instance}})"),),
            unit=RATIO,
            least=0,
            most=1,
            means="How much speaks for each cause. The verdict takes the strongest trouble above its limit.",
            do="Two high scores are cause and effect: a full KV cache makes a queue.",
            needs=Needs.TARGET,
        ),
        Panel(
            title="Evidence",
            kind=Kind.BARS,
            queries=(now(f"{_T.of('llm_bottleneck_evidence_ratio')} > 0", "{{cause}}: {{evidence}} ({{instance}})"),),
            unit=RATIO,
            least=0,
            most=1,
            means="The pieces of evidence behind the scores, as they stand now.",
            do="docs/metrics.md and `llm-exporter explain bottleneck_verdict` say what each reads.",
            needs=Needs.TARGET,
            no_value="Nothing speaks for any cause now",
        ),
        Panel(
            title="Confidence",
            kind=Kind.TIME_SERIES,
            queries=(Query(_T.of("llm_bottleneck_confidence_ratio"), "confidence ({{instance}})"),),
            unit=RATIO,
            least=0,
            most=1,
            means="How sure the verdict is: evidence that was there, times the distance to the next cause.",
            do="Low for long: readings of the GPU or the host are missing; see Sources on the Exporter board.",
            needs=Needs.TARGET,
        ),
    ),
)
_FIRST = Row(
    title="Time to first token",
    panels=(
        Panel(
            title="Time to first token by phase",
            kind=Kind.TIME_SERIES,
            queries=(Query(WHERE.of("llm_request_phase_mean_seconds", none_of("phase", ("decode",)), LAST_MINUTE), "{{phase}} {{model}}"),),
            unit=SECONDS,
            stacked=True,
            least=0,
            means="The waterfall over time: mean seconds in the queue, in prefill, and in the frontend (tokenising, API server).",
            do="queue: add capacity. prefill: cache more, cut prompts, more compute. frontend: more API servers, faster cores.",
            needs=Needs.TRAFFIC,
            alerts=("LLMTTFTP99High", "LLMSLOBudgetBurnFast"),
        ),
        Panel(
            title="Waterfall now",
            kind=Kind.BARS,
            queries=tuple(
                now(WHERE.of("llm_request_phase_mean_seconds", equals("phase", phase), LAST_MINUTE), f"{position}. {phase} {{{{model}}}}")
                for position, phase in enumerate(("queue", "prefill", "frontend", "decode"), 1)
            ),
            unit=SECONDS,
            least=0,
            means="Where the mean request of the last minute spent its time, in order. Decode comes after the first token.",
            do="The longest bar is where to look; a phase that is missing is not exposed by this engine.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Time to first token, P99 with error band",
            kind=Kind.TIME_SERIES,
            queries=(
                *(
                    Query(WHERE.of("llm_time_to_first_token_quantile_seconds", equals("q", q), LAST_MINUTE), f"{name} {{{{model}}}}")
                    for name, q in (("P50", "0.5"), ("P95", "0.95"), ("P99", "0.99"))
                ),
                *_banded("0.99"),
            ),
            unit=SECONDS,
            thresholds=(TTFT_P99,),
            looks=(("at most", Look.BAND, "at least"), ("at least", Look.EDGE, "")),
            least=0,
            means="Quantiles of the last minute. The true P99 is at most a bucket's width away: the band. Pick one model for a clean band.",
            do="No band means that the P99 is above the highest bucket: the line is only a lower bound.",
            needs=Needs.TRAFFIC,
            alerts=("LLMTTFTP99High",),
        ),
        Panel(
            title="Distribution of the time to first token",
            kind=Kind.HEAT_MAP,
            queries=(Query(f"max by (le) ({per(('le',), WHERE.increase(TTFT + '_bucket'))})", "{{le}}"),),
            unit=SECONDS,
            means="How many requests fell into each bucket, over time. Two bands are two kinds of request: short and long, hit and miss.",
            do="A band that wanders upwards is load; a second band that appears is a new kind of prompt.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Within the objective",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(f"1 - {WHERE.of(slow_ratio('5m'))}", "{{slo}} {{model}}"),
                Query(f"1 - {WHERE.of(ERROR_BUDGET)}", "objective {{slo}} {{model}}"),
            ),
            looks=(("objective", Look.LIMIT, ""),),
            unit=RATIO,
            most=1,
            means="Share of requests within each objective's threshold over 5 minutes, and what was promised.",
            do="Below the dashed line the budget is being spent; how fast says the burn rate.",
            needs=Needs.SLO,
            alerts=("LLMSLOBudgetBurnFast", "LLMSLOBudgetBurnMedium", "LLMSLOBudgetBurnSlow"),
        ),
        Panel(
            title="Error budget burn rate",
            kind=Kind.TIME_SERIES,
            queries=tuple(
                Query(f"{WHERE.of(slow_ratio(w))} / {WHERE.of(ERROR_BUDGET)}", f"{w} {{{{slo}}}} {{{{model}}}}") for w in ("5m", "1h", "6h")
            ),
            thresholds=(BURN_FACTOR["medium"], BURN_FACTOR["fast"]),
            least=0,
            means="How fast the error budget is spent. An alert needs its long and its short window above the limit.",
            do="If 5m has fallen and 1h has not, the trouble is over and the alert ends by itself.",
            needs=Needs.SLO,
            alerts=("LLMSLOBudgetBurnFast", "LLMSLOBudgetBurnMedium"),
        ),
    ),
)
_PROBES = Row(
    title="Probes",
    panels=(
        Panel(
            title="Probe against engine",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(_T.of("llm_probe_time_to_first_token_seconds"), "probe {{module}} {{prompt_tokens}} {{cache}}"),
                Query(mean_of(WHERE, TTFT, *MODEL), "engine, mean {{model}}"),
            ),
            unit=SECONDS,
            least=0,
            means="Time to first token as a client sees it, beside what the engine says of itself.",
            do="A probe far slower than the engine's own number: network, proxy or the server's frontend.",
            needs=Needs.PROBE,
            alerts=("LLMProbeFailing",),
            width=12,
        ),
        Panel(
            title="Probe results",
            kind=Kind.TIME_SERIES,
            queries=(Query(f"{_T.increase('llm_probe_requests_total')} > 0", "{{result}} {{module}}"),),
            looks=(("", Look.BARS, ""),),
            least=0,
            means="Probe requests by result.",
            do="Anything but success is what users get too; see the Probe board.",
            needs=Needs.PROBE,
            alerts=("LLMProbeFailing", "LLMProbeMisconfigured"),
            width=12,
        ),
    ),
)
_MISSING = Row(
    title="What is missing, and why",
    panels=(
        Panel(
            title="Signal status",
            kind=Kind.TABLE,
            queries=(now(f"{_T.of('llm_signal_status')} == 1"),),
            columns=("signal", "window", "status", "instance"),
            means="Every signal that is absent or doubtful, with the reason.",
            do="not_exposed and stale are faults; not_supported and feature_off are how this engine was built or started.",
            needs=Needs.NOTHING_WRONG,
            alerts=("LLMSignalsMissing",),
            width=24,
            height=9,
        ),
    ),
)

SHEET = Sheet(
    board=TARGET,
    purpose="One server: what limits it, the waterfall of its time to first token, its work, queue, caches and probes.",
    variables=(JOB, INSTANCE, ONE_TARGET, MODELS_OF_ONE),
    rows=(_STATE, _LIMITED, _FIRST, OTHER, WORK, QUEUE, _PROBES, _MISSING),
)
