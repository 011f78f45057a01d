"""OTLP JSON in every spelling that writers have for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenlag.errors import InputError
from tokenlag.read.spans import event_schema, span_schema

from tests.read.otlp import (
    ABSENT,
    SPAN,
    T0,
    TRACE,
    VOCABULARY,
    any_value,
    attributes,
    base64_id,
    export,
    line,
    read,
    row,
    rows,
    rows_of,
    snake,
    span,
)

CORE = {
    "trace_id": TRACE,
    "span_id": SPAN,
    "parent_id": None,
    "name": "a",
    "kind": 2,
    "start_ns": T0,
    "end_ns": T0 + 5,
    "status_code": 0,
    "scope": "s",
}


def core(found: dict[str, Any]) -> dict[str, Any]:
    return {key: found[key] for key in CORE}


def test_a_span_becomes_a_row_with_every_declared_column(tmp_path: Path) -> None:
    text = line(span(whole=7), resource={"service.name": "vllm", "slots": 256})
    found = row(text, tmp_path)
    assert core(found) == CORE
    assert found["source"] == str(tmp_path / "in.jsonl")
    assert found["whole"] == 7
    assert (found["resource.service.name"], found["resource.slots"]) == ("vllm", 256)
    assert list(found) == list(span_schema(VOCABULARY))
    unset = {"text", "number", "truth", "wholes", "texts"}
    assert all(found[key] is None for key in unset)


@pytest.mark.parametrize(
    ("trace_id", "span_id"),
    [
        (TRACE.upper(), SPAN.upper()),
        (base64_id(TRACE), base64_id(SPAN)),
        (base64_id(TRACE).rstrip("="), base64_id(SPAN).rstrip("=")),
        ("0x" + TRACE, "0x" + SPAN),
    ],
)
def test_ids_of_any_spelling_become_lower_hex(tmp_path: Path, trace_id: str, span_id: str) -> None:
    text = line(span(traceId=trace_id, spanId=span_id, parentSpanId=span_id))
    found = row(text, tmp_path)
    assert (found["trace_id"], found["span_id"], found["parent_id"]) == (TRACE, SPAN, SPAN)


def test_a_64_bit_trace_id_is_padded_on_the_left(tmp_path: Path) -> None:
    found = row(line(span(traceId="d269b633813fc60c")), tmp_path)
    assert found["trace_id"] == "0" * 16 + "d269b633813fc60c"


@pytest.mark.parametrize("parent", ["", "0000000000000000", None, "AAAAAAAAAAA=", ABSENT])
def test_no_parent_is_null_however_it_is_said(tmp_path: Path, parent: Any) -> None:
    assert row(line(span(parentSpanId=parent)), tmp_path)["parent_id"] is None


@pytest.mark.parametrize("kind", [3, "3", "SPAN_KIND_CLIENT", "CLIENT", "client"])
@pytest.mark.parametrize("code", [2, "2", "STATUS_CODE_ERROR", "ERROR"])
def test_enums_are_numbers_or_names(tmp_path: Path, kind: Any, code: Any) -> None:
    found = row(line(span(kind=kind, status={"code": code})), tmp_path)
    assert (found["kind"], found["status_code"]) == (3, 2)


def test_absent_enums_are_zero_and_unknown_ones_null(tmp_path: Path) -> None:
    found = row(line(span(kind=ABSENT, status=ABSENT)), tmp_path)
    assert (found["kind"], found["status_code"]) == (0, 0)
    found = row(line(span(kind=77, status={"code": "STATUS_CODE_ODD"})), tmp_path)
    assert (found["kind"], found["status_code"]) == (None, None)


@pytest.mark.parametrize("time", [T0, str(T0), float(T0)])
def test_times_are_strings_or_numbers(tmp_path: Path, time: Any) -> None:
    found = row(line(span(startTimeUnixNano=time, endTimeUnixNano=time)), tmp_path)
    assert (found["start_ns"], found["end_ns"]) == (T0, T0)


@pytest.mark.parametrize(
    "time", [ABSENT, None, "0", 0, "", "soon", "11651379494838206464", 2**64 + 5, -1, True]
)
def test_a_span_without_a_usable_time_is_kept_and_counted(tmp_path: Path, time: Any) -> None:
    path = tmp_path / "in.json"
    path.write_text(line(span(startTimeUnixNano=time)))
    result = read(path, tmp_path / "out")
    (found,) = rows_of(result.span_files)
    assert (found["start_ns"], found["end_ns"]) == (None, T0 + 5)
    assert [(note.kind, note.n) for note in result.notes] == [("untimed_spans", 1)]


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("text", "x", "x"),
        ("text", "", ""),
        ("text", 5, "5"),
        ("text", True, "true"),
        ("text", 0.5, "0.5"),
        ("text", ["stop", "length"], "stop,length"),
        ("whole", 5, 5),
        ("whole", -(2**63), -(2**63)),
        ("whole", {"intValue": 5}, 5),
        ("whole", "123", 123),
        ("whole", " 123 ", 123),
        ("whole", "123.0", 123),
        ("whole", 123.0, 123),
        ("number", 0.5, 0.5),
        ("number", {"doubleValue": 5}, 5.0),
        ("number", {"doubleValue": "0.5"}, 0.5),
        ("number", 5, 5.0),
        ("number", "0.5", 0.5),
        ("truth", True, True),
        ("truth", False, False),
        ("truth", "true", True),
        ("truth", "False", False),
        ("truth", 1, True),
        ("wholes", [1, 2], [1, 2]),
        ("wholes", [], []),
        ("wholes", "[1,2]", [1, 2]),
        ("wholes", "1, 2", [1, 2]),
        ("wholes", "[]", []),
        ("wholes", ["1", 2], [1, 2]),
        ("wholes", 3, [3]),
        ("texts", ["stop"], ["stop"]),
        ("texts", [], []),
        ("texts", [""], [""]),
        ("texts", ["a\x1fb", "c"], ["a\x1fb", "c"]),
        ("texts", '["a","b"]', ["a", "b"]),
        ("texts", "stop", ["stop"]),
    ],
)
@pytest.mark.parametrize("n_spans", [1, 9])
def test_values_become_their_declared_type(
    tmp_path: Path, key: str, value: Any, expected: Any, n_spans: int
) -> None:
    found = rows(line(*[span(**{key: value})] * n_spans), tmp_path)
    assert [one[key] for one in found] == [expected] * n_spans


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("whole", "many"),
        ("whole", 0.5),
        ("whole", str(2**63)),
        ("whole", 2**63),
        ("whole", True),
        ("whole", [1]),
        ("number", "NaN"),
        ("number", {"doubleValue": "Infinity"}),
        ("number", "fast"),
        ("truth", "maybe"),
        ("wholes", ["a"]),
        ("wholes", [2**70]),
        ("wholes", "[1,"),
        ("wholes", [[1]]),
        ("texts", [["a"]]),
    ],
)
@pytest.mark.parametrize("n_spans", [1, 9])
def test_values_of_no_use_are_null_and_counted(
    tmp_path: Path, key: str, value: Any, n_spans: int
) -> None:
    path = tmp_path / "in.json"
    path.write_text(line(*[span(**{key: value})] * n_spans))
    result = read(path, tmp_path / "out")
    assert [one[key] for one in rows_of(result.span_files)] == [None] * n_spans
    (note,) = result.notes
    assert (note.kind, note.n) == ("unconvertible_values", n_spans)
    assert key in note.text


@pytest.mark.parametrize("value", [{}, {"kvlistValue": {"values": []}}, {"bytesValue": "AQ=="}])
def test_absent_values_maps_and_bytes_are_null(tmp_path: Path, value: Any) -> None:
    found = row(line(span(text=value, whole=value, wholes=value)), tmp_path)
    assert (found["text"], found["whole"], found["wholes"]) == (None, None, None)


def test_mixed_types_in_one_column(tmp_path: Path) -> None:
    spans = [span(whole=1), span(whole="2"), span(whole={"intValue": 3}), span(whole=4.0)] * 3
    spans += [span(wholes=[1]), span(wholes="[2,3]"), span(wholes=[]), span(wholes=["4"])] * 3
    found = rows(line(*spans), tmp_path)
    assert sorted(one["whole"] for one in found if one["whole"]) == [
        1,
        1,
        1,
        2,
        2,
        2,
        3,
        3,
        3,
        4,
        4,
        4,
    ]
    lists = [one["wholes"] for one in found if one["wholes"] is not None]
    assert sorted(lists) == sorted([[1], [2, 3], [], [4]] * 3)


def test_keys_in_another_order_and_twice(tmp_path: Path) -> None:
    swapped = span(whole=1, text="a")
    swapped["attributes"].reverse()
    twice = span(whole=1)
    twice["attributes"] += [{"key": "whole", "value": any_value(2)}]
    for n in (1, 9):
        found = rows(line(*[span(whole=1, text="a"), swapped] * n), tmp_path)
        assert {(one["whole"], one["text"]) for one in found} == {(1, "a")}
        assert {one["whole"] for one in rows(line(*[twice] * n), tmp_path)} == {2}


def test_snake_case_and_old_names_of_scopes(tmp_path: Path) -> None:
    whole = export([span(whole=5, wholes=[1, 2])], resource={"service.name": "v"})
    expected = row(json.dumps(whole) + "\n", tmp_path)
    assert row(json.dumps(snake(whole)) + "\n", tmp_path) == expected
    old = json.dumps(whole).replace("scopeSpans", "instrumentationLibrarySpans")
    assert row(old.replace('"scope"', '"instrumentationLibrary"'), tmp_path) == expected
    assert row(json.dumps(snake(json.loads(old))), tmp_path) == expected


@pytest.mark.parametrize("indent", [None, 0, 2, "\t"])
@pytest.mark.parametrize("wrap", ["object", "result", "batches", "trace", "array"])
def test_framings_and_wrappers(tmp_path: Path, indent: Any, wrap: str) -> None:
    one = export([span(whole=5)])
    wrapped: Any = {
        "object": one,
        "result": {"result": one},
        "batches": {"batches": one["resourceSpans"]},
        "trace": {"trace": one},
        "array": [one],
    }[wrap]
    text = json.dumps(wrapped, indent=indent)
    assert core(row(text, tmp_path)) == CORE
    assert core(row("\ufeff" + text + "\r\n\n", tmp_path)) == CORE
    assert len(rows(text + "\n" + text, tmp_path)) == 2
    assert len(rows(text + text, tmp_path)) == 2


def test_three_signals_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    log = '{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"hi"}}]}]}]}\n'
    metric = '{"resourceMetrics":[{"scopeMetrics":[]}]}\n'
    path.write_text(log + line(span()) + metric + metric + line(span()))
    result = read(path, tmp_path / "out")
    assert result.n_spans == 2
    assert {(note.kind, note.n) for note in result.notes} == {
        ("other_signal", 1),
        ("other_signal", 2),
    }
    assert {note.text.split(": ")[1] for note in result.notes} == {
        "1 exports of logs not read",
        "2 exports of metrics not read",
    }


def test_only_wanted_events_become_rows(tmp_path: Path) -> None:
    numbered = attributes({"n": 1})
    events = [
        {"name": "first_token", "timeUnixNano": str(T0 + 3), "attributes": numbered},
        {"name": "gen_ai.content.prompt", "attributes": numbered},
        {"name": "first_token"},
    ]
    path = tmp_path / "in.jsonl"
    path.write_text(line(*[span(events=events)] * 5, span()))
    result = read(path, tmp_path / "out")
    frame = pl.concat([pl.read_parquet(file) for file in result.event_files])
    assert frame.columns == list(event_schema(VOCABULARY))
    ids = {"trace_id": TRACE, "span_id": SPAN}
    first = ids | {"time_ns": T0 + 3, "name": "first_token", "n": 1}
    bare = ids | {"time_ns": None, "name": "first_token", "n": None}
    assert rows_of(result.event_files) == sorted([first, bare] * 5, key=repr)


def test_no_text_of_prompts_gets_through(tmp_path: Path) -> None:
    secret = "TheSecretPrompt"
    made = span(whole=1, events=[{"name": secret, "attributes": []}])
    for key in ("gen_ai.prompt", "gen_ai.input.messages", "llm.input_messages.0.content"):
        made["attributes"].append({"key": key, "value": {"stringValue": secret}})
    made["status"] = {"code": 2, "message": secret}
    made["attributes"].append({"key": "wholes", "value": {"stringValue": secret}})
    path = tmp_path / "in.jsonl"
    path.write_text(line(*[made] * 9, resource={"process.command_line": secret}))
    out = tmp_path / "out"
    result = read(path, out)
    assert result.n_spans == 9
    for file in [*result.span_files, *result.event_files]:
        assert secret not in repr(pl.read_parquet(file).to_dicts())
        assert secret.encode() not in file.read_bytes()
    assert all(secret not in note.text for note in result.notes)


@pytest.mark.parametrize(
    "bad",
    [
        '{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"',
        "2026-01-01 INFO not JSON at all",
        '{"resourceSpans":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"x":' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"resourceSpans":[{"scopeSpans":[{"spans":[{"kind":' + "9" * 6000 + "}]}]}]}",
    ],
)
def test_a_bad_line_is_noted_with_its_place_and_the_others_count(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(line(span()) + "\n" + bad + "\n" + line(span()))
    result = read(path, tmp_path / "out")
    assert result.n_spans == 2
    (note,) = result.notes
    assert (note.kind, note.n) == ("skipped_lines", 1)
    assert note.text.startswith(f"{path}:3: ")
    assert "\n" not in note.text


@pytest.mark.parametrize(
    "odd",
    [
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}],"more":[NaN,Infinity]}\n',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s,{"name":"\xff\xfe"}]}]}]}\n',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s,{"name":"\\ud800"}]}]}]}\n',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s,7,null,{"traceId":5,"kind":{}}]}]}]}\n',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s],"scope":7}],"resource":[]},8]}\n',
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[%s]}]}],"resourceLogs":5}\n',
    ],
)
def test_an_oddity_costs_no_other_span_of_its_line(tmp_path: Path, odd: bytes) -> None:
    good = json.dumps(span(whole=5)).encode()
    found = rows(odd % good, tmp_path)
    assert [one["whole"] for one in found] == [5]


def test_text_that_is_not_unicode_is_repaired(tmp_path: Path) -> None:
    text = line(span("ok")).encode().replace(b'"ok"', b'"o\xffk"')
    path = tmp_path / "in.jsonl"
    path.write_bytes(text)
    result = read(path, tmp_path / "out")
    assert [one["name"] for one in rows_of(result.span_files)] == ["o\ufffdk"]
    assert [note.kind for note in result.notes] == ["repaired_text"]
    assert row(line(span("\ud800")), tmp_path)["name"] == "\ufffd" * 3


def test_spans_without_usable_ids_are_counted_out(tmp_path: Path) -> None:
    bad = [span(traceId="!!!"), span(traceId=""), span(traceId="0" * 32), span(spanId="xyz")]
    path = tmp_path / "in.jsonl"
    path.write_text(line(span(), *bad))
    result = read(path, tmp_path / "out")
    assert result.n_spans == 1
    assert [(note.kind, note.n) for note in result.notes] == [("unusable_spans", 4)]
    path.write_text(line(*bad))
    with pytest.raises(InputError, match="none of its 4 spans has a usable trace id"):
        read(path, tmp_path / "out2")


def test_duplicates_of_one_file_are_kept_for_the_dialects(tmp_path: Path) -> None:
    assert len(rows(line(span(), span()), tmp_path)) == 2


def test_many_shapes_and_origins(tmp_path: Path) -> None:
    """Every span a shape of its own, every line another resource: the slow way, same rows."""
    lines = "".join(
        line(span(whole=i, **{f"undeclared_{i}": 1}), resource={"service.name": f"s{i}"})
        for i in range(3000)
    )
    found = rows(lines, tmp_path)
    pairs = {(one["whole"], one["resource.service.name"]) for one in found}
    assert pairs == {(i, f"s{i}") for i in range(3000)}
