"""The kinds of value that configuration keys hold: text, numbers, durations, secrets, URLs, files, label names.

In come values as the YAML loader or Python code gives them; out go the normalised values that the models in `http_client.py`,
`target.py` and `model.py` keep. What is wrong is said by `fault`, so that `load.py` can add file, line and key.

The loader passes a `LoadContext`: only then `${NAME}` is expanded, file names are resolved, and bare numbers are refused as durations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, Strict, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from llm_exporter.config.durations import parse_duration
from llm_exporter.config.urls import url_problem

HIDDEN = "<secret>"
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What the loader knows beside the document.

    Attributes:
        base_dir: directory of the configuration file; relative file names start there.
        environ: the variables that `${NAME}` may name.
    """

    base_dir: Path
    environ: Mapping[str, str]


class Empty:
    """Stands for a key without a value: no field accepts it, and `load.py` knows it again."""


EMPTY = Empty()


class Section(BaseModel):
    """A mapping of the configuration: unknown keys are refused, values never change."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _empty_keys(cls, data: Any, info: ValidationInfo) -> Any:
        """In a file, `labels:` alone is an empty list or mapping; any other key without a value fails as `EMPTY`."""
        if not isinstance(data, Mapping) or not isinstance(info.context, LoadContext):
            return data
        kept = {}
        for key, value in data.items():
            field = cls.model_fields.get("global_" if key == "global" else key)
            if value is not None or field is None:
                kept[key] = value
            elif not isinstance(field.default, Section | tuple | Mapping):
                kept[key] = EMPTY
        return kept


class FaultError(PydanticCustomError):
    """One thing that is wrong with a value, in words for the person who wrote it."""


def fault(message: str, *at: str | int, remedy: str = "") -> FaultError:
    """Build the error that a validator raises.

    Args:
        message: what is wrong; never holds a secret.
        at: keys below the validated value that lead to the culprit.
        remedy: what to write instead.
    """
    return faults([(at, message, remedy)])


def faults(found: list[tuple[tuple[str | int, ...], str, str]]) -> FaultError:
    """Build one error out of several (keys that lead to the culprit, what is wrong, remedy)."""
    text = "; ".join(f"{message}; {remedy}" if remedy else message for _, message, remedy in found)
    return FaultError("config", "{text}", {"text": text, "faults": found})


def _expand(text: str, info: ValidationInfo) -> str:
    if not isinstance(info.context, LoadContext):
        return text
    environ = info.context.environ

    def value_of(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name = match[1]
        if name is None:  # not quoted: it may be a piece of a password
            raise fault("has a ${ that names no variable", remedy="write ${NAME} for a variable of the environment, $$ for a dollar")
        if name not in environ:
            raise fault(f"the environment variable {name} is not set", remedy="set it, or write $$ where you mean a dollar")
        return environ[name]

    return re.sub(r"\$\$|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)\})?", value_of, text)


class Secret:
    """Text that is never shown: repr, str and serialisation give `<secret>`. `reveal()` is for the request alone."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(("Secret", self._text))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def read(value: object, info: ValidationInfo) -> Secret:
            if isinstance(value, Secret):
                return value
            if not isinstance(value, str):
                raise fault("must be text", remedy="put it in quotes")
            text = _expand(value, info)
            if _CONTROL.search(text):
                raise fault("holds a line break or another control character", remedy="remove it; a header cannot carry it")
            return cls(text)

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(lambda _: HIDDEN)
        )


def _plain_text(text: str) -> str:
    if not text:
        raise fault("is empty", remedy="remove the key or give it a value")
    if _CONTROL.search(text):
        raise fault("holds a control character", remedy="use printable text")
    return text


def _short_name(text: str) -> str:
    if text != text.strip():
        raise fault("begins or ends with a space", remedy="remove the space")
    if len(text) > 200:
        raise fault(f"is {len(text)} characters long", remedy="use at most 200")
    return text


def _seconds(value: object, info: ValidationInfo) -> float:
    if isinstance(value, bool):
        raise fault("must be a duration", remedy="write for example 30s, 1m30s or 500ms")
    if isinstance(value, int | float):
        if isinstance(info.context, LoadContext) and value != 0:
            raise fault("is a number without a unit", remedy=f"write {value}s for seconds" if value > 0 else "write for example 30s")
        if not 0 <= value < float("inf"):
            raise fault("must be a finite number of seconds, 0 or more")
        return float(value)
    if not isinstance(value, str):
        raise fault("must be a duration", remedy="write for example 30s, 1m30s or 500ms")
    try:
        return parse_duration(value)
    except ValueError as error:
        raise fault(str(error)) from None


def _more_than_zero(seconds: float) -> float:
    if seconds <= 0:
        raise fault("must be longer than 0", remedy="write for example 5s")
    return seconds


def _file(value: object, info: ValidationInfo) -> Path:
    if isinstance(value, str):
        _plain_text(value)
        value = Path(value)
    if not isinstance(value, Path):
        raise fault("must be a file name", remedy="put it in quotes")
    return info.context.base_dir / value if isinstance(info.context, LoadContext) else value


def _pattern(text: str, info: ValidationInfo) -> str:
    if not re.fullmatch(r"[^*?\[\]]*(\*[^*/?\[\]]*)?\.(json|yml|yaml)", text, re.IGNORECASE):
        raise fault("is no pattern of JSON or YAML files", remedy="write one * at most, in the last part, and end in .json, .yml or .yaml")
    return str(info.context.base_dir / text) if isinstance(info.context, LoadContext) else text


def _pem(text: str) -> str:
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise fault("holds no certificate in PEM form", remedy="write the text from -----BEGIN CERTIFICATE----- on, or use ca_file")
    return text


def _url(text: str, *, query: bool) -> str:
    problem = url_problem(text, query=query)
    if problem:
        raise fault(problem[0], remedy=problem[1])
    return text.rstrip("/") if not query else text


def _path(text: str) -> str:
    if not text.startswith("/") or text.startswith("//"):
        raise fault("must begin with one /", remedy="write for example /metrics")
    if re.search(r"[?#\s\\]", text) or not text.isascii():
        raise fault(
            "holds a query, a fragment, a space, a backslash or a letter outside ASCII", remedy="write the path alone, other letters as %XX"
        )
    return text


def _label_name(text: str) -> str:
    if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", text):
        raise fault(f"{text!r} is not a label name", remedy="use letters, digits and _, no digit in front")
    if text.startswith("__"):
        raise fault(f"the label {text!r} begins with __, which Prometheus keeps for itself", remedy="rename the label")
    return text


@dataclass(frozen=True, slots=True)
class Placeholder:
    """How the reference writes a kind of value: `duration` becomes `<duration>`."""

    word: str


Flag = Annotated[bool, Strict(), Placeholder("<boolean>")]
Whole = Annotated[int, Strict(), Placeholder("<int>")]
Number = Annotated[float, Strict(), Placeholder("<float>")]
Text = Annotated[str, Strict(), AfterValidator(_plain_text), Placeholder("<string>")]
Name = Annotated[Text, AfterValidator(_short_name), Placeholder("<name>")]
ExpandedText = Annotated[Text, AfterValidator(_expand)]
Duration = Annotated[float, BeforeValidator(_seconds), Placeholder("<duration>")]
PositiveDuration = Annotated[Duration, AfterValidator(_more_than_zero)]
FilePath = Annotated[Path, BeforeValidator(_file), Placeholder("<filename>")]
SdPattern = Annotated[Text, AfterValidator(_pattern), Placeholder("<filename_pattern>")]
Pem = Annotated[str, Strict(), AfterValidator(_pem), Placeholder("<string>")]
BaseUrl = Annotated[Text, AfterValidator(lambda text: _url(text, query=False)), Placeholder("<url>")]
QueryUrl = Annotated[Text, AfterValidator(lambda text: _url(text, query=True)), Placeholder("<url>")]
UrlPath = Annotated[Text, AfterValidator(_path), Placeholder("<path>")]
LabelName = Annotated[Text, AfterValidator(_label_name), Placeholder("<labelname>")]
