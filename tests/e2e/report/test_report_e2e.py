"""The command on a real Prometheus: five weeks of recorded series, and two days of raw metrics without rules. `make e2e-report`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.report.history import BERLIN, END, FIVE_WEEKS, Scenario, simulate, to_history, true_capacity, write_openmetrics
from e2e.report.raw import raw_openmetrics
from e2e.report.server import create_blocks
from e2e.report.server import prometheus as running
from llm_exporter.report.document import document
from llm_exporter.report.finding import Span
from llm_exporter.report.review import review

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

CONFIG = """
targets:
  - {name: chat-0, url: "http://127.0.0.1:1", gpu_cost_per_hour: 2.5}
  - {name: chat-1, url: "http://127.0.0.1:2", gpu_cost_per_hour: 2.5}
  - {name: chat-2, url: "http://127.0.0.1:3", gpu_cost_per_hour: 2.5}
report: {timezone: Europe/Berlin}
"""


def report(url: str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    arguments = ["report", "--prometheus.url", url, "--end", "2026-11-02T08:00:00+01:00", "--out", str(out), *more]
    return subprocess.run([sys.executable, "-m", "llm_exporter", *arguments], capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, prometheus: str, promtool: str) -> Iterator[str]:
    base = tmp_path_factory.mktemp("five-weeks")
    write_openmetrics(simulate(FIVE_WEEKS, END), base / "history.om")
    create_blocks(base / "history.om", base / "data")
    with running(base / "data") as url:
        yield url


@pytest.fixture(scope="module")
def made(server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("made")
    (base / "config.yaml").write_text(CONFIG)
    done = report(server, base / "out", "--config.file", str(base / "config.yaml"), "--png")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith("report.json")
    return base / "out"


def models(made: Path) -> dict[str, Any]:
    return {one["model"]: one for one in json.loads((made / "report.json").read_text())["models"]}


def test_the_review_names_each_known_thing_and_nothing_else(made: Path) -> None:
    body = json.loads((made / "report.json").read_text())
    assert body["warnings"] == [
        "acme/chat-70b: chat-1 did not answer from Tue 27 Oct 22:00 to Wed 28 Oct 06:00 (8.0 h).",
        "acme/mini-3b: mini kept its GPUs waiting for the CPU from Fri 30 Oct 00:00 to Fri 30 Oct 06:00 (6.0 h).",
    ]
    chat, code, mini = (models(made)[name] for name in ("acme/chat-70b", "acme/code-8b", "acme/mini-3b"))
    assert chat["growth"]["lower"] > 0.01
    assert chat["growth"]["lower"] <= 0.04 / 1.2 <= chat["growth"]["upper"]
    for flat in (code, mini):
        assert flat["growth"]["lower"] <= 0 <= flat["growth"]["upper"]
    assert [one["metric"] for one in code["regressions"]] == ["time_to_first_token_p95_seconds"]
    assert code["regressions"][0]["since"].startswith("2026-10-28T")
    assert chat["regressions"] == mini["regressions"] == []
    assert mini["gpu_hours"]["starved"] > 2
    assert chat["gpu_hours"]["starved"] == code["gpu_hours"]["starved"] == 0
    page = (made / "report.html").read_text()
    for text in (
        "Load grows by",
        "Week-ends carry 50 %",
        "Week-ends carry 60 %",
        "chat-1 did not answer",
        "time_to_first_token_p95_seconds is",
        "mini kept its GPUs waiting",
    ):
        assert text in page.replace("\N{NO-BREAK SPACE}", " "), text


def test_figures_agree_with_the_truth(made: Path) -> None:
    found = models(made)
    for scenario in FIVE_WEEKS:
        one = found[scenario.model]
        assert one["sustainable"]["value"] == pytest.approx(true_capacity(scenario) * len(scenario.targets), rel=0.02)
        assert one["gpu_hours"]["total"] == pytest.approx(168 * scenario.gpus * len(scenario.targets))
    assert found["acme/chat-70b"]["cost"]["idle"] == pytest.approx(2.5 * found["acme/chat-70b"]["gpu_hours"]["idle"], rel=1e-4)


def test_the_review_through_the_server_is_the_one_without(made: Path) -> None:
    start = END - 7 * 86_400
    direct = document(review(to_history(simulate(FIVE_WEEKS, END)), Span(start, END), BERLIN, "Europe/Berlin"))
    for one in direct["models"]:
        other = models(made)[one["model"]]
        for key in ("slo", "load", "sustainable", "growth", "gpu_hours", "prefix_cache", "regressions"):
            assert json.dumps(other[key]) == json.dumps(one[key]) or close(other[key], one[key]), key


def close(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return all(close(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(close(a, b) for a, b in zip(found, expected, strict=True))
    if isinstance(expected, float) and isinstance(found, float):
        return found == pytest.approx(expected, rel=1e-3, abs=1e-9)
    return bool(found == expected)


def test_raw_metrics_give_the_same_review_with_a_warning(tmp_path: Path, prometheus: str, promtool: str) -> None:
    scenario = Scenario("org/raw", ("a", "b"), gpus=2, base=1.2, knee=0.8, weekend=1.0, seed=5)
    written = simulate((scenario,), END, 2 / 7)
    with (tmp_path / "raw.om").open("w") as file:
        file.writelines(raw_openmetrics(written))
    create_blocks(tmp_path / "raw.om", tmp_path / "data")
    with running(tmp_path / "data") as url:
        done = report(url, tmp_path / "out", "--range", "1d", "--history", "2d", "--timezone", "Europe/Berlin")
    assert done.returncode == 0, done.stderr
    body = json.loads((tmp_path / "out" / "report.json").read_text())
    assert any("No recording rules found" in warning for warning in body["warnings"])
    (one,) = body["models"]
    expected = document(review(to_history(written), Span(END - 86_400, END), BERLIN, "Europe/Berlin"))["models"][0]
    assert one["targets"] == ["a", "b"]
    assert one["gpus"] == 4
    for key in ("p50", "p95", "peak"):
        assert one["load"][key] == pytest.approx(expected["load"][key], rel=0.05)
    assert one["slo"][0]["good_ratio"] == pytest.approx(expected["slo"][0]["good_ratio"], abs=1e-4)
    assert one["gpu_hours"]["useful"] == pytest.approx(expected["gpu_hours"]["useful"], rel=0.05)
    assert one["bottleneck_share"].keys() == expected["bottleneck_share"].keys()


def test_an_empty_server_gets_a_clear_word(tmp_path: Path, prometheus: str) -> None:
    (tmp_path / "data").mkdir()
    with running(tmp_path / "data") as url:
        done = report(url, tmp_path / "out")
    assert done.returncode == 1
    assert "holds no llm_target_up between" in done.stderr
    assert "is llm-exporter scraped by this server" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_page_opens_in_a_browser_and_prints(made: Path, tmp_path: Path, program: Any) -> None:
    browser = program("chromium")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ]
    page = f"file://{made / 'report.html'}"
    for width in (1200, 400):
        picture = tmp_path / f"{width}.png"
        run_browser(browser, [*flags, f"--window-size={width},3000", f"--screenshot={picture}", page], tmp_path)
        assert picture.stat().st_size > 30_000
    run_browser(browser, [*flags, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}", page], tmp_path)
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def run_browser(browser: str, arguments: list[str], base: Path) -> None:
    profile = base / f"profile-{time.monotonic_ns()}"
    subprocess.run(
        [browser, "--disable-sync", f"--user-data-dir={profile}", *arguments],
        check=True,
        capture_output=True,
        timeout=120,
        env={**os.environ, "HOME": str(base)},
    )
