"""`llm-exporter serve` as a process: reload by SIGHUP, end by SIGTERM, a port that is taken."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.spine.running import Exporter, player, until
from fakes import servers as fake
from fakes.servers import FakeServer
from golden.recordings import VLLM

PAGES = [path for _, path in VLLM]
HEAD = "global: {scrape_interval: 100ms, scrape_timeout: 5s}\ngpu: {enabled: false}\nhost: {enabled: false}\ntargets:\n"


def target(name: str, url: str) -> str:
    return f"  - {{name: {name}, url: '{url}'}}\n"


def value(text: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


RELOADED = "llm_exporter_config_last_reload_successful"
SCRAPES = 'llm_exporter_tasks_total{outcome="ok",task="scrape"}'
TOKENS = 'llm_generation_tokens_per_second{engine="vllm",model="tiny",target="chat",window="5m"}'


@pytest.mark.slow
def test_sighup_takes_over_what_changed_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    with player(PAGES) as chat, player(PAGES) as old, player(PAGES) as new:
        config.write_text(HEAD + target("chat", chat.url) + target("old", old.url))
        with Exporter(config) as exporter:
            until(lambda: len(chat.requests) > len(PAGES) + 1 and exporter.targets()["old"]["up"], 20, what="both targets up")
            before = value(exporter.get(), TOKENS)
            assert before, "tokens came out while the pages were played"

            config.write_text(HEAD + target("chat", chat.url) + target("new", new.url))
            exporter.hup()
            until(lambda: exporter.targets().get("new", {}).get("up"), 20, what="the new target up")
            text = exporter.get()
            assert 'target="old"' not in text
            after = value(text, TOKENS)
            assert after, "an unchanged target keeps its windows: all tokens came before the reload"
            until(lambda: 0 < (value(exporter.get(), TOKENS) or 0) < before, what="the same tokens over more seconds")
            assert chat.connections == 1, "an unchanged target keeps its connection"

            config.write_text(HEAD + "  - {name: chat, uri: http://127.0.0.1:1}\n")
            exporter.hup()
            until(lambda: value(exporter.get(), RELOADED) == 0, 20, what="the failed reload shown")
            assert exporter.said("uri")
            assert set(exporter.targets()) == {"chat", "new"}
            assert new.url in exporter.get("/config"), "the configuration in force is shown"
            scraped = value(exporter.get(), SCRAPES)
            assert scraped
            until(lambda: (value(exporter.get(), SCRAPES) or 0) > scraped, what="scrapes go on")

            config.write_text(HEAD + target("chat", chat.url))
            exporter.hup()
            until(lambda: value(exporter.get(), RELOADED) == 1, 20, what="the good reload shown")
            assert set(exporter.targets()) == {"chat"}


def test_a_reload_asked_for_while_serve_is_being_imported_ends_nothing() -> None:
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # below nohup it would be ignored from the start
        "from llm_exporter.cli import main\n"
        "sys.argv = ['llm-exporter', *sys.argv[1:]]\n"
        "try: main()\n"
        "except SystemExit: print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)\n"
    )
    for command, ignored in (("serve", "True"), ("kv", "False")):
        said = subprocess.run([sys.executable, "-c", code, command, "--help"], check=True, capture_output=True, text=True, timeout=60)
        assert said.stdout.splitlines()[-1] == ignored


@pytest.mark.slow
def test_sigterm_ends_within_three_seconds_whatever_hangs(tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    with FakeServer(fake.silent()) as silent, FakeServer(fake.drip(fake.PAGE, 0.2)) as slow, player(PAGES) as good:
        config.write_text(HEAD.replace("5s", "60s") + target("a", silent.url) + target("b", slow.url) + target("c", good.url))
        with Exporter(config) as exporter:
            until(lambda: silent.requests and slow.requests and good.requests, 20, what="all scraped")
            # a client that connected and says nothing
            with socket.create_connection(("127.0.0.1", exporter.port)):
                took = exporter.terminate()
    assert took < 3.0
    assert exporter.said("ending") == 1
    assert not exporter.said("Traceback")


@pytest.mark.slow
def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    config.write_text(HEAD + target("a", "http://127.0.0.1:9"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "llm_exporter", "serve", "--config.file", str(config), "--web.listen-address", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert address in done.stderr
    assert "in use" in done.stderr
    assert "Traceback" not in done.stderr
