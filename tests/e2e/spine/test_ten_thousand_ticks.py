"""Threads and descriptors stay flat over ten thousand ticks with faults: real sockets, the real client, the whole pipeline."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fakes.servers import FakeServer, closes, html_login, in_turn, page, truncated
from llm_exporter.config.model import Target
from llm_exporter.daemon.clients import client_for
from llm_exporter.daemon.pipeline import Pipeline, Timing
from llm_exporter.daemon.published import declared
from llm_exporter.expose.page import Page
from llm_exporter.sources.engine import scrape

TICKS = 10_000
REFUSED = "http://127.0.0.1:1"


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_threads_and_descriptors_are_flat() -> None:
    published = Page(declared(), lambda: now)
    now = 0.0
    handlers = {"good": page(), "faulty": in_turn(page(), html_login(), truncated(), closes(), page(status=503))}
    servers = {name: FakeServer(handler) for name, handler in handlers.items()}
    try:
        urls = {name: server.url for name, server in servers.items()} | {"refused": REFUSED}
        targets = [Target(name=name, url=url) for name, url in urls.items()]
        clients = {target.name: client_for(target) for target in targets}
        pipelines = {target.name: Pipeline(target, published, Timing(), lambda: now) for target in targets}
        before: tuple[int, int] | None = None
        for tick in range(TICKS):
            target = targets[tick % len(targets)]
            now += 1.0
            scraped = scrape(clients[target.name], target.metrics_path, timeout=5.0, clock=time.monotonic)
            pipelines[target.name].take(scraped, now)
            if tick == 300:
                before = threading.active_count(), open_descriptors()
        assert before is not None
        threads, descriptors = threading.active_count(), open_descriptors()
        assert threads <= before[0] + 5
        assert descriptors <= before[1] + 5
        text = published.render()[0].decode()
        assert 'llm_target_up{target="good"} 1.0' in text
        assert 'llm_target_down_reason{reason="refused",target="refused"} 1.0' in text
        for client in clients.values():
            client.close()
    finally:
        for server in servers.values():
            server.close()
