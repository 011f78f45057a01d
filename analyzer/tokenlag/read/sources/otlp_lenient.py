"""The slow way through one OTLP JSON text: for spellings the typed structs refuse.

Snake-case keys, values of unexpected types, several objects on one line, bytes that are
not UTF-8, `NaN` as a bare word. A span that still makes no sense is left out and counted;
the rest of its text is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tokenlag.read.sources.otlp_types import (
    AnyValue,
    ArrayValue,
    Event,
    Export,
    KeyValue,
    Link,
    Present,
    Resource,
    ResourceSpans,
    Scope,
    ScopeSpans,
    Span,
    Status,
)

MAX_LENIENT_BYTES: Final = 48 * 2**20  # plain Python objects take ten times their text
MAX_LENIENT_OBJECTS: Final = 2**20
MAX_DEPTH: Final = 64


class LenientResult(msgspec.Struct):
    """What one text held, up to where it stopped making sense."""

    exports: list[Export]
    n_bad_spans: int = 0
    is_repaired_utf8: bool = False
    error: str | None = None
    n_lines_before_error: int = 0


def decode_lenient(text: bytes) -> LenientResult:
    """Returns the exports of a text that strict decoding refused.

    `error` says what is wrong if the text is not JSON, or too deep or long to be tried.
    """
    result = LenientResult([])
    if len(text) > MAX_LENIENT_BYTES or text.count(b"{") > MAX_LENIENT_OBJECTS:
        result.error = f"unusual JSON, and too much of it in one piece ({len(text) >> 20} MB)"
        return result
    try:
        for value in _values(text, result):
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    result.exports.append(_export(item, result))
    except RecursionError:
        result.error = "nested too deeply"
    return result


def _values(text: bytes, result: LenientResult) -> Iterator[Any]:
    try:
        decoded = text.decode("utf-8")
    except UnicodeDecodeError:
        decoded = text.decode("utf-8", "replace")
        result.is_repaired_utf8 = True
    decoder = json.JSONDecoder(strict=False)  # a bare control character spoils nothing
    position = 0
    while True:
        while position < len(decoded) and decoded[position] in " \t\r\n\ufeff":
            position += 1
        if position >= len(decoded):
            return
        try:
            value, position = decoder.raw_decode(decoded, position)
        except json.JSONDecodeError as error:
            result.error = f"not JSON: {error.msg} (column {error.colno})"
            result.n_lines_before_error = error.lineno - 1
            return
        except ValueError:  # an integer of thousands of digits
            result.error = "a number that is too long"
            return
        yield value


def _pick(item: dict[str, Any], camel: str, snake: str) -> Any:
    value = item.get(camel)
    return item.get(snake) if value is None else value


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _present(value: Any) -> list[Present] | None:
    return [Present() for _ in value] if isinstance(value, list) else None


def _export(item: dict[str, Any], result: LenientResult, depth: int = 0) -> Export:
    export = Export(
        resource_logs=_present(_pick(item, "resourceLogs", "resource_logs")),
        resource_metrics=_present(_pick(item, "resourceMetrics", "resource_metrics")),
        resource_profiles=_present(_pick(item, "resourceProfiles", "resource_profiles")),
    )
    blocks = _pick(item, "resourceSpans", "resource_spans")
    if blocks is None and "batches" in item:
        blocks = item["batches"]
    if isinstance(blocks, list):
        export.resource_spans = [_resource_spans(block, result) for block in _dicts(blocks)]
    for key in ("result", "trace"):
        inner = item.get(key)
        if isinstance(inner, dict) and depth < MAX_DEPTH:
            setattr(export, key, _export(inner, result, depth + 1))
    return export


def _resource_spans(item: dict[str, Any], result: LenientResult) -> ResourceSpans:
    resource = item.get("resource")
    scopes = _dicts(_pick(item, "scopeSpans", "scope_spans"))
    scopes += _dicts(_pick(item, "instrumentationLibrarySpans", "instrumentation_library_spans"))
    attributes = resource.get("attributes") if isinstance(resource, dict) else None
    return ResourceSpans(
        resource=Resource(_attributes(attributes)),
        scope_spans=[_scope_spans(scope, result) for scope in scopes],
    )


def _scope_spans(item: dict[str, Any], result: LenientResult) -> ScopeSpans:
    scope = item.get("scope") or _pick(item, "instrumentationLibrary", "instrumentation_library")
    name = scope.get("name") if isinstance(scope, dict) else None
    spans = item.get("spans")
    spans = spans if isinstance(spans, list) else []
    read = [_span(span) for span in spans if isinstance(span, dict)]
    result.n_bad_spans += len(spans) - len(read)
    return ScopeSpans(scope=Scope(_text(name)), spans=read)


def _span(item: dict[str, Any]) -> Span:
    status = item.get("status")
    events = _dicts(item.get("events"))
    return Span(
        trace_id=_text(_pick(item, "traceId", "trace_id")) or "",
        span_id=_text(_pick(item, "spanId", "span_id")) or "",
        parent_span_id=_text(_pick(item, "parentSpanId", "parent_span_id")),
        name=_text(item.get("name")),
        kind=_code(item.get("kind")),
        start_time_unix_nano=_time(_pick(item, "startTimeUnixNano", "start_time_unix_nano")),
        end_time_unix_nano=_time(_pick(item, "endTimeUnixNano", "end_time_unix_nano")),
        attributes=_attributes(item.get("attributes")),
        status=Status(_code(status.get("code"))) if isinstance(status, dict) else None,
        events=[
            Event(
                name=_text(event.get("name")),
                time_unix_nano=_time(_pick(event, "timeUnixNano", "time_unix_nano")),
                attributes=_attributes(event.get("attributes")),
            )
            for event in events
        ],
        links=[
            Link(_text(_pick(link, "traceId", "trace_id")), _text(_pick(link, "spanId", "span_id")))
            for link in _dicts(item.get("links"))
        ],
    )


def _attributes(value: Any) -> list[KeyValue]:
    if isinstance(value, dict):  # a plain map, as some stores give attributes
        return [KeyValue(str(key), _plain(item)) for key, item in value.items()]
    return [
        KeyValue(_text(item.get("key")) or "", _any_value(item.get("value")))
        for item in _dicts(value)
    ]


def _any_value(value: Any, depth: int = 0) -> AnyValue:
    if not isinstance(value, dict):
        return _plain(value)
    array = _pick(value, "arrayValue", "array_value")
    if isinstance(array, dict) and depth < MAX_DEPTH:
        items = array.get("values")
        items = items if isinstance(items, list) else []
        return AnyValue(array_value=ArrayValue([_any_value(item, depth + 1) for item in items]))
    for camel, snake in (("stringValue", "string_value"), ("intValue", "int_value")):
        found = _pick(value, camel, snake)
        if found is not None:
            return _plain(found) if camel == "stringValue" else _integer(found)
    number = _pick(value, "doubleValue", "double_value")
    if number is not None:
        is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
        return AnyValue(double_value=_double(number) if is_number else str(number))
    truth = _pick(value, "boolValue", "bool_value")
    return _plain(truth) if truth is not None else AnyValue()


def _integer(value: Any) -> AnyValue:
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return AnyValue(int_value=_text(value) if isinstance(value, str) else value)
    return _plain(value)


def _plain(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    if isinstance(value, list):
        plain = [AnyValue() if isinstance(item, list) else _plain(item) for item in value]
        return AnyValue(array_value=ArrayValue(plain))
    return AnyValue(string_value=_text(value))


def _double(value: float) -> float | str:
    try:
        return float(value)
    except OverflowError:
        return "Infinity"


def _text(value: Any) -> str | None:
    """A string without lone surrogates, which no column can hold; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return value


def _code(value: Any) -> int | str | None:
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else 0


def _time(value: Any) -> str | int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None
