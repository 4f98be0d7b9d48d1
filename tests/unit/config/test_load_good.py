"""Files that load, and what becomes of their values."""

# tables: one case on one line

from __future__ import annotations

from pathlib import Path

import pytest

from llm_exporter.config.load import load, load_config
from llm_exporter.config.model import Config, Global, ProbeModule, Target
from llm_exporter.errors import ConfigError

GOOD = Path(__file__).parents[2] / "fixtures" / "config" / "good"


def read(tmp_path: Path, text: str, **environ: str) -> Config:
    file = tmp_path / "c.yml"
    file.write_text(text)
    return load_config(file, environ)


def test_the_example_of_the_specification_loads_with_its_values() -> None:
    config = load_config(GOOD / "contract.yml", {})
    target = config.targets[0]
    assert (target.name, target.url, target.service, target.engine, target.gpus) == (
        "chat",
        "http://127.0.0.1:8000",
        "chat",
        "auto",
        "auto",
    )
    assert target.slos[0].threshold == 1.0
    assert target.limits.context_tokens == 32768
    assert target.authorization is not None
    assert target.authorization.credentials_file == Path("/run/secrets/token")
    assert config.probe_modules["ladder"].prompt_tokens == (2048, 8192, 16384, 32768)
    assert config.probe_modules["ladder"].cache == ("cold", "warm")
    assert config.probe_modules["short"].interval == 30.0
    assert config.report is not None
    assert config.report.directory == GOOD / "reports"
    assert config.file_sd_configs[0].files == (str(GOOD / "targets/*.yml"),)
    assert config.file_sd_configs[0].target.probes == ("short",)


def test_anchors_merge_keys_empty_sections_and_plain_text_mean_what_they_say() -> None:
    config = load_config(GOOD / "shared.yml", {"TOKEN": "s3cret"})
    first, second = config.targets
    assert first.labels == {"country": "no", "rack": "12", "since": "2024-01-01"}
    assert second.labels == {"country": "dk", "rack": "12", "since": "2024-01-01"}
    assert (first.url, second.url) == ("http://[::1]:8000/prefix", "https://example.org")
    assert first.gpus == (0, "0.1", "GPU-3f2a")
    assert second.gpus == "none"
    assert second.process.cmdline == "vllm serve"
    assert first.authorization is not None
    assert first.authorization.credentials is not None
    assert first.authorization.credentials.reveal() == "a$bs3cret"
    assert first.headers["X-Plain"].values[0].reveal() == "s3cret"
    assert first.headers["X-Listed"].files == (GOOD / "header",)
    assert (first.slos, config.probe_modules, config.global_) == ((), {}, Global())


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}\n"])
def test_an_empty_file_is_all_defaults(text: str, tmp_path: Path) -> None:
    assert read(tmp_path, text) == Config()


def test_the_timeout_may_exceed_the_interval(tmp_path: Path) -> None:
    assert read(tmp_path, "global: {scrape_interval: 1s, scrape_timeout: 1m}").global_.scrape_timeout == 60.0


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    assert read(tmp_path, "\ufeffgpu: {interval: 2s}\n").gpu.interval == 2.0


def test_json_is_a_configuration_too(tmp_path: Path) -> None:
    assert read(tmp_path, '{"targets": [{"name": "a", "url": "http://a:1", "labels": {"x": "on"}}]}').targets[0].labels == {"x": "on"}


def test_variables_are_expanded_in_credentials_and_nowhere_else(tmp_path: Path) -> None:
    text = """
targets:
  - name: ${NAME}
    url: http://a:1
    labels: {x: "${NAME}"}
    metrics_path: /${NAME}
    basic_auth: {username: "u-${NAME}", password: "$$${NAME}$"}
    headers: {X-A: "${NAME}${NAME}"}
"""
    target = read(tmp_path, text, NAME="$$v").targets[0]
    assert (target.name, target.labels["x"], target.metrics_path) == ("${NAME}", "${NAME}", "/${NAME}")
    assert target.basic_auth is not None
    assert target.basic_auth.username == "u-$$v"
    assert target.basic_auth.password is not None
    assert target.basic_auth.password.reveal() == "$$$v$"
    assert target.headers["X-A"].values[0].reveal() == "$$v$$v"


def test_a_target_made_in_code_needs_name_and_url_only() -> None:
    target = Target(name="t000", url="http://replayed.invalid")
    assert (target.service, target.metrics_path, target.probes) == ("t000", "/metrics", ())
    assert target.url_of("/metrics") == "http://replayed.invalid/metrics"


def test_in_code_durations_are_seconds() -> None:
    assert Global(scrape_interval=0.2).scrape_interval == 0.2
    assert ProbeModule(interval=30, prompt_tokens=(5,)).interval == 30.0


def test_targets_that_did_not_change_are_equal_after_a_reload(tmp_path: Path) -> None:
    text = "targets: [{name: a, url: 'http://a:1', authorization: {credentials: x}}, {name: b, url: 'http://b:1'}]"
    before, after = read(tmp_path, text), read(tmp_path, text.replace("'http://b:1'", "'http://b:2'"))
    assert before.targets[0] == after.targets[0]
    assert before.targets[1] != after.targets[1]
    assert before.targets[0] != read(tmp_path, text.replace("credentials: x", "credentials: y")).targets[0]


def test_models_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Target(name="a", url="http://a:1").url = "http://b:1"  # type: ignore[misc]


WARNINGS = {
    "localhost": ("targets: [{name: a, url: 'http://localhost:8000'}]", 'c.yml:1: targets[0].url: value "http://localhost:8000": localhost inside a container is the container itself'),
    "v1": ("targets: [{name: a, url: 'http://a:8000/v1'}]", "ends in /v1, below which engines serve no metrics; remove /v1"),
    "metrics": ("targets: [{name: a, url: 'http://a:8000/metrics'}]", "ends in /metrics, which metrics_path adds again; remove /metrics"),
    "same server": ("targets: [{name: a, url: 'http://a:1'}, {name: b, url: 'http://a:1'}]", "is that of the target a, so the server is scraped twice"),
    "unit": ("targets: [{name: a, url: 'http://a:1', slos: [{name: s, metric: inter_token_latency, threshold: 50s, objective: 0.9}]}]", "targets[0].slos[0].threshold: value 50s: is unusual for inter_token_latency; check the unit (usual are 2ms to 5s)"),
    "no verification": ("targets: [{name: a, url: 'https://a:1', tls_config: {insecure_skip_verify: true}}]", "tls_config.insecure_skip_verify: value true: anybody on the way can read"),
    "missing file": ("targets: [{name: a, url: 'http://a:1', authorization: {credentials_file: /no/such}}]", "there is no file /no/such now"),
    "slow scrapes": ("global: {scrape_interval: 2m}\nstall: {after: 30m}", "c.yml:1: global.scrape_interval: value 2m: is so long that the window of 1m holds no two scrapes"),
    "unused module": ("probe_modules: {m: {interval: 1m}}", "probe_modules.m: no target names this module"),
    "slow probe": ("probe_modules: {m: {interval: 10s}}", "c.yml:1: probe_modules.m.timeout: is longer than the interval"),
    "nothing": ("{}", "c.yml:1: targets: there is nothing to scrape; add a target"),
    "label": ("targets: [{name: a, url: 'http://a:1'}]\ngenerate: {alert_labels: [team]}", "c.yml:2: generate.alert_labels: no target has the label team"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), WARNINGS.values(), ids=WARNINGS)
def test_what_looks_wrong_is_warned_of(text: str, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text(text)
    warnings = load(file, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}).warnings
    assert any(wanted in warning for warning in warnings), warnings


def test_a_plain_configuration_has_no_warnings(tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text("targets: [{name: a, url: 'http://host.docker.internal:8000'}]")
    assert load(file, {}).warnings == ()


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope\.yml: cannot be read: No such file or directory; check the path"):
        load_config(tmp_path / "nope.yml", {})
