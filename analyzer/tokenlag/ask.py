"""From paths and a SELECT to rows: what `diagnose sql` does."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from datetime import tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tokenlag.errors import RuleError, TokenlagError, UsageError
from tokenlag.pipeline import DEFAULT_MEMORY, Request, choose_windows, read_traces

if TYPE_CHECKING:
    from tokenlag.store.box import Result

MAX_ROWS = 10_000


class Answer(NamedTuple):
    """The rows, and what could not be read on the way to them."""

    result: Result
    problems: list[TokenlagError]


class Answers(NamedTuple):
    """The rows of several queries over one reading of the traces."""

    results: list[Result]
    problems: list[TokenlagError]


def ask(
    request: Request,
    sql: str,
    *,
    now_ns: int,
    tz: tzinfo,
    progress: Callable[[str, float], None] | None = None,
) -> Answer:
    """One SELECT on the tables of the traces; see `ask_all`."""
    answers = ask_all(request, [sql], now_ns=now_ns, tz=tz, progress=progress)
    return Answer(answers.results[0], answers.problems)


def blame(
    request: Request,
    *,
    now_ns: int,
    tz: tzinfo,
    progress: Callable[[str, float], None] | None = None,
) -> Answers:
    """Who held up whom, and where the time between tokens went: two tables."""
    from tokenlag.judge.sql import query

    queries = [query("blame_rows"), query("ledger_rows")]
    return ask_all(request, queries, now_ns=now_ns, tz=tz, progress=progress)


def ask_all(
    request: Request,
    queries: Sequence[str],
    *,
    now_ns: int,
    tz: tzinfo,
    progress: Callable[[str, float], None] | None = None,
) -> Answers:
    """Reads the traces, fills the canonical and derived tables, and runs SELECTs on them.

    Raises:
        InputError: no path could be read as traces.
        UsageError: the query is no single SELECT or fails, or the window holds no request.
    """
    from tokenlag.explain.run import explain, prepare
    from tokenlag.store.box import BoxLimits, open_box, open_empty_box
    from tokenlag.store.connection import Store

    tell = progress or (lambda _stage, _share: None)

    with tempfile.TemporaryDirectory(prefix="tokenlag-") as name:
        work = Path(name)
        try:  # a wrong query is told before minutes of reading, not after
            with open_empty_box(work) as box:
                for sql in queries:
                    box.check(sql)
        except RuleError as error:
            raise _usage(error) from None
        problems: list[TokenlagError] = []
        with Store(memory_limit=request.memory_limit or DEFAULT_MEMORY) as store:
            problems += [
                p
                for read in read_traces(store, request, work, tell, now_ns=now_ns, tz=tz)
                for p in read.problems
            ]
            tell("explain", 0.0)
            prepare(store)
            explain(store, choose_windows(store, request, now_ns=now_ns, tz=tz).rows, [])
            store.close(keep=True)
            tell("ask", 0.0)
            try:
                with open_box(store.path, work, BoxLimits(max_rows=MAX_ROWS, time_s=300.0)) as box:
                    return Answers([box.query(sql, {}) for sql in queries], problems)
            except RuleError as error:
                raise _usage(error) from None


def _usage(error: RuleError) -> UsageError:
    hint = error.hint or "`diagnose schema` prints the tables and their columns"
    return UsageError(error.message, place="sql", hint=hint)
