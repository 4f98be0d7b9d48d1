"""The running targets: what a reload keeps, what it drops, that nothing leaks, and that bad targets cost good ones nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from e2e.spine.running import until
from fakes import servers as fake
from fakes.servers import FakeServer, Handler
from golden.recordings import SGLANG, VLLM
from llm_exporter.config.model import Target
from llm_exporter.daemon.daemon import Daemon
from llm_exporter.daemon.fleet import Fleet
from llm_exporter.daemon.pipeline import Timing
from llm_exporter.daemon.published import declared
from llm_exporter.errors import ConfigError
from llm_exporter.expose.page import Page

VLLM_PAGE, SGLANG_PAGE = VLLM[8][1].read_bytes(), SGLANG[-1][1].read_bytes()


class Watched:
    """A fleet with its page and counters."""

    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()
        self.now = 0.0
        self.page = Page(declared(), lambda: self.now)
        self._lock = threading.Lock()
        self.fleet = Fleet(self.page, self._count)

    def _count(self, _task: str, outcome: str, n: int) -> None:
        with self._lock:
            self.tasks[outcome] += n

    def text(self) -> str:
        return self.page.render()[0].decode()

    def value(self, name: str, target: str) -> float | None:
        at = [f.samples for f in self.page.families() if f.metric.name == name]
        found = [s.value for samples in at for s in samples if s.labels[0] == target]
        return found[0] if found else None


@contextmanager
def watching() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.fleet.stop(5.0)


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("target ")}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


FAST = Timing(interval=0.05, timeout=2.0)


def test_a_reload_keeps_unchanged_targets_and_drops_those_that_left() -> None:
    with FakeServer(fake.page(VLLM_PAGE)) as server, watching() as seen:
        a, b, c = (Target(name=name, url=server.url) for name in ("reload-a", "reload-b", "reload-c"))
        seen.fleet.apply([a, b], FAST)
        until(lambda: all(len(r.pipeline.store.frames) > 1 for r in seen.fleet.running.values()))
        before = seen.fleet.running
        frames = before["reload-a"].pipeline.store.frames[0]
        seen.fleet.apply([a, c], FAST)
        after = seen.fleet.running
        assert list(after) == ["reload-a", "reload-c"]
        assert after["reload-a"] is before["reload-a"]
        assert after["reload-a"].pipeline.store.frames[0] is frames
        until(lambda: not before["reload-b"].loop.alive)
        assert "reload-b" not in seen.text()
        until(lambda: after["reload-c"].pipeline.status.up)


def test_another_interval_gives_a_new_rhythm_and_keeps_everything_else() -> None:
    with FakeServer(fake.page(VLLM_PAGE)) as server, watching() as seen:
        a = Target(name="rhythm", url=server.url)
        seen.fleet.apply([a], FAST)
        running = seen.fleet.running["rhythm"]
        until(lambda: len(running.pipeline.store.frames) > 1)
        seen.fleet.apply([a], Timing(interval=3600.0, timeout=2.0))
        frames = running.pipeline.store.frames
        seen.fleet.apply([a], FAST)
        assert seen.fleet.running["rhythm"] is running
        until(lambda: len(running.pipeline.store.frames) > len(frames) + 1, what="a shorter rhythm begins at once")
        assert running.pipeline.store.frames[: len(frames)] == frames
        assert server.connections == 1


def test_changed_settings_start_a_target_anew() -> None:
    with FakeServer(fake.page(VLLM_PAGE)) as server, watching() as seen:
        seen.fleet.apply([Target(name="changed", url=server.url)], FAST)
        until(lambda: len(seen.fleet.running["changed"].pipeline.store.frames) > 2)
        first = seen.fleet.running["changed"]
        seen.fleet.apply([Target(name="changed", url=server.url, service="other")], FAST)
        until(lambda: not first.loop.alive)
        assert seen.fleet.running["changed"].pipeline is not first.pipeline
        assert 'service="other"' in seen.text()
        assert 'service="changed"' not in seen.text()


@pytest.mark.parametrize("again", [False, True], ids=["gone", "other settings"])
def test_a_scrape_in_flight_writes_nothing_after_its_target_left(again: bool) -> None:
    with FakeServer(fake.late(fake.page(VLLM_PAGE))) as server, watching() as seen:
        seen.fleet.apply([Target(name="late", url=server.url)], Timing(interval=0.05, timeout=0.3))
        until(lambda: server.requests)
        left = seen.fleet.running["late"]
        seen.fleet.apply(
            [Target(name="late", url="http://127.0.0.1:9", service="new")] if again else [], Timing(interval=60.0, timeout=0.3)
        )
        server.released.set()
        until(lambda: not left.loop.alive)
        left.pipeline.publish(0.0, fresh=False)  # however late it comes
        assert 'service="late"' not in seen.text()
        assert ('target="late"' in seen.text()) is again
        assert "llm_target_up" not in seen.text(), "the successor has not been scraped yet"


def test_a_hanging_target_does_not_hold_a_reload() -> None:
    with FakeServer(fake.silent()) as server, watching() as seen:
        seen.fleet.apply([Target(name="hangs", url=server.url)], Timing(interval=0.05, timeout=30.0))
        until(lambda: server.requests)
        done = threading.Event()

        def change() -> None:
            seen.fleet.apply([Target(name="hangs", url=server.url, service="new")], Timing(interval=60.0, timeout=30.0))
            done.set()

        reload = threading.Thread(target=change)
        reload.start()
        assert done.wait(5), "the reload waits for the scrape's timeout"
        reload.join()


def test_neither_threads_nor_files_grow_over_many_reloads() -> None:
    with FakeServer(fake.page(VLLM_PAGE)) as server, FakeServer(fake.truncated()) as bad, watching() as seen:
        stays = Target(name="leak-stays", url=server.url)
        seen.fleet.apply([stays], FAST)
        until(lambda: seen.fleet.running["leak-stays"].pipeline.status.up)
        files: list[int] = []
        for n in range(40):
            come = [Target(name=f"leak-{n}", url=server.url), Target(name="leak-changes", url=bad.url, service=f"s{n}")]
            seen.fleet.apply([stays, *come], FAST)
            if n % 10 == 9:
                until(lambda: all(r.pipeline.status.up is not None for r in seen.fleet.running.values()))
                names = {"target leak-stays", "target leak-changes", f"target leak-{n}"}
                until(
                    lambda names=names: {name for name in threads() if "leak" in name} == names, what="only the threads of today's targets"
                )
                server.drop_idle()
                files.append(open_files())
        seen.fleet.apply([], FAST)
        until(lambda: not {name for name in threads() if "leak" in name})
        assert max(files[1:]) <= files[0] + 8, f"open files: {files}"  # a few connections are being closed at any moment
        assert "leak" not in seen.text()


# -- bad beside good ------------------------------------------------------------------------------------------------------------------

MISFORTUNES: dict[str, Handler] = {
    "silent": fake.silent(),
    "drip": fake.drip(VLLM_PAGE, 0.05),
    "endless head": fake.drip_head(0.05),
    "too large": fake.huge(2**27),
    "bomb": fake.gzip_bomb(2**25),
    "login page": fake.html_login(),
    "redirect": fake.redirect("/elsewhere"),
    "truncated": fake.truncated(VLLM_PAGE, 1000),
    "cut chunks": fake.truncated_chunks(),
    "short length": fake.too_short_length(),
    "closes": fake.closes(),
    "resets": fake.resets(),
    "no HTTP": fake.garbage(),
    "twice": fake.page(fake.duplicate_series()),
    "not UTF-8": fake.page(fake.names_not_utf8()),
    "many series": fake.page(fake.many_series(5_000)),
    "error 500": fake.page(b"", 500),
    "loading": fake.page(b"", 503),
    "closes after": fake.answers_then_closes(VLLM_PAGE),
    "two servers": fake.in_turn(fake.page(VLLM_PAGE), fake.page(SGLANG_PAGE)),
}


# Exporter and 30 servers share one interpreter, perhaps with other tests beside: a good answer may take seconds here.
HOSTILE_TIMEOUT = 5.0


@pytest.mark.slow
def test_a_hundred_hostile_targets_take_no_scrape_from_ten_good_ones() -> None:
    rounds = 5
    with ExitStack() as running, watching() as seen:
        bad = {kind: running.enter_context(FakeServer(handler)) for kind, handler in MISFORTUNES.items()}
        goods = {f"good-{n}": running.enter_context(FakeServer(fake.page(VLLM_PAGE if n % 2 else SGLANG_PAGE))) for n in range(10)}
        targets = [Target(name=f"bad {kind} {n}", url=server.url) for kind, server in bad.items() for n in range(5)]
        assert len(targets) == 100
        targets += [Target(name=name, url=server.url) for name, server in goods.items()]
        seen.fleet.apply(targets, Timing(interval=1.0, timeout=HOSTILE_TIMEOUT))
        scraped = seen.fleet.running
        until(lambda: all(len(scraped[name].pipeline.store.frames) >= rounds for name in goods), 60, what=f"{rounds} good scrapes each")
        for name, server in goods.items():
            pipeline = scraped[name].pipeline
            asked = sum(request.path == "/metrics" for request in server.requests)
            frames = pipeline.store.frames
            assert asked - len(frames) in (0, 1), f"{name} lost a scrape"  # one may be in flight
            gaps = [later.at - earlier.at for earlier, later in pairwise(frames)]
            assert max(gaps) < HOSTILE_TIMEOUT, f"{name} waited for others: {gaps}"
            assert pipeline.status.up
            assert server.connections == 1
        text = seen.text()
        assert seen.tasks["failed"] == 0, "a failing target is data, never a bug"
        for name in goods:
            assert f'llm_target_up{{target="{name}"}} 1.0\n' in text
        ups = {kind: seen.value("llm_target_up", f"bad {kind} 0") for kind in MISFORTUNES}
        assert {kind for kind, up in ups.items() if up == 1} == {"many series", "closes after", "two servers"}


def test_a_reload_while_the_list_of_targets_cannot_be_read_keeps_them(tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    with FakeServer(fake.page(VLLM_PAGE)) as server:
        found = f'[{{"targets": ["127.0.0.1:{server.port}"], "labels": {{"target": "found"}}}}]'.encode()
        with FakeServer(fake.then(fake.page(found, content_type="application/json"), fake.page(b"", 503))) as sd:
            config.write_text(f"http_sd_configs: [{{url: '{sd.url}/sd'}}]\ngpu: {{enabled: false}}\nhost: {{enabled: false}}\n")
            daemon = Daemon(config, {})
            daemon.start()
            try:
                before = daemon.fleet.running["found"]
                daemon.reload()
                assert len(sd.requests) == 2
                assert daemon.fleet.running == {"found": before}
                assert daemon.page.render()[0].count(b'llm_exporter_source_up{source="discovery"} 0.0') == 1
            finally:
                daemon.stop()


# -- too many -------------------------------------------------------------------------------------------------------------------------


def test_more_targets_than_one_exporter_serves_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    config.write_text("targets:\n" + "".join(f"  - {{name: t{n}, url: http://127.0.0.1:9}}\n" for n in range(513)))
    daemon = Daemon(config, {})
    with pytest.raises(ConfigError, match=r"513 targets.*512"):
        daemon.start()
    assert not daemon.fleet.running
    daemon.stop()
