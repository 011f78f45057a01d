"""`diagnose sql`: the tables of a real trace, and queries that are refused."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest
from tokenlag.ask import ask
from tokenlag.errors import UsageError
from tokenlag.pipeline import Request

NOW_NS = 1_800_000_000_000_000_000


def rows(trace: Path, sql: str) -> list[tuple[object, ...]]:
    return ask(Request([str(trace)]), sql, now_ns=NOW_NS, tz=UTC).result.rows


def test_canonical_and_derived_tables_can_be_asked(bundled_trace: Path) -> None:
    assert rows(bundled_trace, "select count(*), count(ttft_ms) from requests") == [(82, 82)]
    [(n_culprits,)] = rows(bundled_trace, "select count(*) from blame where kind = 'stream'")
    assert isinstance(n_culprits, int)
    assert n_culprits > 0


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("drop table requests", "SELECT"),
        ("select 1; select 2", "one"),
        ("selec 1", "selec"),
        ("select nothing_of_this_name from requests", "nothing_of_this_name"),
        ("select * from read_csv('x')", "read_csv"),
    ],
)
def test_what_is_no_question_is_refused(bundled_trace: Path, sql: str, words: str) -> None:
    with pytest.raises(UsageError, match=f"(?i){words}") as caught:
        rows(bundled_trace, sql)
    assert caught.value.place == "sql"
    assert "\n" not in str(caught.value)


def test_a_wrong_query_is_told_before_the_traces_are_read() -> None:
    with pytest.raises(UsageError, match="SELECT"):
        rows(Path("does-not-exist.jsonl"), "drop table requests")
