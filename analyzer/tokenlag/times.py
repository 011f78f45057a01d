"""Times and durations as people type them, in unix nanoseconds.

Standard library only. Whatever string comes in, the answer is a value or a `UsageError`.
"""

from __future__ import annotations

import difflib
import re
from datetime import UTC, date, datetime, timedelta, tzinfo
from fractions import Fraction
from typing import Final

from tokenlag.errors import UsageError

NS_PER_S: Final = 1_000_000_000
MAX_NS: Final = 2**63 - 1

_UNIT_NS: Final = {
    "w": 7 * 86_400 * NS_PER_S,
    "d": 86_400 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
    "m": 60 * NS_PER_S,
    "s": NS_PER_S,
    "ms": 1_000_000,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu: what many keyboards and copies give
    "ns": 1,
}
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|μs|ns|w|d|h|m|s)")
_DURATION: Final = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_UNIX: Final = re.compile(r"@([0-9]+(?:\.[0-9]+)?)")
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_RFC3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(\.[0-9]{1,9})?)?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?",
    re.IGNORECASE,
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
TIME_HINT: Final = (
    "15m, 1h30m, 2d, 2026-07-26T14:00:00Z, 2026-07-26, @1785074400, today, yesterday or now"
)


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of `15m`, `1h30m`, `2d`, `90s`, `1.5h`, `250ms`.

    Raises:
        UsageError: it is no duration, is zero, or does not fit into 64 bits.
    """
    stripped = text.strip().lower()
    if not _DURATION.fullmatch(stripped):
        hint = f"{stripped}s or {stripped}m" if stripped.isdecimal() else "15m, 1h30m, 2d, 90s"
        raise UsageError(f"{quote(text)} is not a duration", hint=hint)
    total = sum(Fraction(n) * _UNIT_NS[unit] for n, unit in _DURATION_PART.findall(stripped))
    ns = round(total)
    if ns == 0:
        raise UsageError(f"the duration {quote(text)} is zero")
    if ns > MAX_NS:
        raise UsageError(f"the duration {quote(text)} is longer than 292 years")
    return ns


def format_duration(ns: int) -> str:
    """The shortest exact form that `parse_duration_ns` reads back, such as `1h30m`."""
    if ns <= 0:
        raise ValueError("durations are positive")
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us", "ns"):
        count, ns = divmod(ns, _UNIT_NS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def is_duration(text: str) -> bool:
    """Whether a text has the form of a duration."""
    return _DURATION.fullmatch(text.strip().lower()) is not None


def parse_time(text: str, now_ns: int, tz: tzinfo) -> int:
    """Unix nanoseconds of a time T: a duration ago, RFC 3339, a date, @unix, or a word.

    A date, and a time without an offset, is in `tz` (the shell's zone).

    Raises:
        UsageError: it is none of these, or lies outside 1970 to 2262.
    """
    stripped = text.strip()
    word = stripped.lower()
    if word == "now":
        return now_ns
    if word in ("today", "yesterday"):
        day = _local(now_ns, tz).date() - timedelta(days=word == "yesterday")
        return _checked(_to_ns(datetime(day.year, day.month, day.day, tzinfo=tz)), text)
    if match := _UNIX.fullmatch(stripped):
        return _checked(round(Fraction(match[1]) * NS_PER_S), text)
    if _DATE.fullmatch(stripped) or _RFC3339.fullmatch(stripped):
        return _checked(_parse_stamp(stripped, text, tz), text)
    if _DURATION.fullmatch(word):
        return _checked(now_ns - parse_duration_ns(stripped), text)
    close = difflib.get_close_matches(word, ("now", "today", "yesterday"), 1)
    hint = f"did you mean {close[0]}?" if close else TIME_HINT
    if word.isdecimal():
        hint = f"{word}m for a duration, @{word} for a unix time"
    raise UsageError(f"{quote(text)} is not a time", hint=hint)


def format_time(ns: int, tz: tzinfo) -> str:
    """RFC 3339 with the offset of `tz`, exact to the nanosecond, as `parse_time` reads it."""
    seconds, fraction = divmod(ns, NS_PER_S)
    stamp = _local(seconds * NS_PER_S, tz)
    digits = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{stamp:%Y-%m-%dT%H:%M:%S}{digits}{format_offset(stamp)}"


def format_offset(stamp: datetime) -> str:
    """The offset of an aware time: `+02:00`, or `Z` for UTC."""
    offset = stamp.utcoffset() or timedelta()
    minutes = round(offset.total_seconds() / 60)
    if minutes == 0:
        return "Z"
    sign = "-" if minutes < 0 else "+"
    return f"{sign}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"


class LocalZone(tzinfo):
    """The shell's zone as the C library knows it, with its daylight-saving history.

    `datetime.now().astimezone().tzinfo` would be today's fixed offset, wrong for a date on
    the other side of a clock change.
    """

    def utcoffset(self, stamp: datetime | None) -> timedelta | None:
        """The offset in force at a local time."""
        if stamp is None:
            return None
        return stamp.replace(tzinfo=None).astimezone().utcoffset()

    def dst(self, _stamp: datetime | None) -> timedelta | None:
        """Not known apart from the offset."""
        return None

    def tzname(self, stamp: datetime | None) -> str | None:
        """The zone's abbreviation at a local time."""
        if stamp is None:
            return None
        return stamp.replace(tzinfo=None).astimezone().tzname()

    def fromutc(self, stamp: datetime) -> datetime:
        """A UTC time as local time."""
        local = stamp.replace(tzinfo=UTC).astimezone()
        return local.replace(tzinfo=self)


def _parse_stamp(stripped: str, text: str, tz: tzinfo) -> int:
    try:
        if _DATE.fullmatch(stripped):
            day = date.fromisoformat(stripped)
            return _to_ns(datetime(day.year, day.month, day.day, tzinfo=tz))
        match = _RFC3339.fullmatch(stripped)
        assert match is not None  # the caller matched it
        day = date.fromisoformat(match[1])
        zone = tz if match[6] is None else datetime.strptime(match[6].upper(), "%z").tzinfo
        stamp = datetime(
            day.year, day.month, day.day, int(match[2]), int(match[3]), int(match[4] or 0),
            tzinfo=zone,
        )  # fmt: skip
        return _to_ns(stamp) + int(Fraction(match[5] or "0") * NS_PER_S)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f"{quote(text)} is not a time: {error}", hint=TIME_HINT) from None


def _to_ns(stamp: datetime) -> int:
    delta = stamp - _EPOCH
    return (delta.days * 86_400 + delta.seconds) * NS_PER_S + delta.microseconds * 1_000


def _local(ns: int, tz: tzinfo) -> datetime:
    return (_EPOCH + timedelta(microseconds=ns // 1_000)).astimezone(tz)


def _checked(ns: int, text: str) -> int:
    if not 0 <= ns <= MAX_NS:
        raise UsageError(f"the time {quote(text)} is outside 1970 to 2262")
    return ns


def quote(text: str) -> str:
    """A user's text for a message: on one line, not too long."""
    shown = text if len(text) <= 60 else text[:57] + "..."
    return repr(shown)
