"""The box that rule SQL runs in: a second, read-only DuckDB instance with no way out.

The instance opens the store's file read-only, with external access off, its configuration
locked, bounded memory, threads and spill space, and its own temporary folder. What it
runs is exactly one SELECT, and a timer interrupts it. That contains mistakes. It does not
contain malice (one `repeat` can take gigabytes past the memory limit, and is not
interruptible), so SQL from strangers runs in a process with an address-space limit
besides; `judge.sandbox` does that.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import duckdb
import msgspec

from tokenlag.errors import InputError, RuleError

# Of the table functions only those that make rows out of their arguments.
ROW_MAKERS = frozenset({"generate_series", "range", "unnest"})
_SCHEMA_FILES = ("schema.sql", "derived.sql")
_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
# Functions that SQL calls without brackets, so that the tree shows them as columns.
_CLOCK_WORDS = frozenset(
    ["current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"]
)
# What DuckDB adds to its messages on lines of their own.
_LINE = re.compile(r"^LINE (\d+):", re.MULTILINE)
_GUESS = re.compile(r"^(?:Candidate bindings|Did you mean).*$", re.MULTILINE)


class BoxLimits(msgspec.Struct, frozen=True):
    """What one rule may use. Times are seconds of wall clock, sizes MiB."""

    time_s: float = 20.0
    memory_mb: int = 1024
    spill_mb: int = 2048
    threads: int = 2
    max_rows: int = 200


class References(NamedTuple):
    """What a SELECT reads and calls, lower case. `tables` leaves out its own WITH names."""

    tables: frozenset[str]
    table_functions: frozenset[str]
    functions: frozenset[str]
    forbidden: frozenset[str]  # parts that are no SELECT: DESCRIBE, a writing WITH


# Queries that this process has parsed: a watcher asks the same ones again and again.
MAX_PARSED = 1024
_PARSED: dict[str, tuple[frozenset[str], References]] = {}


class Result(NamedTuple):
    """Columns as (name, DuckDB type), rows, and whether rows were left off at the limit."""

    columns: list[tuple[str, str]]
    rows: list[tuple[Any, ...]]
    is_cut: bool


class Box:
    """An open box. Use it as a context manager, or close it.

    Every method raises RuleError, without a place, for what the SQL does wrong.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, limits: BoxLimits) -> None:
        self._connection = connection
        self._limits = limits
        self._tables: frozenset[str] | None = None
        self._macros: frozenset[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the instance."""
        self._connection.close()

    def tables(self) -> frozenset[str]:
        """The names of the tables and views that rules may read."""
        if self._tables is None:
            sql = "select table_name from information_schema.tables where table_schema = 'main'"
            rows = self._connection.execute(sql).fetchall()
            self._tables = frozenset(str(name) for (name,) in rows)
        return self._tables

    def table_functions(self) -> frozenset[str]:
        """The table functions that rules may call: row makers, and the store's own macros."""
        if self._macros is None:
            sql = "select function_name from duckdb_functions() where not internal"
            rows = self._connection.execute(sql).fetchall()
            self._macros = frozenset(str(name).lower() for (name,) in rows)
        return ROW_MAKERS | self._macros

    def parameters(self, sql: str) -> frozenset[str]:
        """The `$names` of `sql`, which must be exactly one SELECT that only reads tables."""
        with _said_plainly():
            statements = self._connection.extract_statements(sql)
        if len(statements) != 1:
            raise RuleError(f"has {len(statements)} statements; a rule's SQL is exactly one SELECT")
        if statements[0].type != duckdb.StatementType.SELECT:
            kind = statements[0].type.name
            raise RuleError(f"is {kind}, not SELECT; a rule's SQL is exactly one SELECT")
        return frozenset(statements[0].named_parameters)

    def references(self, sql: str) -> References:
        """What `sql` reads and calls, from DuckDB's own syntax tree; nothing is executed."""
        return self._parsed(sql)[1]

    def _parsed(self, sql: str) -> tuple[frozenset[str], References]:
        """The `$names` and the references of `sql`; the same text says the same in any box."""
        if sql not in _PARSED:
            if len(_PARSED) >= MAX_PARSED:
                _PARSED.clear()
            _PARSED[sql] = self.parameters(sql), self._syntax(sql)
        return _PARSED[sql]

    def _syntax(self, sql: str) -> References:
        with _said_plainly():
            row = self._connection.execute("select json_serialize_sql($q)", {"q": sql}).fetchone()
        tree: dict[str, Any] = json.loads(row[0]) if row else {"error": True}
        if tree["error"]:
            raise RuleError(str(tree.get("error_message", "cannot be analysed")))
        return _walk(tree)

    def check(self, sql: str) -> frozenset[str]:
        """Refuse anything but one SELECT over the store's tables; returns its `$names`."""
        names, refs = self._parsed(sql)
        if refs.forbidden:
            raise RuleError(f"contains {_list(refs.forbidden)}; a rule's SQL is exactly one SELECT")
        strange = refs.table_functions - self.table_functions()
        if strange:
            raise RuleError(
                f"calls the table function {_list(strange)}",
                hint=f"rules read tables; allowed are {_list(self.table_functions())}",
            )
        unknown = refs.tables - {table.lower() for table in self.tables()}
        if unknown:
            raise RuleError(
                f"reads {_list(unknown)}, which is no documented table",
                hint=f"tables are {_list(self.tables())}",
            )
        return names

    def describe(self, sql: str, parameters: Mapping[str, object]) -> list[tuple[str, str]]:
        """The columns of `sql` as (name, type). Binds it and does not run it."""
        names = self.check(sql)
        with _said_plainly():
            rows = self._connection.execute(f"describe {sql}", _bound(names, parameters)).fetchall()
        return [(str(row[0]), str(row[1])) for row in rows]

    def query(
        self, sql: str, parameters: Mapping[str, object], *, deadline_s: float | None = None
    ) -> Result:
        """Run `sql` with those of `parameters` that it names.

        Args:
            sql: exactly one SELECT.
            parameters: values by name, without the dollar sign.
            deadline_s: a `time.monotonic()` after which it is interrupted; by default the
                limits' time from now.
        """
        names = self.check(sql)
        limit_s = self._limits.time_s
        left_s = limit_s if deadline_s is None else deadline_s - time.monotonic()
        timer = threading.Timer(max(left_s, 0.001), self._connection.interrupt)
        timer.daemon = True
        timer.start()
        try:
            with _said_plainly(limit_s):
                cursor = self._connection.execute(sql, _bound(names, parameters))
                columns = [(str(c[0]), str(c[1])) for c in cursor.description or []]
                rows = cursor.fetchmany(self._limits.max_rows + 1)
        finally:
            timer.cancel()
            timer.join()
        return Result(columns, rows[: self._limits.max_rows], len(rows) > self._limits.max_rows)


def open_box(db_path: Path, temp_folder: Path, limits: BoxLimits | None = None) -> Box:
    """Open the store's file in a box.

    The file must not be open for writing, in this process or another: DuckDB allows either
    one writer or many readers. Within one process all readers must share their settings.

    Args:
        db_path: the DuckDB file that the store wrote and closed.
        temp_folder: an existing folder of the caller's, for spilling.
        limits: what a rule may use.

    Raises:
        InputError: if the file is missing, no DuckDB file, or open elsewhere.
    """
    limits = limits or BoxLimits()
    if not db_path.is_file():
        raise InputError("no such file", place=str(db_path))
    try:
        connection = duckdb.connect(db_path, read_only=True, config=_config(temp_folder, limits))
        connection.execute("set lock_configuration = true")
    except duckdb.Error as error:
        hint = "close the store's own connection before rules run"
        raise InputError(_first_line(error), place=str(db_path), hint=hint) from None
    return Box(connection, limits)


def open_empty_box(temp_folder: Path, limits: BoxLimits | None = None) -> Box:
    """A box over the canonical and derived tables without rows, for checking SQL against."""
    limits = limits or BoxLimits()
    connection = duckdb.connect(":memory:", config=_config(temp_folder, limits))
    for script in schema_scripts():
        connection.execute(script)
    connection.execute("set lock_configuration = true")
    return Box(connection, limits)


def schema_scripts() -> list[str]:
    """The scripts that create the tables rules may read, in order."""
    folder = resources.files("tokenlag.store")
    files = [folder.joinpath(name) for name in _SCHEMA_FILES]
    return [file.read_text(encoding="utf-8") for file in files if file.is_file()]


def _config(
    temp_folder: Path, limits: BoxLimits
) -> dict[str, str | bool | int | float | list[str]]:
    return {
        "enable_external_access": False,
        "autoload_known_extensions": False,
        "autoinstall_known_extensions": False,
        "allow_community_extensions": False,
        "memory_limit": f"{limits.memory_mb}MiB",
        "threads": limits.threads,
        "temp_directory": str(temp_folder),
        "max_temp_directory_size": f"{limits.spill_mb}MiB",
    }


def _bound(names: frozenset[str], parameters: Mapping[str, object]) -> dict[str, object]:
    missing = names - parameters.keys()
    if missing:
        raise RuleError(
            f"uses ${' $'.join(sorted(missing))}, which nothing defines",
            hint=f"defined here: {_list(frozenset(parameters)) or 'nothing'}",
        )
    return {name: parameters[name] for name in names}


@contextmanager
def _said_plainly(limit_s: float | None = None) -> Iterator[None]:
    """Turn what DuckDB raises into a RuleError of one line."""
    try:
        yield
    except duckdb.InterruptException:
        raise RuleError(f"took longer than {limit_s or 0:g} s and was stopped") from None
    except duckdb.OutOfMemoryException:
        raise RuleError("needs more memory than a rule may use") from None
    except duckdb.Error as error:
        line = _LINE.search(str(error))
        guess = _GUESS.search(str(error))
        message = _first_line(error) + (f" (line {line[1]} of the query)" if line else "")
        raise RuleError(message, hint=guess[0].replace(": :", ":") if guess else None) from None
    except MemoryError:
        raise RuleError("needs more memory than a rule may use") from None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _walk(tree: dict[str, Any]) -> References:
    tables: set[str] = set()
    table_functions: set[str] = set()
    functions: set[str] = set()
    own: set[str] = set()
    forbidden: set[str] = set()
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, list):
            stack.extend(node)
            continue
        if not isinstance(node, dict):
            continue
        kind = str(node.get("type", ""))
        if kind == "BASE_TABLE":
            tables.add(_qualified(node))
        elif kind == "TABLE_FUNCTION":
            table_functions.add(str(node["function"]["function_name"]).lower())
        elif kind == "FUNCTION":
            functions.add(str(node["function_name"]).lower())
        elif kind == "COLUMN_REF" and _CLOCK_WORDS.intersection(node.get("column_names", [])):
            functions.add(str(node["column_names"][-1]).lower())
        elif kind == "SHOW_REF":
            forbidden.add("DESCRIBE, SHOW or SUMMARIZE")
        elif kind.endswith("_NODE") and kind not in _QUERY_NODES:
            forbidden.add(kind.removesuffix("_NODE").replace("_", " "))
        for entry in (node.get("cte_map") or {}).get("map", []):
            own.add(str(entry["key"]).lower())
        stack.extend(node.values())
    return References(
        tables=frozenset(tables - own),
        table_functions=frozenset(table_functions),
        functions=frozenset(functions - table_functions),
        forbidden=frozenset(forbidden),
    )


def _qualified(node: Mapping[str, Any]) -> str:
    """The table's name, with its schema and catalog unless they are the store's own."""
    schema, catalog = str(node["schema_name"]), str(node["catalog_name"])
    parts = [catalog, "" if schema == "main" and not catalog else schema, str(node["table_name"])]
    return ".".join(part for part in parts if part).lower()
