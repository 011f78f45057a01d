"""The row model: which columns a span row has, and the Parquet files that hold them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from tokenlag.read.vocabulary import RESOURCE_PREFIX, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

Schema = dict[str, pl.DataType]

CORE_SCHEMA: Final[Schema] = {
    "source": pl.String(),  # the file, as it was given
    "trace_id": pl.String(),  # 32 lower-case hex digits
    "span_id": pl.String(),  # 16 lower-case hex digits
    "parent_id": pl.String(),  # the same, NULL for a root
    "name": pl.String(),
    "kind": pl.Int8(),  # as OTLP numbers them; 0 where the writer left it out
    "start_ns": pl.Int64(),  # unix ns; NULL where absent, zero or beyond 63 bits
    "end_ns": pl.Int64(),
    "status_code": pl.Int8(),  # 0 unset, 1 ok, 2 error
    "scope": pl.String(),
}
EVENT_SCHEMA: Final[Schema] = {
    "trace_id": pl.String(),
    "span_id": pl.String(),
    "time_ns": pl.Int64(),
    "name": pl.String(),
}
DTYPES: Final[Mapping[str, pl.DataType]] = {
    "str": pl.String(),
    "int": pl.Int64(),
    "float": pl.Float64(),
    "bool": pl.Boolean(),
    "int[]": pl.List(pl.Int64()),
    "str[]": pl.List(pl.String()),
}
ROWS_PER_FILE: Final = 122_880  # one row group as DuckDB likes them


def span_schema(vocabulary: Vocabulary) -> Schema:
    """Returns the columns of every span file: the core, span keys, resource keys."""
    schema = dict(CORE_SCHEMA)
    schema.update({key: DTYPES[kind] for key, kind in vocabulary.span.items()})
    schema.update(
        {RESOURCE_PREFIX + key: DTYPES[kind] for key, kind in vocabulary.resource.items()}
    )
    return schema


def event_schema(vocabulary: Vocabulary) -> Schema:
    """Returns the columns of every event file: ids, time, name, then the declared keys."""
    return EVENT_SCHEMA | {key: DTYPES[kind] for key, kind in vocabulary.event.items()}


class RowFiles:
    """Gathers frames and writes them as Parquet files that all have one schema.

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
        if self._n_waiting:
            self._write(pl.concat(self._frames, how="diagonal"))
        self._frames = []
        self._n_waiting = 0

    def write_empty(self) -> None:
        """Writes a file without rows, so that a reader of the set sees every column."""
        self._write(pl.DataFrame(schema=self.schema))

    def _write(self, frame: pl.DataFrame) -> None:
        missing = [
            pl.lit(None, dtype=dtype).alias(name)
            for name, dtype in self.schema.items()
            if name not in frame.columns
        ]
        frame = frame.with_columns(missing).select(list(self.schema))
        path = self.out_dir / f"{self.prefix}-{len(self.files):05d}.parquet"
        frame.write_parquet(
            path, compression="zstd", compression_level=1, row_group_size=ROWS_PER_FILE * 4
        )
        self.files.append(path)
