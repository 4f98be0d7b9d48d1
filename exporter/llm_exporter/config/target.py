"""One target: a server that is scraped, and what is asked of it beside the scrape.

`TargetDefaults` holds every key but name and URL; discovery lends it to the servers that it finds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from llm_exporter.config.http_client import HttpClient
from llm_exporter.config.values import (
    BaseUrl,
    LabelName,
    Name,
    Number,
    Placeholder,
    PositiveDuration,
    Section,
    Text,
    UrlPath,
    Whole,
    fault,
    faults,
)

SloMetric = Literal["time_to_first_token", "inter_token_latency", "e2e_request_latency"]

# Label names that the exporter, Prometheus or histograms use themselves (CONTRACT 4).
FORBIDDEN_LABELS = frozenset(
    ("target", "engine", "engine_version", "service", "model", "url", "gpu", "job", "instance", "le", "q", "quantile", "window")
)


def _share(objective: float) -> float:
    if not 0 < objective < 1:
        percent = f"write {round(objective / 100, 10):g}" if 1 < objective < 100 else "write for example 0.99"
        raise fault("must lie between 0 and 1", remedy=percent)
    return objective


class Slo(Section):
    """A promise about latency: `objective` of all requests are faster than `threshold`."""

    name: Name = Field(description="Name, unique in its target; becomes the label `slo`.")
    metric: SloMetric = Field(description="Latency that is promised.")
    threshold: PositiveDuration = Field(description="A request is good when its latency is at most this.")
    objective: Annotated[Number, AfterValidator(_share)] = Field(
        description="Share of good requests that is promised, between 0 and 1, for example 0.99."
    )


class Process(Section):
    """How the server's processes are found on this machine."""

    find: Literal["auto", "port", "nvml", "cmdline"] = Field(
        default="auto", description="auto (owner of the listening socket, else NVML's processes and their parents), port, nvml or cmdline."
    )
    cmdline: Text | None = Field(default=None, description="Regular expression, searched in the command line of processes.")

    @model_validator(mode="after")
    def _expression(self) -> Self:
        if self.find == "cmdline" and self.cmdline is None:
            raise fault("is cmdline, but there is no expression", "find", remedy="add cmdline: REGEX")
        if self.find in ("port", "nvml") and self.cmdline is not None:
            raise fault(f"has no effect with find: {self.find}", "cmdline", remedy="use find: cmdline or auto")
        try:
            re.compile(self.cmdline or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise fault(f"is not a regular expression ({error})", "cmdline", remedy="escape special characters with \\") from None
        return self


class Limits(Section):
    """Limits of the server that its metrics do not say themselves."""

    running: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="Most requests in the running batch.")
    context_tokens: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="Longest context in tokens.")


Gpus = Literal["auto", "none"] | tuple[int | str, ...]


def _gpus(value: object) -> Gpus:
    if value in ("auto", "none") and isinstance(value, str):
        return value
    remedy = "write auto, none, or a list such as [0, 1] or [GPU-…]"
    if not isinstance(value, list | tuple):
        raise fault("must be auto, none or a list", remedy=remedy)
    if not value:
        raise fault("is an empty list", remedy="write none where the target uses no GPU of this machine")
    for position, gpu in enumerate(value):
        index = isinstance(gpu, int) and not isinstance(gpu, bool) and gpu >= 0
        if not index and not (isinstance(gpu, str) and re.fullmatch(r"(GPU|MIG)-[\w/-]+|\d+(\.\d+)?", gpu, re.ASCII)):
            raise fault("is neither an index nor a UUID", position, remedy='write 0, GPU-…, MIG-… or, for a MIG device, "0.1"')
        if gpu in value[:position]:
            raise fault("stands there twice", position, remedy="remove one")
    return tuple(value)


def _free_label(name: str) -> str:
    if name in FORBIDDEN_LABELS:
        raise fault(f"the label {name!r} is the exporter's own", remedy="rename the label")
    return name


FreeLabelName = Annotated[LabelName, AfterValidator(_free_label)]


class TargetDefaults(HttpClient):
    """Every key of a target but its name and URL."""

    engine: Literal["auto", "vllm", "sglang"] = Field(default="auto", description="Engine; auto finds it from the metrics.")
    metrics_path: UrlPath = Field(default="/metrics", description="Path of the metrics below the URL.")
    service: Name | None = Field(default=None, description="Service whose replicas share the name; default: the target's name.")
    labels: Mapping[FreeLabelName, Text] = Field(default={}, description="Labels that are published once, on `llm_target_info`.")
    gpus: Annotated[Gpus, BeforeValidator(_gpus), Placeholder("auto | none | [ <int> or <uuid>, ... ]")] = Field(
        default="auto", description="GPUs of this machine that the target uses: auto, none, or a list of indexes or UUIDs."
    )
    process: Process = Field(default=Process(), description="How the server's processes are found on this machine.")
    limits: Limits = Field(default=Limits(), description="Limits that the engine does not say itself.")
    gpu_count: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="Number of GPUs of a remote target, for the review.")
    gpu_cost_per_hour: Annotated[Number, Field(ge=0)] | None = Field(
        default=None, description="Cost of one GPU for one hour, in `report.currency`."
    )
    probes: tuple[Name, ...] = Field(
        default=(), description="Probe modules that run on this target; none by default, since they cost GPU time."
    )
    slos: tuple[Slo, ...] = Field(default=(), description="Promises about latency.")

    @model_validator(mode="after")
    def _unique(self) -> Self:
        found: list[tuple[tuple[str | int, ...], str, str]] = []
        names = [slo.name for slo in self.slos]
        for position, name in enumerate(names):
            if name in names[:position]:
                found.append((("slos", position, "name"), f"the SLO {name!r} is already there", "give each SLO its own name"))
        for position, name in enumerate(self.probes):
            if name in self.probes[:position]:
                found.append((("probes", position), f"the probe module {name!r} is already named", "remove one"))
        if found:
            raise faults(found)
        return self


class Target(TargetDefaults):
    """A server that is scraped."""

    name: Name = Field(description="Name, unique; becomes the label `target`.")
    url: BaseUrl = Field(description="Base URL, a path prefix allowed: http://HOST:PORT[/PREFIX].")
    service: Name = Field(default="", description="Service whose replicas share the name; default: the target's name.")

    @model_validator(mode="after")
    def _named_service(self) -> Self:
        if not self.service:
            object.__setattr__(self, "service", self.name)  # frozen for everybody else
        return self

    def url_of(self, path: str) -> str:
        """The full URL of a path of this server, below the prefix."""
        return f"{self.url}{path}"
