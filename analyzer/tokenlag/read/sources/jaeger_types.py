"""Jaeger's JSON as typed structs: only the fields that are read."""

from __future__ import annotations

import msgspec

Scalar = str | int | float | bool | None


class Tag(msgspec.Struct, gc=False):
    """An attribute; its type is told by its value."""

    key: str = ""
    value: Scalar = None


class Log(msgspec.Struct, gc=False):
    """An event."""

    timestamp: int | None = None
    fields: list[Tag] | None = None


class Reference(msgspec.Struct, gc=False):
    """A parent, or something like one."""

    ref_type: str | None = msgspec.field(default=None, name="refType")
    trace_id: str | None = msgspec.field(default=None, name="traceID")
    span_id: str | None = msgspec.field(default=None, name="spanID")


class Process(msgspec.Struct, gc=False):
    """What made spans."""

    service_name: str | None = msgspec.field(default=None, name="serviceName")
    tags: list[Tag] | None = None


class Node(msgspec.Struct, gc=False):
    """A span, a trace or an answer: whichever it is, it has some of these."""

    data: list[Node] | Node | None = None
    spans: list[Node] | None = None
    processes: dict[str, Process] | None = None
    process: Process | None = None
    process_id: str | None = msgspec.field(default=None, name="processID")
    trace_id: str | None = msgspec.field(default=None, name="traceID")
    span_id: str | None = msgspec.field(default=None, name="spanID")
    parent_id: str | None = msgspec.field(default=None, name="parentSpanID")
    operation: str | None = msgspec.field(default=None, name="operationName")
    references: list[Reference] | None = None
    start: int | None = msgspec.field(default=None, name="startTime")
    duration: int | None = None
    tags: list[Tag] | None = None
    logs: list[Log] | None = None
    start_ns: int | None = None  # of spellings that are finer than microseconds
    end_ns: int | None = None
