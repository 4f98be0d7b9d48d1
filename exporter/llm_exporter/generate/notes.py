"""What a configuration should know about its alerts: tiers left out, thresholds that no bucket edge serves, links that lead nowhere.

In: a `Config`. Out: sentences, printed by `generate alerts`. The true edges are known only from a server's page; these are the ones that
the engines have by default (vLLM 0.32, SGLang 0.5.23), so the sentences say "by default".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal

from llm_exporter.config.model import Config
from llm_exporter.config.target import Slo
from llm_exporter.generate.burnrate import refusals
from llm_exporter.generate.promql import number

_EDGES: Mapping[tuple[str, str], str] = {
    ("vllm", "time_to_first_token"): "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
    ("vllm", "inter_token_latency"): "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80",
    ("vllm", "e2e_request_latency"): "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680",
    ("sglang", "time_to_first_token"): "0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 20 40 60 80 100 200 400",
    (
        "sglang",
        "inter_token_latency",
    ): "0.002 0.004 0.006 0.008 0.01 0.015 0.02 0.025 0.03 0.035 0.04 0.06 0.08 0.1 0.2 0.4 0.6 0.8 1 2 4 6 8",
    ("sglang", "e2e_request_latency"): "0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 20 40 60 80 100 200 400 600 1200 1800 2400",
}
_ENGINES = ("vllm", "sglang")
_TITLES = {"vllm": "vLLM", "sglang": "SGLang"}
_REMEDY = {"vllm": "--custom-histogram-buckets", "sglang": "--bucket-…"}


def notes_of(config: Config) -> Iterator[str]:
    """One sentence a finding, naming target and SLO."""
    for target in config.targets:
        for slo in target.slos:
            at = f"{target.name}, SLO {slo.name}"
            for refusal in refusals(Decimal(str(slo.objective))):
                yield f"{at}: {refusal}"
            engines = _ENGINES if target.engine == "auto" else (target.engine,)
            for engine in engines:
                yield from (f"{at}: {text}" for text in _edge_notes(slo, engine))
    wanted = config.generate
    for key, value, what in (
        ("runbook_base_url", wanted.runbook_base_url, "runbook_url is a path of this repository"),
        ("grafana_url", wanted.grafana_url, "links to dashboards lead to http://localhost:3000"),
    ):
        if value is None:
            yield f"generate.{key} is not set: {what}, which a pager cannot open"
    if config.file_sd_configs or config.http_sd_configs:
        yield "objectives of discovered targets are read from llm_slo_objective_ratio; only configured targets page when they go"


def _edge_notes(slo: Slo, engine: str) -> Iterator[str]:
    edges = [Decimal(edge) for edge in _EDGES[engine, slo.metric].split()]
    threshold = Decimal(str(slo.threshold))
    if threshold in edges:
        return
    below = [edge for edge in edges if edge < threshold]
    measured = f"{number(below[-1])} s is measured in its place" if below else "nothing can be measured"
    yield (
        f"{_TITLES[engine]} has no bucket edge at {number(threshold)} s for {slo.metric} by default, so {measured}; "
        f"choose another threshold or set {_REMEDY[engine]} on the server"
    )
