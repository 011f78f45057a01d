"""The same spans in every format give the same rows."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenlag.read.load import vocabulary
from tokenlag.read.vocabulary import Vocabulary

from tests.read.formats import WRITERS, plain_of, write_native
from tests.read.otlp import VOCABULARY, Json, attributes, read, rows_of, span

SOME = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
RESOURCE = {"service.name": "serve", "slots": 32}
MICROSECONDS = st.integers(1, 2**52).map(lambda us: us * 1000)  # what all formats can hold


@st.composite
def spans(draw: st.DrawFn) -> Json:
    values: dict[str, Any] = draw(
        st.fixed_dictionaries(
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
    )
    start_ns = draw(MICROSECONDS)
    events = draw(st.lists(st.sampled_from(["first_token", "other"]), max_size=2))
    return span(
        draw(TEXT),
        traceId=f"{draw(st.integers(1, 2**128 - 1)):032x}",
        spanId=f"{draw(st.integers(1, 2**64 - 1)):016x}",
        parentSpanId=draw(st.just("") | st.integers(1, 2**64 - 1).map("{:016x}".format)),
        kind=draw(st.integers(0, 5)),
        startTimeUnixNano=str(start_ns),
        endTimeUnixNano=str(start_ns + draw(MICROSECONDS)),
        status={"code": draw(st.integers(0, 2))},
        events=[
            {
                "name": name,
                "timeUnixNano": str(start_ns),
                "attributes": attributes({"n": draw(st.integers(0, 9))}),
            }
            for name in events
        ],
        **values,
    )


def found_in(
    path: Path, out: Path, known: Vocabulary = VOCABULARY
) -> tuple[list[Json], list[Json]]:
    """Rows and events, without the file's name and what is NULL."""
    result = read(path, out, known)
    assert not result.problems
    kept = [
        {key: value for key, value in row.items() if value is not None and key != "source"}
        for row in rows_of(result.span_files)
    ]
    events = [
        {key: value for key, value in row.items() if value is not None}
        for row in rows_of(result.event_files)
    ]
    order = sorted(kept, key=lambda row: repr(sorted(row.items())))
    return order, sorted(events, key=lambda row: repr(sorted(row.items())))


@pytest.mark.parametrize("name", [name for name in WRITERS if name != "otlp.json"])
@SOME
@given(st.lists(spans(), min_size=1, max_size=40))
def test_a_format_gives_the_rows_of_otlp_json(name: str, made: list[Json]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        WRITERS["otlp.json"](base / "otlp.json", made, RESOURCE)
        WRITERS[name](base / name, made, RESOURCE)
        assert found_in(base / name, base / "a") == found_in(base / "otlp.json", base / "b")


@SOME
@given(st.lists(spans(), min_size=1, max_size=10))
def test_native_rows_come_back(made: list[Json]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        WRITERS["otlp.json"](base / "otlp.json", made, RESOURCE)
        write_native(base / "native.parquet", made, RESOURCE, VOCABULARY)
        rows, _ = found_in(base / "native.parquet", base / "a")
        assert rows == found_in(base / "otlp.json", base / "b")[0]


@pytest.mark.parametrize("name", ["stream.pb", "otel_traces.parquet", "json_text.parquet"])
def test_a_real_servers_spans_are_the_same_in_every_exact_format(
    name: str, bundled_trace: Path, tmp_path: Path
) -> None:
    """With all keys of all dialects, as a diagnosis reads them."""
    text = gzip.decompress(bundled_trace.read_bytes())
    made, origins = [], set()
    for line in text.splitlines():
        for block in json.loads(line)["resourceSpans"]:
            held = {
                item["key"]: plain_of(item["value"]) for item in block["resource"]["attributes"]
            }
            for scope in block["scopeSpans"]:
                origins.add((json.dumps(held, sort_keys=True), scope["scope"]["name"]))
                made += [
                    {"kind": 0, "status": {}, "attributes": [], "parentSpanId": ""} | one
                    for one in scope["spans"]
                ]
    resource = json.loads(min(origins)[0])
    assert len(made) > 500
    WRITERS["otlp.json"](tmp_path / "otlp.json", made, resource)
    WRITERS[name](tmp_path / name, made, resource)
    known = vocabulary()
    found = found_in(tmp_path / name, tmp_path / "a", known)
    assert found == found_in(tmp_path / "otlp.json", tmp_path / "b", known)
    assert len(found[0]) == len(made)
