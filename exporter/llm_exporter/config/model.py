"""The configuration: every key with its type, default and meaning, as frozen models.

`load.py` builds a `Config` from a file, `discovery.py` adds targets, `describe.py` makes the reference and the example from the
descriptions here. Attribute names are the YAML keys (`global` is `global_`); durations are float seconds.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from llm_exporter.config.crontab import parse_crontab
from llm_exporter.config.http_client import Authorization, BasicAuth, Header, HttpClient, TlsConfig
from llm_exporter.config.target import Limits, Process, Slo, SloMetric, Target, TargetDefaults
from llm_exporter.config.values import (
    BaseUrl,
    Duration,
    FilePath,
    Flag,
    LabelName,
    Name,
    Number,
    Placeholder,
    PositiveDuration,
    QueryUrl,
    SdPattern,
    Secret,
    Section,
    Text,
    UrlPath,
    Whole,
    fault,
    faults,
)

__all__ = [
    "MAX_TARGETS", "Authorization", "BasicAuth", "Config", "Duration", "FileSdConfig", "Generate", "Global", "Gpu", "Header", "Host",
    "HttpClient", "HttpSdConfig", "Limits", "ProbeModule", "Process", "Report", "ReportPrometheus", "Secret", "Section", "Slo",
    "SloMetric", "Stall", "Target", "TargetDefaults", "TlsConfig", "Web",
]  # fmt: skip

MAX_TARGETS = 512  # one thread each

Switch = Literal["auto"] | bool


def _switch(value: object) -> object:
    if value == "auto" or isinstance(value, bool):
        return value
    raise fault("must be auto, true or false", remedy="write auto, true or false without quotes")


def _crontab(text: str) -> str:
    try:
        parse_crontab(text)
    except ValueError as error:
        raise fault(str(error)) from None
    return text


def _timezone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError where tzdata lacks the name
        raise fault("is not a time zone", remedy="write a name such as Europe/Berlin or UTC") from None
    except KeyError:
        raise fault("is not a known time zone", remedy="write a name such as Europe/Berlin or UTC") from None
    return text


def _not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise fault("is an empty list", remedy="name a file, or remove the section")
    return values


def _several(value: object) -> object:
    return value if isinstance(value, list | tuple) else (value,)


def _alert_label(name: str) -> str:
    if name in ("alertname", "severity", "target", "model", "slo"):
        raise fault("is a label that alerts have anyway", remedy="remove it")
    return name


Enabled = Annotated[Switch, BeforeValidator(_switch), Placeholder("auto | true | false")]
Crontab = Annotated[Text, AfterValidator(_crontab), Placeholder("<crontab>")]
Timezone = Annotated[Text, AfterValidator(_timezone), Placeholder("<timezone>")]


class Global(Section):
    """Settings of every scrape."""

    scrape_interval: PositiveDuration = Field(default=5.0, description="Time between two scrapes of a target.")
    scrape_timeout: PositiveDuration = Field(
        default=10.0,
        description="Longest total time of a scrape, a slow body included; may exceed the interval, ticks meanwhile count as overlapped.",
    )


class FileSdConfig(Section):
    """Targets from files in Prometheus' file_sd format."""

    files: Annotated[tuple[SdPattern, ...], AfterValidator(_not_empty)] = Field(
        description="File names, `*` allowed in the last part, ending in .json, .yml or .yaml."
    )
    refresh_interval: PositiveDuration = Field(default=30.0, description="Time between two looks at the files.")
    target: TargetDefaults = Field(
        default=TargetDefaults(), description="Settings of the targets found; any key of a target but name and url."
    )


class HttpSdConfig(HttpClient):
    """Targets from an endpoint in Prometheus' http_sd format."""

    url: QueryUrl = Field(repr=False, description="URL of the list; a query is allowed, and is never shown.")
    refresh_interval: PositiveDuration = Field(default=60.0, description="Time between two requests.")
    target: TargetDefaults = Field(
        default=TargetDefaults(), description="Settings of the targets found; any key of a target but name and url."
    )


Cache = Literal["cold", "warm"]
Language = Literal["en", "de", "fr", "es", "zh"]  # those of probing/words.py


class ProbeModule(Section):
    """A kind of synthetic request, and when it is sent. Either `interval` or `schedule`."""

    interval: PositiveDuration | None = Field(default=None, description="Time between two runs; not beside `schedule`.")
    schedule: Crontab | None = Field(
        default=None, description="Crontab of the runs (minute hour day month weekday); not beside `interval`."
    )
    timezone: Timezone = Field(default="UTC", description="Time zone of `schedule`.")
    timeout: PositiveDuration = Field(default=30.0, description="Longest time of one request.")
    prompt_tokens: Annotated[
        tuple[Annotated[Whole, Field(ge=1, le=10_000_000)], ...], BeforeValidator(_several), Placeholder("<int> | [ <int>, ... ]")
    ] = Field(default=(64,), description="Length of the prompt in tokens, or a list of lengths.")
    max_tokens: Annotated[Whole, Field(ge=1, le=100_000)] = Field(default=8, description="Output tokens that are asked for.")
    cache: Annotated[tuple[Cache, ...], BeforeValidator(_several), Placeholder("cold | warm | [ cold, warm ]")] = Field(
        default=("cold",), description="cold (a prompt never sent before), warm (one that the prefix cache holds), or a list of both."
    )
    repeat: Annotated[Whole, Field(ge=1, le=1000)] = Field(default=1, description="Requests per length and cache state in one run.")
    max_waiting: Annotated[Whole, Field(ge=0)] | None = Field(
        default=None,
        description="Skip the run while more requests than this wait in the server's queue, or nobody knows how many; no limit by default.",
    )
    budget_tokens_per_hour: Annotated[Whole, Field(ge=1)] | None = Field(
        default=None, description="Prompt tokens that this module may make a server compute in an hour; no limit by default."
    )
    endpoint: UrlPath = Field(
        default="/v1/chat/completions", description="Path of the endpoint: …/chat/completions, …/completions or, for SGLang, /generate."
    )
    model: Text | None = Field(default=None, description="Model that is asked; default: the first that the server lists.")
    temperature: Annotated[Number, Field(ge=0, le=2)] = Field(default=0.0, description="Sampling temperature.")
    language: Language = Field(default="en", description="Language of the made-up text: en, de, fr, es or zh.")

    @property
    def computed_tokens_per_run(self) -> int:
        """Prompt tokens that a run makes the server compute: cold prompts each time, warm ones once and then their last block.

        The same figure as `probing.manners.run_cost`, by which a run is skipped: a budget that passes here admits one run.
        """
        cold = sum(self.prompt_tokens) * self.repeat if "cold" in self.cache else 0
        warm = sum(length + min(64, length) * self.repeat for length in self.prompt_tokens) if "warm" in self.cache else 0
        return cold + warm

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        found: list[tuple[tuple[str | int, ...], str, str]] = []
        if (self.interval is None) == (self.schedule is None):
            found.append(((), "needs either interval or schedule", "give exactly one of the two"))
        if self.schedule is None and self.timezone != "UTC":
            found.append((("timezone",), "has no effect without schedule", "remove it"))
        for key, values in (("prompt_tokens", self.prompt_tokens), ("cache", self.cache)):
            if not values or len(set(values)) < len(values):
                found.append(((key,), "is empty or names a value twice", "name each value once"))
        if self.budget_tokens_per_hour is not None and self.budget_tokens_per_hour < self.computed_tokens_per_run:
            need = self.computed_tokens_per_run
            found.append((("budget_tokens_per_hour",), f"is less than one run needs ({need} tokens)", f"write at least {need}"))
        if not self.endpoint.endswith(("/completions", "/generate")):
            found.append(
                (("endpoint",), "is no endpoint that generates", "write /v1/chat/completions, /v1/completions or, for SGLang, /generate")
            )
        if found:
            raise faults(found)
        return self


class Gpu(Section):
    """GPUs of this machine, through NVML."""

    enabled: Enabled = Field(default="auto", description="auto (where there is an NVML library), true or false.")
    interval: PositiveDuration = Field(default=1.0, description="Time between two readings.")
    expected_count: Annotated[Whole, Field(ge=1)] | None = Field(
        default=None, description="GPUs that should be there; published for the alert on a lost one."
    )


class Host(Section):
    """Processes and CPUs of this machine, through /proc and cgroups."""

    enabled: Enabled = Field(default="auto", description="auto (where a target's processes are on this machine), true or false.")


class Stall(Section):
    """When an engine counts as stalled."""

    after: PositiveDuration = Field(
        default=30.0, description="Time without progress, with work there, after which the engine counts as stalled."
    )


class ReportPrometheus(HttpClient):
    """The Prometheus (or compatible) server that the review asks."""

    url: BaseUrl = Field(description="Base URL, a path prefix allowed.")
    matchers: Text | None = Field(default=None, description="Matchers that are added to every selector, for example 'cluster=\"a\"'.")


class Report(Section):
    """The weekly capacity review."""

    schedule: Crontab | None = Field(
        default=None, description="Crontab of the review (minute hour day month weekday); none: by command only."
    )
    timezone: Timezone = Field(default="UTC", description="Time zone of `schedule` and of the review's days and hours.")
    directory: FilePath = Field(
        default="reports", validate_default=True, description="Directory that the reviews are written to and served from."
    )
    keep: Annotated[Whole, Field(ge=1)] = Field(default=52, description="Reviews that are kept; older ones are removed.")
    currency: Name = Field(default="EUR", description="Currency of `gpu_cost_per_hour`, as it is to be printed.")
    webhook_url_file: FilePath | None = Field(default=None, description="File that holds the URL to which a summary is posted.")
    prometheus: ReportPrometheus | None = Field(default=None, description="Server that holds the history.")

    @model_validator(mode="after")
    def _has_a_source(self) -> Self:
        if self.schedule is not None and self.prometheus is None:
            raise fault("cannot run without a Prometheus server", "schedule", remedy="add prometheus: {url: http://HOST:9090}")
        return self


class Generate(Section):
    """Dashboards, alert rules and documents."""

    prometheus_scrape_interval: PositiveDuration = Field(
        default=15.0, description="Interval at which Prometheus scrapes the exporter; sets the shortest range."
    )
    job: Name = Field(default="llm-exporter", description="Value of the label `job` of the exporter in Prometheus.")
    alert_labels: tuple[Annotated[LabelName, AfterValidator(_alert_label)], ...] = Field(
        default=(), description="Labels of `llm_target_info` that alerts carry too."
    )
    grafana_url: BaseUrl | None = Field(default=None, description="Base URL of Grafana, for links in alerts.")
    runbook_base_url: BaseUrl | None = Field(default=None, description="Base URL of the runbooks, for links in alerts.")


class Web(Section):
    """The exporter's own HTTP server."""

    allow_probe_urls: tuple[BaseUrl, ...] = Field(
        default=(), description="Base URLs below which `/probe` accepts URLs that are no configured target."
    )
    enable_reload: Flag = Field(default=False, description="Accept `POST /-/reload`; SIGHUP always works.")
    enable_debug: Flag = Field(default=True, description="Serve `/debug/…`.")
    max_requests: Annotated[Whole, Field(ge=1, le=1000)] = Field(
        default=40, description="Requests that are answered at once; more get 503. `/probe` gets at most half of them."
    )


class Config(Section):
    """The whole file."""

    model_config = ConfigDict(populate_by_name=True)

    global_: Global = Field(
        default=Global(), validation_alias="global", serialization_alias="global", description="Settings of every scrape."
    )
    targets: tuple[Target, ...] = Field(default=(), description="Servers that are scraped.")
    file_sd_configs: tuple[FileSdConfig, ...] = Field(default=(), description="Targets from files in Prometheus' file_sd format.")
    http_sd_configs: tuple[HttpSdConfig, ...] = Field(default=(), description="Targets from endpoints in Prometheus' http_sd format.")
    probe_modules: Mapping[Name, ProbeModule] = Field(default={}, description="Kinds of synthetic requests, by name.")
    gpu: Gpu = Field(default=Gpu(), description="GPUs of this machine.")
    host: Host = Field(default=Host(), description="Processes and CPUs of this machine.")
    stall: Stall = Field(default=Stall(), description="When an engine counts as stalled.")
    report: Report | None = Field(default=None, description="The weekly capacity review.")
    generate: Generate = Field(default=Generate(), description="Dashboards, alert rules and documents.")
    web: Web = Field(default=Web(), description="The exporter's own HTTP server.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if found := cross_problems(self):
            raise faults(found)
        return self


def cross_problems(config: object) -> list[tuple[tuple[str | int, ...], str, str]]:
    """What is wrong between sections: repeated target names, probe modules that do not exist, too many targets.

    Args:
        config: a `Config`, or the plain data of a file that has other problems too; what has the wrong shape is passed over.

    Returns: keys that lead to the culprit, what is wrong, remedy.
    """
    found: list[tuple[tuple[str | int, ...], str, str]] = []
    targets, modules = _list_of(config, "targets"), _of(config, "probe_modules")
    known = list(modules) if isinstance(modules, Mapping) else []
    first: dict[str, int] = {}
    for position, target in enumerate(targets):
        name = _of(target, "name")
        if isinstance(name, str) and first.setdefault(name, position) != position:
            found.append((("targets", position, "name"), f"the name is already that of targets[{first[name]}]", "give each target its own"))
    if len(targets) > MAX_TARGETS:
        found.append(
            (("targets", MAX_TARGETS), f"there are {len(targets)} targets; one exporter serves {MAX_TARGETS}", "run a second exporter")
        )
    places: list[tuple[tuple[str | int, ...], object]] = [(("targets", position), target) for position, target in enumerate(targets)]
    for key in ("file_sd_configs", "http_sd_configs"):
        places += [((key, position, "target"), _of(item, "target")) for position, item in enumerate(_list_of(config, key))]
    for place, target in places:
        for position, probe in enumerate(_list_of(target, "probes")):
            if isinstance(probe, str) and probe not in known:
                close = difflib.get_close_matches(probe, [name for name in known if isinstance(name, str)], n=1)
                remedy = f"did you mean {close[0]}?" if close else "add it to probe_modules"
                found.append(((*place, "probes", position), "no probe module has this name", remedy))
    return found


def _of(item: object, key: str) -> object:
    return item.get(key) if isinstance(item, Mapping) else getattr(item, key, None)


def _list_of(item: object, key: str) -> Sequence[object]:
    value = _of(item, key)
    return value if isinstance(value, list | tuple) else ()
