"""The spans of `otlp.py` in every other format that is read."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
from tokenlag.read.vocabulary import Vocabulary

from benchmarks.formats import jaeger_span, jaeger_trace, message
from tests.read.otlp import Json, export, read

KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
CODES = ("Unset", "Ok", "Error")
PASCAL_ENTRIES = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))

Writer = Callable[[Path, Sequence[Json], Json], None]


def resource_items(resource: Json) -> list[Json]:
    (block,) = export([], resource=resource)["resourceSpans"]
    found: list[Json] = block["resource"]["attributes"]
    return found


def proto(spans: Sequence[Json], resource: Json) -> bytes:
    """One message."""
    return message(spans, resource_items(resource), "s").SerializeToString()


def be32(*messages: bytes) -> bytes:
    """Messages as the Collector's file exporter frames them."""
    return b"".join(len(one).to_bytes(4, "big") + one for one in messages)


def varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def delimited(*messages: bytes) -> bytes:
    """Messages as protobuf's own tools frame them."""
    return b"".join(varint(len(one)) + one for one in messages)


def wrapped(one: bytes) -> bytes:
    """A message as Tempo's second API wraps it."""
    return b"\x0a" + varint(len(one)) + one + b"\x12\x02\x08\x07"


def jaeger(spans: Sequence[Json], resource: Json) -> Json:
    """An answer of Jaeger's API, a trace for each trace id."""
    traces: dict[str, list[Json]] = {}
    for one in spans:
        traces.setdefault(one["traceId"], []).append(jaeger_span(one, "s"))
    items = resource_items(resource)
    return {"data": [jaeger_trace(key, made, items) for key, made in traces.items()], "total": 0}


def text_of(value: Json) -> str:
    """An attribute's value as stores of text have it."""
    ((kind, inner),) = value.items()
    if kind == "boolValue":
        return "true" if inner else "false"
    if kind == "arrayValue":
        items = [next(iter(one.items())) for one in inner["values"]]
        return json.dumps([int(one) if kind == "intValue" else one for kind, one in items])
    return str(inner)


def texts_of(items: Sequence[Json]) -> dict[str, str]:
    return {item["key"]: text_of(item["value"]) for item in items}


def zipkin_span(span: Json, resource: Json) -> Json:
    start_us = int(span["startTimeUnixNano"]) // 1000
    code = span["status"].get("code", 0)
    made: Json = {
        "traceId": span["traceId"],
        "id": span["spanId"],
        "name": span["name"],
        "timestamp": start_us,
        "duration": int(span["endTimeUnixNano"]) // 1000 - start_us,
        "localEndpoint": {"serviceName": resource["service.name"]},
        "tags": texts_of(span["attributes"])
        | {key: str(value) for key, value in resource.items() if key != "service.name"}
        | {"otel.scope.name": "s"},
    }
    if span.get("parentSpanId"):
        made["parentId"] = span["parentSpanId"]
    if span["kind"]:
        made["kind"] = KINDS[span["kind"]].upper()
    if code:
        made["tags"]["otel.status_code"] = CODES[code].upper()
    events = span.get("events", [])
    made["annotations"] = [
        {
            "timestamp": int(event["timeUnixNano"]) // 1000,
            "value": json.dumps(event["name"]) + ": " + json.dumps(texts_of(event["attributes"]))
            if event.get("attributes")
            else event["name"],
        }
        for event in events
    ]
    return made


def time_of(ns: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def pascal_frame(spans: Sequence[Json], resource: Json) -> pl.DataFrame:
    """Rows of ClickHouse's `otel_traces`."""
    held = [{"key": key, "value": str(value)} for key, value in resource.items()]
    columns: dict[str, list[Any]] = {
        "Timestamp": [int(one["startTimeUnixNano"]) for one in spans],
        "TraceId": [one["traceId"] for one in spans],
        "SpanId": [one["spanId"] for one in spans],
        "ParentSpanId": [one.get("parentSpanId", "") for one in spans],
        "SpanName": [one["name"] for one in spans],
        "SpanKind": [KINDS[one["kind"]] for one in spans],
        "ServiceName": [resource["service.name"] for _ in spans],
        "ResourceAttributes": [held for _ in spans],
        "ScopeName": ["s" for _ in spans],
        "SpanAttributes": [
            [{"key": key, "value": value} for key, value in texts_of(one["attributes"]).items()]
            for one in spans
        ],
        "Duration": [int(one["endTimeUnixNano"]) - int(one["startTimeUnixNano"]) for one in spans],
        "StatusCode": [CODES[one["status"].get("code", 0)] for one in spans],
        "Events.Timestamp": [
            [int(event["timeUnixNano"]) for event in one.get("events", [])] for one in spans
        ],
        "Events.Name": [[event["name"] for event in one.get("events", [])] for one in spans],
        "Events.Attributes": [
            [
                [
                    {"key": key, "value": value}
                    for key, value in texts_of(event.get("attributes", [])).items()
                ]
                for event in one.get("events", [])
            ]
            for one in spans
        ],
        "Links.TraceId": [[link["traceId"] for link in one.get("links", [])] for one in spans],
        "Links.SpanId": [[link["spanId"] for link in one.get("links", [])] for one in spans],
    }
    return pl.DataFrame(
        columns,
        schema_overrides={
            "Links.TraceId": pl.List(pl.String),
            "Links.SpanId": pl.List(pl.String),
            "ResourceAttributes": PASCAL_ENTRIES,
            "SpanAttributes": PASCAL_ENTRIES,
            "Duration": pl.UInt64,
            "Events.Timestamp": pl.List(pl.Int64),
            "Events.Name": pl.List(pl.String),
            "Events.Attributes": pl.List(PASCAL_ENTRIES),
        },
    ).with_columns(
        pl.col("Timestamp").cast(pl.Datetime("ns")),
        pl.col("Events.Timestamp").cast(pl.List(pl.Datetime("ns"))),
    )


def plain_of(value: Json) -> Any:
    ((kind, inner),) = value.items()
    if kind == "arrayValue":
        return [plain_of(item) for item in inner["values"]]
    return int(inner) if kind == "intValue" else inner


def json_text_frame(spans: Sequence[Json], resource: Json) -> pl.DataFrame:
    """Rows as otlp2parquet has them: attributes are JSON text, the service is no attribute."""
    frame = pascal_frame(spans, resource)
    told = [
        json.dumps({item["key"]: plain_of(item["value"]) for item in one["attributes"]})
        for one in spans
    ]
    rest = {key: value for key, value in resource.items() if key != "service.name"}
    events = [
        [
            json.dumps({item["key"]: plain_of(item["value"]) for item in event["attributes"]})
            for event in one.get("events", [])
        ]
        for one in spans
    ]
    return frame.with_columns(
        pl.Series("SpanAttributes", told, dtype=pl.String),
        pl.lit(json.dumps(rest)).alias("ResourceAttributes"),
        pl.Series("EventsAttributes", events, dtype=pl.List(pl.String)),
        pl.Series("SpanKind", [f"SPAN_KIND_{KINDS[one['kind']].upper()}" for one in spans]),
        pl.col("ParentSpanId").replace("", None),
        pl.col("Events.Timestamp").alias("EventsTimestamp"),
        pl.col("Events.Name").alias("EventsName"),
    ).drop("Events.Timestamp", "Events.Name", "Events.Attributes")


def write_native(path: Path, spans: Sequence[Json], resource: Json, vocabulary: Vocabulary) -> None:
    """Native rows, by way of OTLP JSON."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "a.jsonl"
        source.write_text(json.dumps(export(spans, resource=resource)))
        found = read(source, Path(folder) / "native", vocabulary)
        frames = [pl.read_parquet(file) for file in found.span_files]
    frame = pl.concat(frames, how="diagonal")
    frame.with_columns(source=pl.lit("a.jsonl")).write_parquet(path)


WRITERS: dict[str, Writer] = {
    "otlp.json": lambda path, spans, resource: _text(path, export(spans, resource=resource)),
    "message.pb": lambda path, spans, resource: _bytes(path, proto(spans, resource)),
    "stream.pb": lambda path, spans, resource: _bytes(
        path, be32(*(proto([one], resource) for one in spans))
    ),
    "delimited.pb": lambda path, spans, resource: _bytes(
        path, delimited(proto(spans[:1], resource), proto(spans[1:], resource))
    ),
    "tempo.pb": lambda path, spans, resource: _bytes(path, wrapped(proto(spans, resource))),
    "jaeger.json": lambda path, spans, resource: _text(path, jaeger(spans, resource)),
    "zipkin.json": lambda path, spans, resource: _text(
        path, [zipkin_span(one, resource) for one in spans]
    ),
    "otel_traces.parquet": lambda path, spans, resource: pascal_frame(
        spans, resource
    ).write_parquet(path),
    "json_text.parquet": lambda path, spans, resource: json_text_frame(
        spans, resource
    ).write_parquet(path),
}


def _text(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def _bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)
