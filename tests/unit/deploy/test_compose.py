"""docker-compose.yml and its neighbours: valid by the Compose specification, careful by default, and of one mind with what is generated.

No Docker engine is needed. What only an engine can show is named in docs/deploy.md.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from llm_exporter.config.advice import advice
from llm_exporter.config.model import Config
from llm_exporter.generate.dashboards import MOUNTED, dashboard_artefacts
from llm_exporter.generate.promql import duration
from llm_exporter.generate.settings import DEFAULT_GRAFANA, LEAST_SCRAPES, RuleSettings

ROOT = Path(__file__).parents[3]
CASE = ROOT / "tests" / "fixtures" / "cases" / "OPS-01"
DEBIANS_SCHEMA = Path("/usr/lib/python3/dist-packages/compose/config/compose_spec.json")
OURS = ("exporter", "demo")


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return loaded


COMPOSE, GPU = load("docker-compose.yml"), load("docker-compose.gpu.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
PROMETHEUS = load("deploy/prometheus.yml")


def schema() -> dict[str, Any]:
    """The Compose specification's schema, as a Python or Debian package carries it; skips where none does."""
    package = importlib.util.find_spec("check_jsonschema")
    carried = [Path(package.origin).parent / "builtin_schemas" / "vendor" / "compose-spec.json"] if package and package.origin else []
    for path in (*carried, DEBIANS_SCHEMA):
        if path.is_file():
            found: dict[str, Any] = json.loads(path.read_text())
            return found
    pytest.skip("no copy of the Compose specification's schema: pip install check-jsonschema, or Debian's docker-compose")


@pytest.mark.parametrize("document", [COMPOSE, GPU], ids=["docker-compose.yml", "docker-compose.gpu.yml"])
def test_the_file_is_valid_by_the_compose_specification(document: dict[str, Any]) -> None:
    found = schema()
    if "host" not in json.dumps(found.get("definitions", {}).get("service", {}).get("properties", {}).get("cgroup", "")):
        # Debian's schema of 2021 does not know `cgroup:` yet.
        document = json.loads(json.dumps(document))
        document["services"]["exporter"].pop("cgroup", None)
    validator = jsonschema.validators.validator_for(found, default=jsonschema.Draft7Validator)
    assert [error.message for error in validator(found).iter_errors(document)] == []


@pytest.mark.system
@pytest.mark.parametrize("names", [("docker-compose.yml",), ("docker-compose.yml", "docker-compose.gpu.yml")], ids=["plain", "gpu"])
def test_docker_compose_config_accepts_it(names: tuple[str, ...], tmp_path: Path) -> None:
    program = shutil.which("docker-compose")
    if program is None:
        pytest.skip("docker-compose is not installed (Debian package docker-compose)")
    for name in names:
        text = (ROOT / name).read_text()
        (tmp_path / name).write_text(text.replace("    cgroup: host\n", ""))  # Debian's 1.29 does not know it; Compose 2 does
    arguments = [argument for name in names for argument in ("-f", str(tmp_path / name))]
    done = subprocess.run([program, *arguments, "config"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    merged = yaml.safe_load(done.stdout)["services"]
    assert merged["grafana"]["ports"] == ["127.0.0.1:3000:3000/tcp"]
    if len(names) > 1:
        assert merged["exporter"]["pid"] == "host"
        assert [volume.split(":")[1] for volume in merged["exporter"]["volumes"]] == [
            "/etc/llm-exporter", "/sys/fs/cgroup", "/var/lib/llm-exporter/reports"
        ]  # fmt: skip


def test_ops_01_servers_on_the_host_are_reachable() -> None:
    (wanted,) = [check["contains"] for check in json.loads((CASE / "expect.json").read_text())["checks"] if "contains" in check]
    for name in ("exporter", "prometheus"):
        assert wanted in SERVICES[name]["extra_hosts"]


def test_ops_01_localhost_in_a_container_is_warned_of() -> None:
    (warning,) = [c["value"] for c in json.loads((CASE / "expect.json").read_text())["checks"] if c["signal"] == "startup_warning"]
    document = yaml.safe_load((CASE / "config.yaml").read_text())
    for name, target in zip(("here", "host"), document["targets"], strict=True):
        target["name"] = name
    config = Config.model_validate(document)
    said = {place[1]: text for place, text, _ in advice(config, in_container=True) if place[0] == "targets"}
    assert list(said) == [0], "host.docker.internal is right, and localhost is not"
    assert said[0].startswith(warning)
    assert not [place for place, _, _ in advice(config, in_container=False) if place[0] == "targets"]


def test_ops_01_ports_are_bound_to_loopback_unless_the_user_asks() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == 5
    for port in published:
        assert re.fullmatch(r"\$\{LLM_BIND_ADDRESS:-127\.0\.0\.1\}:\d+:\d+", port)


def test_every_image_is_pinned() -> None:
    images = [service["image"] for name, service in SERVICES.items() if name not in OURS]
    images += re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(images) == 5
    for image in images:
        assert re.search(r":v?\d+\.\d+\.\d+", image), image


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_limited_and_has_few_rights(name: str) -> None:
    service = SERVICES[name]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["logging"]["options"]["max-size"]
    assert not service.get("privileged")
    assert "network_mode" not in service
    assert service.get("read_only") or name == "grafana"
    assert "healthcheck" in service or name in OURS  # theirs stands in the Dockerfile


def test_volumes_are_declared_and_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, rest = volume.partition(":")
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
                assert rest.endswith(":ro"), volume
            else:
                assert source in COMPOSE["volumes"]


def test_only_the_demo_needs_a_profile() -> None:
    assert {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service} == {"demo": ["demo"]}


def test_the_image_runs_without_root_and_says_whether_it_is_healthy() -> None:
    lines = DOCKERFILE.splitlines()
    (user,) = [line for line in lines if line.startswith("USER ")]
    assert re.fullmatch(r"USER [1-9]\d*:[1-9]\d*", user)
    assert lines.index(user) < next(at for at, line in enumerate(lines) if line.startswith("ENTRYPOINT"))
    assert "/-/healthy" in DOCKERFILE
    assert "ADD " not in DOCKERFILE
    assert not re.search(r"^#\s*syntax", DOCKERFILE), "a frontend would be fetched at build time"


def test_what_the_dockerfile_copies_is_there_and_not_ignored() -> None:
    ignore = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()]
    assert "exporter" in copied
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source.removeprefix('./')}" in ignore, source
    assert ignore[0] == "*"


def test_constraints_pin_every_dependency() -> None:
    pinned = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    project = (ROOT / "pyproject.toml").read_text()
    needed = re.search(r"^dependencies = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL)
    assert needed
    names = {re.split(r"[><=!\[]", name)[0].lower() for name in re.findall(r'^\s*"([^"]+)"', needed[1], re.MULTILINE)}
    assert len(names) > 10
    assert names <= pinned


def test_the_one_file_to_edit_is_valid_and_reaches_prometheus_by_its_service() -> None:
    document = load("deploy/config/llm-exporter.yml")
    config = Config.model_validate(document)
    assert config.report is not None
    assert config.report.prometheus is not None
    assert str(config.report.prometheus.url).rstrip("/") == "http://prometheus:9090"
    assert str(config.generate.grafana_url).rstrip("/") == DEFAULT_GRAFANA


def test_prometheus_is_of_one_mind_with_the_rules() -> None:
    settings = RuleSettings()
    job = PROMETHEUS["scrape_configs"][0]
    assert job["job_name"] == settings.job
    assert PROMETHEUS["global"]["scrape_interval"] == duration(settings.least_range / LEAST_SCRAPES)
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["prometheus"]["volumes"]}
    for path in PROMETHEUS["rule_files"]:
        folder, _, name = path.rpartition("/")
        assert (ROOT / mounted[folder] / name).is_file(), path
    names = [target.split(":")[0] for config in PROMETHEUS["scrape_configs"] for sd in config["static_configs"] for target in sd["targets"]]
    names += [name for sd in job["dns_sd_configs"] for name in sd["names"]]
    names += [
        target.split(":")[0]
        for manager in PROMETHEUS["alerting"]["alertmanagers"]
        for sd in manager["static_configs"]
        for target in sd["targets"]
    ]
    assert set(names) - {"localhost"} <= set(SERVICES)


def test_grafana_finds_what_is_provisioned() -> None:
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in SERVICES["grafana"]["volumes"]}
    files = dashboard_artefacts(RuleSettings())
    provider = yaml.safe_load(files["dashboards/provisioning/dashboards/llm-exporter.yml"])["providers"][0]
    assert provider["options"]["path"] == MOUNTED
    assert mounted[MOUNTED] == "./dashboards"
    assert mounted["/etc/grafana/provisioning/datasources"] == "./dashboards/provisioning/datasources"
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.replace(MOUNTED, "dashboards") in files
    sources = yaml.safe_load(files["dashboards/provisioning/datasources/llm-exporter.yml"])["datasources"]
    assert {source["url"].split("//")[1].split(":")[0] for source in sources} <= set(SERVICES)


def test_the_gpu_file_adds_what_readings_need() -> None:
    added = GPU["services"]["exporter"]
    assert added["pid"] == "host"
    assert "/sys/fs/cgroup:/sys/fs/cgroup:ro" in added["volumes"]
    assert added["deploy"]["resources"]["reservations"]["devices"] == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
    assert set(GPU["services"]) == {"exporter"}
