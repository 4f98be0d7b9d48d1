"""From a fault in a server to the words that a person reads: simulated servers → exporter → Prometheus → Alertmanager → web hook.

The short run is part of `make test`. The whole one takes six minutes: `make e2e-alerts` sets E2E_ALERTS, without it its tests are skipped.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests

from e2e.alerts.expected import LONG, MAY, MUST, PROMISED, Told
from e2e.alerts.plays import DEMO, ENDS, FAULTS, STARTS, hang
from e2e.alerts.programs import Notice, until, vmalert
from e2e.alerts.stage import Cast, Stage, play
from llm_exporter.generate.dashboards import PanelQuery, queries, rendered
from llm_exporter.generate.dashboards_model import Needs

LONG_RUN = pytest.mark.skipif(not os.environ.get("E2E_ALERTS"), reason="takes six minutes: make e2e-alerts")
HANGS, WAKES = 8.0, 32.0  # of the short run
LAST_SECOND = 345.0  # the slowest alert that resolves does so 40 s after the last queue is gone; Alertmanager may take 15 s more
# An alert of the trouble arrives while it lasts; Alertmanager may hold it for one group interval.
LATEST = ENDS + 15.0
MOMENTS = (50.0, 100.0, 140.0, 175.0, 240.0, 320.0)
# Panels that nothing in these plays can fill, and why.
CANNOT_BE_FILLED = {
    Needs.RANKS: "one rank",
    Needs.DISAGGREGATED: "no disaggregated server",
    Needs.ENGINE_SPECIFIC: "not in these releases",
    Needs.GPU_EVENT: "no simulated GPU has an XID error",
    Needs.GPU_MEMORY_ERRORS: "no simulated GPU counts memory errors",
    Needs.PROBE_CLOCK: "the simulated servers do not tell their own times",
    Needs.HISTORY: "a play is not days long",
    Needs.REPORT: "no capacity review is scheduled",
}
# Panels that are empty while all is well, of troubles that these plays do not have.
ALL_IS_WELL = {"Reasons of sources": "every source of the simulated host is there"}
# What must be above 0 in a panel while its trouble is there; in all others any value will do.
FILLED_BY = {
    "Preemptions": "vllm-kv-pressure",
    "Why it is down": "vllm-gone",
    "Throttling": "vllm-throttled",
    "Stalled": "vllm-stalled",
    "GPU starved by the CPU": "vllm-starved",
    "Share of failed answers": "vllm-refusing",
    "Waiting requests": "vllm-queue",
}


@pytest.fixture
def alertmanager_program(program: Callable[[str], str]) -> str:
    return program("prometheus-alertmanager")


def texts_are_right(notice: Notice, told: Told) -> None:
    """Labels, receiver, value with unit, evidence, and links with their variables filled."""
    assert (notice.labels["severity"], notice.receiver, notice.labels["team"]) == (told.severity, told.severity, "search")
    target = notice.labels["target"]
    assert target in notice.annotations["summary"]
    assert re.search(told.value, notice.annotations["value"]), notice.annotations["value"]
    assert re.search(told.evidence, notice.annotations["evidence"]), notice.annotations["evidence"]
    assert notice.annotations["runbook_url"] == f"https://runbooks.example.com/{told.name}.md"
    assert notice.annotations["dashboard_url"].startswith("https://grafana.example.com/d/llm-")
    assert f"var-target={target}" in notice.annotations["dashboard_url"]
    assert "{{" not in str(notice.annotations)
    assert "no value" not in str(notice.annotations)


@pytest.mark.slow
def test_a_hang_reaches_a_person_and_goes(tmp_path: Path, prometheus: str, alertmanager_program: str) -> None:
    """The short run: both engines hang for a while; nothing else is told."""
    names = ("demo-vllm", "demo-sglang")
    with play(Cast([hang(HANGS, WAKES)], stall_after=10), tmp_path, prometheus=prometheus, alertmanager=alertmanager_program) as stage:
        stalled = MUST["vllm-stalled"][0]

        def told(name: str, status: str) -> list[Notice]:
            return [n for n in stage.sink.of(name) if n.name == stalled.name and n.status == status]

        until(lambda: all(told(name, "firing") for name in names), 40, what="both stalls told")
        assert stage.second < WAKES
        until(lambda: all(told(name, "resolved") for name in names), 40, what="both stalls resolved")
        for name in names:
            texts_are_right(told(name, "firing")[0], stalled)
        assert {notice.name for notice in stage.sink.notices if notice.at < WAKES} == {stalled.name}
        assert not [rule for rule in stage.prometheus.rules() if rule["health"] == "err"]


# -- the long run ------------------------------------------------------------------------------------------------------------------------


class Vm(NamedTuple):
    """What vmalert said in the middle of the play."""

    rules: list[dict[str, Any]]
    firing: set[tuple[str, str]]


class Played(NamedTuple):
    """The long run while its Prometheus still answers."""

    stage: Stage
    vm: Vm | None


def ask_vmalert(program: str, folder: Path, stage: Stage) -> Vm:
    """Runs vmalert beside Prometheus for half a minute of trouble."""
    with vmalert(program, folder, stage.rules, stage.prometheus.url, stage.sink.url) as url:
        stage.wait(175.0)
        groups = requests.get(f"{url}/api/v1/rules", timeout=20).json()["data"]["groups"]
        alerts = requests.get(f"{url}/api/v1/alerts", timeout=20).json()["data"]["alerts"]
    firing = {(a["name"], a["labels"].get("target", "")) for a in alerts if a["state"] == "firing"}
    return Vm([rule for group in groups for rule in group["rules"]], firing)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[Played]:
    programs = {name: program(name) for name in ("prometheus", "prometheus-alertmanager")}
    folder = tmp_path_factory.mktemp("alerts")
    cast = Cast(DEMO, FAULTS, PROMISED)
    with play(cast, folder, prometheus=programs["prometheus"], alertmanager=programs["prometheus-alertmanager"]) as stage:
        assert set(cast.servers) == set(MUST)
        stage.wait(STARTS)
        cast.relays["vllm-gone"].cut()
        stage.wait(135.0)
        try:
            vm = ask_vmalert(program("vmalert"), folder, stage)
        except pytest.skip.Exception:
            vm = None  # the test of vmalert skips itself with the reason
        stage.wait(ENDS)
        cast.relays["vllm-gone"].join()
        stage.wait(LAST_SECOND)
        (folder / "arrived.json").write_text(json.dumps([notice._asdict() for notice in stage.sink.notices], indent=1))
        yield Played(stage, vm)


def first(notices: list[Notice], name: str, status: str = "firing") -> Notice | None:
    return next((notice for notice in notices if (notice.name, notice.status) == (name, status)), None)


@LONG_RUN
@pytest.mark.timeout(600)
def test_the_machine_was_fast_enough(played: Played) -> None:
    """Where this fails, no other failure means anything: the play is in real time and needs two cores for itself."""
    database = played.stage.prometheus
    lost = database.ask(f"1 - avg_over_time(up[{LAST_SECOND:.0f}s])")
    assert float(lost[0]["value"][1]) < 0.02, "Prometheus lost scrapes of the exporter"
    steady = [name for name in MUST if name != "vllm-gone"]
    down = database.ask(f'min_over_time(llm_target_up{{target=~"{"|".join(steady)}"}}[{LAST_SECOND:.0f}s]) == 0')
    assert not down, "the exporter lost scrapes of the simulated servers"


@LONG_RUN
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", MUST)
def test_the_right_alert_arrives_with_the_right_words(played: Played, target: str) -> None:
    notices = played.stage.sink.of(target)
    for told in MUST[target]:
        notice = first(notices, told.name)
        assert notice is not None, f"{told.name} did not arrive: {[(n.name, round(n.at)) for n in notices]}"
        assert STARTS < notice.at < LATEST
        texts_are_right(notice, told)


@LONG_RUN
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", MUST)
def test_all_others_stay_silent(played: Played, target: str) -> None:
    allowed = {told.name for told in MUST[target]} | MAY.get(target, set())
    others = [(n.name, round(n.at), n.annotations) for n in played.stage.sink.of(target) if n.name not in allowed and n.status == "firing"]
    assert not others


@LONG_RUN
@pytest.mark.timeout(600)
def test_nothing_is_told_of_the_exporter_itself(played: Played) -> None:
    assert not [notice for notice in played.stage.sink.notices if not notice.labels.get("target")]


@LONG_RUN
@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", MUST)
def test_what_arrived_resolves(played: Played, target: str) -> None:
    last = {notice.name: notice.status for notice in played.stage.sink.of(target)}
    assert not {name for name, status in last.items() if status == "firing" and name not in LONG}


@LONG_RUN
@pytest.mark.timeout(600)
def test_a_page_mutes_the_tickets_of_its_target(played: Played) -> None:
    """The queue of vllm-queue grows, and Prometheus says so; but whoever is paged for the burnt budget gets no ticket beside it."""
    fired = played.stage.prometheus.ask(
        f'ALERTS{{alertname="LLMQueueGrowing",alertstate="firing",target="vllm-queue"}}[{LAST_SECOND:.0f}s]'
    )
    assert fired, "it did fire in Prometheus"
    notices = played.stage.sink.of("vllm-queue")
    page = first(notices, "LLMSLOBudgetBurnFast")
    over = first(notices, "LLMSLOBudgetBurnFast", "resolved")
    assert page is not None
    assert over is not None
    assert not [n for n in notices if n.labels["severity"] == "ticket" and n.status == "firing" and page.at <= n.at < over.at]


@LONG_RUN
@pytest.mark.timeout(600)
def test_every_rule_evaluates(played: Played) -> None:
    rules = played.stage.prometheus.rules()
    assert rules
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []


@LONG_RUN
@pytest.mark.timeout(600)
def test_vmalert_evaluates_the_same_rules(played: Played, program: Callable[[str], str]) -> None:
    program("vmalert")
    assert played.vm is not None
    assert len(played.vm.rules) == len(played.stage.prometheus.rules())
    assert [(rule["name"], rule["lastError"]) for rule in played.vm.rules if rule.get("lastError")] == []
    assert {
        ("LLMEngineStalled", "vllm-stalled"),
        ("LLMSLOBudgetBurnFast", "vllm-queue"),
        ("LLMTargetDown", "vllm-gone"),
    } <= played.vm.firing
    assert not {target for _, target in played.vm.firing if target.endswith("-healthy")}


def answered(stage: Stage, query: PanelQuery, targets: list[str], above: float) -> bool:
    """Whether the query returns something for one of the targets at one of the moments."""
    for target in targets:
        for moment in MOMENTS:
            found = stage.prometheus.ask(rendered(query.query, target=target), stage.began + moment)
            if any(float(series["value"][1]) > above for series in found):
                return True
    return False


@LONG_RUN
@pytest.mark.timeout(600)
def test_every_panel_shows_something_where_it_should(played: Played) -> None:
    empty = []
    for query in queries():
        if query.needs in CANNOT_BE_FILLED or query.panel in ALL_IS_WELL:
            continue
        trouble = FILLED_BY.get(query.panel)
        if not answered(played.stage, query, [trouble] if trouble else list(MUST), 0.0 if trouble else -math.inf):
            empty.append((query.board, query.panel, query.query))
    assert not empty
    assert {*FILLED_BY, *ALL_IS_WELL} <= {query.panel for query in queries()}
