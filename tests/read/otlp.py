"""OTLP JSON made by hand, in every spelling, and the rows that reading it gives."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenlag.errors import InputError
from tokenlag.read.reading import ReadResult, read_spans
from tokenlag.read.vocabulary import Vocabulary

TRACE = "5b8efff798038103d269b633813fc60c"
SPAN = "eee19b7ec3c1b174"
T0 = 1_795_980_000_000_000_000

VOCABULARY = Vocabulary(
    span={
        "text": "str",
        "whole": "int",
        "number": "float",
        "truth": "bool",
        "wholes": "int[]",
        "texts": "str[]",
    },
    resource={"service.name": "str", "slots": "int"},
    event_names=frozenset({"first_token"}),
    event={"n": "int"},
)

Json = dict[str, Any]


def shared(*parts: str) -> Path:
    """A path of the shared folder; skips the test where there is none."""
    root = Path(__file__).resolve().parents[2]
    base = Path(os.environ.get("TOKENLAG_SHARED", root.parent / "shared"))
    path = base.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no shared folder with {'/'.join(parts)}")
    return path


def any_value(value: Any) -> Json:
    """A Python value as OTLP JSON."""
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [any_value(item) for item in value]}}
    if isinstance(value, dict):
        return value
    return {"stringValue": value}


def attributes(values: dict[str, Any]) -> list[Json]:
    return [{"key": key, "value": any_value(value)} for key, value in values.items()]


def span(name: str = "a", /, **values: Any) -> Json:
    """A span with the keys of `VOCABULARY`; fields in camelCase replace its own."""
    fields = {key: values.pop(key) for key in list(values) if key in FIELDS}
    made = {
        "traceId": TRACE,
        "spanId": SPAN,
        "name": name,
        "kind": 2,
        "startTimeUnixNano": str(T0),
        "endTimeUnixNano": str(T0 + 5),
        "attributes": attributes(values),
        "status": {},
    }
    return {key: value for key, value in (made | fields).items() if value is not ABSENT}


ABSENT = object()
FIELDS = (
    "traceId",
    "spanId",
    "parentSpanId",
    "kind",
    "startTimeUnixNano",
    "endTimeUnixNano",
    "status",
    "events",
    "links",
)


def export(
    spans: Sequence[Any], *, resource: dict[str, Any] | None = None, scope: str | None = "s"
) -> Json:
    scope_spans: Json = {"spans": list(spans)}
    if scope is not None:
        scope_spans["scope"] = {"name": scope}
    block: Json = {"scopeSpans": [scope_spans]}
    if resource is not None:
        block["resource"] = {"attributes": attributes(resource)}
    return {"resourceSpans": [block]}


def line(*spans: Json, **kwargs: Any) -> str:
    return json.dumps(export(spans, **kwargs)) + "\n"


def snake(value: Any) -> Any:
    """The same with snake_case keys, as protobuf's `preserving_proto_field_name` gives."""
    if isinstance(value, list):
        return [snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    keys = {key: "".join("_" + c.lower() if c.isupper() else c for c in key) for key in value}
    return {keys[key]: snake(item) for key, item in value.items()}


def base64_id(hex_id: str) -> str:
    return base64.b64encode(bytes.fromhex(hex_id)).decode()


def read(
    path: Path | str | Sequence[Path | str],
    out_dir: Path,
    vocabulary: Vocabulary = VOCABULARY,
    n_workers: int | None = 0,
) -> ReadResult:
    out_dir.mkdir(parents=True, exist_ok=True)
    paths = [path] if isinstance(path, (str, Path)) else list(path)
    return read_spans(paths, out_dir, vocabulary, n_workers=n_workers)


def told_or_read(text: bytes) -> tuple[str, int]:
    """What reading damaged bytes says, and how many spans it gives; one of both is nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(text)
        try:
            return "", read(path, Path(folder) / "out").n_spans
        except InputError as error:
            return str(error), 0


def rows_of(files: Sequence[Path]) -> list[dict[str, Any]]:
    """All rows, sorted by everything they hold."""
    frame = pl.concat([pl.read_parquet(file) for file in files], how="diagonal")
    return sorted(frame.to_dicts(), key=repr)


def rows(text: str | bytes, tmp_path: Path, vocabulary: Vocabulary = VOCABULARY) -> list[Json]:
    """The rows of a file with this text, without the columns that every row lacks."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return rows_of(read(path, tmp_path / "out", vocabulary).span_files)


def row(text: str | bytes, tmp_path: Path) -> Json:
    (only,) = rows(text, tmp_path)
    return only
