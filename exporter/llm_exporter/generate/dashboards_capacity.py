"""Capacity: when load comes, how much room is left, and what is paid for and not used. For planning, not for alarms.

It reads recording rules (those of the capacity review too); targets that two exporters watch are counted once.
"""

from __future__ import annotations

from llm_exporter.generate.boards import CAPACITY
from llm_exporter.generate.dashboards_model import (
    RATIO,
    REQUESTS_PER_SECOND,
    TOKENS_PER_SECOND,
    Kind,
    Look,
    Needs,
    Panel,
    Query,
    Row,
    Sheet,
    unit_of,
)
from llm_exporter.generate.dashboards_parts import INSTANCE, JOB, MODELS, TARGETS, Selection, now, per
from llm_exporter.generate.promql import none_of, over
from llm_exporter.readings import Unit

_S = Selection(("job", "instance", "target", "model"))
_T = _S.less("model")
_ONE = "{{target}} {{model}}"
_OUTPUT, _PROMPT, _COMPUTED = (
    "target_model:llm_generation_tokens:rate5m",
    "target_model:llm_prompt_tokens:rate5m",
    "target_model:llm_prompt_tokens_computed:rate5m",
)
_SERVED = "target_model:llm_first_tokens:rate5m"
_WEEK = 7


def _once(expression: str, *labels: str) -> str:
    """One series per target, however many exporters watch it."""
    return f"max by ({', '.join(('target', *labels))}) ({expression})"


def _record(record: str) -> str:
    """A rule of the capacity review, evaluated every five minutes: an instant query alone might find it just too old."""
    return _once(over("last_over_time", _T.of(record), "10m"))


def _past(ago: int) -> Needs | None:
    return Needs.HISTORY if ago else None


def _ago(metric: str, days: int) -> str:
    offset = f" offset {days}d" if days else ""
    return f"sum({_once(_S.of(metric) + offset, 'model')})"


# Watts of the GPUs of each target.
_POWER = f"{_T.of('llm_gpu_target')} * on (job, instance, gpu) group_left () {_T.less('target').rate('llm_gpu_energy_joules_total')}"
_GPUS, _BUSY = _record("target:llm_gpu_target:sum5m"), _record("target:llm_gpu_active:sum_avg5m")

_WHEN = Row(
    title="When load comes",
    panels=(
        Panel(
            title="Hours of the last week",
            kind=Kind.HEAT_MAP,
            queries=tuple(
                Query(_ago(_OUTPUT, days), "last 24 h" if not days else f"{days} d earlier", needs=_past(days)) for days in range(_WEEK)
            ),
            unit=TOKENS_PER_SECOND,
            by_series=True,
            time_from="24h",
            means="Output tokens a second: each row is a day, each column an hour of the day. The selection's targets together.",
            do="Dark columns on every row are the daily peak: size for it. Pale rows are the weekend: run fewer replicas.",
            needs=Needs.RULES,
            width=12,
        ),
        Panel(
            title="Against the weeks before",
            kind=Kind.TIME_SERIES,
            queries=tuple(
                Query(
                    _ago(_OUTPUT, weeks * _WEEK), "now" if not weeks else f"{weeks} week{'s' if weeks > 1 else ''} ago", needs=_past(weeks)
                )
                for weeks in range(4)
            ),
            unit=TOKENS_PER_SECOND,
            least=0,
            means="The same hours of the week, one to three weeks ago. The selection's targets together.",
            do="Rising week by week: `llm-exporter report` says how fast, and when it is too much.",
            needs=Needs.RULES,
            width=12,
        ),
        Panel(
            title="Prompt and output tokens",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(_once(_S.of(_PROMPT), "model"), f"prompt {_ONE}"),
                Query(_once(_S.of(_OUTPUT), "model"), f"output {_ONE}"),
            ),
            unit=TOKENS_PER_SECOND,
            least=0,
            means="Tokens a second by target.",
            do="Uneven replicas of one service: look at the router.",
            needs=Needs.RULES,
        ),
        Panel(
            title="Requests served",
            kind=Kind.TIME_SERIES,
            queries=(Query(_once(_S.of(_SERVED), "model"), _ONE),),
            unit=REQUESTS_PER_SECOND,
            least=0,
            means="First tokens a second.",
            do="Flat at the top while the queue grows is the server's limit.",
            needs=Needs.RULES,
        ),
        Panel(
            title="Prefill saved by the prefix cache",
            kind=Kind.TIME_SERIES,
            queries=(Query(f"1 - {_once(_S.of(_COMPUTED), 'model')} / ({_once(_S.of(_PROMPT), 'model')} > 0)", _ONE),),
            unit=RATIO,
            most=1,
            means="Share of prompt tokens that were not computed.",
            do="Low with long shared prompts: route by prefix, keep the shared part first in the prompt.",
            needs=Needs.RULES,
        ),
    ),
)
_ROOM = Row(
    title="Headroom",
    panels=(
        Panel(
            title="Headroom by limits",
            kind=Kind.TIME_SERIES,
            queries=(Query(f"1 - {_once(_S.of('llm_saturation_ratio', none_of('limit', ('queue',))), 'model')}", _ONE),),
            unit=RATIO,
            most=1,
            means="Room in the KV cache and the batch, whichever is less. It says nothing of compute: prefill can be slow all the same.",
            do="Near 0 at peak: add a replica before load grows.",
            needs=Needs.TRAFFIC,
        ),
        Panel(
            title="Load of the week's peak",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(f"{_once(_S.of(_OUTPUT), 'model')} / ({_once(over('max_over_time', _S.of(_OUTPUT), '7d'), 'model')} > 0)", _ONE),
            ),
            unit=RATIO,
            least=0,
            means="Output now of the highest that this target did in the 7 days before: what it has shown that it can do.",
            do="Often near 100 % with a queue: this is the limit. Without a queue it is only the highest load so far.",
            needs=Needs.RULES,
        ),
        Panel(
            title="What limited, share of the time range",
            kind=Kind.BARS,
            queries=(
                now(
                    _once(f"avg_over_time({_T.of('target:llm_bottleneck_verdict:avg1h')}[$__range])", "cause") + " > 0",
                    "{{target}} {{cause}}",
                ),
            ),
            unit=RATIO,
            least=0,
            most=1,
            means="Share of the time range by verdict.",
            do="The largest bar that is not none or idle is what to spend on.",
            needs=Needs.REVIEW,
        ),
    ),
)
_WASTE = Row(
    title="Waste",
    panels=(
        Panel(
            title="GPUs busy and idle",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(_BUSY, "busy {{target}}"),
                Query(f"clamp_min({_GPUS} - {_BUSY}, 0)", "idle {{target}}"),
            ),
            stacked=True,
            least=0,
            means="GPUs of a target that had kernels, and those that had none. Together they are what is paid for.",
            do="Idle all night: fewer replicas, batch work, or another model on the same GPU.",
            needs=Needs.REVIEW,
        ),
        Panel(
            title="GPUs starved or throttled",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(f"{_record('target:llm_gpu_starved:avg5m')} * {_GPUS}", "starved {{target}}"),
                Query(_record("target:llm_gpu_throttled_seconds:sum_rate5m"), "throttled {{target}}"),
            ),
            stacked=True,
            least=0,
            means="GPUs that had to wait for the CPU, or were slowed down by heat.",
            do="Cores and airflow are cheaper than GPUs.",
            needs=Needs.REVIEW,
            alerts=("LLMGPUStarvedByCPU", "LLMGPUThrottled"),
        ),
        Panel(
            title="Energy per output token",
            kind=Kind.TIME_SERIES,
            queries=(
                Query(
                    f"{per(('target',), _POWER)} / ({per(('target',), _T.rate('llm_generation_tokens_total'))} > 0)",
                    "{{target}} ({{instance}})",
                ),
            ),
            unit=unit_of(Unit.JOULES),
            least=0,
            means="Energy of the target's GPUs per output token, prefill included.",
            do="It falls with larger batches: the same work on fewer replicas costs less.",
            needs=Needs.GPU_OF_TARGET,
        ),
        Panel(
            title="Coverage",
            kind=Kind.TIME_SERIES,
            queries=(Query(_record("target:llm_target_up:avg5m"), "{{target}}"),),
            looks=(("", Look.BARS, ""),),
            unit=RATIO,
            least=0,
            most=1,
            means="Share of five minutes in which the target's page could be read. What was not seen is in no number of the review.",
            do="Gaps: the exporter or Prometheus was down, or the target was. See the Exporter board.",
            needs=Needs.REVIEW,
            alerts=("LLMCapacityReviewMissing",),
            width=24,
            height=6,
        ),
    ),
)

SHEET = Sheet(
    board=CAPACITY,
    purpose="When load comes, how much room is left, and what is paid for and not used. `llm-exporter report` writes the review of it.",
    variables=(JOB, INSTANCE, TARGETS, MODELS),
    rows=(_WHEN, _ROOM, _WASTE),
    since="now-7d",
    refresh="5m",
)
