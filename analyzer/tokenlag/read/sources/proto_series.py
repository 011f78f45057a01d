"""Columns of what stands in a block of protobuf: ids, texts, enums, times, numbers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import polars as pl

from tokenlag.read.sources.proto_wire import Buffer, Int64s, Part, UnusualError

_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)


def ids(name: str, buffer: Buffer, part: Part, n_rows: int, n_bytes: int) -> pl.Series:
    """Returns ids as hex, NULL where there is none."""
    length = part.end - part.begin
    if not ((length == 0) | (length == n_bytes)).all():
        raise UnusualError("an id of another length")
    words = [buffer.words(part.begin + at) for at in range(0, n_bytes, 8)]
    is_set = (length > 0) & np.any([word != 0 for word in words], axis=0)
    digits = _HEX[np.stack(words, axis=1)[is_set].view(np.uint8)].tobytes()
    begin = np.arange(int(is_set.sum())) * (2 * n_bytes)
    return _spread(
        _cut(name, digits, begin, begin + 2 * n_bytes, buffer), part.owner[is_set], n_rows
    )


def _cut(name: str, data: bytes, begin: Int64s, end: Int64s, buffer: Buffer) -> pl.Series:
    """Strings out of one piece of bytes."""
    pieces = [data[at:to] for at, to in zip(begin.tolist(), end.tolist(), strict=True)]
    try:
        return pl.Series(name, pieces, dtype=pl.Binary).cast(pl.String)
    except pl.exceptions.PolarsError:
        buffer.is_repaired = True
        repaired = [piece.decode("utf-8", "replace") for piece in pieces]
        return pl.Series(name, repaired, dtype=pl.String)


def _spread(column: pl.Series, owner: Int64s, n_rows: int) -> pl.Series:
    """Values at their rows, NULL at the others."""
    if len(owner) == n_rows and (owner[1:] > owner[:-1]).all():
        return column
    none = pl.Series(column.name, [None], dtype=column.dtype)
    if not len(owner):
        return none.new_from_index(0, n_rows)
    of_row = np.zeros(n_rows, np.uint32)
    of_row[owner] = np.arange(len(owner), dtype=np.uint32)
    return _where_met(column.gather(pl.Series(of_row)), owner, none)


def placed(name: str, values: Any, owner: Int64s, n_rows: int) -> pl.Series:
    """Returns numbers at their rows, NULL at the others."""
    column = np.zeros(n_rows, values.dtype)
    column[owner] = values
    placed = pl.Series(name, column)
    return _where_met(placed, owner, pl.Series(name, [None], dtype=placed.dtype))


def _where_met(column: pl.Series, owner: Int64s, none: pl.Series) -> pl.Series:
    is_met = np.zeros(len(column), bool)
    is_met[owner] = True
    return column if is_met.all() else column.zip_with(pl.Series(is_met), none)


def texts(name: str, buffer: Buffer, part: Part, n_rows: int) -> pl.Series:
    """Returns a column of strings."""
    return _spread(_cut(name, buffer.data, part.begin, part.end, buffer), part.owner, n_rows)


def codes(name: str, buffer: Buffer, part: Part, n_rows: int, most: int) -> pl.Series:
    """Returns an enum: absent is 0, as protobuf means it; unknown is NULL."""
    values = np.zeros(n_rows, np.int64)
    values[part.owner] = buffer.varints(part.begin)[0]
    column = pl.Series(name, values)
    known = (column >= 0) & (column <= most)
    return column.set(~known, None).cast(pl.Int8) if not known.all() else column.cast(pl.Int8)


def times(name: str, buffer: Buffer, part: Part, n_rows: int) -> pl.Series:
    """Returns unix nanoseconds, NULL where there are none."""
    values = np.zeros(n_rows, np.int64)
    values[part.owner] = buffer.words(part.begin).view(np.int64)
    column = pl.Series(name, values)
    unset = column <= 0  # as is what lies beyond 63 bits
    return column.set(unset, None) if unset.any() else column
