"""The reference of all keys and the example file, made from the model.

`generate docs` writes what `documents` returns: the text of each file by its path from the root of the repository.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from llm_exporter.config.durations import format_duration
from llm_exporter.config.keys import section_in, sections_of
from llm_exporter.config.model import Config, ProbeModule, Target, TargetDefaults
from llm_exporter.config.values import Placeholder, Secret, Section

EXAMPLE_PATH = "llm-exporter.example.yml"
REFERENCE_PATH = "docs/configuration.md"

# What the example writes where the model has no default; as YAML.
_EXAMPLES: Mapping[str, str] = {
    "authorization": "{credentials_file: token}",
    "basic_auth": "{username: prometheus, password_file: password}",
    "tls_config": "{ca_file: ca.pem}",
    "cmdline": '"vllm serve .*--port 8000"',
    "running": "256",
    "context_tokens": "32768",
    "gpu_count": "8",
    "gpu_cost_per_hour": "2.5",
    "max_waiting": "0",
    "budget_tokens_per_hour": "400000",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "expected_count": "8",
    "webhook_url_file": "webhook-url",
    "prometheus": "{url: http://127.0.0.1:9090}",
    "matchers": "'cluster=\"a\"'",
    "grafana_url": "http://127.0.0.1:3000",
    "runbook_base_url": "https://wiki.example.org/runbooks",
    "file_sd_configs": '[{files: ["targets/*.yml"], refresh_interval: 30s, target: {probes: [short]}}]',
    "http_sd_configs": "[{url: http://127.0.0.1:8500/targets, refresh_interval: 1m, target: {probes: [short]}}]",
    "report": '{schedule: "0 8 * * mon", timezone: Europe/Berlin, prometheus: {url: http://127.0.0.1:9090}}',
}
_TARGET_EXAMPLE: Mapping[str, str] = {
    "name": "chat",
    "url": "http://127.0.0.1:8000",
    "service": "chat",
    "probes": "[short]",
    "slos": "[{name: ttft, metric: time_to_first_token, threshold: 1s, objective: 0.99}]",
}
_PROBE_EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "short": {"interval": "30s", "timeout": "20s"},
    "ladder": {
        "schedule": '"0 4 * * *"',
        "timezone": "Europe/Berlin",
        "timeout": "1m",
        "prompt_tokens": "[2048, 8192, 16384, 32768]",
        "cache": "[cold, warm]",
        "repeat": "5",
        "max_waiting": "0",
        "budget_tokens_per_hour": "400000",
    },
}


def documents() -> Mapping[str, str]:
    """The generated files by their path from the root of the repository."""
    return {EXAMPLE_PATH: example_yaml(), REFERENCE_PATH: reference_markdown()}


def example_yaml() -> str:
    """A configuration that loads, with every key, its meaning and its default; keys without one are commented out."""
    lines = [
        "# llm-exporter: every key, its meaning and its default. Generated from the model; change it there.",
        "# Lines that begin with # and no space after it are keys that are not set; remove the # to set them.",
        "# The reference is docs/configuration.md. Check a file with: llm-exporter check config FILE",
    ]
    for key, field in sections_of(Config).items():
        lines += ["", f"# {field.description}"]
        if key == "targets":
            lines += ["targets:", *_item(_section(Target, _TARGET_EXAMPLE))]
        elif key == "probe_modules":
            lines.append("probe_modules:")
            for name, given in _PROBE_EXAMPLES.items():
                lines += [f"  {name}:", *_indented(_section(ProbeModule, given), 4)]
        elif isinstance(field.default, Section):
            lines += [f"{key}:", *_indented(_section(type(field.default), {}), 2)]
        else:
            lines.append(f"#{key}: {_EXAMPLES[key]}")
    return "\n".join(lines) + "\n"


def _section(section: type[Section], given: Mapping[str, str]) -> Iterator[str]:
    for key, field in sections_of(section).items():
        yield f"# {field.description}"
        if key in given:
            yield f"{key}: {given[key]}"
        elif isinstance(field.default, Section) and any(value is not None for value in dict(field.default).values()):
            yield f"{key}:"
            yield from _indented(_section(type(field.default), {}), 2)
        elif isinstance(field.default, Section):
            yield f"#{key}: {{" + ", ".join(f"{name}: {_EXAMPLES[name]}" for name in sections_of(type(field.default))) + "}"
        elif field.default is None or field.is_required():
            yield f"#{key}: {_example_of(section, key)}"
        else:
            yield f"{key}: {_default(field)}"


def _example_of(section: type[Section], key: str) -> str:
    if section is ProbeModule and key in ("interval", "schedule"):
        return "30s  # instead of schedule" if key == "interval" else '"0 4 * * *"  # instead of interval'
    return _EXAMPLES[key]


def _indented(lines: Iterator[str], spaces: int) -> list[str]:
    return [" " * spaces + line for line in lines]


def _item(lines: Iterator[str]) -> list[str]:
    """Lines of a mapping as one item of a list."""
    comment, first, *rest = lines
    return [f"  {comment}", f"  - {first}", *(f"    {line}" for line in rest)]


def _default(field: FieldInfo) -> str:
    """The default of a key as YAML."""
    value = field.default
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and "duration" in words(field):
        return format_duration(value)
    if isinstance(value, tuple):
        return str(value[0]) if len(value) == 1 else "[" + ", ".join(map(str, value)) + "]"
    if isinstance(value, Mapping):
        return "{}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(field: FieldInfo) -> str:
    """The type of a key in the grammar of the reference."""
    return _words(field.annotation, tuple(field.metadata))


def _words(annotation: Any, metadata: tuple[Any, ...] = ()) -> str:
    found = [item.word for item in metadata if isinstance(item, Placeholder)]
    if found:
        return str(found[-1])
    if hasattr(annotation, "__metadata__"):
        return _words(get_args(annotation)[0], annotation.__metadata__)
    origin, parts = get_origin(annotation), [part for part in get_args(annotation) if part not in (type(None), Ellipsis)]
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin is tuple:
        return f"[ {_words(parts[0])}, ... ]"
    if origin is Mapping:
        return f"{{ {_words(parts[0])}: {_words(parts[1])}, ... }}"
    if annotation is Secret:
        return "<secret>"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return f"<{placeholder(annotation)}>"
    assert len(parts) == 1, f"no word for {annotation}"
    return _words(parts[0])


def placeholder(section: type[Section]) -> str:
    """The name of a section in the reference: `FileSdConfig` is `file_sd_config`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", section.__name__).lower()


def sections() -> Iterator[type[Section]]:
    """Every section once, each after the one that first mentions it."""
    queue: list[type[Section]] = [Config]
    for section in queue:
        yield section
        for field in section.model_fields.values():
            inner = section_in(field.annotation)
            if inner is not None and inner not in queue:
                queue.append(inner)


def reference_markdown() -> str:
    """docs/configuration.md: the rules of the file in prose, then every key of every section with type, default and meaning."""
    prose = (Path(__file__).parent / "reference.md").read_text(encoding="utf-8")
    parts = [prose.rstrip()]
    for section in sections():
        title = "The whole file" if section is Config else f"`<{placeholder(section)}>`"
        text = re.sub(r"\s+", " ", section.__doc__ or "")
        if section is TargetDefaults:
            keys = textwrap.fill(", ".join(f"`{key}`" for key in sections_of(section)) + ".", 130)
            parts.append(f"## {title}\n\n{text} The keys of `<target>` without `name` and `url`:\n{keys}")
            continue
        keys = "\n\n".join(_reference_of(key, field) for key, field in sections_of(section).items())
        parts.append(f"## {title}\n\n{text}\n\n```yaml\n{keys}\n```")
    return "\n\n".join(parts) + "\n"


def _reference_of(key: str, field: FieldInfo) -> str:
    meaning = textwrap.wrap(field.description or "", 110)
    line = f"{key}: {words(field)}"
    if not field.is_required():
        default = (
            "" if field.default is None or isinstance(field.default, Section) or field.default == "" else f" | default = {_default(field)}"
        )
        line = f"[ {line}{default} ]"
    return "\n".join([*(f"# {part}" for part in meaning), line])
