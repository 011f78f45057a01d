"""Other ways to read the same spans, for `load.py` to measure against.

Each takes a file and a folder to write into, and returns how many spans it saw. They do
less than what they are compared with: six attributes, no resources, nothing checked.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenlag_tracer import conventions as c

Method = Callable[[Path, Path], int]

PROMOTED = (
    c.REQUEST_ID,
    c.USAGE_INPUT_TOKENS,
    c.ENGINE_ID,
    c.STEP_INDEX,
    c.STEP_DECODE_COUNT,
    c.STEP_KV_USAGE,
)
ROWS_PER_GROUP = 65_536
CORE = ("trace_id", "span_id", "parent_id", "name", "kind", "start_ns", "end_ns")
READ_JSON_SQL = """
copy (
    with blocks as (
        select unnest(resourceSpans) as block from read_json('{data}',
            format = 'newline_delimited', maximum_object_size = 16777216, columns = {{
            resourceSpans: 'STRUCT(scopeSpans STRUCT(spans STRUCT(
                traceId VARCHAR, spanId VARCHAR, parentSpanId VARCHAR, name VARCHAR, kind INTEGER,
                startTimeUnixNano BIGINT, endTimeUnixNano BIGINT,
                attributes STRUCT("key" VARCHAR, "value" STRUCT(stringValue VARCHAR,
                    intValue BIGINT, doubleValue DOUBLE, boolValue BOOLEAN))[])[])[])[]'}})
    ),
    scopes as (select unnest(block.scopeSpans) as scope from blocks),
    spans as (select unnest(scope.spans) as s from scopes),
    mapped as (select s, map_from_entries(s.attributes) as attribute from spans)
    select s.traceId, s.spanId, s.parentSpanId, s.name, s.kind, s.startTimeUnixNano,
        s.endTimeUnixNano, {promoted}
    from mapped
) to '{out}' (format parquet, compression zstd)
"""
CHDB_JSON_SQL = """
select count(), uniqExact(trace), sum(start), sum(n) from (
    select JSONExtractString(span, 'traceId') as trace,
        toUInt64OrZero(JSONExtractString(span, 'startTimeUnixNano')) as start,
        length(JSONExtractArrayRaw(span, 'attributes')) as n
    from (
        select arrayJoin(JSONExtractArrayRaw(scope, 'spans')) as span from (
            select arrayJoin(JSONExtractArrayRaw(block, 'scopeSpans')) as scope from (
                select arrayJoin(JSONExtractArrayRaw(line, 'resourceSpans')) as block
                from file('{data}', 'LineAsString', 'line String')))))
"""


class Rows:
    """Lists of what a Python loop found, written as row groups of typed Parquet files."""

    def __init__(self, work_dir: Path) -> None:
        self._work_dir = work_dir
        self._rows: list[tuple[Any, ...]] = []
        self._n_files = 0
        self.n_rows = 0

    def add(self, core: tuple[Any, ...], attributes: dict[str, Any]) -> None:
        """Takes one span."""
        self._rows.append(core + tuple([attributes.get(key) for key in PROMOTED]))
        self.n_rows += 1
        if len(self._rows) >= ROWS_PER_GROUP:
            self.flush()

    def flush(self) -> None:
        """Writes what waits."""
        import polars as pl

        columns = dict(zip((*CORE, *PROMOTED), zip(*self._rows, strict=True), strict=True))
        path = self._work_dir / f"rows-{self._n_files}.parquet"
        pl.DataFrame(columns, strict=False).write_parquet(path)
        self._rows, self._n_files = [], self._n_files + 1


def read_json(data: Path, work_dir: Path) -> int:
    """DuckDB's own JSON reader with explicit types."""
    import duckdb

    fields = ("stringValue", "intValue", "stringValue", "intValue", "intValue", "doubleValue")
    promoted = ", ".join(
        f"attribute['{key}'].{one} as \"{key}\"" for key, one in zip(PROMOTED, fields, strict=True)
    )
    out = work_dir / "rows.parquet"
    connection = duckdb.connect()
    connection.execute(READ_JSON_SQL.format(data=data, out=out, promoted=promoted))
    row = connection.execute(f"select count(*) from '{out}'").fetchone()
    return int(row[0]) if row else 0


def orjson_lists(data: Path, work_dir: Path) -> int:
    """OTLP JSON by orjson and a loop, without collecting garbage."""
    import orjson

    gc.disable()
    rows = Rows(work_dir)
    with data.open("rb") as file:
        for line in file:
            for block in orjson.loads(line)["resourceSpans"]:
                for scope in block["scopeSpans"]:
                    for span in scope["spans"]:
                        rows.add(_core_of(span), dict(_json_values(span["attributes"])))
    rows.flush()
    return rows.n_rows


def _core_of(span: dict[str, Any]) -> tuple[Any, ...]:
    return (
        span["traceId"],
        span["spanId"],
        span["parentSpanId"],
        span["name"],
        span["kind"],
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
    )


def _json_values(attributes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    for item in attributes:
        ((kind, value),) = item["value"].items()
        yield item["key"], int(value) if kind == "intValue" else value


def orjson_jaeger(data: Path, work_dir: Path) -> int:
    """Jaeger JSON by orjson and a loop: the whole answer at once, for it is one text."""
    import orjson

    gc.disable()
    rows = Rows(work_dir)
    for trace in orjson.loads(data.read_bytes())["data"]:
        for span in trace["spans"]:
            references = span["references"]
            parent = references[0]["spanID"] if references else None
            start_ns = span["startTime"] * 1000
            end_ns = start_ns + span["duration"] * 1000
            tags = {tag["key"]: tag["value"] for tag in span["tags"]}
            name, kind = span["operationName"], tags.get("span.kind")
            core = (span["traceID"], span["spanID"], parent, name, kind, start_ns, end_ns)
            rows.add(core, tags)
    rows.flush()
    return rows.n_rows


def upb_lists(data: Path, work_dir: Path) -> int:
    """Protobuf by its library (in C) and a loop."""
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    gc.disable()
    rows = Rows(work_dir)
    with data.open("rb") as file:
        while head := file.read(4):
            message = TracesData.FromString(file.read(int.from_bytes(head, "big")))
            for block in message.resource_spans:
                for scope in block.scope_spans:
                    for span in scope.spans:
                        core = (
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.name,
                            span.kind,
                            span.start_time_unix_nano,
                            span.end_time_unix_nano,
                        )
                        rows.add(core, dict(_proto_values(span.attributes)))
    rows.flush()
    return rows.n_rows


def _proto_values(attributes: Any) -> Iterator[tuple[str, Any]]:
    for item in attributes:
        which = item.value.WhichOneof("value")
        yield item.key, None if which == "array_value" else getattr(item.value, which)


def upb_only(data: Path, _: Path) -> int:
    """Protobuf by its library, parsed and thrown away."""
    from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

    n_spans = 0
    with data.open("rb") as file:
        while head := file.read(4):
            message = TracesData.FromString(file.read(int.from_bytes(head, "big")))
            n_spans += sum(len(x.spans) for y in message.resource_spans for x in y.scope_spans)
    return n_spans


def _used_columns(data: Path) -> list[str]:
    """The columns of a native file that are read from it."""
    import polars as pl
    from tokenlag.read.load import vocabulary
    from tokenlag.read.spans import span_schema

    there = pl.read_parquet_schema(data)
    return [name for name in span_schema(vocabulary()) if name in there]


def duckdb_scan(data: Path, _: Path) -> int:
    """DuckDB going over the used columns of native Parquet, all values decoded."""
    import duckdb

    used = _used_columns(data)
    every = ", ".join(f'bit_xor(hash("{name}"))' for name in used)
    row = duckdb.connect().execute(f"select count(*), {every} from '{data}'").fetchone()
    return int(row[0]) if row else 0


def duckdb_copy(data: Path, work_dir: Path) -> int:
    """DuckDB copying the used columns of native Parquet into a table."""
    import duckdb

    every = ", ".join(f'"{name}"' for name in _used_columns(data))
    connection = duckdb.connect(str(work_dir / "copy.duckdb"))
    connection.execute(f"create table spans as select {every} from '{data}'")
    row = connection.execute("select count(*) from spans").fetchone()
    return int(row[0]) if row else 0


def chdb_parquet(data: Path, _: Path) -> int:
    """ClickHouse in process going over the used columns of native Parquet."""
    import chdb

    every = ", ".join(f"groupBitXor(cityHash64(`{name}`))" for name in _used_columns(data))
    told = chdb.query(f"select count(), {every} from file('{data}', 'Parquet')", "CSV")
    return int(str(told).split(",")[0])


def chdb_json(data: Path, _: Path) -> int:
    """ClickHouse in process going over OTLP JSON: two fields of each span."""
    import chdb

    told = chdb.query(CHDB_JSON_SQL.format(data=data), "CSV")
    return int(str(told).split(",")[0])


# Format → the methods that ours are measured against; the first is the reference.
REFERENCES: dict[str, dict[str, Method]] = {
    "otlp-json": {
        "DuckDB read_json to Parquet": read_json,
        "orjson + lists to Parquet": orjson_lists,
        "chDB, two fields of a span": chdb_json,
    },
    "otlp-proto": {
        "upb + lists to Parquet": upb_lists,
        "upb, parsed only": upb_only,
    },
    "jaeger-json": {"orjson + lists to Parquet": orjson_jaeger},
    "parquet": {
        "DuckDB scan of the used columns": duckdb_scan,
        "DuckDB copy into a table": duckdb_copy,
        "chDB scan of the used columns": chdb_parquet,
    },
}
