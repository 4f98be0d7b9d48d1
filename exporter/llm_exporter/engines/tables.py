"""The words in which an engine's table is written: which upstream series make up a canonical field, in which order to look.

`vllm.py` and `sglang.py` hold one `EngineTable` each; `compile.py` reads them against a page; `generate docs` prints them. Nothing here
asks for a version: the first choice whose series are on the page is taken. Releases are noted to tell "too old" from "missing".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from llm_exporter.readings import Absence

if TYPE_CHECKING:
    from llm_exporter.engines.facts import Facts, Key

Release = tuple[int, ...]


def release(text: str) -> Release:
    """Release as numbers that compare: "0.6.6.post1" → (0, 6, 6, 1). Empty → ()."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


class Counted(StrEnum):
    """When the engine books an event; part of the generated HELP."""

    LIVE = "as it happens"
    ARRIVAL = "when the request arrives"
    ADMISSION = "when the request is first scheduled"
    FIRST_TOKEN = "at the first token"  # noqa: S105 -- no password: a token of text
    FINISH = "when the request finishes"
    ANSWERED = "when the answer ends"
    STATE = "state at the last report of the engine"
    CONSTANT = "fixed at start"


@dataclass(frozen=True, slots=True)
class Source:
    """One upstream series or histogram.

    Attributes:
        name: full name; a leading colon stands for the engine's prefix in either spelling (":x" is `sglang:x` and `sglang_x`).
            For a histogram field the name without `_bucket`.
        since: first release that has it.
        where: label → values of the series that count. A label that no series of this name has, selects nothing away.
        label: upstream label that gives the slot's label ("" for fields without one).
        rename: upstream label value → ours. None: taken as it is.
        other: ours for values outside `rename`; "" leaves those series out.
        optional: an absent series adds 0 and does not make the choice unusable.
    """

    name: str
    since: str = ""
    where: Mapping[str, frozenset[str]] = field(default_factory=dict)
    label: str = ""
    rename: Mapping[str, str] | None = None
    other: str = ""
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A sum of sources less other sources. `label` is the slot's label where the sources give none."""

    plus: tuple[Source, ...]
    minus: tuple[Source, ...] = ()
    label: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to get a field.

    Attributes:
        parts: all are needed, but for those whose sources are all optional.
        zero_with: names that prove the counter exists in this release, so that its absent series is 0 and not unknown;
            only where the page shows a release that has the sources.
        seed: labels that start at 0.
        needs: answers False where the choice cannot be used on the page.
        scale: factor for all values, from the page; it answers None where it is not known.
        constants: values that stand in labels instead of samples.
    """

    parts: tuple[Part, ...] = ()
    zero_with: tuple[str, ...] = ()
    seed: tuple[str, ...] = ()
    needs: Callable[[Facts], bool] | None = None
    scale: Callable[[Facts], float | None] | None = None
    constants: Callable[[Facts], Mapping[Key, float]] | None = None
    since: str = ""

    @property
    def sources(self) -> tuple[Source, ...]:
        """All sources of all parts."""
        return tuple(source for part in self.parts for source in part.plus + part.minus)

    @property
    def oldest(self) -> Release:
        """First release with all that is needed."""
        needed = [source.since for source in self.sources if not source.optional and source.since]
        return max((release(text) for text in [*needed, self.since] if text), default=())


@dataclass(frozen=True, slots=True)
class Row:
    """How one canonical field is read from one engine.

    Attributes:
        field: name in `readings.FIELDS`.
        choices: newest first; the first usable one is taken, they are never added up.
        counted: when upstream books it.
        note: what a reader of the number must know.
        flag: server setting without which it is missing.
        born_with: names that appear at the same event; without any of them the field waits for traffic.
        possible: answers False where this kind of server never has it.
        absent: the reason when it is missing, where the general rule is wrong.
    """

    field: str
    choices: tuple[Choice, ...] = ()
    counted: Counted = Counted.LIVE
    note: str = ""
    flag: str = ""
    born_with: tuple[str, ...] = ()
    possible: Callable[[Facts], bool] | None = None
    absent: Callable[[Facts], Absence | None] | None = None


@dataclass(frozen=True, slots=True, eq=False)  # there is one of each: compared and hashed by identity
class EngineTable:
    """All that is known of one engine's page.

    Attributes:
        engine: "vllm" or "sglang".
        prefix: of its metric names, without the colon.
        model_label: label with the model's name.
        rank_label: label with the data-parallel rank.
        repeated: labels of ranks and processes that repeat one number: of such series the highest counts.
        totals: label → the value that is the sum of the others.
        rows: one per canonical field that the engine has or could have.
        markers: further names that only tell the release: name → since.
        hint: what to do where a page of this engine lacks its metrics.
    """

    engine: str
    prefix: str
    model_label: str
    rank_label: str
    repeated: frozenset[str]
    totals: Mapping[str, str]
    rows: tuple[Row, ...]
    markers: Mapping[str, str]
    hint: str

    def word(self, name: str) -> str:
        """Table name of an upstream name: `sglang:x` and `sglang_x` → ":x"; foreign names as they are."""
        prefix = self.prefix
        if name.startswith(prefix) and name[len(prefix) : len(prefix) + 1] in (":", "_"):
            return ":" + name[len(prefix) + 1 :]
        return name

    def upstream(self, name: str) -> str:
        """Name as documented upstream: ":x" → "vllm:x"."""
        return self.prefix + name if name.startswith(":") else name


def values(**labels: str | tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Build the `where` of a Source: mode="decode", or several values as status=("2xx", "3xx")."""
    return {name: frozenset((value,) if isinstance(value, str) else value) for name, value in labels.items()}


def one(*sources: Source, minus: tuple[Source, ...] = (), zero_with: tuple[str, ...] = (), seed: tuple[str, ...] = ()) -> Choice:
    """A choice of one part."""
    return Choice((Part(sources, minus),), zero_with=zero_with, seed=seed)


def newest(*names_since: tuple[str, str]) -> tuple[Choice, ...]:
    """Choices of one whole series each, from (name, since) pairs, newest first."""
    return tuple(one(Source(name, since)) for name, since in names_since)
