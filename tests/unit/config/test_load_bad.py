"""Files that are refused, with the exact lines that say why."""

# a table: one case on one line

from __future__ import annotations

from pathlib import Path

import pytest

from llm_exporter.config.load import load_config
from llm_exporter.errors import ConfigError

TARGET = "targets: [{name: a, url: 'http://a:1'%s}]\n"
SLO = ", slos: [{name: s, metric: time_to_first_token, threshold: %s, objective: %s}]"
MODULE = "targets: [{name: a, url: 'http://a:1', probes: [m]}]\nprobe_modules:\n  m: {%s}\n"


def target(rest: str) -> str:
    return TARGET % f", {rest}"


# what it shows: (the file, the lines wanted without the file's name)
BAD: dict[str, tuple[str, list[str]]] = {
    # keys
    "unknown key": (target("enigne: vllm"), ["1: targets[0].enigne: unknown key; did you mean engine?"]),
    "unknown key at the top": ("scrape_configs: []\n", ["1: scrape_configs: unknown key; did you mean targets?"]),
    "key of Prometheus": (target("bearer_token_file: x"), ["1: targets[0].bearer_token_file: unknown key; did you mean authorization: {credentials_file: …}?"]),
    "key of the top in a target": (target("stall: {after: 1s}"), ["1: targets[0].stall: unknown key; it belongs to the top of the file"]),
    "nothing similar": ("gpu: {zzz: 1}\n", ["1: gpu.zzz: unknown key; known keys are enabled, interval, expected_count"]),
    "attribute name": ("global_: {scrape_interval: 1s}\n", ["1: global_: unknown key; did you mean global?"]),
    "duplicate key": ("gpu: {interval: 1s}\nhost: {enabled: auto}\ngpu: {interval: 2s}\n", ["3: gpu: the key is already there, in line 1; remove one of the two"]),
    "duplicate key deep down": ("targets:\n  - name: a\n    url: http://a:1\n    labels:\n      x: y\n      x: z\n", ["6: targets[0].labels.x: the key is already there, in line 5; remove one of the two"]),
    "missing keys": ("targets:\n  - engine: vllm\n", [
        "2: targets[0]: the key name is missing; add name: (Name, unique; becomes the label `target`.)",
        "2: targets[0]: the key url is missing; add url: (Base URL, a path prefix allowed: http://HOST:PORT[/PREFIX].)",
    ]),
    "key that is no text": ("targets: []\n1: 2\n", ["2: a key must be text; put it in quotes"]),
    "no value": ("gpu: {interval: }\nreport:\n", ["1: gpu.interval: has no value; give it one, or remove the key", "2: report: has no value; give it one, or remove the key"]),
    # types
    "list for text": ("targets: [{name: [a], url: 'http://a:1'}]\n", ["1: targets[0].name: must be text; put it in quotes"]),
    "number for text": ("targets: [{name: 12, url: 'http://a:1'}]\n", ["1: targets[0].name: value 12: must be text; put it in quotes"]),
    "text for a list": ("targets: chat\n", ["1: targets: value chat: must be a list; write [ … ] around it, or - in front of each item"]),
    "mapping for a list": ("targets: {name: a}\n", ["1: targets: must be a list; write [ … ] around it, or - in front of each item"]),
    "list for a mapping": ("gpu: [1]\n", ["1: gpu: must be a mapping; write KEY: VALUE lines below it"]),
    "text for a mapping": ("probe_modules: {m: 30s}\n", ["1: probe_modules.m: value 30s: must be a mapping; write KEY: VALUE lines below it"]),
    "text for a mapping of text": (target("labels: x"), ["1: targets[0].labels: value x: must be a mapping; write KEY: VALUE lines below it"]),
    "on is text": ("web: {enable_reload: on}\n", ["1: web.enable_reload: value on: must be true or false; write true or false without quotes"]),
    "yes is no number": ("web: {max_requests: yes}\n", ["1: web.max_requests: value yes: must be a whole number; write digits without quotes, unit or point"]),
    "quoted number": ("web: {max_requests: '4'}\n", ['1: web.max_requests: value "4": must be a whole number; write digits without quotes, unit or point']),
    "fraction for a whole number": ("web: {max_requests: 4.0}\n", ["1: web.max_requests: value 4.0: must be a whole number; write digits without quotes, unit or point"]),
    "true for a number": (target("gpu_cost_per_hour: true"), ["1: targets[0].gpu_cost_per_hour: value true: must be a number; write digits without quotes or unit"]),
    "infinite number": (target("gpu_cost_per_hour: .inf"), ["1: targets[0].gpu_cost_per_hour: value .inf: must be a finite number; write digits"]),
    "out of range": ("web: {max_requests: 0}\n", ["1: web.max_requests: value 0: must be at least 1"]),
    "unknown language": (MODULE % "interval: 1m, language: xx", ["3: probe_modules.m.language: value xx: must be en, de, fr, es or zh"]),
    "too high": (MODULE % "interval: 1m, temperature: 2.5", ["3: probe_modules.m.temperature: value 2.5: must be at most 2"]),
    "switch": ("gpu: {enabled: on}\n", ["1: gpu.enabled: value on: must be auto, true or false; write auto, true or false without quotes"]),
    "closed set": (target("engine: tgi"), ["1: targets[0].engine: value tgi: must be auto, vllm or sglang"]),
    "label that is a number": (target("labels: {rack: 12}"), ["1: targets[0].labels.rack: value 12: must be text; put it in quotes"]),
    # durations
    "number without unit": ("global: {scrape_interval: 5}\n", ["1: global.scrape_interval: value 5: is a number without a unit; write 5s for seconds"]),
    "quoted number without unit": ("global: {scrape_interval: '5'}\n", ['1: global.scrape_interval: value "5": is not a duration; write 5s for seconds']),
    "zero": ("global: {scrape_interval: 0s}\n", ["1: global.scrape_interval: value 0s: must be longer than 0; write for example 5s"]),
    "negative": ("global: {scrape_interval: -5s}\n", ["1: global.scrape_interval: value -5s: is not a duration; write for example 30s, 1m30s or 500ms (units y, w, d, h, m, s, ms, in this order)"]),
    "fraction": ("stall: {after: 0.5s}\n", ["1: stall.after: value 0.5s: is not a duration; write 500ms"]),
    "clock": ("stall: {after: 12:30:00}\n", ["1: stall.after: value 12:30:00: is not a duration; write for example 12h30m instead of 12:30"]),
    "too long": ("stall: {after: 101y}\n", ["1: stall.after: value 101y: is longer than 100 years; write for example 30s, 1m30s or 500ms"]),
    # names, URLs, labels
    "name twice": ("targets:\n  - {name: a, url: 'http://a:1'}\n  - {name: a, url: 'http://b:1'}\n", ["3: targets[1].name: value a: the name is already that of targets[0]; give each target its own"]),
    "user info": (target("service: b").replace("http://a:1", "http://user:hunter2@a:1"), ['1: targets[0].url: value "http://<secret>@a:1": holds user info (user:password@); remove it and use basic_auth or authorization']),
    "query": (target("service: b").replace("http://a:1", "http://a:1?key=hunter2"), ['1: targets[0].url: value "http://a:1": holds a query (?…); remove it; secrets belong into authorization or headers']),
    "scheme": (target("service: b").replace("http://a:1", "a:8000"), ['1: targets[0].url: value "a:8000": does not begin with http:// or https://; write http://HOST:PORT']),
    "IPv6 without brackets": (target("service: b").replace("http://a:1", "http://::1:8000"), ['1: targets[0].url: value "http://::1:8000": is not a URL: host or port is malformed; write http://HOST:PORT, an IPv6 address in brackets: http://[::1]:8000']),
    "path": (target("metrics_path: metrics"), ["1: targets[0].metrics_path: value metrics: must begin with one /; write for example /metrics"]),
    "label of ours": (target("labels: {job: x}"), ["1: targets[0].labels.job: the label 'job' is the exporter's own; rename the label"]),
    "label of Prometheus": (target("labels: {__x: y}"), ["1: targets[0].labels.__x: the label '__x' begins with __, which Prometheus keeps for itself; rename the label"]),
    "label name": (target("labels: {a-b: y}"), ["1: targets[0].labels.a-b: 'a-b' is not a label name; use letters, digits and _, no digit in front"]),
    # what belongs together
    "probe module": ("targets: [{name: a, url: 'http://a:1', probes: [shrt]}]\nprobe_modules: {short: {interval: 30s}}\n", ["1: targets[0].probes[0]: value shrt: no probe module has this name; did you mean short?"]),
    "probe module of discovered targets": ("file_sd_configs: [{files: [a.yml], target: {probes: [x]}}]\n", ["1: file_sd_configs[0].target.probes[0]: value x: no probe module has this name; add it to probe_modules"]),
    "cross problem beside another": ("targets:\n  - {name: a, url: x, probes: [no]}\n", ["2: targets[0].probes[0]: value no: no probe module has this name; add it to probe_modules", "2: targets[0].url: value x: does not begin with http:// or https://; write http://HOST:PORT"]),
    "probe twice": ("targets: [{name: a, url: 'http://a:1', probes: [m, m]}]\nprobe_modules: {m: {interval: 30s}}\n", ["1: targets[0].probes[1]: value m: the probe module 'm' is already named; remove one"]),
    "objective in percent": (TARGET % (SLO % ("1s", "99.9")), ["1: targets[0].slos[0].objective: value 99.9: must lie between 0 and 1; write 0.999"]),
    "objective 1": (TARGET % (SLO % ("1s", "1")), ["1: targets[0].slos[0].objective: value 1: must lie between 0 and 1; write for example 0.99"]),
    "threshold 0": (TARGET % (SLO % ("0", "0.9")), ["1: targets[0].slos[0].threshold: value 0: must be longer than 0; write for example 5s"]),
    "SLO metric": (target("slos: [{name: s, metric: ttft, threshold: 1s, objective: 0.9}]"), ["1: targets[0].slos[0].metric: value ttft: must be time_to_first_token, inter_token_latency or e2e_request_latency"]),
    "SLO twice": (target("slos: [&s {name: s, metric: inter_token_latency, threshold: 1s, objective: 0.9}, *s]"), ["1: targets[0].slos[1].name: value s: the SLO 's' is already there; give each SLO its own name"]),
    "interval and schedule": (MODULE % "interval: 1m, schedule: '0 4 * * *'", ["3: probe_modules.m: needs either interval or schedule; give exactly one of the two"]),
    "neither": (MODULE % "repeat: 1", ["3: probe_modules.m: needs either interval or schedule; give exactly one of the two"]),
    "crontab": (MODULE % "schedule: '0 25 * * *'", ["3: probe_modules.m.schedule: value \"0 25 * * *\": has the hour '25'; write 0 to 23"]),
    "never due": (MODULE % "schedule: '0 0 31 2 *'", ['3: probe_modules.m.schedule: value "0 0 31 2 *": names a day that its months never have; write a day between 1 and 28']),
    "time zone": (MODULE % "schedule: '0 4 * * *', timezone: Mars/Base", ["3: probe_modules.m.timezone: value Mars/Base: is not a known time zone; write a name such as Europe/Berlin or UTC"]),
    "time zone by path": (MODULE % "schedule: '0 4 * * *', timezone: ../etc/passwd", ["3: probe_modules.m.timezone: value ../etc/passwd: is not a time zone; write a name such as Europe/Berlin or UTC"]),
    "budget": (MODULE % "interval: 1m, prompt_tokens: [100, 200], repeat: 2, budget_tokens_per_hour: 599", ["3: probe_modules.m.budget_tokens_per_hour: value 599: is less than one run needs (600 tokens); write at least 600"]),
    "prompt tokens": (MODULE % "interval: 1m, prompt_tokens: [64, 0]", ["3: probe_modules.m.prompt_tokens[1]: value 0: must be at least 1"]),
    "cache": (MODULE % "interval: 1m, cache: hot", ["3: probe_modules.m.cache: value hot: must be cold or warm"]),
    "endpoint": (MODULE % "interval: 1m, endpoint: /v1/models", ["3: probe_modules.m.endpoint: value /v1/models: is no endpoint that generates; write /v1/chat/completions, /v1/completions or, for SGLang, /generate"]),
    "GPUs": (target("gpus: [0, 0, x]"), ["1: targets[0].gpus[1]: value 0: stands there twice; remove one"]),
    "GPU name": (target("gpus: [x]"), ['1: targets[0].gpus[0]: value x: is neither an index nor a UUID; write 0, GPU-…, MIG-… or, for a MIG device, "0.1"']),
    "no GPU": (target("gpus: []"), ["1: targets[0].gpus: is an empty list; write none where the target uses no GPU of this machine"]),
    "process": (target("process: {find: cmdline}"), ["1: targets[0].process.find: value cmdline: is cmdline, but there is no expression; add cmdline: REGEX"]),
    "expression": (target("process: {cmdline: '('}"), ['1: targets[0].process.cmdline: value "(": is not a regular expression (missing ), unterminated subpattern at position 0); escape special characters with \\']),
    "file pattern": ("file_sd_configs: [{files: ['*/a.yml', b.txt]}]\n", [
        '1: file_sd_configs[0].files[0]: value "*/a.yml": is no pattern of JSON or YAML files; write one * at most, in the last part, and end in .json, .yml or .yaml',
        "1: file_sd_configs[0].files[1]: value b.txt: is no pattern of JSON or YAML files; write one * at most, in the last part, and end in .json, .yml or .yaml",
    ]),
    "name in a target block": ("file_sd_configs: [{files: [a.yml], target: {gpu: x}}]\n", ["1: file_sd_configs[0].target.gpu: unknown key; did you mean gpus?"]),
    "review without a source": ("report: {schedule: '0 8 * * mon'}\n", ['1: report.schedule: value "0 8 * * mon": cannot run without a Prometheus server; add prometheus: {url: http://HOST:9090}']),
    "alert label": ("generate: {alert_labels: [team, severity]}\n", ["1: generate.alert_labels[1]: value severity: is a label that alerts have anyway; remove it"]),
    "keep": ("report: {keep: 0}\n", ["1: report.keep: value 0: must be at least 1"]),
    "empty name": ("targets: [{name: '', url: 'http://a:1'}]\n", ['1: targets[0].name: value "": is empty; remove the key or give it a value']),
    "name with spaces": ("targets: [{name: ' a', url: 'http://a:1'}]\n", ['1: targets[0].name: value " a": begins or ends with a space; remove the space']),
    "long name": ("targets: [{name: %s, url: 'http://a:1'}]\n" % ("a" * 201), ["1: targets[0].name: value %s…: is 201 characters long; use at most 200" % ("a" * 77)]),
    "control character": ('targets: [{name: "a\\eb", url: \'http://a:1\'}]\n', ['1: targets[0].name: value "a�b": holds a control character; use printable text']),
    "duration that is a list": ("stall: {after: [5s]}\n", ["1: stall.after: must be a duration; write for example 30s, 1m30s or 500ms"]),
    "duration that is true": ("stall: {after: true}\n", ["1: stall.after: value true: must be a duration; write for example 30s, 1m30s or 500ms"]),
    "negative number": ("stall: {after: -5}\n", ["1: stall.after: value -5: is a number without a unit; write for example 30s"]),
    "file that is a number": ("report: {directory: 5}\n", ["1: report.directory: value 5: must be a file name; put it in quotes"]),
    "path with a query": (target("metrics_path: '/m?token=hunter2'"), ['1: targets[0].metrics_path: value "/m": holds a query, a fragment, a space, a backslash or a letter outside ASCII; write the path alone, other letters as %XX']),
    "GPUs that are a number": (target("gpus: 0"), ["1: targets[0].gpus: value 0: must be auto, none or a list; write auto, none, or a list such as [0, 1] or [GPU-…]"]),
    "no files": ("file_sd_configs: [{files: []}]\n", ["1: file_sd_configs[0].files: is an empty list; name a file, or remove the section"]),
    "expression without effect": (target("process: {find: port, cmdline: x}"), ["1: targets[0].process.cmdline: value x: has no effect with find: port; use find: cmdline or auto"]),
    "time zone without schedule": (MODULE % "interval: 1m, timezone: Europe/Berlin", ["3: probe_modules.m.timezone: value Europe/Berlin: has no effect without schedule; remove it"]),
    "no length": (MODULE % "interval: 1m, prompt_tokens: []", ["3: probe_modules.m.prompt_tokens: is empty or names a value twice; name each value once"]),
    "foreign tag": (target("labels: {a: !x y}"), ["1: YAML tags (!…) are not supported; remove the tag, or put the text in quotes"]),
    "merge of text": ("gpu: {<<: x}\n", ["1: a merge key (<<) needs a mapping or a list of mappings"]),
    # credentials: never a value
    "scheme of several words": (target("authorization: {type: 'Bearer hunter2', credentials: x}"), ["1: targets[0].authorization.type: value <secret>: is not a scheme of HTTP; write one word, for example Bearer"]),
    "empty credentials": (target("authorization: {credentials: ''}"), ["1: targets[0].authorization.credentials: value <secret>: is empty; give the token"]),
    "no user": (target("basic_auth: {password: hunter2}"), ["1: targets[0].basic_auth: needs either username or username_file; give exactly one of the two"]),
    "user with a colon": (target("basic_auth: {username: 'u:hunter2'}"), ["1: targets[0].basic_auth.username: value <secret>: holds a colon, which ends the user in HTTP; use a user without a colon"]),
    "two passwords": (target("basic_auth: {username: u, password: hunter2, password_file: f}"), ["1: targets[0].basic_auth: has both password and password_file; give only one of the two"]),
    "two authorities": (target("tls_config: {ca: '-----BEGIN CERTIFICATE-----', ca_file: f}"), ["1: targets[0].tls_config: has both ca and ca_file; give only one of the two"]),
    "no certificate": (target("tls_config: {ca: hunter}"), ["1: targets[0].tls_config.ca: value hunter: holds no certificate in PEM form; write the text from -----BEGIN CERTIFICATE----- on, or use ca_file"]),
    "header without value": (target("headers: {X-A: {files: []}}"), ["1: targets[0].headers.X-A: has no value; write NAME: value"]),
    "header name": (target("headers: {'X hunter2': a}"), ["1: targets[0].headers.<not shown>: is not a header name; use letters, digits and -"]),
    "two authorizations": (target("authorization: {credentials: hunter2}, basic_auth: {username: u}"), ["1: targets[0].basic_auth: stands beside authorization; keep one of the two"]),
    "two credentials": (target("authorization: {credentials: hunter2, credentials_file: f}"), ["1: targets[0].authorization: needs either credentials or credentials_file; give exactly one of the two"]),
    "slipped credentials": (target("authorization: hunter2"), ["1: targets[0].authorization: value <secret>: must be a mapping; write KEY: VALUE lines below it"]),
    "slipped key": (target("authorization: {Bearer hunter2: x}"), ["1: targets[0].authorization.<not shown>: unknown key; known keys are type, credentials, credentials_file"]),
    "numeric password": (target("basic_auth: {username: u, password: 12345}"), ["1: targets[0].basic_auth.password: value <secret>: must be text; put it in quotes"]),
    "basic": (target("authorization: {type: basic, credentials: hunter2}"), ["1: targets[0].authorization.type: value <secret>: Basic needs a user and a password; use basic_auth"]),
    "unset variable": (target("headers: {X-A: 'x${NO_SUCH}'}"), ["1: targets[0].headers.X-A: value <secret>: the environment variable NO_SUCH is not set; set it, or write $$ where you mean a dollar"]),
    "broken variable": (target("basic_auth: {username: u, password: 'a${hunter2 b'}"), ["1: targets[0].basic_auth.password: value <secret>: has a ${ that names no variable; write ${NAME} for a variable of the environment, $$ for a dollar"]),
    "header of ours": (target("headers: {Authorization: hunter2}"), ["1: targets[0].headers.Authorization: the header 'Authorization' is set by the exporter itself; use authorization or basic_auth"]),
    "header with a line break": (target('headers: {X-A: "a\\nHost: b"}'), ["1: targets[0].headers.X-A: value <secret>: holds a line break or another control character; remove it; a header cannot carry it"]),
    "header twice": (target("headers: {X-A: a, x-a: b}"), ["1: targets[0].headers.x-a: value <secret>: repeats the header 'X-A'; keep one of the two"]),
    "server name with a dot in front": (target("tls_config: {server_name: .x}"), ["1: targets[0].tls_config.server_name: value .x: is no host name or address; write the name as it stands in the server's certificate"]),
    "server name that is a URL": (target("tls_config: {server_name: 'https://x'}"), ["1: targets[0].tls_config.server_name: value \"https://x\": is no host name or address; write the name as it stands in the server's certificate"]),
    "server name with an empty part": (target("tls_config: {server_name: a..b}"), ["1: targets[0].tls_config.server_name: value a..b: is no host name or address; write the name as it stands in the server's certificate"]),
    "certificate without key": (target("tls_config: {cert_file: a}"), ["1: targets[0].tls_config: has one of cert_file and key_file without the other; give both"]),
    "TLS versions": (target("tls_config: {min_version: TLS13, max_version: TLS12}"), ["1: targets[0].tls_config.min_version: value TLS13: is higher than max_version; swap the two"]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused_with_place_value_and_remedy(text: str, wanted: list[str], tmp_path: Path) -> None:
    file = tmp_path / "bad.yml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config(file, {})
    assert str(error.value).split("\n") == [f"{file}:{line}" for line in wanted]
    assert "hunter2" not in str(error.value)


def test_all_problems_of_a_file_are_named_in_the_order_of_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "bad.yml"
    file.write_text(
        "gpu: {intervall: 1s}\ntargets:\n  - name: a\n    url: x\n  - name: a\n    name: b\n    url: http://a:1\n    probes: [no]\n"
    )
    with pytest.raises(ConfigError) as error:
        load_config(file, {})
    lines = [int(line.removeprefix(f"{file}:").split(":")[0]) for line in str(error.value).split("\n")]
    assert lines == [1, 4, 5, 6, 8]


def test_more_targets_than_threads_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "many.yml"
    file.write_text("targets:\n" + "".join(f"  - {{name: t{n}, url: 'http://h:{n + 1}'}}\n" for n in range(513)))
    with pytest.raises(ConfigError, match=r"many\.yml:514: targets\[512\]: there are 513 targets; one exporter serves 512"):
        load_config(file, {})


def test_a_file_with_many_problems_names_the_first_hundred(tmp_path: Path) -> None:
    file = tmp_path / "many.yml"
    file.write_text("".join(f"key{n}: 1\n" for n in range(150)))
    with pytest.raises(ConfigError) as error:
        load_config(file, {})
    assert len(str(error.value).split("\n")) == 101
    assert str(error.value).endswith("and 50 more problems")
