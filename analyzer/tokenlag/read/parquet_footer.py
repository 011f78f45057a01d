"""The footer of a Parquet file: its columns and how many rows its groups have.

Only what is needed before anything is read, without a library: columns say what the file
holds, rows how to share it out, sizes whether it may be read at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"
MAX_FOOTER_BYTES: Final = 16 * 2**20
_TAIL_BYTES: Final = 8
_MAX_DEPTH: Final = 24
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    0, 1, 2, 3, 7, 8, 9, 10, 11, 12,
)  # fmt: skip


class FooterError(ValueError):
    """This is no Parquet, or not all of it."""


@dataclass(frozen=True)
class Footer:
    """What a file says of itself.

    Args:
        columns: names of its top-level columns.
        groups: rows and uncompressed bytes of each row group.
    """

    columns: tuple[str, ...]
    groups: tuple[tuple[int, int], ...]

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
        return _footer(_Thrift(data).struct(0))
    except (IndexError, KeyError, TypeError, ValueError, UnicodeDecodeError):
        raise FooterError("the Parquet file is damaged: its footer makes no sense") from None


def _footer(fields: dict[int, Any]) -> Footer:
    schema = fields[2]
    groups = tuple((int(group[3]), int(group.get(2, 0))) for group in fields.get(4, []))
    if any(n_rows < 0 for n_rows, _ in groups):
        raise ValueError("a group of fewer rows than none")
    return Footer(tuple(_top_level(schema)), groups)


def _top_level(schema: list[dict[int, Any]]) -> Iterator[str]:
    """Names of the root's children; the schema is a tree in order of depth first."""
    at = 1
    for _ in range(schema[0].get(5, 0)):
        yield schema[at][4].decode("utf-8")
        n_left = 1
        while n_left:
            n_left += schema[at].get(5, 0) - 1
            at += 1


class _Thrift:
    """Reads Thrift's compact protocol; an offset past the end is an `IndexError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int) -> dict[int, Any]:
        """A struct as a map of its fields' numbers."""
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while True:
            head = self._byte()
            kind = head & 0x0F
            if kind == _STOP:
                return fields
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = kind == _TRUE if kind <= _FALSE else self._value(kind, depth)

    def _byte(self) -> int:
        value = self._data[self._at]
        self._at += 1
        return value

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than ten bytes")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _bytes(self, n_bytes: int) -> bytes:
        if n_bytes > len(self._data) - self._at:
            raise IndexError
        value = self._data[self._at : self._at + n_bytes]
        self._at += n_bytes
        return value

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind < _DOUBLE:
            return self._signed()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind in (_LIST, _SET):
            head = self._byte()
            n_items = head >> 4 if head >> 4 < 15 else self._unsigned()
            if n_items > len(self._data):
                raise ValueError("a list that is longer than the footer")
            return [self._value(head & 0x0F, depth + 1) for _ in range(n_items)]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _MAP:
            n_items = self._unsigned()
            if n_items:
                raise ValueError("a map, which no footer has")
            return {}
        raise ValueError(f"type {kind}")
