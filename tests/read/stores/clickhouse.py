"""Tables as OpenTelemetry's exporter for ClickHouse makes them, and spans as it writes them.

The facts are those of exporter/clickhouseexporter of opentelemetry-collector-contrib: tables
of 2023 (no scope columns), of 2025 (maps) and of the JSON variant, with the table that tells
when a trace was, and the view that fills it.
"""

from __future__ import annotations

import gzip
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import pytest

Json = dict[str, Any]
FRONT = Path(__file__).with_name("front.py")
PYTHON_VARIABLE = "TOKENLAG_CHDB_PYTHON"
MAPS: Final = "maps"
JSONS: Final = "json"
OLD: Final = "old"
VARIANTS: Final = (MAPS, JSONS, OLD)
KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
CODES = ("Unset", "Ok", "Error")
MAP = "Map(LowCardinality(String), String)"


def table_ddl(variant: str, name: str = "otel_traces", extra: Sequence[str] = ()) -> list[str]:
    """The statements that make a table of spans, and its lookup."""
    held = "JSON" if variant == JSONS else MAP
    columns = [
        "Timestamp DateTime64(9) CODEC(Delta, ZSTD(1))",
        "TraceId String CODEC(ZSTD(1))",
        "SpanId String CODEC(ZSTD(1))",
        "ParentSpanId String CODEC(ZSTD(1))",
        "TraceState String CODEC(ZSTD(1))",
        "SpanName LowCardinality(String) CODEC(ZSTD(1))",
        "SpanKind LowCardinality(String) CODEC(ZSTD(1))",
        "ServiceName LowCardinality(String) CODEC(ZSTD(1))",
        f"ResourceAttributes {held} CODEC(ZSTD(1))",
        f"SpanAttributes {held} CODEC(ZSTD(1))",
        f"Duration {'Int64' if variant == OLD else 'UInt64'} CODEC(ZSTD(1))",
        "StatusCode LowCardinality(String) CODEC(ZSTD(1))",
        "StatusMessage String CODEC(ZSTD(1))",
        f"Events Nested (Timestamp DateTime64(9), Name LowCardinality(String), Attributes {held})"
        " CODEC(ZSTD(1))",
        f"Links Nested (TraceId String, SpanId String, TraceState String, Attributes {held})"
        " CODEC(ZSTD(1))",
        "INDEX idx_duration Duration TYPE minmax GRANULARITY 1",
        *extra,
    ]
    if variant != OLD:
        columns += ["ScopeName String CODEC(ZSTD(1))", "ScopeVersion String CODEC(ZSTD(1))"]
    if variant == MAPS:
        columns += [
            "INDEX idx_trace_id TraceId TYPE bloom_filter(0.001) GRANULARITY 1",
            "INDEX idx_span_key mapKeys(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1",
            "INDEX idx_span_value mapValues(SpanAttributes) TYPE bloom_filter(0.01) GRANULARITY 1",
        ]
    order = {
        MAPS: "(ServiceName, SpanName, toDateTime(Timestamp))",
        JSONS: "(ServiceName, SpanName, toDateTime(Timestamp), Timestamp)",
        OLD: "(ServiceName, SpanName, toUnixTimestamp(Timestamp), TraceId)",
    }[variant]
    settings = "SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1"
    return [
        f"CREATE TABLE {name} ({', '.join(columns)}) ENGINE = MergeTree() "
        f"PARTITION BY toDate(Timestamp) ORDER BY {order} {settings}",
        f"CREATE TABLE {name}_trace_id_ts (TraceId String CODEC(ZSTD(1)), "
        "Start DateTime CODEC(Delta, ZSTD(1)), End DateTime CODEC(Delta, ZSTD(1)), "
        "INDEX idx_trace_id TraceId TYPE bloom_filter(0.01) GRANULARITY 1) ENGINE = MergeTree() "
        f"PARTITION BY toDate(Start) ORDER BY (TraceId, Start) {settings}",
        f"CREATE MATERIALIZED VIEW {name}_trace_id_ts_mv TO {name}_trace_id_ts AS "
        f"SELECT TraceId, min(Timestamp) AS Start, max(Timestamp) AS End FROM {name} "
        "WHERE TraceId != '' GROUP BY TraceId",
    ]


def plain(value: Json) -> Any:
    """An OTLP value as JSON has it."""
    if not value:
        return None
    ((kind, inner),) = value.items()
    if kind == "arrayValue":
        return [plain(item) for item in inner.get("values", [])]
    return int(inner) if kind == "intValue" else inner


def text(value: Json) -> str:
    """An OTLP value as the exporter puts it into a map of text."""
    told = plain(value)
    if told is None:
        return ""
    return told if isinstance(told, str) else json.dumps(told, separators=(",", ":"))


def held_of(attributes: Iterable[Json], variant: str) -> Json:
    convert = plain if variant == JSONS else text
    return {one["key"]: convert(one["value"]) for one in attributes}


def row_of(span: Json, resource: Sequence[Json], scope: str, variant: str) -> Json:
    """A span as a row of the table."""
    start_ns, end_ns = int(span["startTimeUnixNano"]), int(span.get("endTimeUnixNano") or 0)
    held = held_of(span.get("attributes", []), variant)
    resource_held = held_of(resource, variant)
    kind, code = int(span.get("kind") or 0), int((span.get("status") or {}).get("code") or 0)
    events = span.get("events", [])
    row = {
        "Timestamp": f"{start_ns // 10**9}.{start_ns % 10**9:09d}",
        "TraceId": span["traceId"],
        "SpanId": span["spanId"],
        "ParentSpanId": span.get("parentSpanId") or "",
        "SpanName": span["name"],
        "SpanKind": f"SPAN_KIND_{KINDS[kind].upper()}" if variant == OLD else KINDS[kind],
        "ServiceName": resource_held.get("service.name", ""),
        "ResourceAttributes": resource_held,
        "SpanAttributes": held,
        "Duration": end_ns - start_ns,
        "StatusCode": f"STATUS_CODE_{CODES[code].upper()}" if variant == OLD else CODES[code],
        "Events.Timestamp": [
            f"{int(e['timeUnixNano']) // 10**9}.{int(e['timeUnixNano']) % 10**9:09d}"
            for e in events
        ],
        "Events.Name": [e["name"] for e in events],
        "Events.Attributes": [held_of(e.get("attributes", []), variant) for e in events],
        "Links.TraceId": [link["traceId"] for link in span.get("links", [])],
        "Links.SpanId": [link["spanId"] for link in span.get("links", [])],
        "Links.TraceState": ["" for _ in span.get("links", [])],
        "Links.Attributes": [{} for _ in span.get("links", [])],
    }
    if variant == OLD:
        row["SpanAttributes"] = held | {"otel.scope.name": scope}
    else:
        row["ScopeName"] = scope
    return row


def rows_of_otlp(lines: Iterable[str], variant: str) -> Iterator[Json]:
    """The rows of OTLP JSON lines."""
    for line in lines:
        for part in json.loads(line)["resourceSpans"]:
            resource = part.get("resource", {}).get("attributes", [])
            for scoped in part["scopeSpans"]:
                scope = scoped.get("scope", {}).get("name", "")
                for span in scoped["spans"]:
                    yield row_of(span, resource, scope, variant)


def lines_of(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from file


@dataclass
class Front:
    """A running front: what tests ask the engine by itself, and where the analyzer finds it."""

    port: int

    def url(self, database: str, query: str = "", user: str = "") -> str:
        at = f"{user}@" if user else ""
        return f"clickhouse://{at}127.0.0.1:{self.port}/{database}{query}"

    def send(self, sql: str, body: bytes = b"", database: str = "default") -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        address = "/?" + urlencode({"query": sql, "database": database})
        connection.request("POST", address, body=body)
        answer = connection.getresponse()
        data = answer.read().decode()
        connection.close()
        assert answer.status == 200, data
        return data

    def log(self) -> list[Json]:
        """Statements since the last time, with the bytes of their answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/_log")
        told: list[Json] = json.loads(connection.getresponse().read())
        connection.request("GET", "/_clear")
        connection.getresponse().read()
        connection.close()
        return told

    def create(self, database: str, variant: str = MAPS, extra: Sequence[str] = ()) -> None:
        self.send(f"CREATE DATABASE {database}")
        for statement in table_ddl(variant, f"{database}.otel_traces", extra):
            self.send(statement)

    def insert(self, database: str, rows: Iterable[Json]) -> int:
        """Appends rows and returns how many."""
        batch = [json.dumps(row, ensure_ascii=False) for row in rows]
        for start in range(0, len(batch), 20_000):
            part = "\n".join(batch[start : start + 20_000]).encode()
            self.send(f"INSERT INTO {database}.otel_traces FORMAT JSONEachRow", part)
        return len(batch)

    def fill(self, database: str, path: Path, variant: str = MAPS) -> int:
        """Makes a table of the spans of an OTLP JSON file."""
        self.create(database, variant)
        return self.insert(database, rows_of_otlp(lines_of(path), variant))


def python_with_chdb() -> str:
    """A Python that has chDB; skips the test where there is none.

    chDB weighs half a gigabyte, so it is no part of what tests usually install.
    """
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        return named
    import importlib.util

    if importlib.util.find_spec("chdb") is None:
        pytest.skip(f"needs chDB: set {PYTHON_VARIABLE} to a Python that has it")
    return sys.executable


@contextmanager
def running_front(folder: Path, **environ: str) -> Iterator[Front]:
    """A front with an empty database, for as long as it is needed."""
    process = subprocess.Popen(
        [python_with_chdb(), str(FRONT), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | environ,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Front(int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
