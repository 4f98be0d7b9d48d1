"""Parts that several alerts share: gauges read through R, traffic floors without our own probes, GPUs with their targets, joined labels."""

from __future__ import annotations

from llm_exporter.generate.promql import Matcher, lines, none_of, on_target, over, selector, without
from llm_exporter.generate.settings import RuleSettings
from llm_exporter.generate.thresholds import Threshold
from llm_exporter.sources.probe import UNSENT_RESULTS

PROBES = "llm_probe_requests_total"


def last(settings: RuleSettings, metric: str, *matchers: Matcher) -> str:
    """A gauge through R: one lost scrape is no gap."""
    return over("last_over_time", selector(metric, *matchers), settings.shortest)


def increase(settings: RuleSettings, metric: str, seconds: int, *dropped: str, matchers: tuple[Matcher, ...] = ()) -> str:
    """Increase of a counter, summed over `engine` and the labels that are dropped."""
    return without("sum", ("engine", *dropped), over("increase", selector(metric, *matchers), settings.window(seconds)))


def users(settings: RuleSettings, metric: str, seconds: int, *dropped: str, matchers: tuple[Matcher, ...] = (), largest: str = "") -> str:
    """Requests of a target without those of our probes that reached it; a target without probes has none to subtract.

    `largest`: a label whose values count the same requests, so that the largest is taken and not the sum.
    """
    total = increase(settings, metric, seconds, "model", *dropped, matchers=matchers)
    if largest:
        total = without("max", (largest,), total)
    arrived = selector(PROBES, none_of("result", UNSENT_RESULTS))
    probes = without("sum", ("module", "result"), over("increase", arrived, settings.window(seconds)))
    return lines(total, f"- ({probes}", f"   or {total} * 0)")


def with_traffic(settings: RuleSettings, expression: str, traffic: str, at_least: Threshold) -> str:
    """`expression`, where the target has enough requests of users."""
    return lines(expression, f"{on_target('and')} (round({traffic}) >= {settings.limit(at_least)})")


def of_gpu(settings: RuleSettings, condition: str, seconds: int = 0) -> str:
    """A condition with one series per GPU: one alert per target on that GPU, or one without target where it has none."""
    link = over("last_over_time", "llm_gpu_target", settings.window(seconds))
    return lines(
        f"{link} * on (job, instance, gpu) group_left () ({condition})", "or", f"(({condition}) unless on (job, instance, gpu) {link})"
    )


def with_labels(settings: RuleSettings, expression: str, info_window: int) -> str:
    """The labels of `generate.alert_labels`, from `llm_target_info`; an alert of a target without info stays as it is."""
    if not settings.alert_labels:
        return expression
    info = f"topk by (job, instance, target) (1, {over('last_over_time', 'llm_target_info', settings.window(info_window))})"
    names = ", ".join(settings.alert_labels)
    return lines(
        f"({expression})",
        f"* on (job, instance, target) group_left ({names}) {info}",
        "or",
        f"(({expression}) {on_target('unless')} {info})",
    )
