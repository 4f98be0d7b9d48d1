"""Secrets reach the request and nothing else; files are read at each use."""

# tables: one case on one line

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml

from llm_exporter.config.http_client import Authorization, BasicAuth, Header, HttpClient
from llm_exporter.config.load import load, load_config
from llm_exporter.config.model import Config, Secret, Target
from llm_exporter.config.render import render_config
from llm_exporter.config.secrets import credentials_headers, read_secret
from llm_exporter.errors import ConfigError, SourceError

PLANTED = "hunter2"
EVERYWHERE = f"""
# {PLANTED} in a comment
global: {{scrape_interval: 5s}}
targets:
  - name: a
    url: http://a:1
    authorization: {{type: Bearer, credentials: {PLANTED}-1}}
    headers:
      X-A: {PLANTED}-2
      X-B: {{values: [{PLANTED}-3], secrets: ["{PLANTED}-4", &s {PLANTED}-5], files: [shown-file]}}
      X-C: *s
  - name: b
    url: http://b:1
    basic_auth: {{username: shown-user, password: "{PLANTED}-6"}}
  - name: c
    url: http://c:1
    basic_auth: {{username: "${{SHOWN_NAME}}", password: "${{PASSWORD}}"}}
http_sd_configs:
  - url: http://sd:1/list?team=shown-not&token={PLANTED}-7
    authorization: {{credentials: {PLANTED}-8}}
    target: {{headers: {{X-D: {PLANTED}-9}}}}
report:
  prometheus: {{url: http://p:9090, headers: {{X-E: {PLANTED}-10}}, basic_auth: {{username: u, password_file: shown-password-file}}}}
"""


def test_a_planted_secret_is_in_no_text_that_we_make(tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text(EVERYWHERE)
    loaded = load(file, {"PASSWORD": f"{PLANTED}-11", "SHOWN_NAME": "u"})
    config = loaded.config
    outputs = [loaded.written, *loaded.warnings, repr(config), str(config)]
    outputs += [repr(config.targets[0].headers), f"{config.targets[0].authorization}", render_config(EVERYWHERE)]
    outputs += [model.model_dump_json() for model in (*config.targets, config.report) if model is not None]
    for output in outputs:
        assert PLANTED not in output
    assert "shown-user" in loaded.written


def test_a_planted_secret_is_in_no_error(tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text(
        EVERYWHERE.replace("name: c", "name: a")
        .replace("[shown-file]}", "[shown-file], x: y}")
        .replace("{type: Bearer", "{typo: Bearer")
        .replace("scrape_interval: 5s", "scrape_interval: 5")
        .replace("url: http://b:1", f"url: http://u:{PLANTED}@b:1")
        .replace("http://p:9090", f"'http://p:9090/?k={PLANTED}'")
    )
    with pytest.raises(ConfigError) as error:
        load_config(file, {})
    assert len(str(error.value).split("\n")) == 8
    assert PLANTED not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        f"password: {PLANTED}", f"targets: [{{name: a, url: x, token: {PLANTED}}}]", f"targets: [{{name: a, url: 'ftp://u:{PLANTED}@h'}}]",
        f"targets: [{{name: a, url: 'u:{PLANTED}@h/x?y'}}]", f"targets: [{{name: a, url: http://a, authorization: [{PLANTED}]}}]",
        f"targets: [{{name: a, url: http://a, headers: {PLANTED}}}]", f"targets: [{{name: a, url: http://a, headers: {{'A {PLANTED}': x}}}}]",
        f"targets: [{{name: a, url: http://a, basic_auth: {{username: 'u:{PLANTED}', password: x}}}}]",
        f"targets: [{{name: a, url: http://a, basic_auth: {{username: u, password: [{PLANTED}]}}}}]",
        f"targets: [{{name: a, url: http://a, authorization: {{credentials: '${{{PLANTED} x}}'}}}}]",
        f"report: {{webhook_url: https://hooks/{PLANTED}}}", f"targets: [{{name: a, url: http://a, authorization: {{type: 'Bearer {PLANTED}'}}}}]",
        f"http_sd_configs: [{{url: 'htp://a?token={PLANTED}'}}]", f"a: *{PLANTED}", f"a: !{PLANTED} x", f"a: &{PLANTED} x\nb: &{PLANTED} y",
    ],
)  # fmt: skip
def test_slipped_secrets_are_in_no_error(line: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yml"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError) as error:
        load_config(file, {})
    assert PLANTED not in str(error.value)
    assert PLANTED not in repr(error.value)


def test_the_configuration_is_shown_as_written(tmp_path: Path) -> None:
    shown = yaml.safe_load(render_config(EVERYWHERE))
    first, second, third = shown["targets"]
    assert first["authorization"] == {"type": "Bearer", "credentials": "<secret>"}
    assert first["headers"] == {
        "X-A": "<secret>",
        "X-B": {"values": "<secret>", "secrets": "<secret>", "files": ["shown-file"]},
        "X-C": "<secret>",
    }
    assert second["basic_auth"] == {"username": "shown-user", "password": "<secret>"}
    assert third["basic_auth"] == {"username": "${SHOWN_NAME}", "password": "<secret>"}
    assert shown["global"] == {"scrape_interval": "5s"}
    assert shown["http_sd_configs"][0]["url"] == "http://sd:1/list?<secret>"
    assert shown["report"]["prometheus"]["basic_auth"]["password_file"] == "shown-password-file"


def test_shown_values_keep_their_spelling() -> None:
    text = 'global: {scrape_interval: 0h5s}\nlabels:\n  a: "1.0"\n  b: on\n  c: 0.990\n'
    assert render_config(text) == "global: {scrape_interval: 0h5s}\nlabels:\n  a: \"1.0\"\n  b: 'on'\n  c: 0.990\n"
    assert render_config("") == ""


def test_what_is_not_understood_is_hidden_where_secrets_live() -> None:
    text = f"a:\n  authorization: {PLANTED}\n  headers: [{PLANTED}]\n  basic_auth: {{username: [{PLANTED}]}}\n  url: 'http://u:{PLANTED}@[h'\n  token: {PLANTED}\n"
    shown = render_config(text)
    assert PLANTED not in shown
    assert shown.count("<secret>") == 5
    merged = f"x: &x {{credentials: {PLANTED}}}\na: {{authorization: {{<<: *x}}, headers: {{<<: {{A: {PLANTED}}}}}}}\n"
    assert PLANTED not in render_config(merged)


def test_secrets_are_equal_by_text_and_shown_by_none() -> None:
    one, same, other = Secret("a"), Secret("a"), Secret("b")
    assert (one == same, one == other, one == "a", hash(one) == hash(same)) == (True, False, False, True)
    assert {str(one), repr(one), f"{one}", f"{one!r:>3}"} == {"<secret>"}


def client(**keys: object) -> HttpClient:
    return HttpClient.model_validate(keys)


def test_headers_carry_the_credentials(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text(" from file \n")
    assert credentials_headers(client()) == {}
    assert credentials_headers(client(authorization=Authorization(credentials=Secret("t")))) == {"Authorization": "Bearer t"}
    assert credentials_headers(client(authorization={"type": "Token", "credentials_file": file})) == {"Authorization": "Token from file"}
    assert credentials_headers(client(basic_auth=BasicAuth(username="ü", password=Secret("p:w")))) == {
        "Authorization": "Basic " + base64.b64encode("ü:p:w".encode()).decode()
    }
    assert credentials_headers(client(basic_auth={"username_file": file, "password_file": file})) == {
        "Authorization": "Basic " + base64.b64encode(b"from file:from file").decode()
    }
    header = Header(values=(Secret("a"),), secrets=(Secret("b"),), files=(file,))
    assert credentials_headers(client(headers={"X-A": header, "X-B": "c"})) == {"X-A": "a, b, from file", "X-B": "c"}


def test_a_rotated_file_is_read_again(tmp_path: Path) -> None:
    """Field case TGT-07: the server wants a bearer token, which lives in a file."""
    token, file = tmp_path / "token", tmp_path / "c.yml"
    token.write_text("SECRET-TOKEN-123\n")
    file.write_text("targets: [{name: a, url: 'http://a:1', authorization: {credentials_file: token}}]")
    loaded = load(file, {})
    target = loaded.config.targets[0]
    assert credentials_headers(target) == {"Authorization": "Bearer SECRET-TOKEN-123"}
    token.write_text("next")
    assert credentials_headers(target) == {"Authorization": "Bearer next"}
    assert "SECRET-TOKEN-123" not in repr(loaded)


UNUSABLE = {
    "missing": (None, "cannot be read: No such file or directory"),
    "empty": (b" \n", "is empty"),
    "two lines": (b"hunter2\nhunter2", "holds more than one line, or a control character"),
    "not UTF-8": (b"hunter2\xff", "is not UTF-8"),
    "large": (b"hunter2" * 10_000, "is larger than 65536 bytes"),
    "no Latin": ("hunter2…".encode(), "authorization holds letters that HTTP headers cannot carry"),
}


@pytest.mark.parametrize(("content", "wanted"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_file_is_named_and_never_quoted(content: bytes | None, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SourceError) as error:
        credentials_headers(client(authorization={"credentials_file": file}))
    assert error.value.reason == "credentials"
    assert wanted in error.value.detail
    assert error.value.hint
    assert PLANTED not in str(error.value)


def test_a_directory_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="Is a directory"):
        read_secret(tmp_path)


def test_config_and_target_made_in_code_hide_theirs() -> None:
    target = Target(name="a", url="http://a:1", authorization=Authorization(credentials=Secret(PLANTED)))
    assert PLANTED not in repr(Config(targets=(target,)))
