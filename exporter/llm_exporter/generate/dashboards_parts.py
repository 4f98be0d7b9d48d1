"""What all sheets share: selectors with the sheet's variables, common queries, variables, words with colours.

In: metric names. Out: PromQL text and parts of `dashboards_model`. Every selector goes through `Selection`, so that no panel forgets a
variable. Aggregations keep job and instance, or take the highest: two exporters may watch the same target.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from llm_exporter.generate.dashboards_model import Code, Needs, Query, Variable
from llm_exporter.generate.promql import Matcher, equals, over, pattern, selector
from llm_exporter.signals.bottleneck import CAUSES
from llm_exporter.signals.engine import STATES

RATE = "$__rate_interval"
_MANY = ("job", "instance", "target", "model", "module", "gpu")


class Selection(NamedTuple):
    """The variables that a sheet filters its series by; `single` ones admit one value."""

    names: tuple[str, ...]
    single: tuple[str, ...] = ()

    def of(self, metric: str, *matchers: Matcher) -> str:
        """A selector with all variables of the selection."""
        own = (equals(name, f"${name}") if name in self.single else pattern(name, f"${name}") for name in self.names)
        return selector(metric, *own, *matchers)

    def rate(self, metric: str, *matchers: Matcher) -> str:
        """Rate of a counter."""
        return over("rate", self.of(metric, *matchers), RATE)

    def increase(self, metric: str, *matchers: Matcher) -> str:
        """Increase of a counter within a step."""
        return over("increase", self.of(metric, *matchers), RATE)

    def less(self, *names: str) -> Selection:
        """The same without some variables."""
        return Selection(tuple(name for name in self.names if name not in names), self.single)


def per(labels: Iterable[str], expression: str, operator: str = "sum") -> str:
    """An aggregation that keeps job, instance and these labels."""
    return f"{operator} by ({', '.join(('job', 'instance', *labels))}) ({expression})"


def mean_of(where: Selection, histogram: str, *labels: str) -> str:
    """Mean of a histogram: sum ÷ count, both per second."""
    return f"{per(labels, where.rate(histogram + '_sum'))} / ({per(labels, where.rate(histogram + '_count'))} > 0)"


def quantile(where: Selection, histogram: str, q: str, *labels: str) -> str:
    """Quantile of a histogram by PromQL's interpolation."""
    return f"histogram_quantile({q}, {per((*labels, 'le'), where.rate(histogram + '_bucket'))})"


def quantile_edge(where: Selection, histogram: str, q: str, *labels: str, upper: bool) -> str:
    """The edge of the bucket in which the quantile lies: the true value is between the two edges.

    A made-up histogram is 0 below the quantile's bucket and 1 from it on; its own quantile 1 is the upper edge, one near 0 the lower.
    """
    buckets = per((*labels, "le"), where.rate(histogram + "_bucket"))
    rank = f"{q} * ({per(labels, where.rate(histogram + '_count'))} > 0)"
    on = ", ".join(("job", "instance", *labels))
    return f"histogram_quantile({'1' if upper else '1e-9'}, {buckets} >= bool on ({on}) group_left () ({rank}))"


def coded(where: Selection, metric: str, label: str, codes: Iterable[Code], *labels: str) -> str:
    """One number per series of a "one of" metric: the code of the value that is 1."""
    parts = (f"({where.of(metric, equals(label, code.text))} == 1) * {code.value}" for code in codes)
    return per(labels, " or ".join(parts), "max")


_CAUSE_COLORS = {
    "none": "green", "idle": "blue", "unknown": "text", "queue": "orange", "kv_cache": "dark-orange", "prefill_compute": "light-green",
    "decode_memory": "semi-dark-green", "host_starved": "red", "launch_bound": "light-red", "frontend": "purple",
    "communication": "dark-purple", "throttled": "dark-yellow", "foreign_process": "yellow", "stalled": "dark-red",
}  # fmt: skip
VERDICTS = tuple(Code(position, cause, _CAUSE_COLORS[cause]) for position, cause in enumerate(CAUSES))
_STATE_COLORS = {"loading": "yellow", "ready": "green", "sleeping": "blue", "unknown": "text"}
ENGINE_STATES = tuple(Code(position, state, _STATE_COLORS[state]) for position, state in enumerate(STATES))
NO_YES = (Code(0, "no", "green"), Code(1, "yes", "red"))
DOWN_UP = (Code(0, "down", "red"), Code(1, "up", "green"))
FAILED_GOOD = (Code(0, "failed", "red"), Code(1, "good", "green"))

_OF_EXPORTER = 'job=~"$job",instance=~"$instance"'
JOB = Variable("job", "Job", "label_values(llm_exporter_build_info, job)")
INSTANCE = Variable("instance", "Exporter", 'label_values(llm_exporter_build_info{job=~"$job"}, instance)')
TARGETS = Variable("target", "Target", f"label_values(llm_target_info{{{_OF_EXPORTER}}}, target)")
ONE_TARGET = TARGETS._replace(single=True)
MODELS = Variable("model", "Model", f'label_values(llm_time_to_first_token_seconds_count{{{_OF_EXPORTER},target=~"$target"}}, model)')
MODELS_OF_ONE = MODELS._replace(query=MODELS.query.replace('target=~"$target"', 'target="$target"'))
MODULES = Variable("module", "Probe module", f'label_values(llm_probe_requests_total{{{_OF_EXPORTER},target=~"$target"}}, module)')
GPUS = Variable("gpu", "GPU", f"label_values(llm_gpu_info{{{_OF_EXPORTER}}}, gpu)")

EXPORTERS = Selection(("job", "instance"))


def now(expr: str, legend: str = "", needs: Needs | None = None) -> Query:
    """A query of which only the last value is shown."""
    return Query(expr, legend, instant=True, needs=needs)
