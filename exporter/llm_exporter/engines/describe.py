"""Words about the engines' tables, for HELP texts, the reference and `explain`: which upstream series, and when they count."""

from __future__ import annotations

from typing import NamedTuple

from llm_exporter.engines.normalise import TABLES
from llm_exporter.engines.tables import Choice, EngineTable, Row, Source

TITLES = {"vllm": "vLLM", "sglang": "SGLang"}


class Upstream(NamedTuple):
    """Where one engine's value of a field comes from.

    Attributes:
        engine: key of the table.
        ways: one text per choice, newest first.
        counted: when the engine books it.
        note: what a reader must know, "" where nothing.
        flag: server setting without which it is missing, "" where none is needed.
    """

    engine: str
    ways: tuple[str, ...]
    counted: str
    note: str
    flag: str


def _source(table: EngineTable, source: Source) -> str:
    where = ",".join(
        f'{label}{"=" if len(found) == 1 else "=~"}"{"|".join(sorted(found))}"' for label, found in source.where.items() if len(found) <= 4
    )
    return table.upstream(source.name) + (f"{{{where}}}" if where else "")


def _way(table: EngineTable, choice: Choice) -> str:
    if not choice.parts:
        return f"labels of {table.upstream(':cache_config_info')}" if choice.constants is not None else ""
    plus = dict.fromkeys(_source(table, source) for part in choice.parts for source in part.plus)
    minus = dict.fromkeys(_source(table, source) for part in choice.parts for source in part.minus)
    return " + ".join(plus) + "".join(f" − {text}" for text in minus)


def _upstream(table: EngineTable, row: Row) -> Upstream:
    ways = tuple(dict.fromkeys(text for choice in row.choices if (text := _way(table, choice))))
    return Upstream(table.engine, ways, row.counted.value, row.note, row.flag)


def upstream(field: str) -> tuple[Upstream, ...]:
    """How each engine gives a canonical field; engines that never have it are left out."""
    rows = [_upstream(table, row) for table in TABLES.values() for row in table.rows if row.field == field]
    return tuple(row for row in rows if row.ways)


def help_suffix(field: str) -> str:
    """For the HELP of a canonical metric: upstream series (the newest way) and the moment at which they count, by engine."""
    parts = [f"{TITLES[row.engine]}: {row.ways[0]}, {row.counted}" for row in upstream(field)]
    return f" From {'; '.join(parts)}." if parts else ""
