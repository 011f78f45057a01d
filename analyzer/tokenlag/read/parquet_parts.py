"""Which Parquet is read, and how a file of it is shared out among jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tokenlag.errors import InputError
from tokenlag.read.files import os_hint, os_reason
from tokenlag.read.parquet_footer import Footer, FooterError, read_footer
from tokenlag.read.parquet_pages import check_pages
from tokenlag.read.stream import Bytes

ROWS_PER_PART: Final = 2**17
MAX_SPOOLED_BYTES: Final = 8 * 2**30

NATIVE: Final = "native"
NATIVE_EVENTS: Final = "native events"
PASCAL: Final = "otel_traces"

_NATIVE_COLUMNS: Final = frozenset({"trace_id", "span_id", "name", "start_ns", "end_ns"})
_EVENT_COLUMNS: Final = frozenset({"trace_id", "span_id", "name", "time_ns"})
_PASCAL_COLUMNS: Final = frozenset({"traceid", "spanid", "spanname", "timestamp"})
# What is read of ClickHouse's columns, by folded name; some writers leave some out.
PASCAL_SPAN: Final = (
    "timestamp",
    "traceid",
    "spanid",
    "parentspanid",
    "spanname",
    "spankind",
    "servicename",
    "resourceattributes",
    "scopename",
    "spanattributes",
    "duration",
    "endtimestamp",
    "statuscode",
)
PASCAL_EVENTS: Final = ("eventstimestamp", "eventsname", "eventsattributes")
PASCAL_LINKS: Final = ("linkstraceid", "linksspanid")
_PASCAL_READ: Final = frozenset({*PASCAL_SPAN, *PASCAL_EVENTS, *PASCAL_LINKS})
_MAX_NAMED: Final = 4
HINT: Final = (
    "Parquet is read with the columns that this program writes, or those of the OpenTelemetry "
    "exporter for ClickHouse (Timestamp, TraceId, SpanId, SpanName, SpanAttributes …)"
)


def folded(name: str) -> str:
    """A column's name without case and separators: `TraceId`, `trace_id`, `Events.Name`."""
    return name.replace("_", "").replace(".", "").lower()


def layout_of(columns: tuple[str, ...]) -> str | None:
    """Returns which of the known layouts a file's columns are, if any."""
    names = set(columns)
    if names >= _NATIVE_COLUMNS:
        return NATIVE
    if names >= _EVENT_COLUMNS:
        return NATIVE_EVENTS
    return PASCAL if {folded(name) for name in names} >= _PASCAL_COLUMNS else None


def checked_footer(path: Path, name: str) -> tuple[Footer, str]:
    """Returns a file's footer and layout.

    Raises:
        InputError: it is damaged, or holds something else than spans.
    """
    try:
        footer = read_footer(path)
    except FooterError as error:
        raise InputError(str(error), place=name, hint="copy or export it again") from None
    except OSError as error:
        raise InputError(os_reason(error), place=name, hint=os_hint(error)) from None
    layout = layout_of(footer.columns)
    if layout is None:
        named = ", ".join(footer.columns[:_MAX_NAMED])
        more = ", …" if len(footer.columns) > _MAX_NAMED else ""
        message = f"this is Parquet, but not of spans (columns {named}{more})"
        raise InputError(message, place=name, hint=HINT)
    return footer, layout


def parquet_parts(path: Path, name: str) -> list[tuple[int, int]]:
    """Returns the ranges of rows in which a file is read.

    Native files are one part, for they are used as they are. Others are cut between row
    groups, and large row groups within.

    Raises:
        InputError: the file is damaged, holds something else than spans, or more than fits
            into memory.
    """
    footer, layout = checked_footer(path, name)
    read = set(footer.columns)
    if layout == PASCAL:
        read = {one for one in read if folded(one) in _PASCAL_READ}
    check_pages(path, name, footer, read)
    if layout != PASCAL:
        return [(0, footer.n_rows)]
    parts: list[tuple[int, int]] = []
    begin = end = 0
    for n_rows, _ in footer.groups:
        if end > begin and end - begin + n_rows > ROWS_PER_PART:
            parts.append((begin, end))
            begin = end
        end += n_rows
        while end - begin > 2 * ROWS_PER_PART:
            parts.append((begin, begin + ROWS_PER_PART))
            begin += ROWS_PER_PART
    if end > begin or not parts:
        parts.append((begin, end))
    return parts


def spooled(stream: Bytes, name: str, work_dir: Path) -> Path:
    """Writes a stream into a file, because Parquet is read from its end.

    Raises:
        InputError: it is too large, or cannot be written.
    """
    n_before = len(list(work_dir.glob("spooled-*.parquet")))
    path = work_dir / f"spooled-{n_before}.parquet"
    n_bytes = 0
    try:
        with path.open("wb") as file:
            for chunk in stream.chunks():
                n_bytes += len(chunk)
                if n_bytes > MAX_SPOOLED_BYTES:
                    limit = f"{MAX_SPOOLED_BYTES >> 30} GB"
                    raise InputError(f"more than {limit} of Parquet when decompressed", place=name)
                file.write(chunk)
    except OSError as error:
        raise InputError(f"cannot be kept to be read: {error.strerror}", place=name) from None
    return path
