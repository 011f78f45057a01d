"""Numbers, times and strange strings as a person reads them. Pure functions."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Final

from tokenlag.judge.diagnosis import Interval, Scalar
from tokenlag.times import NS_PER_S, format_duration

NOT_MEASURED: Final = "–"

_ASCII: Final = str.maketrans(
    {
        "×": "x",
        "–": "-",
        "—": "-",
        "−": "-",
        "→": "->",
        "≥": ">=",
        "≤": "<=",
        "µ": "u",
        "μ": "u",
        "σ": "sigma ",
        "Σ": "sum ",
        "Δ": "delta ",
        "±": "+/-",
        "·": ".",
        "…": "...",
        "“": '"',
        "”": '"',
        "‘": "'",
        "’": "'",
        "÷": "/",
        "≈": "~",
        "\u00a0": " ",
        "\u202f": " ",
    }
)


def milliseconds(ms: float | None) -> str:
    """A duration in the unit a person would say: `98.1 µs`, `48.0 ms`, `2.14 s`, `3.50 min`."""
    if ms is None:
        return NOT_MEASURED
    size = abs(ms)
    if size == 0:
        return "0 ms"
    if size < 0.9995:
        return f"{_three_digits(ms * 1e3)} µs"
    if size < 999.5:
        return f"{_three_digits(ms)} ms"
    if size < 119_950:
        return f"{_three_digits(ms / 1e3)} s"
    if size < 119.95 * 60_000:
        return f"{_three_digits(ms / 60e3)} min"
    return f"{_three_digits(ms / 3_600e3)} h"


def count(value: float | None) -> str:
    """A count with thousands separated, `1,234`; with a fraction below ten only."""
    if value is None:
        return NOT_MEASURED
    if value == round(value):
        return f"{value:,.0f}"
    return _three_digits(value)


def rounded(value: float) -> str:
    """A rate or a size to three digits, thousands separated."""
    return count(value) if value == round(value) else _three_digits(value)


def percent(share: float | None) -> str:
    """A share of 0 to 1 as a percentage, never rounded to none or all."""
    if share is None:
        return NOT_MEASURED
    value = share * 100
    if 0 < value < 1:
        return f"{value:.2g} %" if value >= 0.1 else "<0.1 %"
    if 99 < value < 100:
        return f"{min(value, 99.9):.1f} %"
    return f"{value:.0f} %"


def quantity(value: float | None, unit: str) -> str:
    """A number of evidence with its unit: times humanised, `frac` as a percentage."""
    if value is None:
        return NOT_MEASURED
    match unit:
        case "ms":
            return milliseconds(value)
        case "s":
            return milliseconds(value * 1e3)
        case "us" | "µs":
            return milliseconds(value / 1e3)
        case "ns":
            return milliseconds(value / 1e6)
        case "frac" | "share":
            return percent(value)
        case "%" | "percent":
            return percent(value / 100)
        case "" | "count" | "1":
            return count(value)
        case "x" | "×" | "ratio" | "factor":
            return f"× {_three_digits(value)}"
        case _:
            return f"{count(value)} {clean(unit)}"


def scalar(value: Scalar) -> str:
    """A fact's value: words as they are, numbers with thousands, yes and no."""
    match value:
        case None:
            return NOT_MEASURED
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return count(value)
        case _:
            return clean(value)


def factor(value: float | None, baseline: float | None) -> str:
    """How many times the baseline a value is, `× 4.2`; empty where that says nothing."""
    if value is None or baseline is None or baseline <= 0 or value <= 0:
        return ""
    return f"× {_three_digits(value / baseline)}"


def how_sure(confidence: float) -> str:
    """The word for a confidence: likely from 0.8, possible from 0.5, else weak."""
    if confidence >= 0.8:
        return "likely"
    return "possible" if confidence >= 0.5 else "weak"


def plural(n: int, noun: str) -> str:
    """`1 request`, `1,234 requests`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def clean(text: str) -> str:
    """Text from a trace, safe for a terminal: one line, no control or format characters."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def to_ascii(text: str) -> str:
    """The same text for a terminal or file that knows no more than ASCII."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def first_sentence(text: str) -> str:
    """The first sentence of a paragraph, on one line."""
    line = " ".join(text.split())
    for end in (". ", "! ", "? "):
        start = 0
        while (at := line.find(end, start)) >= 0:
            head = line[: at + 1]
            if not head.endswith(("e.g.", "i.e.", "vs.", "cf.")):
                line = head
                break
            start = at + 1
    return line


def interval(span: Interval, utc_offset: str | None) -> str:
    """`2026-07-26 14:00:00 – 15:00:00 +02:00 (1h)`, in the zone of the report."""
    try:
        start, end = (datetime.fromisoformat(text) for text in (span.start, span.end))
    except ValueError:
        return f"{clean(span.start)} – {clean(span.end)}"
    zone = _zone(utc_offset)
    if start.tzinfo is None or end.tzinfo is None:
        return f"{clean(span.start)} – {clean(span.end)}"
    if zone is not None:
        start, end = start.astimezone(zone), end.astimezone(zone)
    length = _length(end - start)
    style = "%H:%M:%S" if start.date() == end.date() else "%Y-%m-%d %H:%M:%S"
    offset = start.utcoffset() or timedelta()
    name = f"{start:%z}"[:3] + ":" + f"{start:%z}"[3:5] if offset else "UTC"
    return f"{start:%Y-%m-%d %H:%M:%S} – {end.strftime(style)} {name} ({length})"


def _length(span: timedelta) -> str:
    if span < timedelta(seconds=10):
        return milliseconds(span.total_seconds() * 1e3)
    return format_duration(round(span.total_seconds()) * NS_PER_S)


def _zone(utc_offset: str | None) -> timezone | None:
    if utc_offset is None:
        return None
    try:
        parsed = datetime.strptime(utc_offset.upper(), "%z")
    except ValueError:
        return None
    return timezone(parsed.utcoffset() or timedelta())


def _three_digits(value: float) -> str:
    """Three significant digits, but never fewer than the whole part has, and no `1e+03`."""
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.09995:
        return f"{value:.2f}"
    return f"{value:.2g}"
