"""Zipkin's JSON: its fields, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.errors import InputError
from tokenlag.read import cutting

from tests.read.otlp import Json, read, row, rows, rows_of, told_or_read

T_US = 1_795_980_000_000_000


def zipkin(**changes: Any) -> Json:
    made: Json = {
        "traceId": "ef86c83c0a05a6d6",
        "parentId": "a1",
        "id": "ecc00062ceef4bf0",
        "kind": "SERVER",
        "name": "get /content",
        "timestamp": T_US,
        "duration": 20,
        "localEndpoint": {"serviceName": "content", "ipv4": "192.0.2.1"},
        "tags": {"whole": "7", "number": "72.5", "truth": "true", "slots": "4", "other": "x"},
        "annotations": [
            {"timestamp": T_US + 1, "value": "first_token"},
            {"timestamp": T_US + 2, "value": '"first_token": {"n": 3}'},
            {"timestamp": T_US + 3, "value": '"first_token": {broken}'},
        ],
    }
    return {key: value for key, value in (made | changes).items() if value is not None}


@pytest.mark.parametrize("wrap", [lambda one: [one], lambda one: [[one], []], lambda one: one])
@pytest.mark.parametrize("indent", [None, 1])
def test_fields(wrap: Any, indent: int | None, tmp_path: Path) -> None:
    made = row(json.dumps(wrap(zipkin()), indent=indent), tmp_path)
    expected = {
        "trace_id": "0" * 16 + "ef86c83c0a05a6d6",
        "span_id": "ecc00062ceef4bf0",
        "parent_id": "00000000000000a1",
        "name": "get /content",
        "kind": 2,
        "start_ns": T_US * 1000,
        "end_ns": (T_US + 20) * 1000,
        "status_code": 0,
        "whole": 7,
        "number": 72.5,
        "truth": True,
        "resource.service.name": "content",
        "resource.slots": 4,
    }
    assert {key: made[key] for key in expected} == expected


def test_annotations_are_events(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(json.dumps([zipkin()]))
    events = rows_of(read(path, tmp_path / "out").event_files)
    assert [(one["time_ns"], one["n"]) for one in events] == [
        ((T_US + 1) * 1000, None),
        ((T_US + 2) * 1000, 3),
    ]


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ({"error": "no answer"}, 2),
        ({"error": "false"}, 0),
        ({"otel.status_code": "OK"}, 1),
        ({"otel.status_code": "ERROR", "error": "x"}, 2),
        (None, 0),
    ],
)
def test_status(tags: Any, code: int, tmp_path: Path) -> None:
    assert row(json.dumps([zipkin(tags=tags)]), tmp_path)["status_code"] == code


def test_both_sides_of_a_call_may_share_an_id(tmp_path: Path) -> None:
    text = json.dumps([zipkin(kind="CLIENT"), zipkin(shared=True, name="b")])
    assert sorted(one["kind"] for one in rows(text, tmp_path)) == [2, 3]


def test_what_is_missing_is_absent(tmp_path: Path) -> None:
    bare = {"traceId": "a" * 32, "id": "b" * 16, "annotations": []}
    made = row(json.dumps([bare]), tmp_path)
    held = {key for key, value in made.items() if value is not None}
    assert held == {"source", "trace_id", "span_id", "kind", "status_code"}


def test_odd_spans_are_counted_and_the_rest_kept(tmp_path: Path) -> None:
    path = tmp_path / "a"
    odd = [zipkin(timestamp="soon"), zipkin(tags={"whole": 7, "list": [1]}), 3, zipkin(id="?")]
    path.write_text(json.dumps([zipkin(), *odd]))
    result = read(path, tmp_path / "out")
    assert [one["whole"] for one in rows_of(result.span_files)] == [7, 7]
    assert [(note.kind, note.n) for note in result.notes] == [("unusable_spans", 3)]


def test_a_large_list_is_cut_and_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "BLOCK_BYTES", 2000)
    path = tmp_path / "a.txt"
    path.write_text(json.dumps([zipkin(id=f"{i + 1:x}") for i in range(60)], indent=1))
    for n_workers in (0, 2):
        result = read(path, tmp_path / f"out{n_workers}", n_workers=n_workers)
        assert (result.n_spans, result.notes) == (60, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"traceId":"1","id":"2","localEndpoint":{', "cut off"),
        ('[{"traceId":"1","id":"2","localEndpoint":1 2}]', "not readable: not JSON"),
        ('[{"traceId":"1","id":"?","localEndpoint":{}}]', "usable trace id"),
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
    text = bytearray(json.dumps([zipkin(), zipkin(id="5")]).encode())
    for _ in range(data.draw(st.integers(1, 5))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    told, n_spans = told_or_read(bytes(text))
    assert "\n" not in told
    assert bool(told) != bool(n_spans)
