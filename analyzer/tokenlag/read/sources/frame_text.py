"""How much text a decoded frame stands for, before it is copied.

A value that came out of a dictionary points to its text, so that a frame of a few megabytes
may stand for terabytes: copying it, as turning it into anything does, would take them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from tokenlag.read.lines import MAX_TEXT_BYTES

# Spans as columns take a few hundredths of their text; what takes a thousandth is no trace.
FREE_BYTES: Final = 2**30
TEXT_PER_BYTE: Final = 1000
BYTES_AT_ONCE: Final = 64 * 2**20


class TooMuchTextError(ValueError):
    """A frame stands for more text than is read."""


class TextBudget:
    """Adds up the text of a file's frames.

    Args:
        n_file: the file's size in bytes.
    """

    def __init__(self, n_file: int) -> None:
        self._n_file = n_file
        self._n_left = max(FREE_BYTES, TEXT_PER_BYTE * n_file)

    def take(self, frame: pl.DataFrame) -> None:
        """Takes one more frame.

        Raises:
            TooMuchTextError: it and those before it are more than a file of this size has.
        """
        self._n_left -= text_bytes(frame)
        if self._n_left < 0:
            raise TooMuchTextError(
                f"its {self._n_file:,} bytes stand for more than "
                f"{max(FREE_BYTES, TEXT_PER_BYTE * self._n_file) >> 20:,} MB of text"
            )

    def pieces(self, frame: pl.DataFrame, n_rows: int) -> Iterator[pl.DataFrame]:
        """Yields a frame in pieces of so many rows, or of fewer where they have much text.

        Raises:
            TooMuchTextError: a row has more than any text may have.
        """
        for piece in frame.iter_slices(n_rows):
            yield from _halved(piece)


def _halved(piece: pl.DataFrame) -> Iterator[pl.DataFrame]:
    n_bytes = text_bytes(piece)
    if n_bytes <= BYTES_AT_ONCE:
        yield piece
    elif piece.height > 1:
        middle = piece.height // 2
        yield from _halved(piece[:middle])
        yield from _halved(piece[middle:])
    elif n_bytes <= MAX_TEXT_BYTES:
        yield piece
    else:
        raise TooMuchTextError(f"a row of it has more than {MAX_TEXT_BYTES >> 20} MB of text")


def text_bytes(frame: pl.DataFrame) -> int:
    """Returns the bytes of all texts in a frame, each as often as it is there."""
    return sum(_text_bytes(column) for column in frame)


def _text_bytes(column: pl.Series) -> int:
    kind = column.dtype
    if isinstance(kind, (pl.Categorical, pl.Enum)):
        column, kind = column.cast(pl.String), pl.String()
    if isinstance(kind, pl.String):
        return int(column.str.len_bytes().cast(pl.UInt64).sum())
    if isinstance(kind, pl.Binary):
        return int(column.bin.size().cast(pl.UInt64).sum())
    if isinstance(kind, pl.Struct):
        return sum(_text_bytes(column.struct.field(name)) for name in column.struct.fields)
    if isinstance(kind, (pl.List, pl.Array)) and _holds_text(kind):
        return _text_bytes(column.explode())
    return 0


def _holds_text(kind: Any) -> bool:
    if isinstance(kind, (pl.List, pl.Array)):
        return _holds_text(kind.inner)
    if isinstance(kind, pl.Struct):
        return any(_holds_text(field.dtype) for field in kind.fields)
    return kind in (pl.String, pl.Binary, pl.Categorical, pl.Enum)
