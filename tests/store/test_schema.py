from __future__ import annotations

import re
from importlib import resources

import pytest
from tokenlag.store.connection import Store

COLUMN = re.compile(r"^    (\w+)\s+([a-z]+(?:\[\])?)\b[^-]*(--\s*\S.*)?$")


def schema_lines() -> list[str]:
    text = resources.files("tokenlag.store").joinpath("schema.sql").read_text(encoding="utf-8")
    return text.splitlines()


def test_every_column_says_what_it_is() -> None:
    columns = [match for line in schema_lines() if (match := COLUMN.match(line))]
    assert len(columns) > 100
    assert [match.group(1) for match in columns if not match.group(3)] == []


def test_every_table_says_what_it_is() -> None:
    lines = schema_lines()
    tables = [i for i, line in enumerate(lines) if line.startswith("create table ")]
    assert len(tables) >= 10
    assert [lines[i] for i in tables if not lines[i - 1].startswith("-- ")] == []


def test_the_lines_are_what_duckdb_made_of_them() -> None:
    named = {match.group(1) for line in schema_lines() if (match := COLUMN.match(line))}
    with Store() as store:
        made = {
            name
            for (name,) in store.fetchall(
                "select column_name from duckdb_columns() where not internal"
            )
        }
    assert named == made


@pytest.mark.parametrize(
    ("suffix", "types"),
    [
        ("_ns", {"BIGINT"}),
        ("_ms", {"DOUBLE"}),
        ("_frac", {"DOUBLE"}),
        ("_key", {"INTEGER"}),
    ],
)
def test_units_have_one_type(suffix: str, types: set[str]) -> None:
    with Store() as store:
        found = store.fetchall(
            "select distinct data_type from duckdb_columns() "
            "where not internal and ends_with(column_name, ?)",
            [suffix],
        )
    assert {name for (name,) in found} == types


def test_counts_are_whole_and_flags_are_flags() -> None:
    with Store() as store:
        found = store.fetchall(
            "select table_name, column_name, data_type from duckdb_columns() "
            "where not internal "
            "and (column_name like 'n\\_%' escape '\\' and data_type <> 'BIGINT' "
            "or column_name like 'is\\_%' escape '\\' and data_type <> 'BOOLEAN')"
        )
    assert found == []
