"""Where sources put what they read, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from tokenlag.read.messages import Job, Losses, Report, Seen
from tokenlag.read.sources.otlp_columns import Columns
from tokenlag.read.vocabulary import Vocabulary

if TYPE_CHECKING:
    import polars as pl


class Link(Protocol):
    """Takes a file that needs no change."""

    def __call__(self, path: str, n_rows: int, *, is_events: bool) -> None:
        """Takes it."""
        ...


@dataclass
class Sink:
    """Takes span rows, as objects or as frames.

    Args:
        vocabulary: the keys that are kept.
        columns: takes spans.
        add: takes frames of span rows and event rows whose columns are some of the schemas'.
        link: takes a Parquet file of span rows or event rows as it is, and its spans' number.
        losses: counts what became no row, and what rows lack, for frames.
    """

    vocabulary: Vocabulary
    columns: Columns
    add: Callable[[pl.DataFrame, pl.DataFrame], None]
    link: Link
    losses: Losses = field(default_factory=Losses)


class TextReader(Protocol):
    """A source of texts."""

    def read(self, text: bytes | memoryview, name: str, seen: Seen) -> None:
        """Puts the spans of one JSON text into the sink.

        Raises:
            TextError: some of the text could not be read.
        """
        ...


class BlockReader(Protocol):
    """A source of binary blocks."""

    def read_block(self, data: bytes, job: Job, report: Report) -> None:
        """Puts the spans of whole frames into the sink; notes what is unreadable."""
        ...


class FileReader(Protocol):
    """A source of files that are not read from front to back."""

    def read_part(self, job: Job, report: Report) -> None:
        """Puts a part of a file into the sink; notes what is unreadable."""
        ...
