"""Targets come and go with their lists; what is broken keeps its last good list and says so."""

# tables: one case on one line

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from llm_exporter.config.discovery import Discovery, DiscoveryResult
from llm_exporter.config.model import Config, FileSdConfig, HttpSdConfig, ProbeModule, Slo, Target, TargetDefaults
from llm_exporter.config.sd_format import Listed, parse_list, target_of
from llm_exporter.errors import FetchError, SourceError


def names(result: DiscoveryResult) -> list[str]:
    return [target.name for target in result.targets]


def reasons(result: DiscoveryResult) -> list[tuple[str, str]]:
    return [(problem.source, problem.reason) for problem in result.problems]


def file_config(folder: Path, *patterns: str, static: tuple[Target, ...] = (), **target: object) -> Config:
    section = FileSdConfig(
        files=tuple(str(folder / pattern) for pattern in patterns), refresh_interval=10, target=TargetDefaults.model_validate(target)
    )
    return Config(targets=static, file_sd_configs=(section,), probe_modules={"short": ProbeModule(interval=30)})


def write(path: Path, *addresses: str, **labels: str) -> None:
    """Replace a file as deployment tools do: a new file under the old name."""
    fresh = path.with_name(f".{path.name}")
    fresh.write_text(json.dumps([{"targets": list(addresses), "labels": labels}]))
    fresh.rename(path)


def no_fetch(config: HttpSdConfig) -> bytes:
    raise AssertionError("no http_sd here")


def test_targets_of_files_take_the_settings_of_the_target_block(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text(
        "- targets: ['10.0.0.7:8000', '[::1]:8001']\n"
        "  labels: {team: search, __scheme__: https, __metrics_path__: /llm/metrics, __meta_x: y, empty: ''}\n"
        "- targets: [h:1]\n  labels: {target: chat}\n"
    )
    slo = Slo(name="s", metric="time_to_first_token", threshold=1, objective=0.9)
    config = file_config(tmp_path, "*.yml", probes=("short",), slos=(slo,), labels={"team": "none", "zone": "b"}, engine="vllm")
    result = Discovery(config, no_fetch).refresh(0)
    first, second, third = result.targets
    assert (first.name, first.url, first.metrics_path, first.service) == (
        "10.0.0.7:8000",
        "https://10.0.0.7:8000",
        "/llm/metrics",
        "10.0.0.7:8000",
    )
    assert (first.labels, first.probes, first.slos, first.engine) == ({"team": "search", "zone": "b"}, ("short",), (slo,), "vllm")
    assert second.url == "https://[::1]:8001"
    assert (third.name, third.url, third.metrics_path) == ("chat", "http://h:1", "/metrics")
    assert result.problems == ()
    assert result.lists[0]._asdict() == {
        "source": "file_sd_configs[0]",
        "ok": True,
        "reason": "",
        "detail": "",
        "last_success": 0,
        "targets": 3,
    }


def test_a_list_is_read_when_its_interval_has_passed(tmp_path: Path) -> None:
    discovery = Discovery(file_config(tmp_path, "a.json"), no_fetch)
    write(tmp_path / "a.json", "h:1")
    assert names(discovery.refresh(100)) == ["h:1"]
    write(tmp_path / "a.json", "h:1", "h:2")
    assert names(discovery.refresh(109.9)) == ["h:1"]
    assert names(discovery.refresh(110)) == ["h:1", "h:2"]


def test_a_broken_file_keeps_its_last_good_list_and_says_so(tmp_path: Path) -> None:
    discovery = Discovery(file_config(tmp_path, "*.json"), no_fetch)
    write(tmp_path / "a.json", "h:1")
    write(tmp_path / "b.json", "h:2")
    discovery.refresh(0)
    (tmp_path / "a.json").write_text('[{"targets": ["h:3"')
    write(tmp_path / "b.json", "h:4")
    result = discovery.refresh(10)
    assert names(result) == ["h:1", "h:4"]
    assert reasons(result) == [("file_sd_configs[0]", "parse")]
    assert "a.json is not valid JSON in line 1" in result.problems[0].detail
    assert (result.lists[0].ok, result.lists[0].last_success, result.lists[0].targets) == (False, 0, 2)
    write(tmp_path / "a.json", "h:5")
    result = discovery.refresh(20)
    assert (names(result), result.problems, result.lists[0].last_success) == (["h:5", "h:4"], (), 20)


def test_a_file_that_cannot_be_read_keeps_its_list_and_one_that_is_gone_does_not(tmp_path: Path) -> None:
    discovery = Discovery(file_config(tmp_path, "*.json"), no_fetch)
    write(tmp_path / "a.json", "h:1")
    discovery.refresh(0)
    (tmp_path / "a.json").unlink()
    (tmp_path / "a.json").mkdir()
    result = discovery.refresh(10)
    assert (names(result), reasons(result)) == (["h:1"], [("file_sd_configs[0]", "unreadable")])
    (tmp_path / "a.json").rmdir()
    result = discovery.refresh(20)
    assert (names(result), reasons(result)) == ([], [("file_sd_configs[0]", "no_files")])


def test_a_pipe_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    assert reasons(Discovery(file_config(tmp_path, "a.json"), no_fetch).refresh(0)) == [("file_sd_configs[0]", "unreadable")]


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b" " * (4 * 1024 * 1024 + 1))
    assert reasons(Discovery(file_config(tmp_path, "a.json"), no_fetch).refresh(0)) == [("file_sd_configs[0]", "too_large")]


def test_an_empty_list_is_a_good_list(tmp_path: Path) -> None:
    discovery = Discovery(file_config(tmp_path, "a.json"), no_fetch)
    write(tmp_path / "a.json", "h:1")
    discovery.refresh(0)
    (tmp_path / "a.json").write_text("[]")
    result = discovery.refresh(10)
    assert (names(result), result.problems, result.lists[0].ok) == ([], (), True)


def test_a_file_is_parsed_again_only_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def counting(content: bytes, name: str) -> tuple[Listed, ...]:
        parsed.append(name)
        return parse_list(content, name)

    monkeypatch.setattr("llm_exporter.config.discovery.parse_list", counting)
    discovery = Discovery(file_config(tmp_path, "a.json"), no_fetch)
    write(tmp_path / "a.json", "h:1")
    first = discovery.refresh(0)
    second = discovery.refresh(10)
    assert len(parsed) == 1
    assert first.targets[0] is second.targets[0]
    write(tmp_path / "a.json", "h:2")
    discovery.refresh(20)
    assert len(parsed) == 2


def test_a_name_twice_is_refused_by_name_and_the_first_wins(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "h:1", "h:1", target="chat")
    write(tmp_path / "b.json", "h:2", "h:3")
    write(tmp_path / "c.json", "h:3")
    static = (Target(name="chat", url="http://static:1"),)
    result = Discovery(file_config(tmp_path, "*.json", static=static), no_fetch).refresh(0)
    assert [(target.name, target.url) for target in result.targets] == [
        ("chat", "http://static:1"),
        ("h:2", "http://h:2"),
        ("h:3", "http://h:3"),
    ]
    assert [problem.detail for problem in result.problems] == [
        "chat was refused: targets has a target of this name",
        "chat was refused: targets has a target of this name",
        "h:3 was refused: file_sd_configs[0] has a target of this name",
    ]
    assert {problem.reason for problem in result.problems} == {"duplicate_name"}


def test_labels_of_ours_are_refused_by_name_and_the_target_stays(tmp_path: Path) -> None:
    write(tmp_path / "a.json", "h:1", job="vllm", instance="x", team="search")
    result = Discovery(file_config(tmp_path, "a.json"), no_fetch).refresh(0)
    assert result.targets[0].labels == {"team": "search"}
    assert [(problem.reason, problem.detail) for problem in result.problems] == [
        ("bad_label", "the label 'instance' of h:1 is the exporter's own and was left out"),
        ("bad_label", "the label 'job' of h:1 is the exporter's own and was left out"),
    ]


@pytest.mark.parametrize("address", ["h:1/metrics", "http://h:1", "user:hunter2@h:1", "h:99999", "", "h h", "h:1?x", "h\n:1"])
def test_one_bad_address_is_refused_and_the_others_stay(address: str, tmp_path: Path) -> None:
    write(tmp_path / "a.json", address, "good:1")
    result = Discovery(file_config(tmp_path, "a.json"), no_fetch).refresh(0)
    assert names(result) == ["good:1"]
    assert reasons(result) == [("file_sd_configs[0]", "bad_target")]
    assert "hunter2" not in result.problems[0].detail
    assert "\n" not in result.problems[0].detail


def test_bad_labels_of_scheme_path_and_name_refuse_the_target() -> None:
    for labels in ({"__scheme__": "ftp"}, {"__metrics_path__": "metrics"}, {"target": " a"}, {"a-b": "x"}, {"a": "\ud800"}):
        with pytest.raises(SourceError) as error:
            target_of(Listed("h:1", labels), TargetDefaults())
        assert error.value.reason == "bad_target"


def test_variables_are_never_expanded_in_discovered_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME_SECRET", "hunter2")
    write(tmp_path / "a.json", "h:1", x="${HOME_SECRET}")
    assert Discovery(file_config(tmp_path, "a.json"), no_fetch).refresh(0).targets[0].labels == {"x": "${HOME_SECRET}"}


BAD_LISTS: dict[str, tuple[str, str]] = {
    "a.json": ("{}", "holds no list"),
    "b.json": ("[1]", "item 1 is no mapping"),
    "c.json": ('[{"targets": "h:1"}]', "item 1: targets is no list of text"),
    "d.json": ('[{"targets": [1]}]', "item 1: targets is no list of text"),
    "e.json": ('[{"targets": ["h:1"]}, {"targets": [], "labels": {"a": 1}}]', "item 2: labels is no mapping of text to text"),
    "f.json": ('[{"target": ["h:1"]}]', "item 1 has the unknown key target"),
    "g.json": ("<html>", "is not valid JSON in line 1"),
    "h.json": ("[" * 100_000, "is not valid JSON"),
    "i.yml": ("- targets: [h:1]\n  targets: [h:2]\n", "i.yml:2: [0].targets: the key is already there, in line 1"),
    "j.yml": ("a: [", "j.yml:1: not valid YAML"),
    "k.yml": ("&a [*a, *a]", "expands to too many values"),
    "l.json": ("\ufffe", "is not valid JSON"),
}


@pytest.mark.parametrize(("name", "content", "wanted"), [(name, *rest) for name, rest in BAD_LISTS.items()], ids=BAD_LISTS)
def test_a_list_of_the_wrong_shape_is_refused_whole(name: str, content: str, wanted: str) -> None:
    with pytest.raises(SourceError) as error:
        parse_list(content.encode(), name)
    assert error.value.reason == "parse"
    assert wanted in error.value.detail
    assert "\n" not in error.value.detail


def test_a_number_in_place_of_a_label_names_what_is_wrong_in_yaml_too() -> None:
    with pytest.raises(SourceError, match="labels is no mapping of text to text"):
        parse_list(b"- targets: ['h:1']\n  labels: {rack: 12}\n", "a.yml")


def test_more_targets_than_threads_are_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a.json", *(f"h{n}:1" for n in range(514)))
    static = (Target(name="chat", url="http://static:1"),)
    result = Discovery(file_config(tmp_path, "a.json", static=static), no_fetch).refresh(0)
    assert len(result.targets) == 512
    assert [problem.detail for problem in result.problems] == [
        f"h{n}:1 was refused: one exporter serves 512 targets" for n in range(511, 514)
    ]


def http_config(count: int = 1) -> Config:
    return Config(http_sd_configs=tuple(HttpSdConfig(url=f"http://sd:{n + 1}/x?token=hunter2", refresh_interval=60) for n in range(count)))


def test_a_silent_endpoint_keeps_its_last_good_list_and_disturbs_no_other() -> None:
    answers: dict[str, Callable[[], bytes]] = {}

    def fetch(config: HttpSdConfig) -> bytes:
        return answers[config.url[:11]]()

    def silent() -> bytes:
        raise FetchError("timeout", "http://sd:1/x gave no answer")

    answers["http://sd:1"] = lambda: b'[{"targets": ["a:1"]}]'
    answers["http://sd:2"] = lambda: b'[{"targets": ["b:1"]}]'
    discovery = Discovery(http_config(2), fetch)
    assert names(discovery.refresh(0)) == ["a:1", "b:1"]
    answers["http://sd:1"] = silent
    answers["http://sd:2"] = lambda: b'[{"targets": ["b:2"]}]'
    result = discovery.refresh(60)
    assert names(result) == ["a:1", "b:2"]
    assert reasons(result) == [("http_sd_configs[0]", "timeout")]
    assert [(status.ok, status.last_success) for status in result.lists] == [(False, 0), (True, 60)]
    assert discovery.refresh(61).problems == result.problems
    answers["http://sd:1"] = lambda: b"[]"
    assert names(discovery.refresh(120)) == ["b:2"]


def test_a_thousand_looks_leave_nothing_behind(tmp_path: Path) -> None:
    """Descriptors and memory stay as they were while files come, break and go."""
    discovery = Discovery(file_config(tmp_path, "*.json"), no_fetch)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for turn in range(1000):
        path = tmp_path / f"{turn % 3}.json"
        if turn % 5 == 0:
            path.unlink(missing_ok=True)
        elif turn % 7 == 0:
            path.write_text("{")
        else:
            write(path, f"h{turn}:1")
        result = discovery.refresh(turn * 10.0)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert len(result.targets) <= 3
    assert len(discovery.kept[0]._source._files) <= 3  # type: ignore[union-attr]
