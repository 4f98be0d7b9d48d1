"""The daemon as a whole: what a failed reload or discovery leaves in force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llm_exporter.daemon.daemon import Daemon
from llm_exporter.errors import ConfigError, LlmExporterError

HEAD = "gpu: {enabled: false}\nhost: {enabled: false}\nglobal: {scrape_interval: 1h}\n"


def target(name: str) -> str:
    return f"  - {{name: {name}, url: http://127.0.0.1:9, gpus: none}}\n"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    config = tmp_path / "llm-exporter.yml"
    (tmp_path / "found.yml").write_text("[{targets: ['127.0.0.1:9'], labels: {target: found}}]")
    lists = f"file_sd_configs: [{{files: ['{tmp_path}/found.yml'], refresh_interval: 1ms}}]\n"
    config.write_text(HEAD + lists + "targets:\n" + target("old"))
    made = Daemon(config, {})
    made.start()
    yield made
    made.stop()


def failing(real: Callable[..., None], times: int) -> Callable[..., None]:
    """Fails so many times, as a bug would; then does its work."""
    left = [times]

    def apply(*args: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError("no such device")
        real(*args)

    return apply


def page(daemon: Daemon) -> str:
    return daemon.page.render()[0].decode()


def test_a_bug_while_reloading_keeps_the_old_configuration_and_is_told(daemon: Daemon, tmp_path: Path) -> None:
    before = dict(daemon.fleet.running)
    daemon.fleet.apply = failing(daemon.fleet.apply, 1)  # type: ignore[method-assign]
    (tmp_path / "llm-exporter.yml").write_text(HEAD + "targets:\n" + target("new"))
    with pytest.raises(ConfigError, match="OSError, a bug of the exporter"):
        daemon.reload()
    assert daemon.fleet.running == before
    assert "llm_exporter_config_last_reload_successful 0.0\n" in page(daemon)
    assert "bug" in daemon.reload_problem()
    assert [one.name for one in daemon.config.targets] == ["old"]
    daemon.reload()
    assert set(daemon.fleet.running) == {"new"}
    assert daemon.reload_problem() == ""


def test_a_zone_in_an_address_is_refused_by_name_and_ends_nothing(daemon: Daemon, tmp_path: Path) -> None:
    config = tmp_path / "llm-exporter.yml"
    config.write_text(config.read_text() + "  - {name: scoped, url: 'http://[fe80::1%25eth0]:8000'}\n")
    with pytest.raises(ConfigError, match=r"zone.*without a zone"):
        daemon.reload()
    assert set(daemon.fleet.running) == {"old", "found"}


def test_targets_that_cannot_be_taken_over_are_told_and_tried_again(
    daemon: Daemon, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "found.yml").write_text("[{targets: ['127.0.0.1:9'], labels: {target: other}}]")
    daemon.fleet.apply = failing(daemon.fleet.apply, 3)  # type: ignore[method-assign]  # putting back what was fails, too
    for _ in range(2):
        with pytest.raises(LlmExporterError, match="not taken over"):
            daemon.discover()
        assert 'llm_exporter_source_up{source="discovery"} 0.0\n' in page(daemon)
    assert sum("cannot be taken over" in record.getMessage() for record in caplog.records) == 1
    daemon.discover()
    assert set(daemon.fleet.running) == {"old", "other"}
    assert 'llm_exporter_source_up{source="discovery"} 1.0\n' in page(daemon)


def test_a_zone_in_a_discovered_address_refuses_that_target_alone(daemon: Daemon, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "found.yml").write_text("[{targets: ['127.0.0.1:9', '[fe80::1%25eth0]:8000', '127.0.0.1:10']}]")
    daemon.discover()
    assert set(daemon.fleet.running) == {"old", "127.0.0.1:9", "127.0.0.1:10"}
    assert any("fe80::1" in record.getMessage() and "zone" in record.getMessage() for record in caplog.records)
