"""Probes: the time to first token as a client has it, by context length, cold against warm, and whether probes succeed at all."""

from __future__ import annotations

from llm_exporter.generate.boards import PROBE
from llm_exporter.generate.dashboards_model import RATIO, SECONDS, TOKENS_PER_SECOND, Kind, Look, Needs, Panel, Query, Row, Sheet
from llm_exporter.generate.dashboards_parts import FAILED_GOOD, INSTANCE, JOB, MODULES, NO_YES, TARGETS, Selection, now, per
from llm_exporter.generate.promql import equals
from llm_exporter.generate.thresholds import PROBE_BAD_RATIO

_S = Selection(("job", "instance", "target", "module"))
_RUN = ("target", "module")
_CELL = (*_RUN, "prompt_tokens", "cache")
_ONE = "{{target}} {{module}} ({{instance}})"
_LENGTH = "{{prompt_tokens}} {{target}} {{module}} ({{instance}})"
_TTFT = "llm_probe_time_to_first_token_seconds"
_DISTRIBUTION = "llm_probe_time_to_first_token_distribution_seconds"


def _mean(*matchers: str, cache: str) -> str:
    """Mean over the time range by length; runs are rare, so the range is the whole one shown."""
    labels = (*_RUN, "prompt_tokens", *matchers)
    sums, counts = (
        per(labels, f"increase({_S.of(_DISTRIBUTION + part, equals('cache', cache))}[$__range])") for part in ("_sum", "_count")
    )
    return f"{sums} / ({counts} > 0)"


def _phase(metric: str, name: str) -> Query:
    return Query(per(_CELL, _S.of(metric), "max"), f"{name} {{{{prompt_tokens}}}} {{{{cache}}}} {_ONE}")


_HEALTH = Row(
    title="Do probes succeed",
    panels=(
        Panel(
            title="Last run",
            kind=Kind.STATES,
            queries=(Query(per(_RUN, _S.of("llm_probe_success"), "max"), _ONE),),
            codes=FAILED_GOOD,
            unit="none",
            means="Whether every request of the last run that was sent brought a whole stream with output.",
            do="Failed: users get the same. Results says how.",
            needs=Needs.PROBE,
            alerts=("LLMProbeFailing",),
            width=12,
            height=6,
        ),
        Panel(
            title="Last result",
            kind=Kind.TABLE,
            queries=(now(f"{_S.of('llm_probe_last_result')} == 1"),),
            columns=("target", "module", "result", "instance"),
            means="Result of the last run, or why it was skipped.",
            do="skipped_busy and skipped_budget are good manners; http_404 is a wrong model or endpoint in the module.",
            needs=Needs.PROBE,
            alerts=("LLMProbeFailing", "LLMProbeMisconfigured"),
            width=6,
            height=6,
        ),
        Panel(
            title="Age of the last run",
            kind=Kind.STAT,
            queries=(now(per(_RUN, f"time() - {_S.of('llm_probe_last_run_timestamp_seconds')}", "min"), _ONE),),
            unit=SECONDS,
            means="Time since the last run that was sent. Ladders run once a day or so.",
            do="Much older than its interval: it is being skipped; Last result says why.",
            needs=Needs.PROBE,
            width=6,
            height=6,
        ),
        Panel(
            title="Results",
            kind=Kind.TIME_SERIES,
            queries=(Query(f"{per((*_RUN, 'result'), _S.increase('llm_probe_requests_total'))} > 0", "{{result}} " + _ONE),),
            looks=(("", Look.BARS, ""),),
            least=0,
            means="Probe requests by result.",
            do="timeout: stuck or overloaded; in_band_error: the stream carried an error with status 200; truncated: it ended too early.",
            needs=Needs.PROBE,
            alerts=("LLMProbeFailing", "LLMProbeMisconfigured"),
            width=12,
        ),
        Panel(
            title="Share of failed probes",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(
                    f"1 - {per(_RUN, _S.rate('llm_probe_requests_total', equals('result', 'success')))}"
                    f" / ({per(_RUN, _S.rate('llm_probe_requests_total'))} > 0)",
                    _ONE,
                ),
            ),
            unit=RATIO,
            thresholds=(PROBE_BAD_RATIO,),
            least=0,
            most=1,
            means="Share of probe requests that failed.",
            do="Above the limit somebody is called: three of five, so that one lost probe never is enough.",
            needs=Needs.PROBE,
            alerts=("LLMProbeFailing",),
            width=12,
        ),
    ),
)
_LENGTHS = Row(
    title="By context length",
    panels=(
        Panel(
            title="Time to first token by context length",
            kind=Kind.TABLE,
            queries=(
                now(_mean(cache="cold"), "Cold"),
                now(_mean(cache="warm"), "Warm", Needs.LADDER),
                now(f"{_mean(cache='warm')} / {_mean(cache='cold')}", "Warm of cold", Needs.LADDER),
            ),
            columns=("prompt_tokens", "target", "module", "instance"),
            number="prompt_tokens",
            units=(("Cold", SECONDS), ("Warm", SECONDS), ("Warm of cold", RATIO)),
            means="Mean over the time range: cold is a prompt never sent before, warm one that the prefix cache holds.",
            do="Warm as slow as cold: the prefix cache is off, full, or shorter than one block.",
            needs=Needs.PROBE,
            width=12,
        ),
        Panel(
            title="Last run by context length",
            kind=Kind.BARS,
            queries=tuple(
                now(per((*_RUN, "prompt_tokens"), _S.of(_TTFT, equals("cache", cache)), "max"), f"{cache} {_LENGTH}", needs)
                for cache, needs in (("cold", None), ("warm", Needs.LADDER))
            ),
            unit=SECONDS,
            least=0,
            means="Time to first token of the last run, by length and cache state.",
            do="Cold grows with length, at long ones faster than in proportion; warm should hardly grow.",
            needs=Needs.PROBE,
            width=12,
        ),
        Panel(
            title="Cold",
            kind=Kind.TIME_SERIES,
            queries=(Query(per((*_RUN, "prompt_tokens"), _S.of(_TTFT, equals("cache", "cold")), "max"), _LENGTH),),
            unit=SECONDS,
            least=0,
            log_scale=True,
            means="Time to first token by length, prompts that no cache holds: prefill as it is.",
            do="A step up at all lengths is a change of release, clock or neighbour.",
            needs=Needs.PROBE,
        ),
        Panel(
            title="Warm",
            kind=Kind.TIME_SERIES,
            queries=(Query(per((*_RUN, "prompt_tokens"), _S.of(_TTFT, equals("cache", "warm")), "max"), _LENGTH),),
            unit=SECONDS,
            least=0,
            log_scale=True,
            means="Time to first token by length, prompts that the prefix cache holds.",
            do="Near Cold: the prefix cache does not hold it. Far below: the cache works.",
            needs=Needs.LADDER,
        ),
        Panel(
            title="Distribution over runs",
            kind=Kind.HEAT_MAP,
            queries=(
                Query(
                    f"sum by (le) (max by (target, module, prompt_tokens, cache, le) ({_S.increase(_DISTRIBUTION + '_bucket')}))", "{{le}}"
                ),
            ),
            unit=SECONDS,
            means="Time to first token of all probe requests of the selection.",
            do="Select one target and module for a clean picture.",
            needs=Needs.PROBE,
        ),
    ),
)
_PARTS = Row(
    title="Where a probe's time goes",
    panels=(
        Panel(
            title="Probe phases",
            kind=Kind.TIME_SERIES,
            queries=(
                _phase("llm_probe_connect_seconds", "connect"),
                _phase("llm_probe_first_chunk_seconds", "first chunk"),
                _phase(_TTFT, "first token"),
                _phase("llm_probe_time_to_first_content_seconds", "first content"),
                _phase("llm_probe_duration_seconds", "whole"),
            ),
            unit=SECONDS,
            least=0,
            means="The clocks of the last run. First content is later than the first token where a model thinks first.",
            do="A long connect is the network or a full accept queue; first chunk fast and first token slow is prefill.",
            needs=Needs.PROBE,
            alerts=("LLMProbeFailing",),
            width=12,
        ),
        Panel(
            title="Network overhead",
            kind=Kind.TIME_SERIES,
            queries=(_phase("llm_probe_network_overhead_seconds", "overhead"),),
            unit=SECONDS,
            least=0,
            means="Time to first token less queue and prefill by the engine's own clock: network, proxies, frontend.",
            do="If it grows with load, the server's frontend is the limit.",
            needs=Needs.PROBE_CLOCK,
            width=6,
        ),
        Panel(
            title="Stream held back",
            kind=Kind.STATES,
            queries=(Query(per(_RUN, _S.of("llm_probe_stream_buffered"), "max"), _ONE),),
            codes=NO_YES,
            unit="none",
            means="yes: the output came in one burst, so something between engine and probe buffers the stream.",
            do="Turn response buffering off in the proxy (nginx: proxy_buffering off).",
            needs=Needs.PROBE,
            no_value="No probe with enough pieces of output to say",
            width=6,
        ),
        Panel(
            title="Cost of probes",
            kind=Kind.TIME_SERIES,
            queries=(Query(per(_RUN, _S.rate("llm_probe_sent_prompt_tokens_total")), _ONE),),
            unit=TOKENS_PER_SECOND,
            least=0,
            means="Prompt tokens a second that probes make the servers compute.",
            do="Too much: a longer interval or budget_tokens_per_hour.",
            needs=Needs.PROBE,
            width=12,
        ),
        Panel(
            title="Tokens of the last run",
            kind=Kind.TIME_SERIES,
            queries=(
                _phase("llm_probe_prompt_tokens", "prompt"),
                _phase("llm_probe_completion_tokens", "output"),
            ),
            least=0,
            means="Tokens by the server's count; the length asked for stands in the legend.",
            do="Far from what was asked: another tokeniser; compare targets by the measured length.",
            needs=Needs.PROBE,
            width=12,
        ),
    ),
)

SHEET = Sheet(
    board=PROBE,
    purpose="The time to first token as a client has it: by context length, cold against warm; and whether probes succeed.",
    variables=(JOB, INSTANCE, TARGETS, MODULES),
    rows=(_HEALTH, _LENGTHS, _PARTS),
    since="now-6h",
)
