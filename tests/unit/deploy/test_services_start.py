"""The programs of the Compose file, started with the very commands and files it gives; host names become loopback, paths this checkout's.

What differs from a container: the programs are Debian's, the listen addresses are free ports, and data goes to a temporary folder.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
SECONDS = 40
PORTS = {"exporter": 9880, "prometheus": 9090, "alertmanager": 9093}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def mapped(service: str, folder: Path) -> dict[str, str]:
    """Container path → path here. Named volumes become folders; what is mounted becomes a copy, so that names can be changed in it."""
    found = {}
    for volume in SERVICES[service].get("volumes", []):
        source, target = volume.split(":")[:2]
        here = folder / target.strip("/").replace("/", "-")
        if source.startswith("./"):
            original = ROOT / source
            for file in [original] if original.is_file() else sorted(original.glob("*")):
                copy = here if original.is_file() else here / file.name
                if file.is_file():
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    copy.write_text(file.read_text())
        else:
            here.mkdir(parents=True)
        found[target] = str(here)
    return found


def rewrite(text: str, replaced: dict[str, str]) -> str:
    """All at once, longest first, whole words only: /alertmanager is not a part of /etc/alertmanager/alertmanager.yml."""
    words = "|".join(re.escape(word) for word in sorted(replaced, key=len, reverse=True))
    return re.sub(rf"(?<![\w-])(?:{words})(?![\w.-])", lambda found: replaced[found[0]], text)


def command(service: str, folder: Path, ports: dict[str, int], *more: str) -> list[str]:
    """The service's command with paths and ports of this test; rewrites the copied files likewise."""
    paths = mapped(service, folder)
    names = {f"{name}:{port}": f"127.0.0.1:{ports[name]}" for name, port in PORTS.items()}
    names["localhost:9090"] = f"127.0.0.1:{ports['prometheus']}"
    for path in folder.rglob("*.yml"):
        path.write_text(rewrite(path.read_text(), {**paths, **names}))
    for file in (Path(path) for path in paths.values()):
        if file.is_file():
            file.write_text(rewrite(file.read_text(), {**paths, **names}))
    return [rewrite(word, {**paths, ":9880": f"127.0.0.1:{ports['exporter']}"}) for word in SERVICES[service]["command"]] + list(more)


@contextmanager
def running(words: list[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    return json.loads(text) if "/api/" in url else text


def wait_for(url: str, holds: Callable[[Any], bool], process: subprocess.Popen[bytes], folder: Path) -> Any:
    """Asks until it holds; the program's log where it ends or never does."""
    last: Any = None
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "log").read_text()[-3000:]
        try:
            last = fetch(url)
            if holds(last):
                return last
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} gave {last!r}\n{(folder / 'log').read_text()[-3000:]}")


@pytest.mark.system
@pytest.mark.slow
def test_exporter_prometheus_and_alertmanager_come_up_and_find_each_other(program: Callable[[str], str], tmp_path: Path) -> None:
    programs = {"prometheus": program("prometheus"), "alertmanager": program("prometheus-alertmanager")}
    ports = {name: free_port() for name in PORTS}
    with ExitStack() as stack:
        started: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        for service in PORTS:
            folder = tmp_path / service
            folder.mkdir()
            if service == "exporter":
                words = [sys.executable, "-m", "llm_exporter", *command(service, folder, ports)]
            else:
                words = [programs[service], *command(service, folder, ports, f"--web.listen-address=127.0.0.1:{ports[service]}")]
            started[service] = stack.enter_context(running(words, folder)), folder
        wait_for(f"http://127.0.0.1:{ports['exporter']}/-/healthy", bool, *started["exporter"])
        wait_for(f"http://127.0.0.1:{ports['alertmanager']}/-/ready", bool, *started["alertmanager"])
        base = f"http://127.0.0.1:{ports['prometheus']}"
        wait_for(f"{base}/-/ready", bool, *started["prometheus"])

        groups = fetch(f"{base}/api/v1/rules")["data"]["groups"]
        assert {group["file"].rpartition("/")[2] for group in groups} == {"recording.yml", "alerts.yml"}
        assert sum(len(group["rules"]) for group in groups) > 50
        managers = wait_for(
            f"{base}/api/v1/alertmanagers", lambda found: bool(found["data"]["activeAlertmanagers"]), *started["prometheus"]
        )
        assert str(ports["alertmanager"]) in managers["data"]["activeAlertmanagers"][0]["url"]

        def all_up(found: Any) -> bool:
            health = {target["labels"]["job"]: target["health"] for target in found["data"]["activeTargets"]}
            return health == {"llm-exporter": "up", "prometheus": "up", "alertmanager": "up"}

        wait_for(f"{base}/api/v1/targets?state=active", all_up, *started["prometheus"])


@pytest.mark.slow
def test_the_demo_comes_up_as_the_compose_file_starts_it(tmp_path: Path) -> None:
    ports = {name: free_port() for name in PORTS}
    words = [sys.executable, "-m", "llm_exporter", *command("demo", tmp_path, ports)]
    with running(words, tmp_path) as process:
        page = f"http://127.0.0.1:{ports['exporter']}"
        wait_for(f"{page}/-/healthy", bool, process, tmp_path)
        wait_for(f"{page}/metrics", lambda text: text.count("\nllm_target_up{") == 2, process, tmp_path)


def test_health_check_of_the_image_is_what_a_shell_would_run() -> None:
    """The words behind CMD, run against a server that is not there: it fails, and fast."""
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    words = json.loads(text.split("HEALTHCHECK", 1)[1].split("CMD", 1)[1].split("\n", 1)[0])
    port = free_port()
    done = subprocess.run(
        [sys.executable, *[word.replace("9880", str(port)) for word in words[1:]]], capture_output=True, timeout=20, check=False
    )
    assert words[0] == "python"
    assert done.returncode == 1
