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


def times_by_source(files: Sequence[Path]) -> dict[str, tuple[int | None, int | None]]:
    """First start and last end of each source's spans, unix nanoseconds.

    Both are None for a source that has spans without a start.
    """
    with duckdb.connect() as connection:
        rows = connection.execute(_BY_SOURCE, [[str(path) for path in files]]).fetchall()
    return {source: (first, last) for source, first, last in rows}
