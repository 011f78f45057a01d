"""OTLP as JSON: the file exporter's lines, pretty-printed objects, query answers.

A text is one export object or an array of them. The wrappers `{"result": {…}}` of
Jaeger's API and `{"batches": […]}` or `{"trace": {…}}` of Tempo's are taken too. Exports
of logs, metrics and profiles are counted and not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from tokenlag.read.messages import Seen
from tokenlag.read.sources.otlp_columns import Columns
from tokenlag.read.sources.otlp_keyed import KeyedDecoder
from tokenlag.read.sources.otlp_lenient import decode_lenient
from tokenlag.read.sources.otlp_types import Export, ResourceSpans
from tokenlag.read.sources.sink import Sink

# Spellings that the typed structs would take for an object without spans.
_UNUSUAL: Final = (b"resource_", b"scope_spans", b"instrumentation_library")

# What a text may cost: an empty object takes 3 bytes of it and 100 of memory.
LARGE_BYTES: Final = 8 * 2**20
MAX_OBJECTS: Final = 4_000_000

_EXPORT: Final = msgspec.json.Decoder(Export)
_EXPORTS: Final = msgspec.json.Decoder(list[Export])


class TextError(ValueError):
    """A text that is not JSON, or too large or deep; what came before the fault counts.

    Args:
        message: what is wrong.
        n_lines_before: line ends in the text before the fault.
    """

    def __init__(self, message: str, n_lines_before: int = 0) -> None:
        super().__init__(message)
        self.n_lines_before = n_lines_before


def open_source(sink: Sink) -> OtlpJsonReader:
    """Returns the reader of this format."""
    return OtlpJsonReader(sink.columns, sink.vocabulary.span)


class OtlpJsonReader:
    """Reads texts and adds their spans to columns.

    Args:
        columns: where spans go.
        declared: the span attributes that are kept, with their types.
    """

    def __init__(self, columns: Columns, declared: Mapping[str, str]) -> None:
        self._columns = columns
        self._keyed = KeyedDecoder(declared)

    def read(self, text: bytes | memoryview, source: str, seen: Seen) -> None:
        """Adds the spans of one JSON text to the columns and what it was to `seen`.

        Raises:
            TextError: some of the text could not be read.
        """
        if len(text) > LARGE_BYTES and bytes(text).count(b"{") > MAX_OBJECTS:
            raise TextError(f"more than {MAX_OBJECTS:,} JSON objects in one piece")
        if self._read_keyed(text, source, seen):
            return
        text = bytes(text)
        exports = _decode(text)
        if exports is not None:
            # Once more, so that columns do not mix what the two ways make of integers.
            if not (self._keyed.learn(exports) and self._read_keyed(text, source, seen)):
                self._take(exports, source, seen)
            return
        result = decode_lenient(text)
        seen.n_bad_spans += result.n_bad_spans
        seen.n_repaired_utf8 += result.is_repaired_utf8
        if result.error:
            self._take(result.exports, source, seen)
            raise TextError(result.error, result.n_lines_before_error)
        self._take(result.exports or [Export()], source, seen)

    def _read_keyed(self, text: bytes | memoryview, source: str, seen: Seen) -> bool:
        export = self._keyed.decode(text)
        if export is None or _is_empty(export):
            return False
        self._take([export], source, seen)
        return True

    def _take(self, exports: list[Export], source: str, seen: Seen) -> None:
        for export in exports:
            _take(export, source, self._columns, seen)


def _decode(text: bytes) -> list[Export] | None:
    """The exports, or None if the text has to be read leniently."""
    try:
        is_array = text.lstrip()[:1] == b"["
        exports = _EXPORTS.decode(text) if is_array else [_EXPORT.decode(text)]
        if not any(map(_is_empty, exports)) or not any(mark in text for mark in _UNUSUAL):
            return exports
    except (msgspec.DecodeError, RecursionError):
        return None
    return None


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
