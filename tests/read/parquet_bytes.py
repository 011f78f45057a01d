"""Parquet byte by byte: files that no library writes, because they are meant to do harm.

Only what that needs: values that are all the same, told once, however many there are.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from tests.read.formats import varint

INT64, BYTE_ARRAY = 2, 6
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
PLAIN, RLE, DELTA_BYTE_ARRAY, RLE_DICTIONARY = 0, 3, 7, 8
UNCOMPRESSED, GZIP = 0, 2
DATA_PAGE, DICTIONARY_PAGE = 0, 2
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


@dataclass
class Column:
    """A column of one value.

    Args:
        name: of it.
        value: of every row.
        n: how many values its only page has; as many as there are rows if None.
        is_list: all values are one row's.
        n_told: how many the footer says it has; the truth if None.
        page: in place of the data page that holds `value`: its encoding, bytes, and the size
            that it is said to have.
        codec: in which `page` is compressed.
    """

    name: str
    value: int | bytes = 0
    n: int | None = None
    is_list: bool = False
    n_told: int | None = None
    page: tuple[int, bytes, int] | None = None
    codec: int = UNCOMPRESSED
    kind: int = field(init=False)

    def __post_init__(self) -> None:
        self.kind = INT64 if isinstance(self.value, int) else BYTE_ARRAY


def spans(n_rows: int, *more: Column, **values: int | bytes) -> bytes:
    """A native file of one span, n times."""
    held: dict[str, int | bytes] = {
        "trace_id": b"a" * 32, "span_id": b"b" * 16, "name": b"x", "start_ns": 10**18,
        "end_ns": 10**18 + 1,
    }  # fmt: skip
    named = {one.name for one in more}
    told = [Column(name, value) for name, value in (held | values).items() if name not in named]
    return parquet(n_rows, [*told, *more])


def parquet(n_rows: int, columns: list[Column], nested: int = 0) -> bytes:
    """A file of one row group.

    Args:
        n_rows: of it.
        columns: of it.
        nested: how many groups within each other the schema ends with.
    """
    data = bytearray(b"PAR1")
    chunks = [_chunk(data, one, n_rows if one.n is None else one.n) for one in columns]
    n_top = len(columns) + bool(nested)
    schema: list[bytes] = [_struct({4: b"schema", 5: n_top})]
    for one in columns:
        schema += _schema(one)
    schema += [_struct({3: OPTIONAL, 4: b"deep", 5: 1})] * nested
    if nested:
        schema.append(_struct({1: INT64, 3: OPTIONAL, 4: b"end"}))
        told = {1: INT64, 2: [PLAIN], 3: [b"deep"], 4: 0, 5: 0, 6: _Long(0), 7: _Long(0)}
        chunks.append(_struct({2: _Long(4), 3: _Struct(told | {9: _Long(4)})}))
    group = _struct({1: _Structs(chunks), 2: _Long(len(data)), 3: _Long(n_rows)})
    footer = _struct({1: 1, 2: _Structs(schema), 3: _Long(n_rows), 4: _Structs([group])})
    return bytes(data) + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _schema(column: Column) -> list[bytes]:
    text = {6: 0} if column.kind == BYTE_ARRAY else {}
    if not column.is_list:
        return [_struct({1: column.kind, 3: REQUIRED, 4: column.name.encode()} | text)]
    return [
        _struct({3: REQUIRED, 4: column.name.encode(), 5: 1, 6: 3}),
        _struct({3: REPEATED, 4: b"list", 5: 1}),
        _struct({1: column.kind, 3: REQUIRED, 4: b"element"} | text),
    ]


def _chunk(data: bytearray, column: Column, n: int) -> bytes:
    start, n_told = len(data), n if column.n_told is None else column.n_told
    if column.page is None:
        value = column.value
        plain = (
            struct.pack("<q", value)
            if isinstance(value, int)
            else struct.pack("<I", len(value)) + value
        )
        head = {1: DICTIONARY_PAGE, 2: len(plain), 3: len(plain), 7: _Struct({1: 1, 2: PLAIN})}
        data += _struct(head) + plain
    first_data = len(data)
    encoding, body, n_body = column.page or (RLE_DICTIONARY, _same(column, n), 0)
    told = _Struct({1: n, 2: encoding, 3: RLE, 4: RLE})
    data += _struct({1: DATA_PAGE, 2: n_body or len(body), 3: len(body), 5: told}) + body
    path = [column.name.encode(), b"list", b"element"] if column.is_list else [column.name.encode()]
    meta: dict[int, Any] = {
        1: column.kind, 2: [PLAIN, RLE, encoding], 3: path, 4: column.codec, 5: _Long(n_told),
        6: _Long(len(data) - start), 7: _Long(len(data) - start), 9: _Long(first_data),
    }  # fmt: skip
    if column.page is None:
        meta[11] = _Long(start)
    return _struct({2: _Long(start), 3: _Struct(meta)})


def _same(column: Column, n: int) -> bytes:
    """Values that are all the dictionary's first, and for a list that all are one row's."""
    levels = b""
    if column.is_list:
        repetition = _run(1, 0) + _run(n - 1, 1)
        for runs in (repetition, _run(n, 1)):
            levels += struct.pack("<I", len(runs)) + runs
    return levels + b"\x01" + _run(n, 0)


def _run(n: int, value: int) -> bytes:
    return varint(n << 1) + bytes([value])


class _Long(int):
    """An integer of 64 bits."""


class _Struct(dict[int, Any]):
    """A struct in a struct."""


class _Structs(list[bytes]):
    """A list of structs."""


def _struct(fields: dict[int, Any]) -> bytes:
    made, before = b"", 0
    for number, value in sorted(fields.items()):
        kind, text = _value(value)
        made += bytes([(number - before) << 4 | kind]) + text
        before = number
    return made + b"\0"


def _value(value: Any) -> tuple[int, bytes]:
    if isinstance(value, _Struct):
        return _STRUCT, _struct(value)
    if isinstance(value, _Structs):
        return _LIST, _list(_STRUCT, value)
    if isinstance(value, list):
        kind = _value(value[0])[0]
        return _LIST, _list(kind, [_value(one)[1] for one in value])
    if isinstance(value, bytes):
        return _BINARY, varint(len(value)) + value
    return _I64 if isinstance(value, _Long) else _I32, varint(value << 1)


def _list(kind: int, items: list[bytes]) -> bytes:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind])
    return head + (varint(len(items)) if len(items) >= 15 else b"") + b"".join(items)
