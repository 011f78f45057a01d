"""What time the rows of Parquet files cover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import duckdb

_BY_SOURCE: Final = """
    select source,
        case when count(start_ns) = count(*) then min(start_ns) end,
        case when count(start_ns) = count(*) then max(coalesce(end_ns, start_ns)) end
    from read_parquet($1, union_by_name = true)
    group by source
"""
_OF_FOOTERS: Final = """
    select file_name,
        min(stats_min_value::bigint) filter (path_in_schema = 'start_ns'),
        max(stats_max_value::bigint) filter (path_in_schema in ('start_ns', 'end_ns'))
    from parquet_metadata($1)
    where path_in_schema in ('start_ns', 'end_ns')
    group by file_name
    having bool_and(stats_min_value is not null and stats_max_value is not null
        and coalesce(stats_null_count, 1) = 0)
"""


def times_of_footers(files: Sequence[Path]) -> dict[Path, tuple[int, int]]:
    """First start and last end of each Parquet file of span rows whose footer tells.

    Not of a file without statistics, with spans without times, or that is damaged.
    """
    if not files:
        return {}
    with duckdb.connect() as connection:
        try:
            rows = connection.execute(_OF_FOOTERS, [[str(path) for path in files]]).fetchall()
        except duckdb.Error:
            if len(files) == 1:
                return {}
            # One file's damage is no reason to read all the others whole.
            return {path: t for one in files for path, t in times_of_footers([one]).items()}
    return {
        Path(name): (first, last)
        for name, first, last in rows
        if first is not None and last is not None
    }


def times_by_source(files: Sequence[Path]) -> dict[str, tuple[int | None, int | None]]:
    """First start and last end of each source's spans, unix nanoseconds.

    Both are None for a source that has spans without a start.
    """
    with duckdb.connect() as connection:
        rows = connection.execute(_BY_SOURCE, [[str(path) for path in files]]).fetchall()
    return {source: (first, last) for source, first, last in rows}
