"""Jaeger's JSON in every spelling, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.errors import InputError
from tokenlag.read import cutting
from tokenlag.read.vocabulary import Vocabulary

from tests.read.formats import jaeger
from tests.read.otlp import (
    VOCABULARY,
    Json,
    base64_id,
    read,
    row,
    rows,
    rows_of,
    span,
    told_or_read,
)

TRACE, SPAN, PARENT = "5b8efff798038103d269b633813fc60c", "eee19b7ec3c1b174", "00000000000000a1"
T_US = 1_795_980_000_000_000  # 2026-11-29T19:20:00Z
CORE = {
    "trace_id": TRACE,
    "span_id": SPAN,
    "parent_id": PARENT,
    "name": "get",
    "kind": 2,
    "start_ns": T_US * 1000,
    "end_ns": (T_US + 5) * 1000,
    "status_code": 2,
    "whole": 7,
    "number": 72.5,
    "truth": True,
    "text": "x",
    "resource.service.name": "api",
    "resource.slots": 4,
}
TAGS: dict[str, Any] = {
    "span.kind": "server",
    "error": True,
    "whole": 7,
    "number": 72.5,
    "truth": True,
    "text": "x",
}
TYPES = {str: "string", bool: "bool", int: "int64", float: "float64"}


def tags(values: dict[str, Any]) -> list[Json]:
    return [{"key": k, "type": TYPES[type(v)], "value": v} for k, v in values.items()]


def ui_span(**changes: Any) -> Json:
    made = {
        "traceID": TRACE,
        "spanID": SPAN,
        "operationName": "get",
        "references": [
            {"refType": "FOLLOWS_FROM", "traceID": TRACE, "spanID": "b" * 16},
            {"refType": "CHILD_OF", "traceID": "f" * 32, "spanID": "c" * 16},
            {"refType": "CHILD_OF", "traceID": TRACE, "spanID": PARENT},
        ],
        "startTime": T_US,
        "duration": 5,
        "tags": tags(TAGS),
        "logs": [{"timestamp": T_US + 1, "fields": tags({"event": "first_token", "n": 3})}],
        "processID": "p1",
        "warnings": None,
    }
    return made | changes


PROCESS = {"serviceName": "api", "tags": tags({"slots": 4})}


def typed(values: dict[str, Any], names: dict[type, tuple[str, str]], key: str = "key") -> Any:
    kind = "vType" if key == "key" else "ValueType"
    return [{key: k, kind: names[type(v)][0], names[type(v)][1]: v} for k, v in values.items()]


MODEL = {
    str: ("STRING", "vStr"),
    bool: ("BOOL", "vBool"),
    int: ("INT64", "vInt64"),
    float: ("FLOAT64", "vFloat64"),
}
THRIFT = MODEL | {int: ("LONG", "vLong"), float: ("DOUBLE", "vDouble")}
STORED = {
    str: ("string", "value_string"),
    bool: ("bool", "value_bool"),
    int: ("int64", "value_long"),
    float: ("float64", "value_double"),
}


def model_span(start: str, duration: str) -> Json:
    return {
        "traceId": base64_id(TRACE),
        "spanId": base64_id(SPAN),
        "operationName": "get",
        "references": [
            {"refType": "CHILD_OF", "traceId": base64_id(TRACE), "spanId": base64_id(PARENT)}
        ],
        "startTime": start,
        "duration": duration,
        "tags": typed(TAGS, MODEL),
        "process": {"serviceName": "api", "tags": typed({"slots": 4}, MODEL)},
    }


SHAPES: dict[str, Any] = {
    "UI": {"data": [{"traceID": TRACE, "spans": [ui_span()], "processes": {"p1": PROCESS}}]},
    "one trace": {"traceID": TRACE, "spans": [ui_span()], "processes": {"p1": PROCESS}},
    "the UI's own model": {"data": {"spans": [ui_span(process=PROCESS)], "services": []}},
    "list of spans": [ui_span(process=PROCESS)],
    "list of traces": [{"traceID": TRACE, "spans": [ui_span()], "processes": {"p1": PROCESS}}],
    "Elasticsearch": ui_span(process=PROCESS, startTimeMillis=T_US // 1000),
    "Elasticsearch with tags as fields": {
        "_index": "jaeger-span",
        "_source": ui_span(
            process=PROCESS, tags=[], tag={k.replace(".", "@"): v for k, v in TAGS.items()}
        ),
    },
    "Elasticsearch's answer": {"hits": {"hits": [{"_source": ui_span(process=PROCESS)}]}},
    "old parent": ui_span(process=PROCESS, references=[], parentSpanID=PARENT),
    "short ids": ui_span(
        process=PROCESS,
        references=[{"refType": "CHILD_OF", "traceID": TRACE, "spanID": "a1"}],
    ),
    "the model": model_span("2026-11-29T14:20:00-05:00", "5000ns"),
    "the model's stream": {"result": {"spans": [model_span("2026-11-29T19:20:00Z", "0.000005s")]}},
    "Thrift": {
        "process": {"serviceName": "api", "tags": typed({"slots": 4}, THRIFT)},
        "spans": [
            {
                "traceIdLow": int(TRACE[16:], 16) - 2**64,
                "traceIdHigh": int(TRACE[:16], 16),
                "spanId": int(SPAN, 16) - 2**64,
                "parentSpanId": int(PARENT, 16),
                "operationName": "get",
                "startTime": T_US,
                "duration": 5,
                "tags": typed(TAGS, THRIFT),
            }
        ],
    },
    "Cassandra": {
        "TraceID": base64_id(TRACE),
        "SpanID": int(SPAN, 16) - 2**64,
        "ParentID": int(PARENT, 16),
        "OperationName": "get",
        "StartTime": T_US,
        "Duration": 5,
        "Tags": typed(TAGS, STORED, "Key"),
        "Process": {"ServiceName": "api", "Tags": typed({"slots": 4}, STORED, "Key")},
    },
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_the_same_row(shape: str, indent: int | None, tmp_path: Path) -> None:
    made = row(json.dumps(SHAPES[shape], indent=indent), tmp_path)
    assert {key: made[key] for key in CORE} == CORE


def test_logs_are_events(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(SHAPES["UI"]))
    (event,) = rows_of(read(path, tmp_path / "out").event_files)
    assert event == {
        "trace_id": TRACE,
        "span_id": SPAN,
        "time_ns": (T_US + 1) * 1000,
        "name": "first_token",
        "n": 3,
    }


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({"error": "true"}, 2),
        ({"error": False}, 0),
        ({"otel.status_code": "OK"}, 1),
        ({"otel.status_code": "ERROR"}, 2),
        ({}, 0),
    ],
)
def test_status(told: dict[str, Any], code: int, tmp_path: Path) -> None:
    made = row(json.dumps([ui_span(tags=tags(told))]), tmp_path)
    assert (made["status_code"], made["kind"]) == (code, 0)


def test_scopes_are_tags(tmp_path: Path) -> None:
    for key in ("otel.scope.name", "otel.library.name"):
        assert row(json.dumps([ui_span(tags=tags({key: "lib"}))]), tmp_path)["scope"] == "lib"


@pytest.mark.parametrize("missing", ["startTime", "duration"])
def test_missing_times_are_told(missing: str, tmp_path: Path) -> None:
    made = ui_span()
    del made[missing]
    path = tmp_path / "a"
    path.write_text(json.dumps([made]))
    result = read(path, tmp_path / "out")
    assert [note.kind for note in result.notes] == ["untimed_spans"]
    assert rows_of(result.span_files)[0]["end_ns"] is None


def test_a_span_that_makes_no_sense_is_counted_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(json.dumps([ui_span(), ui_span(spanID=None), ui_span(traceID=["x"])]))
    result = read(path, tmp_path / "out")
    assert (result.n_spans, [(n.kind, n.n) for n in result.notes]) == (1, [("unusable_spans", 2)])


def test_values_of_another_type_do_not_spoil_the_span(tmp_path: Path) -> None:
    odd = [{"key": "whole", "type": "int64", "value": {"a": 1}}, {"key": 7}, *tags({"text": "x"})]
    made = row(json.dumps([ui_span(tags=odd, duration="oops")]), tmp_path)
    assert (made["whole"], made["text"], made["end_ns"]) == (None, "x", None)


def test_a_large_answer_is_cut_and_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "BLOCK_BYTES", 2000)
    made = [span(f"s{i}", traceId=f"{i // 3 + 1:032x}", spanId=f"{i + 1:016x}") for i in range(60)]
    path = tmp_path / "a.txt"
    path.write_text(json.dumps(jaeger(made, {"service.name": "a"})))
    for n_workers in (0, 2):
        result = read(path, tmp_path / f"out{n_workers}", n_workers=n_workers)
        assert (result.n_spans, result.notes) == (60, [])
        names = [one["name"] for one in rows_of(result.span_files)]
        assert sorted(names) == sorted(f"s{i}" for i in range(60))


def test_what_is_cut_off_is_told_and_whole_traces_are_kept(tmp_path: Path) -> None:
    made = [span(traceId=f"{i + 1:032x}") for i in range(5)]
    text = json.dumps(jaeger(made, {"service.name": "a"}))
    path = tmp_path / "a"
    path.write_text(text[: text.rindex('"traceID"') + 20])
    result = read(path, tmp_path / "out")
    assert result.n_spans == 4
    (note,) = result.notes
    assert (note.kind, note.n) == ("skipped_lines", 1)
    assert "cut off" in note.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"data":[{"traceID":"1","spans":[{"traceID":"1","spanID":', "cut off"),
        ('{"data":[{"traceID":"1","spanID":"2" 1}]}', "not readable: not JSON"),
        ('[{"traceID":"xyz","spanID":"!"}]', "usable trace id"),
        ('{"data":[],"spanID":0,"traceID":0}', "none of its"),
        ('{"traceID":"1","spanID":"2","x":' + "[" * 9**5 + "]" * 9**5 + "}", "nested too deeply"),
    ],
)
def test_damage_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read(path, tmp_path / "out")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_never_raises_anything_else(data: st.DataObject) -> None:
    text = bytearray(json.dumps(SHAPES[data.draw(st.sampled_from(sorted(SHAPES)))]).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    told, n_spans = told_or_read(bytes(text))
    assert "\n" not in told
    assert bool(told) != bool(n_spans)


def test_undeclared_text_is_nowhere(tmp_path: Path) -> None:
    made = ui_span(tags=tags({"gen_ai.prompt": "secret"}))
    (only,) = rows(json.dumps([made]), tmp_path, Vocabulary(span={"text": "str"}))
    assert "secret" not in repr(only)
    assert VOCABULARY.span["text"] == "str"
