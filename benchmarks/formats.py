"""Writes the spans of `spans.py` in other formats than OTLP JSON."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from tokenlag_tracer import conventions as c

from benchmarks.spans import RESOURCE, SPANS_PER_LINE, JsonSpan, Load, write

KINDS = ("", "internal", "server", "client", "producer", "consumer")
JAEGER_TYPES = {"intValue": "int64", "doubleValue": "float64", "boolValue": "bool"}


def otlp_json(path: Path, n_spans: int) -> None:
    """Writes a line for each 512 spans."""
    write(path, n_spans)


def fill_value(proto: AnyValue, value: dict[str, Any]) -> None:
    """Sets a protobuf value out of OTLP JSON's."""
    if "stringValue" in value:
        proto.string_value = value["stringValue"]
    elif "intValue" in value:
        proto.int_value = int(value["intValue"])
    elif "doubleValue" in value:
        proto.double_value = value["doubleValue"]
    elif "boolValue" in value:
        proto.bool_value = value["boolValue"]
    elif "arrayValue" in value:
        proto.array_value.SetInParent()
        for item in value["arrayValue"].get("values", []):
            fill_value(proto.array_value.values.add(), item)


def fill(attributes: Any, items: Iterable[dict[str, Any]]) -> None:
    """Adds attributes out of OTLP JSON's."""
    for item in items:
        pair = KeyValue(key=item["key"])
        fill_value(pair.value, item["value"])
        attributes.append(pair)


def message(
    spans: Iterable[JsonSpan], resource: list[dict[str, Any]], scope: str | None = c.SCOPE_NAME
) -> TracesData:
    """Returns one export of one resource and scope."""
    traces = TracesData()
    block = traces.resource_spans.add()
    fill(block.resource.attributes, resource)
    scope_spans = block.scope_spans.add()
    if scope is not None:
        scope_spans.scope.name = scope
    for span in spans:
        proto = scope_spans.spans.add(
            trace_id=bytes.fromhex(span["traceId"]),
            span_id=bytes.fromhex(span["spanId"]),
            parent_span_id=bytes.fromhex(span.get("parentSpanId", "")),
            flags=span.get("flags", 0),
            name=span["name"],
            kind=span.get("kind", 0),
            start_time_unix_nano=int(span.get("startTimeUnixNano", 0)),
            end_time_unix_nano=int(span.get("endTimeUnixNano", 0)),
        )
        fill(proto.attributes, span.get("attributes", []))
        code = span.get("status", {}).get("code", 0)
        if code:
            proto.status.code = code
        for event in span.get("events", []):
            made = proto.events.add(name=event["name"], time_unix_nano=int(event["timeUnixNano"]))
            fill(made.attributes, event.get("attributes", []))
        for link in span.get("links", []):
            proto.links.add(
                trace_id=bytes.fromhex(link["traceId"]), span_id=bytes.fromhex(link["spanId"])
            )
    return traces


def resource_items() -> list[dict[str, Any]]:
    """Returns the resource as OTLP JSON."""
    from benchmarks.spans import attribute

    return [attribute(key, value) for key, value in RESOURCE.items()]


def otlp_proto(path: Path, n_spans: int) -> None:
    """Writes messages of 512 spans behind their lengths, as the Collector's exporter does."""
    resource = resource_items()
    with path.open("wb") as file:
        made = Load(n_spans).spans()
        while spans := list(islice(made, SPANS_PER_LINE)):
            data = message(spans, resource).SerializeToString()
            file.write(len(data).to_bytes(4, "big") + data)


def jaeger_tag(item: dict[str, Any]) -> dict[str, Any]:
    """Returns an attribute as Jaeger's answers have it; lists are JSON text."""
    ((kind, value),) = item["value"].items()
    if kind == "arrayValue":
        values = [next(iter(one.values())) for one in value.get("values", [])]
        if all("intValue" in one for one in value.get("values", [])):
            values = [int(one) for one in values]
        return {"key": item["key"], "type": "string", "value": msgspec.json.encode(values).decode()}
    if kind == "intValue":
        value = int(value)
    return {"key": item["key"], "type": JAEGER_TYPES.get(kind, "string"), "value": value}


def jaeger_span(span: JsonSpan, scope: str | None = c.SCOPE_NAME) -> dict[str, Any]:
    """Returns a span as Jaeger's answers have it."""
    start_us = int(span["startTimeUnixNano"]) // 1000
    tags = [jaeger_tag(item) for item in span.get("attributes", [])]
    if scope is not None:
        tags.insert(0, {"key": "otel.scope.name", "type": "string", "value": scope})
    kind, code = span.get("kind", 0), span.get("status", {}).get("code", 0)
    if kind:
        tags.append({"key": "span.kind", "type": "string", "value": KINDS[kind]})
    if code:
        value = ("", "OK", "ERROR")[code]
        tags.append({"key": "otel.status_code", "type": "string", "value": value})
    if code == 2:
        tags.append({"key": "error", "type": "bool", "value": True})
    references = []
    if span.get("parentSpanId"):
        reference = {"refType": "CHILD_OF", "traceID": span["traceId"]}
        references = [reference | {"spanID": span["parentSpanId"]}]
    for link in span.get("links", []):
        reference = {"refType": "FOLLOWS_FROM", "traceID": link["traceId"]}
        references.append(reference | {"spanID": link["spanId"]})
    logs = []
    for event in span.get("events", []):
        name = {"key": "event", "type": "string", "value": event["name"]}
        told = [name, *(jaeger_tag(item) for item in event.get("attributes", []))]
        logs.append({"timestamp": int(event["timeUnixNano"]) // 1000, "fields": told})
    return {
        "traceID": span["traceId"],
        "spanID": span["spanId"],
        "operationName": span["name"],
        "references": references,
        "startTime": start_us,
        "duration": int(span["endTimeUnixNano"]) // 1000 - start_us,
        "tags": tags,
        "logs": logs,
        "processID": "p1",
        "warnings": None,
    }


def jaeger_trace(
    trace_id: str, spans: list[dict[str, Any]], resource: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns a trace as Jaeger's answers have it."""
    service = next((x["value"]["stringValue"] for x in resource if x["key"] == "service.name"), "")
    tags = [jaeger_tag(item) for item in resource if item["key"] != "service.name"]
    process = {"serviceName": service, "tags": tags}
    return {"traceID": trace_id, "spans": spans, "processes": {"p1": process}, "warnings": None}


def jaeger_json(path: Path, n_spans: int) -> None:
    """Writes one answer with all traces in it, without a line end, as the UI saves it."""
    resource, encode = resource_items(), msgspec.json.Encoder().encode
    with path.open("wb") as file:
        file.write(b'{"data":[')
        for index, (trace_id, spans) in enumerate(traces(Load(n_spans).spans())):
            made = [jaeger_span(span) for span in spans]
            file.write((b"," if index else b"") + encode(jaeger_trace(trace_id, made, resource)))
        file.write(b'],"total":0,"limit":0,"offset":0,"errors":null}')


def traces(spans: Iterable[JsonSpan]) -> Iterator[tuple[str, list[JsonSpan]]]:
    """Groups spans by trace, roughly in time order: a store gives whole traces."""
    waiting: dict[str, list[JsonSpan]] = {}
    for span in spans:
        waiting.setdefault(span["traceId"], []).append(span)
        if len(waiting) > 2000:
            oldest = next(iter(waiting))
            yield oldest, waiting.pop(oldest)
    yield from waiting.items()


def native_parquet(path: Path, n_spans: int) -> None:
    """Writes span rows by reading OTLP JSON, one file with zstd as a cache keeps it."""
    import tempfile

    import polars as pl
    from tokenlag.read.load import vocabulary
    from tokenlag.read.reading import read_spans

    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        data = Path(folder) / "spans.jsonl"
        write(data, n_spans)
        rows = Path(folder) / "rows"
        rows.mkdir()
        found = read_spans([data], rows, vocabulary())
        scans = [pl.scan_parquet(file) for file in found.span_files]
        pl.concat(scans, how="diagonal").sink_parquet(
            path, compression="zstd", row_group_size=122_880
        )


WRITERS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "otlp-json": ("spans.jsonl", otlp_json),
    "otlp-proto": ("spans.pb", otlp_proto),
    "jaeger-json": ("traces.json", jaeger_json),
    "parquet": ("spans.parquet", native_parquet),
}
