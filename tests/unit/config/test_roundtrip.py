"""Any configuration written to a file loads to the same configuration."""

# tables: one case on one line

from __future__ import annotations

import string
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_exporter.config.describe import words
from llm_exporter.config.durations import format_duration, parse_duration
from llm_exporter.config.http_client import Authorization, BasicAuth, Header, TlsConfig
from llm_exporter.config.keys import sections_of
from llm_exporter.config.load import load_config
from llm_exporter.config.model import (
    Config,
    FileSdConfig,
    Generate,
    Global,
    Gpu,
    HttpSdConfig,
    Limits,
    ProbeModule,
    Process,
    Report,
    ReportPrometheus,
    Secret,
    Slo,
    Stall,
    Target,
    TargetDefaults,
    Web,
)  # fmt: skip
from llm_exporter.config.render import render_config
from llm_exporter.config.target import FORBIDDEN_LABELS
from llm_exporter.config.values import Section


def plain(section: Section) -> dict[str, Any]:
    """A section as a file would hold it."""
    keys = {}
    for (key, field), name in zip(sections_of(type(section)).items(), map(attribute, sections_of(type(section))), strict=True):
        value = getattr(section, name)
        if value is not None:
            keys[key] = format_duration(value) if words(field) == "<duration>" else written(value)
    return keys


def attribute(key: str) -> str:
    return "global_" if key == "global" else key


def written(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.reveal().replace("$", "$$")
    if isinstance(value, Section):
        return plain(value)
    if isinstance(value, tuple):
        return [written(item) for item in value]
    if isinstance(value, Mapping):
        return {key: written(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value


text = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=20)
names = text.map(str.strip).filter(bool)
seconds = st.integers(1, 10**9).map(lambda milliseconds: milliseconds / 1000)
secrets = st.text(st.characters(codec="latin-1", exclude_categories=("Cc",)), min_size=1, max_size=20).map(Secret)
words_ = st.text(string.ascii_letters + "_", min_size=1, max_size=8)
labels = words_.filter(lambda name: name not in FORBIDDEN_LABELS and not name.startswith("__"))
urls = st.builds(
    lambda host, port, path: f"http://{host}{port}{path}",
    st.sampled_from(["a", "example.org", "10.0.0.7", "[::1]"]), st.sampled_from(["", ":8000"]), st.sampled_from(["", "/x", "/a/b.c"]),
)  # fmt: skip
files = words_.map(lambda name: Path("/etc") / name)
authorizations = st.one_of(
    st.builds(Authorization, credentials=secrets), st.builds(Authorization, type=st.just("Token"), credentials_file=files)
)
users = words_ | st.just("a$b")
client = {
    "tls_config": st.none() | st.builds(TlsConfig, ca_file=files, insecure_skip_verify=st.booleans(), min_version=st.sampled_from([None, "TLS12"])),
    "headers": st.dictionaries(words_.map("X-{}".format).map(str.lower), st.builds(Header, values=st.tuples(secrets), files=st.tuples(files)), max_size=2),
}  # fmt: skip
slos = st.lists(
    st.builds(
        Slo, name=names, metric=st.sampled_from(["time_to_first_token", "inter_token_latency"]), threshold=seconds,
        objective=st.floats(0.01, 0.99),
    ), max_size=3, unique_by=lambda slo: slo.name,
).map(tuple)  # fmt: skip
defaults = client | {
    "engine": st.sampled_from(["auto", "vllm", "sglang"]), "metrics_path": st.sampled_from(["/metrics", "/a/metrics/"]),
    "labels": st.dictionaries(labels, text, max_size=3), "slos": slos, "gpus": st.sampled_from(["auto", "none", (0, 3), ("GPU-1a", "0.1")]),
    "process": st.sampled_from([Process(), Process(find="cmdline", cmdline="a.*b")]), "limits": st.sampled_from([Limits(), Limits(running=2)]),
    "gpu_count": st.none() | st.integers(1, 99), "gpu_cost_per_hour": st.none() | st.floats(0, 1e6),
    "probes": st.sampled_from([(), ("short",), ("short", "ladder")]), "authorization": st.none() | authorizations,
}  # fmt: skip
basic = st.builds(BasicAuth, username=words_, password=secrets)
targets = st.lists(
    st.builds(Target, name=names, url=urls, **defaults)
    | st.builds(Target, name=names, url=urls, **(defaults | {"authorization": st.none(), "basic_auth": basic})),
    max_size=3, unique_by=lambda target: target.name,
).map(tuple)  # fmt: skip
configs = st.builds(
    Config,
    global_=st.builds(Global, scrape_interval=seconds, scrape_timeout=seconds),
    targets=targets,
    file_sd_configs=st.lists(st.builds(FileSdConfig, files=st.just(("/a/*.yml",)), target=st.builds(TargetDefaults, **defaults)), max_size=1).map(tuple),
    http_sd_configs=st.lists(st.builds(HttpSdConfig, url=urls.map("{}?a=b".format), refresh_interval=seconds, **client), max_size=1).map(tuple),
    probe_modules=st.just({
        "short": ProbeModule(interval=30, temperature=0.5),
        "ladder": ProbeModule(schedule="*/5 4 * * mon-fri", timezone="Europe/Berlin", prompt_tokens=(1, 2), cache=("warm", "cold"), repeat=3),
    }),
    gpu=st.builds(Gpu, enabled=st.sampled_from(["auto", True, False]), interval=seconds),
    stall=st.builds(Stall, after=seconds),
    report=st.none() | st.builds(
        Report, schedule=st.just("0 8 * * mon"), directory=files, currency=names, prometheus=st.builds(ReportPrometheus, url=urls, matchers=text)
    ),
    generate=st.builds(Generate, job=names, alert_labels=st.sampled_from([(), ("team",)])),
    web=st.builds(Web, allow_probe_urls=st.lists(urls, max_size=2).map(tuple), max_requests=st.integers(1, 1000)),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(configs)
def test_what_is_written_loads_to_the_same(config: Config) -> None:
    document = yaml.safe_dump(plain(config), allow_unicode=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "c.yml"
        file.write_text(document, encoding="utf-8")
        assert load_config(file, {}) == config
    assert yaml.safe_load(render_config(document))["global"] == plain(config)["global"]


@given(st.integers(0, 10**12))
def test_a_formatted_duration_parses_to_itself(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000
