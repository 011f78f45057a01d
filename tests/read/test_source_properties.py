"""Properties of reading OTLP JSON: spelling, cutting up and cutting off change nothing."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenlag.errors import InputError
from tokenlag.read import cutting, lines
from tokenlag.read.jobs import SpanReader
from tokenlag.read.messages import Job, Setup

from tests.read.otlp import VOCABULARY, base64_id, export, read, rows_of, snake, span

FEW = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": TEXT,
        "whole": INT64,
        "number": FINITE,
        "truth": st.booleans(),
        "wholes": st.lists(INT64, max_size=4),
        "texts": st.lists(TEXT, max_size=4),
        "undeclared": TEXT,
    },
)


@st.composite
def rows_and_spans(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row as it must be read, and the span that says it."""
    values = draw(VALUES)
    start_ns = draw(st.integers(1, 2**63 - 1))
    row: dict[str, Any] = {
        "trace_id": f"{draw(st.integers(1, 2**128 - 1)):032x}",
        "span_id": f"{draw(st.integers(1, 2**64 - 1)):016x}",
        "parent_id": draw(st.none() | st.integers(1, 2**64 - 1).map("{:016x}".format)),
        "name": draw(TEXT),
        "kind": draw(st.integers(0, 5)),
        "start_ns": start_ns,
        "end_ns": draw(st.integers(start_ns, 2**63 - 1)),
        "status_code": draw(st.integers(0, 2)),
    }
    made = span(
        row["name"],
        traceId=row["trace_id"],
        spanId=row["span_id"],
        parentSpanId=row["parent_id"] or "",
        kind=row["kind"],
        startTimeUnixNano=str(row["start_ns"]),
        endTimeUnixNano=str(row["end_ns"]),
        status={"code": row["status_code"]},
        **values,
    )
    values.pop("undeclared", None)
    return row | dict.fromkeys(VOCABULARY.span) | values, made


PAIRS = st.lists(rows_and_spans(), min_size=1, max_size=30)


def numbers(made: dict[str, Any]) -> dict[str, Any]:
    """The span with 64-bit integers as JSON numbers."""
    text = json.dumps(made)
    changed: dict[str, Any] = json.loads(text)
    for key in ("startTimeUnixNano", "endTimeUnixNano"):
        changed[key] = int(changed[key])
    for item in changed["attributes"]:
        if "intValue" in item["value"]:
            item["value"]["intValue"] = int(item["value"]["intValue"])
    return changed


def proto_json(made: dict[str, Any]) -> dict[str, Any]:
    """The span with base64 ids and enum names, as plain protobuf JSON has them."""
    kinds = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
    codes = ("UNSET", "OK", "ERROR")
    return made | {
        "traceId": base64_id(made["traceId"]),
        "spanId": base64_id(made["spanId"]),
        "parentSpanId": base64_id(made["parentSpanId"]),
        "kind": f"SPAN_KIND_{kinds[made['kind']]}",
        "status": {"code": f"STATUS_CODE_{codes[made['status']['code']]}"},
    }


def upper(made: dict[str, Any]) -> dict[str, Any]:
    return made | {key: made[key].upper() for key in ("traceId", "spanId", "parentSpanId")}


def same(made: dict[str, Any]) -> dict[str, Any]:
    return made


def read_text(text: bytes, vocabulary_rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a text, with the columns that the expected rows have."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.json"
        path.write_bytes(text)
        found = rows_of(read(path, Path(folder) / "out").span_files)
    keys = list(vocabulary_rows[0])
    return sorted([{key: one[key] for key in keys} for one in found], key=repr)


@FEW
@given(PAIRS, st.sampled_from([same, numbers, proto_json, upper]), st.booleans(), st.booleans())
def test_what_is_written_is_read_in_each_spelling(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]],
    respell: Any,
    is_snake: bool,
    is_pretty: bool,
) -> None:
    whole = export([respell(made) for _, made in pairs])
    if is_snake:
        whole = snake(whole)
    text = json.dumps(whole, indent=2 if is_pretty else None, ensure_ascii=is_pretty)
    expected = sorted([row for row, _ in pairs], key=repr)
    assert read_text(text.encode(), expected) == expected


@FEW
@given(PAIRS, st.integers(1, 5), st.integers(1, 4000), st.booleans())
def test_cutting_the_file_up_changes_no_row(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]], per_line: int, n_bytes: int, is_gzip: bool
) -> None:
    spans = [made for _, made in pairs]
    chunks = [spans[i : i + per_line] for i in range(0, len(spans), per_line)]
    text = "".join(json.dumps(export(chunk)) + "\n" for chunk in chunks).encode()
    expected = sorted([row for row, _ in pairs], key=repr)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "RANGE_BYTES", n_bytes)
        patch.setattr(cutting, "BLOCK_BYTES", n_bytes)
        data = gzip.compress(text) if is_gzip else text
        assert read_text(data, expected) == expected


@FEW
@given(PAIRS, st.data())
def test_cutting_the_file_off_keeps_the_complete_lines(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]], data: st.DataObject
) -> None:
    text = "".join(json.dumps(export([made])) + "\n" for _, made in pairs).encode()
    n = data.draw(st.integers(0, len(text)))
    n_whole = text[:n].count(b"\n") + (text[n : n + 1] == b"\n")
    expected = sorted([row for row, _ in pairs[:n_whole]], key=repr)
    if expected:
        assert read_text(text[:n], expected) == expected
    else:
        with pytest.raises(InputError):
            read_text(text[:n], [pairs[0][0]])


@settings(max_examples=150, deadline=None)
@given(PAIRS, st.data())
def test_damage_is_told_and_never_raises_anything_else(
    pairs: list[tuple[dict[str, Any], dict[str, Any]]], data: st.DataObject
) -> None:
    text = bytearray("".join(json.dumps(export([made])) + "\n" for _, made in pairs).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    told, found = "", []
    try:
        found = read_text(bytes(text), [pairs[0][0]])
    except InputError as error:
        told = str(error)
    assert "\n" not in told
    assert bool(told) != bool(found)
    assert len(found) <= len(pairs)


WORDS = (
    "resourceSpans scopeSpans spans resource attributes key value whole intValue arrayValue "
    "values status code traceId result scope_spans resource_spans events kind name scope batches"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.just("1"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(WORDS.split()), inner, max_size=5)
    ),
    max_leaves=30,
)


@settings(max_examples=300, deadline=None)
@given(JSON, st.sampled_from(["resourceSpans", "scopeSpans", "spans", "span", "value"]))
def test_any_json_in_any_place_is_read_or_told(value: Any, place: str) -> None:
    made: Any = value
    if place == "value":
        made = span() | {"attributes": [{"key": "whole", "value": value}]}
    if place in ("value", "span"):
        made = [span(whole=1), made]
    if place in ("value", "span", "spans"):
        made = [{"scope": {"name": "s"}, "spans": made}]
    if place != "resourceSpans":
        made = [{"scopeSpans": made}]
    text = json.dumps({"resourceSpans": made}).encode() + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        reader = SpanReader(Setup.of(Path(folder), "0", VOCABULARY))
        report = reader.run(Job("a", n_payload=len(text)), text)
        found = rows_of([Path(file) for file in reader.finish().span_files])
    assert report.n_rows == len(found)
    if place in ("value", "span"):
        assert 1 <= len(found) <= 2


@FEW
@given(st.binary(max_size=300), st.lists(st.integers(1, 20), min_size=1))
def test_blocks_lose_nothing(text: bytes, sizes: list[int]) -> None:
    text = text.replace(b"a", b"\n")
    chunks, at = [], 0
    while at < len(text):
        n = sizes[len(chunks) % len(sizes)]
        chunks.append(text[at : at + n])
        at += n
    assert b"".join(block.data or b"" for block in lines.blocks_of(chunks)) == text
