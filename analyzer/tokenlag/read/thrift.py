"""Reads Thrift's compact protocol, in which Parquet describes itself.

Structs come as maps of their fields' numbers: what a field means is the caller's matter.
"""

from __future__ import annotations

from typing import Any, Final

MAX_VALUES: Final = (
    4 * 2**20
)  # that are taken of one text; a value takes far more room than its bytes
_MAX_DEPTH: Final = 24
# Types of Thrift's compact protocol.
_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = (
    0, 1, 2, 3, 7, 8, 9, 10, 11, 12,
)  # fmt: skip


class Thrift:
    """Reads structs one after the other; an offset past the end is an `IndexError`.

    Args:
        data: bytes that begin with a struct.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._n_values = 0

    @property
    def n_read(self) -> int:
        """Bytes read so far."""
        return self._at

    def struct(self, depth: int) -> dict[int, Any]:
        """Returns a struct as a map of its fields' numbers.

        Raises:
            IndexError: it ends before it is complete.
            ValueError: it is none.
        """
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
        self._n_values += 1
        if depth > _MAX_DEPTH or self._n_values > MAX_VALUES:
            raise ValueError("nested too deeply, or too much")
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
                raise ValueError("a list that is longer than what holds it")
            return [self._value(head & 0x0F, depth + 1) for _ in range(n_items)]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _MAP:
            n_items = self._unsigned()
            if n_items:
                raise ValueError("a map, which Parquet has nowhere")
            return {}
        raise ValueError(f"type {kind}")
