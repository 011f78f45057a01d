"""Zipkin's JSON, version 2: a list of spans, or of traces that are lists of spans.

All values are text. An endpoint's service is the resource's name; resource attributes that
an exporter put among the tags are taken back. Both sides of a call may share one id.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from tokenlag.read.messages import Seen
from tokenlag.read.sources.otlp_json import LARGE_BYTES, MAX_OBJECTS, TextError
from tokenlag.read.sources.otlp_series import KIND_NAMES
from tokenlag.read.sources.otlp_types import AnyValue, Event, KeyValue, Resource, Span, Status
from tokenlag.read.sources.plain_values import (
    NS_PER_US,
    SPAN_ID_DIGITS,
    TRACE_ID_DIGITS,
    padded_id,
    plain_value,
)
from tokenlag.read.sources.sink import Sink

_KINDS: Final = {name: code for code, name in enumerate(KIND_NAMES)}
_CODES: Final = {"OK": 1, "ERROR": 2}
_STATUS_KEYS: Final = ("otel.status_code", "status_code")
_SCOPE_KEYS: Final = ("otel.scope.name", "otel.library.name")
_ERROR_KEY: Final = "error"
_SERVICE_KEY: Final = "service.name"
# An annotation that an OpenTelemetry exporter made of an event with attributes.
_WITH_ATTRIBUTES: Final = re.compile(r'\s*"((?:[^"\\]|\\.)*)"\s*:\s*(\{.*\})\s*', re.DOTALL)


class Endpoint(msgspec.Struct, gc=False, rename="camel"):
    """A side of a call."""

    service_name: str | None = None


class Annotation(msgspec.Struct, gc=False):
    """An event."""

    timestamp: int | None = None
    value: str | None = None


class ZipkinSpan(msgspec.Struct, gc=False, rename="camel"):
    """A span; links and the other side's endpoint are not read."""

    trace_id: str = ""
    id: str = ""
    parent_id: str | None = None
    name: str | None = None
    kind: str | None = None
    timestamp: int | None = None
    duration: int | None = None
    local_endpoint: Endpoint | None = None
    annotations: list[Annotation] | None = None
    tags: dict[str, str] | None = None


_SPANS: Final = msgspec.json.Decoder(list[ZipkinSpan])
_TRACES: Final = msgspec.json.Decoder(list[list[ZipkinSpan]])
_SPAN: Final = msgspec.json.Decoder(ZipkinSpan)


def open_source(sink: Sink) -> ZipkinJsonReader:
    """Returns the reader of this format."""
    return ZipkinJsonReader(sink)


class ZipkinJsonReader:
    """Reads texts and adds their spans to columns.

    Args:
        sink: where spans go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        vocabulary = sink.vocabulary
        self._declared = frozenset(vocabulary.span)
        self._resource_keys = frozenset(vocabulary.resource) - self._declared
        self._event_names = vocabulary.event_names

    def read(self, text: bytes | memoryview, name: str, seen: Seen) -> None:
        """Adds the spans of one JSON text to the columns and what it was to `seen`.

        Raises:
            TextError: the text could not be read.
        """
        text = bytes(text)
        if len(text) > LARGE_BYTES and text.count(b"{") > MAX_OBJECTS:
            raise TextError(f"more than {MAX_OBJECTS:,} JSON objects in one piece")
        spans = _decode(text, seen)
        seen.n_exports += 1
        seen.n_spans += len(spans)
        groups: dict[tuple[Any, ...], list[Span]] = {}
        for span in spans:
            origin, made = self._make(span)
            groups.setdefault(origin, []).append(made)
        for (scope, resource), made_spans in groups.items():
            held = [KeyValue(key, AnyValue(string_value=value)) for key, value in resource]
            self._sink.columns.add(name, Resource(held), scope, made_spans)

    def _make(self, span: ZipkinSpan) -> tuple[tuple[Any, ...], Span]:
        """Returns what groups spans, and the span."""
        tags = span.tags or {}
        code = 0
        for key in _STATUS_KEYS:
            code = code or _CODES.get(tags.get(key, "").upper(), 0)
        if not code and tags.get(_ERROR_KEY, "false").lower() != "false":
            code = _CODES["ERROR"]
        scope = next((tags[key] for key in _SCOPE_KEYS if key in tags), None)
        resource = [(key, value) for key, value in tags.items() if key in self._resource_keys]
        endpoint = span.local_endpoint
        if endpoint is not None and endpoint.service_name:
            resource.append((_SERVICE_KEY, endpoint.service_name))
        start_ns = None if span.timestamp is None else span.timestamp * NS_PER_US
        end_ns = None
        if start_ns is not None and span.duration is not None:
            end_ns = start_ns + span.duration * NS_PER_US
        made = Span(
            trace_id=padded_id(span.trace_id, TRACE_ID_DIGITS),
            span_id=padded_id(span.id, SPAN_ID_DIGITS),
            parent_span_id=padded_id(span.parent_id, SPAN_ID_DIGITS),
            name=span.name,
            kind=_KINDS.get((span.kind or "").upper(), 0),
            start_time_unix_nano=start_ns,
            end_time_unix_nano=end_ns,
            attributes=[
                KeyValue(key, AnyValue(string_value=value))
                for key, value in tags.items()
                if key in self._declared
            ],
            status=Status(code),
            events=[_event(one) for one in span.annotations or ()] if self._event_names else None,
        )
        return (scope, tuple(resource)), made


def _event(annotation: Annotation) -> Event:
    name, attributes = annotation.value, None
    found = _WITH_ATTRIBUTES.fullmatch(name) if name else None
    if found:
        try:
            told = msgspec.json.decode(found[2], type=dict[str, Any])
            name = msgspec.json.decode(f'"{found[1]}"', type=str)
            attributes = [KeyValue(key, plain_value(value)) for key, value in told.items()]
        except (msgspec.DecodeError, RecursionError):
            name = annotation.value
    at_us = annotation.timestamp
    return Event(name, None if at_us is None else at_us * NS_PER_US, attributes)


def _decode(text: bytes, seen: Seen) -> list[ZipkinSpan]:
    try:
        if text[:1] == b"{":
            return [_SPAN.decode(text)]
        if text[1:16].lstrip()[:1] == b"[":
            return [span for trace in _TRACES.decode(text) for span in trace]
        return _SPANS.decode(text)
    except RecursionError:
        raise TextError("nested too deeply") from None
    except msgspec.ValidationError:
        return _decode_leniently(text, seen)
    except msgspec.DecodeError as error:
        raise TextError(f"not JSON: {error}") from None


def _decode_leniently(text: bytes, seen: Seen) -> list[ZipkinSpan]:
    """Span by span; those that make no sense are counted."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TextError(f"not JSON: {error}") from None
    spans: list[ZipkinSpan] = []
    for item in value if isinstance(value, list) else [value]:
        for one in item if isinstance(item, list) else [item]:
            try:
                spans.append(msgspec.convert(_texts(one), ZipkinSpan, strict=False))
            except (msgspec.ValidationError, RecursionError):
                seen.n_bad_spans += 1
    return spans


def _texts(item: Any) -> Any:
    """A span whose tags are text, as they should be; what is no scalar is left out."""
    if not isinstance(item, dict) or not isinstance(item.get("tags"), dict):
        return item
    tags = {}
    for key, value in item["tags"].items():
        if isinstance(value, bool):
            tags[key] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            tags[key] = str(value)
    return item | {"tags": tags}
