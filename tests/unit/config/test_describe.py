"""The committed reference and example are those of the model, complete, and valid."""

# tables: one case on one line

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llm_exporter.config.describe import EXAMPLE_PATH, REFERENCE_PATH, documents, example_yaml, sections, words
from llm_exporter.config.keys import sections_of
from llm_exporter.config.load import load_config
from llm_exporter.errors import ConfigError

ROOT = Path(__file__).parents[3]
KEYS = [(section, key, field) for section in sections() for key, field in sections_of(section).items()]
UNSET = [number for number, line in enumerate(example_yaml().split("\n")) if re.match(r"\s*#\w", line)]


@pytest.mark.parametrize("path", documents())
def test_committed_documents_are_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == documents()[path], "run: llm-exporter generate docs"


@pytest.mark.parametrize(
    ("section", "key", "field"), KEYS, ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else "")
)
def test_every_key_has_a_meaning_of_one_sentence_and_is_in_the_reference(section: type, key: str, field: object) -> None:
    description = field.description  # type: ignore[attr-defined]
    assert description
    assert description.endswith(".")
    assert "\n" not in description
    reference = (ROOT / REFERENCE_PATH).read_text(encoding="utf-8")
    assert re.search(rf"^(\[ )?{key}: {re.escape(words(field))}", reference, re.MULTILINE)  # type: ignore[arg-type]


def test_the_example_loads(tmp_path: Path) -> None:
    config = load_config(ROOT / EXAMPLE_PATH, {})
    assert [target.name for target in config.targets] == ["chat"]
    assert set(config.probe_modules) == {"short", "ladder"}


@pytest.mark.parametrize("number", UNSET, ids=lambda number: example_yaml().split("\n")[number].strip().split(":")[0])
def test_every_key_that_is_commented_out_can_be_set(number: int, tmp_path: Path) -> None:
    lines = example_yaml().split("\n")
    lines[number] = lines[number].replace("#", "", 1)
    file = tmp_path / "c.yml"
    file.write_text("\n".join(lines))
    if "# instead of" in lines[number]:
        with pytest.raises(ConfigError, match="needs either interval or schedule"):
            load_config(file, {})
    else:
        load_config(file, {})


def test_every_key_of_the_file_is_in_the_example() -> None:
    example = example_yaml()
    for section in sections():
        if section.__name__ not in (
            "Authorization",
            "BasicAuth",
            "TlsConfig",
            "Header",
            "ReportPrometheus",
            "Report",
            "FileSdConfig",
            "HttpSdConfig",
            "Slo",
        ):
            for key in sections_of(section):
                assert re.search(rf"[#\s{{-]{key}:", example), key
