"""Tells formats by a file's first bytes; names and endings are never asked."""

from __future__ import annotations

import re
from typing import Final

from tokenlag.read.sources import proto_frames

# One of these keys is in the first part of every file of OTLP JSON.
_OTLP_KEY: Final = re.compile(
    rb'"(?:batches|resource_?(?:[Ss]pans|[Ll]ogs|[Mm]etrics|[Pp]rofiles))"\s*:'
)
_JSON_LINE: Final = re.compile(rb"^[ \t\xef\xbb\xbf]*[{\[]", re.MULTILINE)
_BLANK: Final = b"\xef\xbb\xbf \t\r\n"
PARQUET_MAGIC: Final = b"PAR1"

LOG_LINE: Final = re.compile(
    rb"\A\s*[\[(]?(?:\w+[ :])?\s*(?:\d{4}-\d\d-\d\d[T ]|\d\d-\d\d \d\d:|\d\d:\d\d:\d\d|"
    rb"(?:INFO|WARN|WARNING|ERROR|DEBUG)\b)"
)


def has_keys(head: bytes, *keys: str) -> bool:
    """Returns whether all the keys are in a piece of JSON."""
    return all(re.search(rb'"' + key.encode() + rb'"\s*:', head) for key in keys)


def is_parquet(head: bytes) -> bool:
    """Whether it is Parquet, of spans or of anything else."""
    return head.startswith(PARQUET_MAGIC)


def is_otlp_json(head: bytes) -> bool:
    """Whether it is OTLP JSON of any signal, or a query's answer that wraps it."""
    return _OTLP_KEY.search(head) is not None and _JSON_LINE.search(head) is not None


def is_json(head: bytes) -> bool:
    """Whether a text begins as JSON does; a log line in brackets does not."""
    stripped = head.lstrip(_BLANK)
    return stripped[:1] in (b"{", b"[") and not LOG_LINE.search(stripped)


def is_jaeger_json(head: bytes) -> bool:
    """Whether it is Jaeger's JSON: of its UI and API, its model, its stores, or Thrift's."""
    if not is_json(head):
        return False
    return (
        has_keys(head, "traceID", "spanID")
        or has_keys(head, "TraceID", "SpanID")
        or has_keys(head, "traceIdLow", "spanId")
        or has_keys(head, "traceId", "spanId", "operationName")
    )


def is_zipkin_json(head: bytes) -> bool:
    """Whether it is Zipkin's JSON, version 2."""
    if not is_json(head) or not has_keys(head, "traceId", "id"):
        return False
    return any(
        has_keys(head, key) for key in ("localEndpoint", "remoteEndpoint", "annotations")
    ) or has_keys(head, "timestamp", "duration")


def is_engine_records(head: bytes) -> bool:
    """Whether it is Dynamo's or TensorRT-LLM's own records, or answers of llama.cpp."""
    if not is_json(head):
        return False
    return (
        any(mark in head for mark in (b"dynamo.fpm.trace.", b"dynamo.request.trace."))
        or has_keys(head, "iter", "iterLatencyMS")
        or has_keys(head, "timings", "prompt_ms", "predicted_ms")
    )


def is_otlp_proto(head: bytes) -> bool:
    """Whether it is OTLP protobuf of any signal: one message, or several with lengths."""
    return proto_frames.framing_of(head) is not None
