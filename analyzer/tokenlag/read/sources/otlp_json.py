"""OTLP as JSON: the file exporter's lines, pretty-printed objects, query answers.

A text is one export object or an array of them. The wrappers `{"result": {…}}` of
Jaeger's API and `{"batches": […]}` or `{"trace": {…}}` of Tempo's are taken too. Exports
of logs, metrics and profiles are counted and not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tokenlag.read.sources.otlp_columns import Columns
from tokenlag.read.sources.otlp_lenient import decode_lenient
from tokenlag.read.sources.otlp_types import Export, ResourceSpans

NAME: Final = "otlp_json"

# One of these is in the first part of every file that this source can read.
MARKS: Final = (
    b"resourceSpans",
    b"resource_spans",
    b'"batches"',
    b"resourceLogs",
    b"resource_logs",
    b"resourceMetrics",
    b"resource_metrics",
    b"resourceProfiles",
    b"resource_profiles",
)
_JSON_LINE: Final = re.compile(rb"^[ \t\xef\xbb\xbf]*[{\[]", re.MULTILINE)
# Spellings that the typed structs would take for an object without spans.
_UNUSUAL: Final = (b"resource_", b"scope_spans", b"instrumentation_library")

_EXPORT: Final = msgspec.json.Decoder(Export)
_EXPORTS: Final = msgspec.json.Decoder(list[Export])


class Seen(msgspec.Struct):
    """What the texts read so far held."""

    n_spans: int = 0
    n_exports: int = 0  # trace exports, with or without spans
    n_foreign: int = 0  # JSON that is no OTLP
    other: dict[str, int] = {}  # signal → exports
    n_bad_spans: int = 0
    n_repaired_utf8: int = 0


def looks_like(head: bytes) -> bool:
    """Returns whether a file that begins so may hold OTLP JSON of any signal."""
    return any(mark in head for mark in MARKS) and _JSON_LINE.search(head) is not None


def read_text(text: bytes, source: str, columns: Columns, seen: Seen) -> None:
    """Adds the spans of one JSON text to `columns` and what it was to `seen`.

    Raises:
        ValueError: the text is not JSON, or too large or deep to be read.
    """
    for export in _decode(text, seen):
        _take(export, source, columns, seen)


def _decode(text: bytes, seen: Seen) -> Iterable[Export]:
    try:
        is_array = text.lstrip()[:1] == b"["
        exports = _EXPORTS.decode(text) if is_array else [_EXPORT.decode(text)]
        if not any(map(_is_empty, exports)) or not any(mark in text for mark in _UNUSUAL):
            return exports
    except (msgspec.DecodeError, RecursionError):
        pass
    result = decode_lenient(text)
    seen.n_bad_spans += result.n_bad_spans
    seen.n_repaired_utf8 += result.is_repaired_utf8
    return result.exports or [Export()]


def _is_empty(export: Export) -> bool:
    """Whether an export holds no signal, or resources without any scope."""
    blocks = list(_blocks(export))
    if blocks:
        return not any(block.scope_spans or block.instrumentation_library_spans for block in blocks)
    return not any(_other_signals(export))


def _blocks(export: Export) -> Iterator[ResourceSpans]:
    inner: Export | None = export
    while inner is not None:
        yield from inner.resource_spans or ()
        yield from inner.batches or ()
        inner = inner.result or inner.trace


def _other_signals(export: Export) -> Iterator[str]:
    inner: Export | None = export
    while inner is not None:
        if inner.resource_logs is not None:
            yield "logs"
        if inner.resource_metrics is not None:
            yield "metrics"
        if inner.resource_profiles is not None:
            yield "profiles"
        inner = inner.result or inner.trace


def _is_trace_export(export: Export) -> bool:
    inner: Export | None = export
    while inner is not None:
        if inner.resource_spans is not None or inner.batches is not None:
            return True
        inner = inner.result or inner.trace
    return False


def _take(export: Export, source: str, columns: Columns, seen: Seen) -> None:
    is_trace = _is_trace_export(export)
    seen.n_exports += is_trace
    signals = list(_other_signals(export))
    for signal in signals:
        seen.other[signal] = seen.other.get(signal, 0) + 1
    seen.n_foreign += not is_trace and not signals
    for block in _blocks(export):
        for scope_spans in (block.scope_spans or []) + (block.instrumentation_library_spans or []):
            spans = scope_spans.spans
            if spans:
                scope = scope_spans.scope or scope_spans.instrumentation_library
                columns.add(source, block.resource, scope.name if scope else None, spans)
                seen.n_spans += len(spans)
