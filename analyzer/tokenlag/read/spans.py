"""The row model: which columns a span row has, and the Parquet files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenlag.read.vocabulary import LINK_SPAN_ID, LINK_TRACE_ID, RESOURCE_PREFIX, Vocabulary

if TYPE_CHECKING:
    import polars as pl

    Schema = dict[str, pl.DataType]

# Column → type: those of `vocabulary.VALUE_TYPES`, and "code" for a small enum.
CORE_SCHEMA: Final[dict[str, str]] = {
    "source": "str",  # the file, as it was given
    "trace_id": "str",  # 32 lower-case hex digits
    "span_id": "str",  # 16 lower-case hex digits
    "parent_id": "str",  # the same, NULL for a root
    "name": "str",
    "kind": "code",  # as OTLP numbers them; 0 where the writer left it out
    "start_ns": "int",  # unix ns; NULL where absent, zero or beyond 63 bits
    "end_ns": "int",
    "status_code": "code",  # 0 unset, 1 ok, 2 error
    "scope": "str",
}
EVENT_SCHEMA: Final[dict[str, str]] = {
    "trace_id": "str",
    "span_id": "str",
    "time_ns": "int",
    "name": "str",
}
ROWS_PER_FILE: Final = 122_880  # one row group as DuckDB likes them


def dtype(value_type: str) -> pl.DataType:
    """Returns the polars type of a column."""
    import polars as pl

    types: dict[str, pl.DataType] = {
        "str": pl.String(),
        "int": pl.Int64(),
        "float": pl.Float64(),
        "bool": pl.Boolean(),
        "int[]": pl.List(pl.Int64()),
        "str[]": pl.List(pl.String()),
        "code": pl.Int8(),
    }
    return types[value_type]


def span_schema(vocabulary: Vocabulary) -> Schema:
    """Returns the columns of every span file: the core, span keys, resource keys."""
    types = CORE_SCHEMA | dict(vocabulary.span)
    types |= {RESOURCE_PREFIX + key: kind for key, kind in vocabulary.resource.items()}
    return {name: dtype(kind) for name, kind in types.items()}


def event_schema(vocabulary: Vocabulary) -> Schema:
    """Returns the columns of every event file: ids, time, name, declared keys, a link's ids."""
    types = EVENT_SCHEMA | dict(vocabulary.event)
    if vocabulary.link_names:
        types |= {LINK_TRACE_ID: "str", LINK_SPAN_ID: "str"}
    return {name: dtype(kind) for name, kind in types.items()}


class RowFiles:
    """Gathers frames and writes them as Parquet files whose columns are some of one schema's.

    A reader unites them by name. Columns that nobody filled are in the empty file alone,
    for writing and reading nothing costs as much as something.

    Args:
        out_dir: an existing folder.
        prefix: of the file names, different for each writer into the folder.
        schema: every column, in order; a frame may lack some, which are then NULL.
    """

    def __init__(self, out_dir: Path, prefix: str, schema: Schema) -> None:
        self.out_dir = out_dir
        self.prefix = prefix
        self.schema = schema
        self.files: list[Path] = []
        self.n_rows = 0
        self._frames: list[pl.DataFrame] = []
        self._n_waiting = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Takes a frame whose columns are some of the schema's, with its types."""
        if not frame.height:
            return
        self._frames.append(frame)
        self._n_waiting += frame.height
        self.n_rows += frame.height
        if self._n_waiting >= ROWS_PER_FILE:
            self.flush()

    def flush(self) -> None:
        """Writes what waits, if anything does."""
        import polars as pl

        if self._n_waiting:
            self._write(pl.concat(self._frames, how="diagonal"))
        self._frames = []
        self._n_waiting = 0

    def write_empty(self) -> None:
        """Writes a file without rows, so that a reader of the set sees every column."""
        import polars as pl

        self._write(pl.DataFrame(schema=self.schema))

    def link(self, path: Path, n_rows: int) -> None:
        """Takes a file that is one of these already; it is not copied, and stays where it is."""
        link = self.out_dir / f"{self.prefix}-{len(self.files):05d}.parquet"
        link.symlink_to(path.resolve())
        self.files.append(link)
        self.n_rows += n_rows

    def _write(self, frame: pl.DataFrame) -> None:
        path = self.out_dir / f"{self.prefix}-{len(self.files):05d}.parquet"
        held = [name for name in self.schema if name in frame.columns]
        frame.select(held).write_parquet(
            path,
            compression="lz4",  # read a dozen times, kept for minutes
            statistics=False,
            row_group_size=ROWS_PER_FILE * 4,
        )
        self.files.append(path)
