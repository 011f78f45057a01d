"""One OTLP value to the type that its key declares.

Stores and exporters that turn every value into a string are undone here. What cannot be
converted is None, and the caller counts it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec.structs import astuple

from tokenlag.read.sources.otlp_types import EMPTY_VALUE, AnyValue

EMPTY_FIELDS: Final = astuple(EMPTY_VALUE)
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
MAX_INT_DIGITS: Final = 20
TRUE_WORDS: Final = frozenset({"true", "1", "yes"})
FALSE_WORDS: Final = frozenset({"false", "0", "no"})

Converter = Callable[[AnyValue], object]


def is_empty(value: AnyValue) -> bool:
    """Returns whether no field that is read is set: an absent value, a map or bytes."""
    return astuple(value) == EMPTY_FIELDS


def int_of(text: str | int | None) -> int | None:
    """Returns a decimal integer that fits 64 bits, else None."""
    if text is None or isinstance(text, bool):
        return None
    if isinstance(text, str):
        text = text.strip()
        if len(text) > MAX_INT_DIGITS:
            return None
        try:
            text = int(text)
        except ValueError:
            return None
    return text if INT64_MIN <= text <= INT64_MAX else None


def to_int(value: AnyValue) -> int | None:
    """Returns the integer, also out of a whole double or a decimal string."""
    if value.int_value is not None:
        return int_of(value.int_value)
    if value.double_value is not None:
        number = _finite(value.double_value)
        if number is not None and number.is_integer():
            return int_of(int(number))
        return None
    if value.string_value is not None:
        whole = int_of(value.string_value)
        if whole is not None:
            return whole
        number = _finite(value.string_value)
        if number is not None and number.is_integer():
            return int_of(int(number))
    return None


def to_float(value: AnyValue) -> float | None:
    """Returns the number if it is finite, also out of an integer or a string."""
    if value.double_value is not None:
        return _finite(value.double_value)
    if value.int_value is not None:
        return _finite(value.int_value)
    if value.string_value is not None:
        return _finite(value.string_value)
    return None


def to_bool(value: AnyValue) -> bool | None:
    """Returns the truth value, also out of 0 and 1 or the usual words."""
    if value.bool_value is not None:
        return value.bool_value
    word = value.string_value if value.string_value is not None else value.int_value
    word = str(word).strip().lower()
    if word in TRUE_WORDS:
        return True
    return False if word in FALSE_WORDS else None


def to_str(value: AnyValue) -> str | None:
    """Returns the string; numbers and truth values as text, a list joined by commas."""
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return str(value.int_value)
    if value.bool_value is not None:
        return "true" if value.bool_value else "false"
    if value.double_value is not None:
        return str(value.double_value)
    if value.array_value is not None:
        items = to_strs(value)
        return None if items is None else ",".join(items)
    return None


def to_ints(value: AnyValue) -> list[int] | None:
    """Returns the list of integers; one that cannot be converted spoils the list."""
    ints = [to_int(item) for item in _items(value)]
    whole = [item for item in ints if item is not None]
    if len(whole) != len(ints) or not (ints or _is_list(value)):
        return None
    return whole


def to_strs(value: AnyValue) -> list[str] | None:
    """Returns the list of strings; one that cannot be converted spoils the list."""
    strs = [None if item.array_value else to_str(item) for item in _items(value)]
    whole = [item for item in strs if item is not None]
    if len(whole) != len(strs) or not (strs or _is_list(value)):
        return None
    return whole


CONVERTERS: Final[dict[str, Converter]] = {
    "str": to_str,
    "int": to_int,
    "float": to_float,
    "bool": to_bool,
    "int[]": to_ints,
    "str[]": to_strs,
}


def _is_list(value: AnyValue) -> bool:
    if value.array_value is not None:
        return True
    return value.string_value is not None and value.string_value.strip() in {"", "[]"}


def _items(value: AnyValue) -> list[AnyValue]:
    """The values of a list, of its JSON or comma text, or the one value there is."""
    if value.array_value is not None:
        return value.array_value.values or []
    text = value.string_value
    if text is None:
        return [] if is_empty(value) else [value]
    text = text.strip()
    if not text.startswith("["):
        return [AnyValue(string_value=part.strip()) for part in text.split(",") if part.strip()]
    try:
        items = msgspec.json.decode(text, type=list[str | int | float | bool])
    except (msgspec.DecodeError, RecursionError):
        return [EMPTY_VALUE]
    return [_scalar(item) for item in items]


def _scalar(item: str | int | float | bool) -> AnyValue:
    if isinstance(item, bool):
        return AnyValue(bool_value=item)
    if isinstance(item, int):
        return AnyValue(int_value=item)
    if isinstance(item, float):
        return AnyValue(double_value=item)
    return AnyValue(string_value=item)


def _finite(number: float | int | str) -> float | None:
    try:
        value = float(number)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None
