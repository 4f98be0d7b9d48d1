"""A hundred servers that misbehave beside ten good ones: the good ones lose no scrape, nothing leaks."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

from fakes import servers as fake
from fakes.servers import PAGE, FakeServer
from llm_exporter.errors import FetchError
from llm_exporter.sources.http import Client

SCRAPES, INTERVAL, TIMEOUT = 10, 0.1, 0.4
GOOD_TIMEOUT = 5.0  # the whole hundred and their servers share one process, and that a machine with other tests
MISFORTUNES = {
    "too_large": fake.huge(2**24, "chunked"),
    "truncated": fake.truncated(),
    "timeout": fake.silent(),
    "connection_closed": fake.closes(),
    "redirect": fake.redirect("/metrics"),
    "http_500": fake.page(b"", 500),
    "not_metrics": fake.garbage(),
}


def test_a_hundred_bad_targets_beside_ten_good_ones() -> None:
    reasons: dict[str, set[str]] = {}
    pages: list[bytes] = []
    done = threading.Event()

    def scrape_bad(kind: str, client: Client) -> None:
        for scrape in range(SCRAPES):
            try:
                client.get("/metrics", timeout=TIMEOUT)
            except FetchError as error:
                reasons.setdefault(kind, set()).add(error.reason)
            if done.wait(INTERVAL) and scrape >= 2:
                break
        client.close()

    def scrape_good(client: Client) -> None:
        for _ in range(SCRAPES):
            pages.append(client.get("/metrics", timeout=GOOD_TIMEOUT).body)
            done.wait(INTERVAL)
        client.close()

    with ExitStack() as running:
        bad = []
        for kind, handler in MISFORTUNES.items():
            server = running.enter_context(FakeServer(handler))
            bad += [(kind, server.url)] * 12
        hanging, dripping = running.enter_context(FakeServer(greet=False)), running.enter_context(FakeServer(fake.drip(PAGE, 0.05)))
        bad += [("handshake", f"https://127.0.0.1:{hanging.port}")] * 8 + [("drip", dripping.url)] * 8
        assert len(bad) == 100
        goods = [running.enter_context(FakeServer()) for _ in range(10)]
        threads = [threading.Thread(target=scrape_bad, args=(kind, Client(url, max_bytes=2**20))) for kind, url in bad]
        good_threads = [threading.Thread(target=scrape_good, args=(Client(server.url),)) for server in goods]
        before = len(list(Path("/proc/self/fd").iterdir()))
        for thread in threads + good_threads:
            thread.start()
        for thread in good_threads:
            thread.join()
        done.set()
        for thread in threads:
            thread.join()
    assert pages == [PAGE] * (10 * SCRAPES)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    # Beside the reason of its own, a target may time out here: 0.4 s is short for a hundred servers in one process.
    assert {kind: found - {"timeout"} for kind, found in reasons.items()} == {
        kind: set() if kind in ("timeout", "handshake", "drip") else {kind} for kind in [*MISFORTUNES, "handshake", "drip"]
    }
