"""Links of the spans whose are wanted: the same out of every format that has them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenlag.read.spans import event_schema
from tokenlag.read.vocabulary import LINK, LINK_SPAN_ID, LINK_TRACE_ID, MAX_LINKS

from tests.read.formats import (
    WRITERS,
    be32,
    jaeger,
    json_text_frame,
    pascal_frame,
    proto,
)
from tests.read.otlp import (
    T0,
    TRACE,
    VOCABULARY,
    Json,
    attributes,
    base64_id,
    export,
    read,
    rows_of,
    snake,
    span,
)

LINKED = dataclasses.replace(VOCABULARY, link_names=frozenset({"infer"}))
RESOURCE = {"service.name": "serve", "slots": 32}


def link(trace: int, span_id: int) -> Json:
    return {"traceId": f"{trace:032x}", "spanId": f"{span_id:016x}"}


def of(number: int, name: str, *links: Json, **more: Any) -> Json:
    return span(
        name,
        spanId=f"{number:016x}",
        parentSpanId="f" * 16,
        startTimeUnixNano=str(T0 + 1000 * number),
        endTimeUnixNano=str(T0 + 1000 * number + 1000),
        links=list(links),
        **more,
    )


EVENT = {"name": "first_token", "timeUnixNano": str(T0), "attributes": attributes({"n": 3})}
SPANS = [
    of(1, "infer", link(7, 8)),
    of(2, "infer", link(7, 9), link(11, 12), events=[EVENT]),
    of(3, "infer"),
    of(4, "batch", link(1, 1), link(1, 2)),  # not wanted
    of(5, "infer", *(link(20, n) for n in range(1, MAX_LINKS + 10))),
    of(6, "other", events=[EVENT]),
]
EXPECTED = sorted(
    [
        (int(one["spanId"], 16), one["startTimeUnixNano"], told["traceId"], told["spanId"])
        for one in SPANS
        if one["name"] == "infer"
        for told in one["links"][:MAX_LINKS]
    ]
)


def lenient(spans: Sequence[Json]) -> bytes:
    return json.dumps(snake(export(spans, resource=RESOURCE))).encode()


def base64s(spans: Sequence[Json]) -> bytes:
    def linked(one: Json) -> list[Json]:
        return [{key: base64_id(id_) for key, id_ in told.items()} for told in one["links"]]

    made = [one | {"links": linked(one)} for one in spans]
    return json.dumps(export(made, resource=RESOURCE)).encode()


def one_by_one(spans: Sequence[Json]) -> bytes:
    """Protobuf that the fast way leaves to the library: a key comes twice."""
    twice = {"attributes": [*attributes({"whole": 1}), *attributes({"whole": 2})]}
    return be32(proto([*spans[:-1], spans[-1] | twice], RESOURCE))


def models_json(spans: Sequence[Json]) -> bytes:
    """Jaeger's model, whose ids are base64 and whose kinds of references have other names."""
    traces = jaeger(spans, RESOURCE)["data"]
    for trace in traces:
        del trace["traceID"]
    for one in (one for trace in traces for one in trace["spans"]):
        one["traceId"] = one.pop("traceID")
        one["spanId"] = one.pop("spanID")
        for told in one["references"]:
            told["traceId"], told["spanId"] = told.pop("traceID"), told.pop("spanID")
            if told["refType"] == "FOLLOWS_FROM":
                told["refType"] = "1"
    return json.dumps({"data": traces}).encode()


BYTES: dict[str, Callable[[Sequence[Json]], bytes]] = {
    "OTLP JSON": lambda spans: json.dumps(export(spans, resource=RESOURCE)).encode(),
    "OTLP JSON in snake case": lenient,
    "OTLP JSON with base64": base64s,
    "OTLP protobuf": lambda spans: proto(spans, RESOURCE),
    "OTLP protobuf, unusual": one_by_one,
    "Jaeger": lambda spans: json.dumps(jaeger(spans, RESOURCE)).encode(),
    "Jaeger's model": models_json,
}
FRAMES: dict[str, Callable[[Sequence[Json], Json], pl.DataFrame]] = {
    "ClickHouse's columns": pascal_frame,
    "otlp2parquet": json_text_frame,
}


def links_of(files: Sequence[Path]) -> list[tuple[int, str, str, str]]:
    return sorted(
        (int(row["span_id"], 16), str(row["time_ns"]), row[LINK_TRACE_ID], row[LINK_SPAN_ID])
        for row in rows_of(files)
        if row["name"] == LINK
    )


def written(form: str, folder: Path) -> Path:
    """The spans in a file of this form."""
    path = folder / "in"
    if form in BYTES:
        path.write_bytes(BYTES[form](SPANS))
    else:
        FRAMES[form](SPANS, RESOURCE).write_parquet(path)
    return path


@pytest.mark.parametrize("form", [*BYTES, *FRAMES])
def test_links_are_the_same_out_of_every_format(form: str, tmp_path: Path) -> None:
    path = written(form, tmp_path)
    result = read(path, tmp_path / "out", LINKED)
    assert (result.n_spans, result.notes) == (len(SPANS), [])
    assert links_of(result.event_files) == EXPECTED
    events = [row for row in rows_of(result.event_files) if row["name"] != LINK]
    assert [row["n"] for row in events] == [3, 3]
    parents = {row["parent_id"] for row in rows_of(result.span_files)}
    assert parents == {"f" * 16}


@pytest.mark.parametrize("form", ["OTLP JSON", "OTLP protobuf", "Jaeger", "ClickHouse's columns"])
def test_nothing_is_kept_where_nothing_is_wanted(form: str, tmp_path: Path) -> None:
    path = written(form, tmp_path)
    result = read(path, tmp_path / "out", VOCABULARY)
    assert {row["name"] for row in rows_of(result.event_files)} == {"first_token"}
    assert LINK_TRACE_ID not in event_schema(VOCABULARY)


def test_links_in_many_workers_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"\n".join(BYTES["OTLP JSON"](SPANS) for _ in range(3)))
    result = read(path, tmp_path / "out", LINKED, n_workers=2)
    assert links_of(result.event_files) == sorted(EXPECTED * 3)


def test_zipkin_has_no_links(tmp_path: Path) -> None:
    path = tmp_path / "in"
    WRITERS["zipkin.json"](path, SPANS, RESOURCE)
    result = read(path, tmp_path / "out", LINKED)
    assert links_of(result.event_files) == []


@pytest.mark.parametrize(
    "links",
    [
        None,
        {},
        "none",
        [None, 3, "x"],
        [{"traceId": 5, "spanId": {}}],
        [{"traceId": TRACE}],
        [{"traceId": "zz", "spanId": "00"}],
    ],
)
def test_links_that_are_none_spoil_nothing(links: Any, tmp_path: Path) -> None:
    path = tmp_path / "in"
    good = of(1, "infer", link(7, 8))
    path.write_text(json.dumps(export([good, of(2, "infer") | {"links": links}])))
    result = read(path, tmp_path / "out", LINKED)
    assert (result.n_spans, result.problems) == (2, [])
    whole = [one for one in rows_of(result.event_files) if one[LINK_TRACE_ID] and one[LINK_SPAN_ID]]
    assert [int(one["span_id"], 16) for one in whole] == [1]
