"""Field cases TGT-*: what public reports say went wrong with scrapes, played by a server of our own (times divided by 60).

Inputs: tests/fixtures/cases/TGT-* (http.json says how the server behaves, expect.json what is right).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fakes import servers as fake
from fakes.servers import FakeServer, Handler
from llm_exporter.errors import FetchError
from llm_exporter.sources.http import Client

CASES = Path(__file__).parents[2] / "fixtures" / "cases"
PATIENT = 5.0


def load(case: str, name: str) -> Any:
    return json.loads((CASES / case / name).read_text())


def expected(case: str, signal: str, applies_to: str | None = None) -> dict[str, Any]:
    for check in load(case, "expect.json")["checks"]:
        if check["signal"] == signal and check.get("applies_to") == applies_to:
            return dict(check)
    raise AssertionError((case, signal))


def body_of(case: str) -> bytes:
    return (CASES / case / "t000.prom").read_bytes()


def failure(client: Client, timeout: float = PATIENT) -> FetchError:
    with pytest.raises(FetchError) as caught:
        client.get("/metrics", timeout=timeout)
    return caught.value


def server_of(case: str) -> Handler:
    """The handler that http.json describes; a delay becomes an answer that waits for the test's release."""
    behaviour = load(case, "http.json")["metrics"]
    if "body" in behaviour:
        return fake.page(behaviour["body"].encode(), behaviour["status"], content_type=behaviour["headers"]["Content-Type"])
    good = fake.page(body_of(case))
    if "delay_ms" in behaviour:
        return fake.late(good)
    if "redirect" in behaviour:
        return fake.routes({"/metrics": fake.redirect(behaviour["redirect"]), behaviour["redirect"]: good})
    return fake.needs_header("authorization", f"Bearer {behaviour['require_bearer']}", good)


def test_tgt_01_a_slow_page_is_a_timeout_after_the_timeout_and_never_two_requests() -> None:
    timeout = 5 / 60
    with FakeServer(server_of("TGT-01")) as server:
        client = Client(server.url)
        started_at = time.monotonic()
        for scrape in (1, 2):
            assert failure(client, timeout).reason == expected("TGT-01", "scrape_up")["reason"]
            assert scrape * timeout <= time.monotonic() - started_at < scrape * timeout + 0.5
        server.released.set()
        assert client.get("/metrics", timeout=PATIENT).body == body_of("TGT-01")
        client.close()
    assert server.max_open == expected("TGT-01", "target_max_concurrent_requests")["value"]


def test_tgt_02_recovers_on_the_first_good_answer() -> None:
    with FakeServer(server_of("TGT-02")) as server:
        client = Client(server.url)
        for _ in range(10):
            assert failure(client, 0.01).reason == expected("TGT-02", "scrape_up")["reason"]
        server.handler = fake.page(body_of("TGT-02"))
        assert client.get("/metrics", timeout=PATIENT).body == body_of("TGT-02")
        client.close()


def test_tgt_04_a_redirect_on_the_same_host_is_followed() -> None:
    with FakeServer(server_of("TGT-04")) as server:
        client = Client(server.url)
        assert client.get("/metrics", timeout=PATIENT).body == body_of("TGT-04")
        client.close()


def test_tgt_05_a_login_page_comes_with_what_the_parser_needs_to_refuse_it() -> None:
    with FakeServer(server_of("TGT-05")) as server:
        client = Client(server.url)
        answer = client.get("/metrics", timeout=PATIENT)
        client.close()
    assert answer.content_type.startswith("text/html")
    assert answer.body.startswith(b"<!DOCTYPE html>")


def test_tgt_07_without_and_with_the_token() -> None:
    token = (CASES / "TGT-07" / "token").read_text().strip()
    with FakeServer(server_of("TGT-07")) as server:
        client = Client(server.url)
        error = failure(client)
        client.close()
        assert error.reason == expected("TGT-07", "scrape_up", "no token")["reason"]
        assert token not in f"{error!r} {error.detail} {error.hint}"
        client = Client(server.url, headers=lambda: {"Authorization": f"Bearer {token}"})
        assert client.get("/metrics", timeout=PATIENT).body == body_of("TGT-07")
        client.close()


def test_tgt_13_sixty_thousand_lines_come_within_the_cap_and_the_time() -> None:
    made = subprocess.run([sys.executable, CASES / "TGT-13" / "gen.py"], capture_output=True, check=True).stdout
    assert made.count(b"\n") > 59_000
    with FakeServer(fake.page(made)) as server:
        client = Client(server.url)
        answer = client.get("/metrics", timeout=PATIENT)
        client.close()
    assert answer.body == made
    assert answer.duration_seconds < expected("TGT-13", "scrape_duration_seconds")["max"]
