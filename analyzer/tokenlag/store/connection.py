"""One DuckDB database with the canonical tables in it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from importlib import resources
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np

from tokenlag.errors import TokenlagError

Column = Sequence[Any] | np.ndarray[Any, Any]

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_]+)\}")
# Nobody recovers a store after a crash, so nothing is logged. Row groups are what threads share:
# at the default size one thread does all the work on tables of an hour.
ROW_GROUP_ROWS: Final = 16_384
_ATTACH: Final = (
    f"attach {{path}} as store (recovery_mode no_wal_writes, row_group_size {ROW_GROUP_ROWS}); "
    "use store"
)
_ATTACH_STAGING: Final = f"attach ':memory:' as staging (row_group_size {ROW_GROUP_ROWS})"
_WITH_STAGING: Final = "set search_path = 'store.main,staging.main'"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Store:
    """A DuckDB database that holds the canonical tables of one run.

    It lives in a file, so that large traces spill to disk and a second connection can
    reopen it read-only after `close(keep=True)`.

    Args:
        path: the database file; a private temporary folder if None, removed on close.
        memory_limit: DuckDB's limit, such as "1GB"; its own default if None.
        n_threads: DuckDB's threads; all cores if None.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        memory_limit: str | None = None,
        n_threads: int | None = None,
    ) -> None:
        self._own_dir: Path | None = None
        if path is None:
            self._own_dir = Path(tempfile.mkdtemp(prefix="tokenlag-"))
            path = self._own_dir / "store.duckdb"
        self.path = path
        config: dict[str, Any] = {
            "temp_directory": str(path.with_suffix(".spill")),
            "preserve_insertion_order": "false",
            "autoinstall_known_extensions": "false",
        }
        if memory_limit is not None:
            config["memory_limit"] = memory_limit
        if n_threads is not None:
            config["threads"] = str(n_threads)
        try:
            self._con = duckdb.connect(":memory:", config=config)
            self._con.execute(_ATTACH.format(path=sql_literal(str(path))))
        except duckdb.Error as error:
            self._remove()
            raise TokenlagError(f"cannot open the database: {error}", place=str(path)) from error
        self._con.execute("set enable_progress_bar = false")
        if not self.fetchall("select 1 from duckdb_tables() where table_name = 'requests'"):
            self.run_script("tokenlag.store", "schema.sql")

    def execute(self, sql: str, params: Sequence[Any] | None = None) -> None:
        """Run statements and drop their result."""
        self._con.execute(sql, params)

    def fetchall(self, sql: str, params: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query as Python tuples."""
        return self._con.execute(sql, params).fetchall()

    def fetchone(self, sql: str, params: Sequence[Any] | None = None) -> tuple[Any, ...] | None:
        """The first row of a query, or None."""
        row: tuple[Any, ...] | None = self._con.execute(sql, params).fetchone()
        return row

    def scalar(self, sql: str, params: Sequence[Any] | None = None) -> Any:
        """The first column of the first row, or None."""
        row = self.fetchone(sql, params)
        return None if row is None else row[0]

    def fetchnumpy(
        self, sql: str, params: Sequence[Any] | None = None
    ) -> dict[str, np.ndarray[Any, Any]]:
        """A query's columns by name; columns with NULLs come as masked arrays."""
        columns: dict[str, np.ndarray[Any, Any]] = self._con.execute(sql, params).fetchnumpy()
        return columns

    def columns(self, table: str) -> list[str]:
        """The column names of a table or view, in order."""
        return [row[0] for row in self.fetchall("select name from pragma_table_info(?)", [table])]

    def run_script(
        self, package: str, name: str, names: Mapping[str, str | int] | None = None
    ) -> None:
        """Run a `.sql` file that lies in a package.

        Args:
            package: dotted name of the package, such as "tokenlag.store".
            name: the file's name in it.
            names: values for the script's `${NAME}` placeholders; each is put in as an
                SQL literal, so that names of spans are spelt in one place only.

        Raises:
            TokenlagError: the script has a placeholder without a value, or fails; the
                message names the script.
        """
        text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
        place = f"{package}/{name}"
        try:
            self._con.execute(_fill(text, names or {}, place))
        except duckdb.Error as error:
            raise TokenlagError(f"SQL script failed: {error}", place=place) from error

    @contextmanager
    def staging(self) -> Iterator[Store]:
        """A database `staging` beside the tables, for what is needed only while loading.

        Unlike temporary tables it is seen by a second connection, which is what is given: a
        store on the same tables that another thread may use at the same time.
        """
        self._con.execute(f"{_ATTACH_STAGING}; {_WITH_STAGING}")
        other = copy(self)
        other._con = self._con.cursor()
        try:
            other._con.execute(f"{_WITH_STAGING}; set enable_progress_bar = false")
            yield other
        finally:
            other._con.close()
            self._con.execute("use store; detach staging")

    def insert(self, table: str, columns: Mapping[str, Column]) -> None:
        """Append rows that were made in Python, by column name.

        Args:
            table: a table of the store.
            columns: equally long arrays or lists; None (or a masked element) is NULL.
        """
        if not _IDENTIFIER.fullmatch(table):
            raise TokenlagError(f"not a table name: {table!r}")
        arrays = {name: _as_array(values) for name, values in columns.items()}
        lengths = {len(values) for values in arrays.values()}
        if len(lengths) > 1:
            raise TokenlagError(f"columns of unequal length for {table}: {sorted(lengths)}")
        if not lengths or lengths == {0}:
            return
        self._con.register("_insert_source", arrays)
        try:
            self._con.execute(f"insert into {table} by name select * from _insert_source")
        finally:
            self._con.unregister("_insert_source")

    def close(self, *, keep: bool = False) -> None:
        """Close the database; with `keep`, a private folder stays until `discard()`."""
        self._con.close()
        if not keep:
            self._remove()

    def discard(self) -> None:
        """Remove the private folder of a store that was closed with `keep`."""
        self._remove()

    def _remove(self) -> None:
        if self._own_dir is not None:
            shutil.rmtree(self._own_dir, ignore_errors=True)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def sql_literal(value: str | int) -> str:
    """A value as SQL text."""
    if isinstance(value, int):
        return str(value)
    return "'" + value.replace("'", "''") + "'"


def sql_identifier(name: str) -> str:
    """A name as quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def sql_string_list(values: Iterable[str]) -> str:
    """Strings as an SQL list literal."""
    return "[" + ", ".join(sql_literal(value) for value in values) + "]"


def _fill(text: str, names: Mapping[str, str | int], place: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in names:
            raise TokenlagError(f"the script's ${{{name}}} has no value", place=place)
        return sql_literal(names[name])

    return _PLACEHOLDER.sub(value, text)


def _as_array(values: Column) -> np.ndarray[Any, Any]:
    if isinstance(values, np.ndarray):
        return values
    values = [None if value is np.ma.masked else value for value in values]
    present = [value for value in values if value is not None]
    if any(isinstance(value, str | list | tuple) for value in present) or not present:
        array = np.empty(len(values), dtype=object)
        for i, value in enumerate(values):  # a slice would spread nested lists over rows
            array[i] = value
        return array
    if len(present) == len(values):
        return np.asarray(values)
    mask = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    filled = np.asarray([present[0] if value is None else value for value in values])
    return np.ma.masked_array(filled, mask=mask)
