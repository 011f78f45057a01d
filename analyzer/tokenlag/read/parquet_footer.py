"""The footer of a Parquet file: its columns and how many rows its groups have.

Only what is needed before anything is read, without a library: columns say what the file
holds, rows how to share it out, sizes whether it may be read at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenlag.read.thrift import Thrift

MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"
MAX_FOOTER_BYTES: Final = 16 * 2**20
_TAIL_BYTES: Final = 8
MAX_SCHEMA_DEPTH: Final = 32
VIEW_BYTES: Final = 16  # what a value of a column takes at least, however it is packed
# Physical types, repetition.
_BYTE_ARRAY, _FIXED_LEN = 6, 7
_REPEATED: Final = 2


class FooterError(ValueError):
    """This is no Parquet, or not all of it."""


@dataclass(frozen=True)
class Leaf:
    """A column without columns below it.

    Args:
        column: the top-level column that it is of.
        width: bytes that a value takes in memory, without its text.
        is_text: whether values are bytes of any length.
        is_repeated: whether a row may have several values of it.
    """

    column: str
    width: int
    is_text: bool
    is_repeated: bool


@dataclass(frozen=True)
class Chunk:
    """Where the values of a leaf lie that one row group has, as the footer says.

    Args:
        leaf: whose.
        n_values: how many, NULLs too.
        start: the first page's offset.
        n_packed: bytes of its pages with their heads.
    """

    leaf: Leaf
    n_values: int
    start: int
    n_packed: int


@dataclass(frozen=True)
class Footer:
    """What a file says of itself.

    Args:
        columns: names of its top-level columns.
        groups: rows and uncompressed bytes of each row group.
        chunks: of each row group, in order of the leaves.
        n_bytes: the file's size.
    """

    columns: tuple[str, ...]
    groups: tuple[tuple[int, int], ...]
    chunks: tuple[tuple[Chunk, ...], ...]
    n_bytes: int

    @property
    def n_rows(self) -> int:
        """Rows in all."""
        return sum(n_rows for n_rows, _ in self.groups)


def read_footer(path: Path) -> Footer:
    """Reads a file's footer.

    Raises:
        FooterError: it has none that makes sense.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        n_bytes = file.seek(0, 2)
        if n_bytes < len(MAGIC) + _TAIL_BYTES:
            raise FooterError("the Parquet file is cut off: it has no footer")
        file.seek(n_bytes - _TAIL_BYTES)
        tail = file.read(_TAIL_BYTES)
        if tail[4:] == ENCRYPTED_MAGIC:
            raise FooterError("the Parquet file is encrypted")
        if tail[4:] != MAGIC:
            raise FooterError("the Parquet file is cut off: it has no footer")
        n_footer = int.from_bytes(tail[:4], "little")
        if n_footer > n_bytes - _TAIL_BYTES - len(MAGIC):
            raise FooterError("the Parquet file is damaged: its footer is longer than the file")
        if n_footer > MAX_FOOTER_BYTES:
            raise FooterError(f"the Parquet file has a footer of {n_footer >> 20} MB")
        file.seek(n_bytes - _TAIL_BYTES - n_footer)
        data = file.read(n_footer)
    try:
        return _footer(Thrift(data).struct(0), n_bytes)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise FooterError("the Parquet file is damaged: its footer makes no sense") from None


def _footer(fields: dict[int, Any], n_bytes: int) -> Footer:
    leaves: list[Leaf] = []
    columns = tuple(_columns(fields[2], leaves))
    groups, chunks = [], []
    for group in fields.get(4, []):
        groups.append((int(group[3]), int(group.get(2, 0))))
        if groups[-1][0] < 0:
            raise ValueError("a group of fewer rows than none")
        chunks.append(
            tuple(_chunk(leaf, one[3]) for leaf, one in zip(leaves, group[1], strict=True))
        )
    return Footer(columns, tuple(groups), tuple(chunks), n_bytes)


def _columns(schema: list[dict[int, Any]], leaves: list[Leaf]) -> Iterator[str]:
    """Names of the root's children; the schema is a tree in order of depth first."""
    at = 1
    for _ in range(schema[0].get(5, 0)):
        name = schema[at][4].decode("utf-8")
        open_: list[tuple[int, bool]] = [(1, False)]  # children to come, whether repeated
        while open_:
            if len(open_) > MAX_SCHEMA_DEPTH:
                raise ValueError("columns within columns without end")
            n_left, is_repeated = open_.pop()
            if not n_left:
                continue
            open_.append((n_left - 1, is_repeated))
            one = schema[at]
            at += 1
            is_repeated = is_repeated or one.get(3) == _REPEATED
            if n_children := int(one.get(5, 0)):
                open_.append((n_children, is_repeated))
                continue
            kind = one[1]
            width = max(VIEW_BYTES, one.get(2, 0) if kind == _FIXED_LEN else 0)
            leaves.append(Leaf(name, width, kind == _BYTE_ARRAY, is_repeated))
        yield name


def _chunk(leaf: Leaf, told: dict[int, Any]) -> Chunk:
    start, n_packed, n_values = int(told[9]), int(told[7]), int(told[5])
    dictionary = int(told.get(11) or 0)  # which some writers name without having one
    if dictionary > start:
        raise ValueError("a dictionary behind what it is for")
    start = dictionary or start
    if min(start, n_packed, n_values) < 0:
        raise ValueError("a chunk that lies nowhere")
    return Chunk(leaf, n_values, start, n_packed)
