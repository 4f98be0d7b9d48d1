"""The engines' tables are in order: known fields, one row each, newest names first, something to say about each."""

from __future__ import annotations

import pytest

from llm_exporter.engines.normalise import TABLES
from llm_exporter.engines.tables import EngineTable, Row, release
from llm_exporter.readings import FIELD, FIELDS, Kind

ROWS = [(table, row) for table in TABLES.values() for row in table.rows]


@pytest.mark.parametrize(("table", "row"), ROWS, ids=[f"{table.engine}-{row.field}" for table, row in ROWS])
def test_a_row_is_in_order(table: EngineTable, row: Row) -> None:
    field = FIELD[row.field]
    assert row.choices, "a row without choices says nothing: leave it out"
    releases = [choice.oldest for choice in row.choices]
    assert all(releases), "each choice says since when"
    if row.field != "requests_waiting":  # there the newer series only stands in for the older one
        assert releases == sorted(releases, reverse=True), "newest first"
    for choice in row.choices:
        labelled = [bool(source.label) for source in choice.sources] + [bool(part.label) for part in choice.parts]
        assert any(labelled) == bool(field.label), "a label where the field has one, and only there"
        assert set(choice.seed) <= set(field.values)
        if field.kind is Kind.HISTOGRAM:
            assert len(choice.parts) == 1
            assert len(choice.sources) == 1
        for source in choice.sources:
            assert not source.rename or set(source.rename.values()) <= set(field.values)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_each_field_has_one_row_at_most(table: EngineTable) -> None:
    names = [row.field for row in table.rows]
    assert len(names) == len(set(names))


def test_each_published_field_is_read_from_some_engine() -> None:
    read = {row.field for _, row in ROWS}
    assert {field.name for field in FIELDS if field.metric} - read == {"requests_running_limit"}, "no engine's page tells the limit"


def test_releases_compare_as_releases() -> None:
    assert release("0.6.6") < release("0.6.6.post1") < release("0.7") < release("0.10.2")
