"""Lists of what OTLP JSON wrote to typed columns, without a Python call for each value.

Integers arrive as numbers or decimal text and lists of integers are joined to text, because polars
casts a column of text several times as fast as Python converts one value after another.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from tokenlag.read.sources.otlp_types import AnyValue
from tokenlag.read.sources.otlp_values import INT64_MAX, int_of, to_float
from tokenlag.read.spans import dtype

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
KIND_NAMES: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUS_NAMES: Final = ("UNSET", "OK", "ERROR")
HEX_DIGITS: Final = b"0123456789abcdef"
INT_SEPARATOR: Final = ","
TEXT_SEPARATOR: Final = "\x1f"


def typed(name: str, value_type: str, values: list[Any]) -> tuple[pl.Series, int]:
    """Returns a column of a declared type, and how many values could not be converted.

    Args:
        name: of the column.
        value_type: one of `vocabulary.VALUE_TYPES`.
        values: None or, for `int`, decimal text or an integer; for `int[]`, decimals joined
            by commas, "" being the empty list; else a value of the type (for `float` also
            its text).
    """
    if value_type == "int":
        return integers(name, values)
    if value_type == "float":
        return _floats(name, values)
    if value_type == "int[]":
        return _int_lists(name, values)
    if value_type == "str[]":
        return _text_lists(name, values), 0
    return pl.Series(name, values, dtype=dtype(value_type)), 0


def hex_ids(name: str, ids: Sequence[str | None], n_bytes: int) -> pl.Series:
    """Returns ids as lower-case hex; NULL for empty, all-zero and unusable ones.

    Hex of any case is the rule. Base64 of the right length is what the plain protobuf JSON
    mapping writes. A 64-bit trace id is padded on the left, as W3C trace context says.
    """
    texts = pl.Series(name, ids, dtype=pl.String)
    if _are_plain(ids, 2 * n_bytes):
        unset = (texts == "") | (texts == "00" * n_bytes)
        return texts.set(unset, None) if unset.any() else texts
    good = texts.str.contains(f"^[0-9a-f]{{{2 * n_bytes}}}$").fill_null(value=False)
    if not good.all():
        odd = texts.filter(~good)
        known = {text: _odd_id(text, n_bytes) for text in odd.unique().to_list()}
        known_ids = odd.replace_strict(known, default=None, return_dtype=pl.String)
        texts = texts.scatter((~good).arg_true(), known_ids)
    zeros = (texts == "00" * n_bytes).fill_null(value=False)
    return texts.set(zeros, None) if zeros.any() else texts


def _are_plain(ids: Sequence[str | None], n_digits: int) -> bool:
    """Whether all ids are empty or lower-case hex of the right length."""
    try:
        if not set(map(len, ids)) <= {0, n_digits}:  # type: ignore[arg-type]
            return False
        digits = "".join(ids).encode("ascii")  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):  # None, or no hex at all
        return False
    return not digits.translate(None, HEX_DIGITS)


def times(name: str, values: list[Any]) -> pl.Series:
    """Returns unix nanoseconds; NULL where absent, not positive or beyond 63 bits."""
    series, _ = integers(name, values)
    unset = (series <= 0).fill_null(value=False)
    return series.set(unset, None) if unset.any() else series


def enums(name: str, codes: list[int | str | None], names: tuple[str, ...]) -> pl.Series:
    """Returns enum numbers, also out of names with or without OTLP's prefix.

    An absent one is 0, as protobuf means it; an unknown one is NULL.
    """
    distinct = set(codes)
    if distinct <= {0, 1, 2, 3, 4, 5}:
        return pl.Series(name, codes, dtype=pl.Int8)
    known = {code: _enum(code, names) for code in distinct}
    return pl.Series(name, [known[code] for code in codes], dtype=pl.Int8)


def integers(name: str, values: list[Any]) -> tuple[pl.Series, int]:
    """Returns integers out of decimal text and integers, and how many were neither."""
    if isinstance(next((value for value in values if value is not None), None), int):
        try:
            return pl.Series(name, values, dtype=pl.Int64), 0
        except (TypeError, OverflowError):  # text among them, or beyond 63 bits
            return _mixed_integers(name, values)
    try:
        texts = pl.Series(name, values, dtype=pl.String)
    except TypeError:
        return _mixed_integers(name, values)
    series = texts.cast(pl.Int64, strict=False)
    if series.null_count() > texts.null_count():  # blanks around a number, or none at all
        series = pl.Series(name, [int_of(text) for text in texts.to_list()], dtype=pl.Int64)
    return series, series.null_count() - texts.null_count()


def _mixed_integers(name: str, values: list[Any]) -> tuple[pl.Series, int]:
    numbers = [
        value if type(value) is int and abs(value) <= INT64_MAX else _int_of_any(value)
        for value in values
    ]
    series = pl.Series(name, numbers, dtype=pl.Int64)
    return series, series.null_count() - values.count(None)


def _int_of_any(value: Any) -> int | None:
    return int_of(value) if isinstance(value, (str, int)) else None


def _floats(name: str, values: list[Any]) -> tuple[pl.Series, int]:
    """Finite numbers; one that is not finite was not measured."""
    try:
        series = pl.Series(name, values, dtype=pl.Float64)
    except TypeError:
        numbers = [to_float(AnyValue(double_value=value)) for value in values]
        series = pl.Series(name, numbers, dtype=pl.Float64)
    infinite = (~series.is_finite()).fill_null(value=False)
    if infinite.any():
        series = series.set(infinite, None)
    return series, series.null_count() - values.count(None)


def _int_lists(name: str, values: list[str | None]) -> tuple[pl.Series, int]:
    list_type = dtype("int[]")
    texts = pl.Series(name, values, dtype=pl.String)
    lists = texts.str.split(INT_SEPARATOR).cast(list_type, strict=False)
    whole = lists.list.drop_nulls()  # splitting "" gives one item, which is no number
    n_dropped = int(lists.list.len().sum() or 0) - int(whole.list.len().sum() or 0)
    if n_dropped == values.count(""):
        return whole, 0
    converted = [None if text is None else _ints_of(text) for text in values]
    n_lost = converted.count(None) - values.count(None)
    return pl.Series(name, converted, dtype=list_type), n_lost


def _ints_of(text: str) -> list[int] | None:
    numbers = [int_of(part) for part in text.split(INT_SEPARATOR)] if text else []
    whole = [number for number in numbers if number is not None]
    return whole if len(whole) == len(numbers) else None


def _text_lists(name: str, values: list[list[str] | None]) -> pl.Series:
    """By way of joined text, for polars makes a Series of each Python list."""
    list_type = dtype("str[]")
    texts = [None if value is None else TEXT_SEPARATOR.join(value) for value in values]
    lists = pl.Series(name, texts, dtype=pl.String).str.split(TEXT_SEPARATOR)
    n_items = sum(map(len, filter(None, values)))
    if "" in texts or int(lists.list.len().sum() or 0) != n_items:
        return pl.Series(name, values, dtype=list_type)
    return lists


def _odd_id(text: str | None, n_bytes: int) -> str | None:
    text = (text or "").strip()
    if text.startswith(("0x", "0X")):
        text = text[2:]
    is_half_trace_id = n_bytes == TRACE_ID_BYTES and len(text) == TRACE_ID_BYTES
    try:
        if is_half_trace_id or len(text) == 2 * n_bytes:
            return bytes.fromhex(text).rjust(n_bytes, b"\0").hex()
        padded = text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4)
        raw = base64.b64decode(padded, validate=True)
    except (ValueError, binascii.Error):
        return None
    return raw.hex() if len(raw) == n_bytes else None


def _enum(code: int | str | None, names: tuple[str, ...]) -> int | None:
    if isinstance(code, str):
        word = code.strip().upper().rsplit("_", 1)[-1]
        code = names.index(word) if word in names else int_of(word)
    elif code is None:
        code = 0
    return code if code is not None and 0 <= code < len(names) else None
