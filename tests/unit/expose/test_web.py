"""Routes over a site made by hand: formats, encodings, hostile names, reload rules, the limit of requests."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.test import Client

from llm_exporter.errors import ConfigError
from llm_exporter.expose.page import Page
from llm_exporter.expose.web import WebSettings, application
from llm_exporter.metrics import Family, HistogramSample, Metric, Sample
from llm_exporter.readings import Kind, Unit
from llm_exporter.telemetry import Telemetry

ACCEPTED = json.loads((Path(__file__).parents[2] / "fixtures" / "cases" / "TGT-15" / "accept_headers.json").read_text())
TEXT, OPENMETRICS = "text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0"
HOSTILE = '<script>alert("x")</script>'
GAUGE = Metric("llm_thing", Kind.GAUGE, Unit.COUNT, "Things.", ("target",))
COUNTER = Metric("llm_runs_total", Kind.COUNTER, Unit.COUNT, "Runs.", ("target",))
HISTOGRAM = Metric("llm_wait_seconds", Kind.HISTOGRAM, Unit.SECONDS, "Waits.", ("target",))


class FakeSite:
    def __init__(self, reports: Path | None = None) -> None:
        self.telemetry = Telemetry()
        self.page = Page((GAUGE, COUNTER, HISTOGRAM), lambda: 0.0, self.telemetry.registry)
        self.page.put(
            "x",
            [
                Family(GAUGE, [Sample((f"t{i}",), 1.0) for i in range(100)]),
                Family(COUNTER, [Sample(("t",), 5.0)]),
                Family(HISTOGRAM, [HistogramSample(("t",), (1.0, float("inf")), (1.0, 2.0), 3.0)]),
            ],
        )
        self.reloads = 0
        self.broken = False
        self.problem = ""
        self._reports = reports

    def ready(self) -> bool:
        return self.reloads > 0

    def config_text(self) -> str:
        return "targets: []\n"

    def reload_problem(self) -> str:
        return self.problem

    def overview(self) -> list[dict[str, Any]]:
        row = {
            "name": HOSTILE,
            "url": "http://x",
            "engine": "vllm",
            "engine_version": "1",
            "up": True,
            "state": "ready",
            "reason": "",
            "detail": HOSTILE,
        }
        return [row | {"hint": "", "age_seconds": 2.0, "notes": [HOSTILE], "verdict": None, "slos": [], "models": []}]

    def target_document(self, name: str) -> dict[str, Any] | None:
        return {"name": name} if name == "a/b" else None

    def trace(self, name: str) -> list[dict[str, Any]] | None:
        row = {"metric": "m", "labels": {"model": HOSTILE}, "value": 1.0, "status": "", "fields": ["f"], "lines": [HOSTILE]}
        return [row] if name == "a/b" else None

    def reload(self) -> None:
        if self.broken:
            raise ConfigError("c.yml:3: targets: wrong")
        self.reloads += 1

    def probe(self, target: str, module: str, timeout: float | None) -> tuple[int, str | Page]:
        return (404, "no such target\n") if target != "t" else (200, self.page)

    def reports_directory(self) -> Path | None:
        return self._reports

    def reports(self) -> Sequence[dict[str, Any]]:
        return ()


def client_of(site: FakeSite, **settings: Any) -> Client:
    return Client(application(site, lambda: WebSettings(**settings)))


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        *((accept or "", OPENMETRICS if "openmetrics" in (accept or "") else TEXT) for accept in ACCEPTED),
        ("*/*", TEXT),
        ("application/openmetrics-text;version=abc", TEXT),
        ("text/plain;version=1.x;escaping=allow-utf-8", TEXT),
        (",".join(["a/b"] * 5000), TEXT),
        ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT),
        ("application/openmetrics-text;version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5", OPENMETRICS),
    ],
)
def test_tgt_15_the_format_follows_the_accept_header(accept: str, content_type: str) -> None:
    answer = client_of(FakeSite()).get("/metrics", headers={"Accept": accept} if accept else {})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith(content_type)
    text = answer.get_data(as_text=True)
    if "openmetrics" in content_type:
        assert text.endswith("# EOF\n")
        families = list(parse_openmetrics(text))
    else:
        assert "# EOF" not in text
        families = list(text_string_to_metric_families(text))
    for family in families:
        assert family.documentation
        assert family.type != "unknown"
        names = {sample.name for sample in family.samples}
        if family.type == "histogram":
            assert {f"{family.name}_sum", f"{family.name}_count", f"{family.name}_bucket"} <= names
        if family.type == "counter":
            assert all(name.endswith("_total") for name in names)


def test_head_and_gzip_work_and_are_the_same_page() -> None:
    client = client_of(FakeSite())
    plain = client.get("/metrics")
    packed = client.get("/metrics", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    stable = [line for line in plain.data.splitlines() if line.startswith(b"llm_thing")]
    assert [line for line in gzip.decompress(packed.data).splitlines() if line.startswith(b"llm_thing")] == stable
    assert "Content-Encoding" not in plain.headers
    head = client.head("/metrics")
    assert head.status_code == 200
    assert head.data == b""


def test_gzip_that_is_refused_is_not_sent() -> None:
    assert "Content-Encoding" not in client_of(FakeSite()).get("/metrics", headers={"Accept-Encoding": "gzip;q=0"}).headers


@pytest.mark.parametrize("path", ["/", "/debug/target/a/b"])
def test_hostile_text_stays_text(path: str) -> None:
    text = client_of(FakeSite()).get(path, headers={"Accept": "text/html"}).get_data(as_text=True)
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text


def test_pages_need_nothing_from_elsewhere() -> None:
    text = client_of(FakeSite()).get("/").get_data(as_text=True)
    assert "http://" not in text.replace("http://x", "")
    assert "https://" not in text
    assert "src=" not in text


def test_an_unknown_target_is_404_and_names_it() -> None:
    answer = client_of(FakeSite()).get("/api/v1/targets/nope")
    assert answer.status_code == 404
    assert "nope" in json.loads(answer.data)["error"]


def test_names_with_slashes_work() -> None:
    client = client_of(FakeSite())
    assert client.get("/api/v1/targets/a%2Fb").json == {"name": "a/b"}
    assert client.get("/debug/target/a%2Fb", headers={"Accept": "application/json"}).json["path"][0]["metric"] == "m"  # type: ignore[index]


def test_debug_can_be_switched_off() -> None:
    assert client_of(FakeSite(), enable_debug=False).get("/debug/target/a/b").status_code == 404


def test_reload_by_post_only_where_enabled() -> None:
    site = FakeSite()
    assert client_of(site).post("/-/reload").status_code == 403
    assert client_of(site, enable_reload=True).get("/-/reload").status_code == 405
    assert client_of(site, enable_reload=True).post("/-/reload").status_code == 200
    assert site.reloads == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_reload_from_a_foreign_origin_is_refused(headers: dict[str, str], status: int) -> None:
    assert client_of(FakeSite(), enable_reload=True).post("/-/reload", headers=headers).status_code == status


def test_a_failed_reload_says_why() -> None:
    site = FakeSite()
    site.broken = True
    answer = client_of(site, enable_reload=True).post("/-/reload")
    assert answer.status_code == 500
    assert b"c.yml:3" in answer.data


def test_healthy_is_not_ready() -> None:
    site = FakeSite()
    client = client_of(site)
    assert client.get("/-/healthy").status_code == 200
    assert client.get("/-/ready").status_code == 503
    site.reloads = 1
    assert client.get("/-/ready").status_code == 200


def test_more_requests_than_the_limit_are_told_to_come_again() -> None:
    answer = client_of(FakeSite(), max_requests=0).get("/metrics")
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize(("path", "max_requests", "most"), [("/probe", 6, 3), ("/probe/", 6, 3), ("/probe", 1, 1)])
def test_probes_that_hang_leave_room_for_everything_else(path: str, max_requests: int, most: int) -> None:
    site, inside, release = FakeSite(), threading.Semaphore(0), threading.Event()

    def hang(*_: object) -> tuple[int, str | Page]:
        inside.release()
        release.wait(10)
        return 200, site.page

    site.probe = hang  # type: ignore[assignment,method-assign]
    site.reloads = 1
    app = application(site, lambda: WebSettings(max_requests=max_requests))
    probing = [threading.Thread(target=Client(app).get, args=(f"{path}?target=t&module=m",)) for _ in range(most)]
    try:
        for thread in probing:
            thread.start()
        assert all(inside.acquire(timeout=5) for _ in probing)
        further = Client(app).get(f"{path}?target=t&module=m")
        assert (further.status_code, further.headers["Retry-After"]) == (503, "1")
        assert "too many probes" in further.get_data(as_text=True)
        for page in ("/metrics", "/-/healthy", "/-/ready", "/"):
            assert Client(app).get(page).status_code == 200
    finally:
        release.set()
        for thread in probing:
            thread.join(5)
    assert Client(app).get(f"{path}?target=t&module=m").status_code == 200


@pytest.mark.parametrize("query", ["", "?target=t", "?module=m"])
def test_probe_wants_target_and_module(query: str) -> None:
    assert client_of(FakeSite()).get(f"/probe{query}").status_code == 400


def test_probe_answers_with_that_runs_metrics_or_a_word() -> None:
    client = client_of(FakeSite())
    assert client.get("/probe?target=t&module=m").status_code == 200
    assert client.get("/probe?target=u&module=m").status_code == 404
    assert client.get("/probe?target=t&module=m", headers={"X-Prometheus-Scrape-Timeout-Seconds": "x"}).status_code == 400


def test_reports_are_served_from_their_directory_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "a.html").write_text("review")
    (tmp_path / "secret").write_text("no")
    client = client_of(FakeSite(tmp_path / "reports"))
    assert client.get("/reports/a.html").data == b"review"
    assert client.get("/reports/../secret").status_code == 404
    assert client.get("/reports/%2e%2e/secret").status_code == 404
    assert client_of(FakeSite()).get("/reports/").status_code == 404


def test_the_status_page_tells_of_probes_that_fail_and_of_no_others() -> None:
    site = FakeSite()
    (row,) = site.overview()
    failing = {"failing": True, "failures_in_a_row": 3, "failing_since": "2026-11-29T21:35:00Z"}
    row["probes"] = [
        {"module": "short", "result": "http_404", "detail": f"no model {HOSTILE}", **failing},
        {"module": "fine", "result": "success", "detail": "", "failing": False, "failures_in_a_row": 0, "failing_since": None},
    ]
    row["probes"].append({**row["probes"][1], "module": "idle", "detail": "resting after 9 failures in a row", "resting": True})
    row["probes"].append({**row["probes"][0], "module": "slow", "resting": True})
    site.overview = lambda: [row]  # type: ignore[method-assign]
    text = client_of(site).get("/").get_data(as_text=True)
    assert '<span class="down">probe idle</span><br><span class="why">resting after 9 failures in a row</span>' in text
    assert text.count("; resting now") == 1
    assert '<span class="down">probe short: http_404</span>' in text
    assert "3 in a row, since 2026-11-29T21:35:00Z" in text
    assert HOSTILE not in text
    assert "probe fine" not in text


def test_the_status_page_tells_of_a_failed_reload_and_of_an_objective_that_is_missed() -> None:
    site = FakeSite()
    assert "reload failed" not in client_of(site).get("/").get_data(as_text=True)
    site.problem = f"c.yml:3: {HOSTILE}"
    (row,) = site.overview()
    row["slos"] = [{"slo": "ttft", "model": "m", "met": False, "shown": "3 % within 1.00 s in 5m; objective 99 %"}]
    row["verdict"] = {"cause": "unknown", "confidence": None, "meaning": "", "because": [], "why_unknown": "missing: the GPU"}
    site.overview = lambda: [row]  # type: ignore[method-assign]
    text = client_of(site).get("/").get_data(as_text=True)
    assert "reload failed" in text
    assert "c.yml:3" in text
    assert HOSTILE not in text
    assert '<span class="down">SLO ttft missed</span>' in text
    assert "missing: the GPU" in text
