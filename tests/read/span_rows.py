"""Span rows made by hand, as Parquet files of the shape that `read_spans` writes."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenlag.read import load
from tokenlag.read.spans import event_schema, span_schema
from tokenlag.read.vocabulary import RESOURCE_PREFIX
from tokenlag.store.connection import Store
from tokenlag_tracer import conventions as c

MS = 1_000_000
T0 = 1_795_980_000 * 1_000_000_000

Row = dict[str, Any]


def span(
    name: str,
    start_ms: float,
    end_ms: float | None,
    *,
    trace: str = "a" * 32,
    id_: str | None = None,
    parent: str | None = None,
    kind: int = c.KIND_INTERNAL,
    scope: str = c.SCOPE_NAME,
    status: int = 0,
    resource: dict[str, Any] | None = None,
    **attributes: Any,
) -> Row:
    """One span; times are ms after T0, attributes are named by their constants."""
    _counter[0] += 1
    row: Row = {
        "source": "made",
        "trace_id": trace,
        "span_id": id_ or f"{_counter[0]:016x}",
        "parent_id": parent,
        "name": name,
        "kind": kind,
        "start_ns": T0 + round(start_ms * MS),
        "end_ns": None if end_ms is None else T0 + round(end_ms * MS),
        "status_code": status,
        "scope": scope,
    }
    row |= {getattr(c, key, key): value for key, value in attributes.items()}
    row |= {RESOURCE_PREFIX + key: value for key, value in (resource or {}).items()}
    return row


_counter = [0]


def load_rows(
    store: Store,
    folder: Path,
    rows: list[Row],
    events: list[Row] | None = None,
    dataset: int = 0,
) -> None:
    """Write the rows as Parquet and turn them into canonical tables."""
    vocabulary = load.vocabulary()
    schema = span_schema(vocabulary)
    unknown = {key for row in rows for key in row} - set(schema)
    assert not unknown, f"no column for {unknown}"
    path = folder / f"spans-{dataset}.parquet"
    columns = {key: [row.get(key) for row in rows] for key in schema}
    pl.DataFrame(columns, schema=schema).write_parquet(path)
    event_path = folder / f"events-{dataset}.parquet"
    shape = event_schema(vocabulary)
    columns = {key: [row.get(key) for row in events or []] for key in shape}
    pl.DataFrame(columns, schema=shape).write_parquet(event_path)
    load.load_spans(store, [path], [event_path], dataset=dataset)


def shared() -> Path:
    """The folder of real traces; skips the test where it is not there."""
    given = os.environ.get("TOKENLAG_SHARED")
    path = Path(given) if given else Path(__file__).parents[3] / "shared"
    if not (path / "captured").is_dir():
        pytest.skip("needs the captured traces (TOKENLAG_SHARED)")
    return path


def read_otlp(path: Path) -> tuple[list[Row], list[Row]]:
    """Spans and events of an OTLP JSON-lines file, the slow and obvious way."""
    vocabulary = load.vocabulary()
    rows: list[Row] = []
    events: list[Row] = []
    for line in gzip.decompress(path.read_bytes()).splitlines():
        for resource in json.loads(line).get("resourceSpans", []):
            owner = {
                RESOURCE_PREFIX + key: value
                for key, value in _attributes(resource.get("resource", {})).items()
                if key in vocabulary.resource
            }
            for scope in resource.get("scopeSpans", []):
                for s in scope["spans"]:
                    row = {
                        "source": path.name,
                        "trace_id": s["traceId"],
                        "span_id": s["spanId"],
                        "parent_id": s.get("parentSpanId") or None,
                        "name": s["name"],
                        "kind": s.get("kind", 0),
                        "start_ns": int(s["startTimeUnixNano"]),
                        "end_ns": int(s["endTimeUnixNano"]),
                        "status_code": s.get("status", {}).get("code", 0),
                        "scope": scope.get("scope", {}).get("name"),
                    }
                    told = _attributes(s)
                    row |= {k: v for k, v in told.items() if k in vocabulary.span}
                    rows.append(row | owner)
                    events += [
                        {
                            "trace_id": s["traceId"],
                            "span_id": s["spanId"],
                            "time_ns": int(e["timeUnixNano"]),
                            "name": e["name"],
                        }
                        for e in s.get("events", [])
                        if e["name"] in vocabulary.event_names
                    ]
    return rows, events


def _attributes(holder: dict[str, Any]) -> dict[str, Any]:
    return {item["key"]: _value(item["value"]) for item in holder.get("attributes", [])}


def _value(value: dict[str, Any]) -> Any:
    kind, inner = next(iter(value.items()))
    if kind == "intValue":
        return int(inner)
    if kind == "arrayValue":
        return [_value(item) for item in inner.get("values", [])]
    return inner
