"""Plain JSON values, and the odd spellings of ids and times, as OTLP has them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, Final

from tokenlag.read.sources.otlp_types import EMPTY_VALUE, AnyValue, ArrayValue

NS_PER_US: Final = 1_000
NS_PER_S: Final = 1_000_000_000
_DURATION: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|μs|ms|s|m|h)")
_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9})\d*)?\s*([Zz]|[+-]\d\d:?\d\d)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TRACE_ID_DIGITS: Final = 32
SPAN_ID_DIGITS: Final = 16
_HEX: Final = re.compile(r"[0-9a-fA-F]+")


def plain_value(value: Any) -> AnyValue:
    """Returns a JSON value; maps are never read, and come back empty."""
    kind = type(value)
    if kind is str:
        return AnyValue(string_value=value)
    if kind is int:
        return AnyValue(int_value=value)
    if kind is float:
        return AnyValue(double_value=value)
    if kind is bool:
        return AnyValue(bool_value=value)
    if kind is list:
        items = [EMPTY_VALUE if isinstance(item, list) else plain_value(item) for item in value]
        return AnyValue(array_value=ArrayValue(items))
    return AnyValue()


def padded_id(value: str | int | None, n_digits: int) -> str:
    """Returns an id with the zeros that its writer left out; "" for none.

    Integers are what Thrift and Cassandra have, signed. What is not hex stays as it is:
    it may be base64.
    """
    if type(value) is str and len(value) == n_digits:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value & (1 << (4 * n_digits)) - 1:0{n_digits}x}"
    if not isinstance(value, str) or not value:
        return ""
    if len(value) < n_digits and _HEX.fullmatch(value):
        return value.zfill(n_digits)
    return value


def ns_of_time(value: Any) -> int | None:
    """Returns unix nanoseconds out of microseconds, or of RFC 3339."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value * NS_PER_US
    if isinstance(value, float):
        return round(value * NS_PER_US) if abs(value) < 1e18 else None
    if not isinstance(value, str):
        return None
    if value.isdecimal() and len(value) < 20:
        return int(value) * NS_PER_US
    found = _RFC3339.fullmatch(value.strip())
    if found is None:
        return None
    day, clock, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z", "z") else zone
    try:
        at = datetime.fromisoformat(f"{day}T{clock}{zone}") - _EPOCH
    except ValueError:
        return None
    whole_ns = (at.days * 86_400 + at.seconds) * NS_PER_S
    return whole_ns + int((fraction or "0").ljust(9, "0"))


def ns_of_duration(value: Any) -> int | None:
    """Returns nanoseconds out of microseconds, or of text with units such as "5000ns"."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return round(value * NS_PER_US) if abs(value) < 1e18 else None
    if not isinstance(value, str) or len(value) > 64:
        return None
    text = value.strip()
    if text.isdecimal():
        return int(text) * NS_PER_US
    total, at = 0, 0
    while at < len(text):
        found = _DURATION.match(text, at)
        if found is None:
            return None
        number, unit = found.groups()
        whole, _, fraction = number.partition(".")
        scale = _UNITS_NS[unit]
        total += int(whole) * scale
        if fraction:
            total += int(fraction) * scale // 10 ** len(fraction)
        at = found.end()
    return total if at else None
