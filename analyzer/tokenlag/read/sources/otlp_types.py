"""OTLP's JSON as typed structs: only the fields that are read, in every usual spelling.

The protobuf JSON mapping lets 64-bit integers and enums be strings or numbers, so those
fields are unions. A field that is none of its types fails the whole text, which is then
read again by `otlp_lenient`, field by field.
"""

from __future__ import annotations

from typing import Final

import msgspec


class Present(msgspec.Struct, gc=False):
    """Something that is only counted; nothing of it is kept."""


class ArrayValue(msgspec.Struct, gc=False):
    """A list of values."""

    values: list[AnyValue] | None = None


class AnyValue(msgspec.Struct, gc=False, rename="camel"):
    """An attribute's value; at most one field is set. Maps and bytes are never read."""

    string_value: str | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None
    array_value: ArrayValue | None = None


class KeyValue(msgspec.Struct, gc=False):
    """An attribute."""

    key: str = ""
    value: AnyValue = msgspec.field(default_factory=AnyValue)


class Status(msgspec.Struct, gc=False):
    """A span's status; its description is never read."""

    code: int | str | None = 0


class Event(msgspec.Struct, gc=False, rename="camel"):
    """A span event."""

    name: str | None = None
    time_unix_nano: str | int | None = None
    attributes: list[KeyValue] | None = None


class Link(msgspec.Struct, gc=False, rename="camel"):
    """Another span that a span names; its attributes and state are never read."""

    trace_id: str | None = None
    span_id: str | None = None


class Span(msgspec.Struct, gc=False, rename="camel"):
    """A span without its flags and trace state."""

    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str | None = None
    kind: int | str | None = 0
    start_time_unix_nano: str | int | None = None
    end_time_unix_nano: str | int | None = None
    attributes: list[KeyValue] | None = None
    status: Status | None = None
    events: list[Event] | None = None
    links: list[Link] | None = None


class Scope(msgspec.Struct, gc=False):
    """The instrumentation scope."""

    name: str | None = None


class ScopeSpans(msgspec.Struct, gc=False, rename="camel"):
    """The spans of one scope; before 2022 the scope was called a library."""

    scope: Scope | None = None
    instrumentation_library: Scope | None = None
    spans: list[Span] | None = None


class Resource(msgspec.Struct, gc=False):
    """A resource."""

    attributes: list[KeyValue] | None = None


class ResourceSpans(msgspec.Struct, gc=False, rename="camel"):
    """The spans of one resource."""

    resource: Resource | None = None
    scope_spans: list[ScopeSpans] | None = None
    instrumentation_library_spans: list[ScopeSpans] | None = None


class Export(msgspec.Struct, gc=False, rename="camel"):
    """One export of any signal, also in the wrappers of Jaeger's and Tempo's queries."""

    resource_spans: list[ResourceSpans] | None = None
    batches: list[ResourceSpans] | None = None
    resource_logs: list[Present] | None = None
    resource_metrics: list[Present] | None = None
    resource_profiles: list[Present] | None = None
    result: Export | None = None
    trace: Export | None = None


OTHER_SIGNALS: Final = ("logs", "metrics", "profiles")
EMPTY_VALUE: Final = AnyValue()
