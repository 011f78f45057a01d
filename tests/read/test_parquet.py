"""Parquet: native rows, ClickHouse's columns in their variants, and what is wrong with it."""

from __future__ import annotations

import gzip
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenlag.errors import InputError
from tokenlag.read import parquet_footer, parquet_parts
from tokenlag.read.parquet_footer import read_footer

from tests.read.formats import json_text_frame, pascal_frame, write_native
from tests.read.otlp import T0, VOCABULARY, Json, attributes, read, rows_of, span
from tests.read.test_same_rows import RESOURCE

FEW = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def of(n: int) -> list[Json]:
    event = {"name": "first_token", "timeUnixNano": str(T0 + 1), "attributes": attributes({"n": 3})}
    return [
        span(f"s{i}", spanId=f"{i + 1:016x}", whole=i, texts=["a", "b"], events=[event])
        for i in range(n)
    ]


def native(path: Path, n: int = 5, **changes: pl.Expr) -> pl.DataFrame:
    write_native(path, of(n), RESOURCE, VOCABULARY)
    frame = pl.read_parquet(path).with_columns(**changes)
    frame.write_parquet(path)
    return frame


def test_native_rows_in_order_are_linked(tmp_path: Path) -> None:
    path = tmp_path / "whatever.bin"
    frame = native(path)
    result = read(path, tmp_path / "out")
    assert (result.n_spans, result.notes) == (5, [])
    assert [file.resolve() for file in result.span_files if file.is_symlink()] == [path]
    assert rows_of(result.span_files) == sorted(frame.to_dicts(), key=repr)


REPAIRS: dict[str, tuple[dict[str, pl.Expr], dict[str, Any], list[str]]] = {
    "ids in upper case": ({"trace_id": pl.col("trace_id").str.to_uppercase()}, {}, []),
    "a parent of zeros": ({"parent_id": pl.lit("0" * 16)}, {"parent_id": None}, []),
    "integers as text": ({"whole": pl.col("whole").cast(pl.String)}, {}, []),
    "text that is no integer": (
        {"whole": pl.lit("many")}, {"whole": None}, ["unconvertible_values"]
    ),
    "narrow integers": ({"whole": pl.col("whole").cast(pl.Int16)}, {}, []),
    "no start": ({"start_ns": pl.lit(0)}, {"start_ns": None}, ["untimed_spans"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REPAIRS)
def test_native_rows_that_are_not_are_repaired(case: str, tmp_path: Path) -> None:
    changes, expected, kinds = REPAIRS[case]
    path = tmp_path / "a.parquet"
    before = native(path).to_dicts()
    native(path, **changes)
    result = read(path, tmp_path / "out")
    assert not any(file.is_symlink() for file in result.span_files)
    assert rows_of(result.span_files) == sorted((row | expected for row in before), key=repr)
    assert [note.kind for note in result.notes] == kinds


def test_native_rows_without_ids_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    is_first = pl.col("name") == "s0"
    native(path, span_id=pl.when(is_first).then(pl.lit("?")).otherwise(pl.col("span_id")))
    result = read(path, tmp_path / "out")
    assert (result.n_spans, [(note.kind, note.n) for note in result.notes]) == (
        4,
        [("unusable_spans", 1)],
    )


def test_columns_of_another_version_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    frame = native(path, **{"tokenlag.unheard_of": pl.lit("x")}).drop("texts", "truth")
    frame.write_parquet(path)
    found = rows_of(read(path, tmp_path / "out").span_files)
    assert [row["whole"] for row in found] == [0, 1, 2, 3, 4]
    assert {row["texts"] for row in found} == {None}


def test_native_events_are_read_beside_their_spans(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    native(folder / "spans.parquet")
    event = {"trace_id": "a" * 32, "span_id": "b" * 16, "time_ns": 5, "name": "first_token", "n": 3}
    pl.DataFrame([event]).write_parquet(folder / "events.parquet")
    result = read(folder, tmp_path / "out")
    assert (result.n_spans, result.problems) == (5, [])
    assert rows_of(result.event_files) == [event]


def variants() -> dict[str, pl.DataFrame]:
    base = pascal_frame(of(4), RESOURCE)
    texts = ["TraceId", "SpanId", "SpanName", "SpanKind", "ServiceName", "StatusCode"]
    return {
        "as the exporter has it": base,
        "text as bytes": base.with_columns(pl.col(*texts).cast(pl.Binary)),
        "old enum names": base.with_columns(
            pl.concat_str(pl.lit("SPAN_KIND_"), pl.col("SpanKind").str.to_uppercase()).alias(
                "SpanKind"
            ),
            pl.lit("STATUS_CODE_UNSET").alias("StatusCode"),
        ),
        "enums as numbers": base.with_columns(
            pl.lit(2, pl.Int8).alias("SpanKind"), pl.lit(0, pl.Int8).alias("StatusCode")
        ),
        "times with a zone": base.with_columns(pl.col("Timestamp").dt.replace_time_zone("UTC")),
        "times as integers": base.with_columns(pl.col("Timestamp").dt.epoch("ns")),
        "times as text": base.with_columns(pl.col("Timestamp").dt.to_string("%FT%T%.f")),
        "an end instead of a duration": base.with_columns(
            (pl.col("Timestamp") + pl.duration(nanoseconds=5)).alias("EndTimestamp")
        ).drop("Duration"),
        "ids as bytes": base.with_columns(
            pl.col("TraceId").str.decode("hex"), pl.col("SpanId").str.decode("hex")
        ),
        "the attributes as JSON": json_text_frame(of(4), RESOURCE),
        "names in snake case": base.rename(
            {
                "TraceId": "trace_id",
                "SpanId": "span_id",
                "SpanName": "span_name",
                "SpanAttributes": "span_attributes",
            }
        ),
        "a name of its own for the service": base.with_columns(
            pl.lit([], base.schema["ResourceAttributes"]).alias("ResourceAttributes")
        ),
    }


@pytest.mark.parametrize("case", variants())
def test_variants_of_clickhouses_columns(case: str, tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    variants()[case].write_parquet(path)
    result = read(path, tmp_path / "out")
    assert (result.n_spans, result.notes) == (4, [])
    for index, row in enumerate(rows_of(result.span_files)):
        expected = {
            "span_id": f"{index + 1:016x}",
            "name": f"s{index}",
            "kind": 2,
            "status_code": 0,
            "start_ns": T0,
            "end_ns": T0 + 5,
            "whole": index,
            "texts": ["a", "b"],
            "resource.service.name": "serve",
        }
        assert {key: row[key] for key in expected} == expected
    assert [row["n"] for row in rows_of(result.event_files)] == [3] * 4


def test_microseconds_are_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a"
    frame = pascal_frame(of(1), RESOURCE)
    frame.with_columns(pl.col("Timestamp").cast(pl.Datetime("us"))).write_parquet(path)
    (row,) = rows_of(read(path, tmp_path / "out").span_files)
    assert (row["start_ns"], row["end_ns"]) == (T0, T0 + 5)


def test_attributes_of_another_type_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a"
    for frame in (pascal_frame, json_text_frame):
        frame([span(whole="many", spanId="1" * 16)], RESOURCE).write_parquet(path)
        result = read(path, tmp_path / frame.__name__)
        assert [(note.kind, note.n) for note in result.notes] == [("unconvertible_values", 1)]


@pytest.mark.parametrize("n_workers", [0, 2])
def test_parts_are_shared_out_and_lose_nothing(
    n_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_parts, "ROWS_PER_PART", 7)
    path = tmp_path / "a"
    pascal_frame(of(50), RESOURCE).write_parquet(path, row_group_size=20)
    parts = parquet_parts.parquet_parts(path, "a")
    assert [end - start for start, end in parts if end - start > 14] == []
    assert sum(end - start for start, end in parts) == 50
    result = read(path, tmp_path / "out", n_workers=n_workers)
    assert sorted(row["whole"] for row in rows_of(result.span_files)) == list(range(50))


@pytest.mark.parametrize("packing", ["stdin", "gzip"])
def test_what_cannot_be_sought_is_kept_in_the_work_folder(
    packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native(tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    path: str | Path = "-"
    if packing == "stdin":
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    else:
        path = tmp_path / "b"
        path.write_bytes(gzip.compress(data))
    assert read(path, tmp_path / "out").n_spans == 5


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_parts, "MAX_SPOOLED_BYTES", 1_000_000)
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"PAR1" + bytes(30_000_000)))
    assert "of Parquet when decompressed" in only_error(path, tmp_path / "out")
    assert sum(file.stat().st_size for file in (tmp_path / "out").iterdir()) < 3_000_000


def only_error(path: Path, out: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path, out)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def test_parquet_of_something_else_names_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "a"
    pl.DataFrame({"batch": [1], "latency": [2.0]}).write_parquet(path)
    assert "not of spans (columns batch, latency)" in only_error(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-20], "cut off: it has no footer"),
        (lambda data: data[: len(data) // 2], "cut off: it has no footer"),
        (lambda data: data[:4], "cut off: it has no footer"),
        (lambda data: data[:-4] + b"PARE", "encrypted"),
        (lambda data: data[:-8] + b"\xff\xff\xff\x7fPAR1", "longer than the file"),
        (lambda data: data[:-8] + b"\x05\0\0\0PAR1", "footer makes no sense"),
    ],
)
def test_damaged_ends_are_told(change: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a"
    native(path)
    path.write_bytes(change(path.read_bytes()))
    assert said in only_error(path, tmp_path / "out")


def test_a_footer_that_lists_without_end_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    footer = b"\x15\x02\x19\xfc\xff\xff\xff\xff\x0f"  # a list of 4 billion
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert "footer makes no sense" in only_error(path, tmp_path / "out")


def test_the_footer_is_what_the_library_says(tmp_path: Path) -> None:
    path = tmp_path / "a"
    frame = pascal_frame(of(50), RESOURCE)
    frame.write_parquet(path, row_group_size=20)
    footer = read_footer(path)
    assert list(footer.columns) == frame.columns
    assert [n_rows for n_rows, _ in footer.groups] == [20, 20, 10]
    assert footer.n_rows == 50
    assert parquet_footer.MAX_FOOTER_BYTES > 10_000


@FEW
@given(st.data(), st.booleans())
def test_damage_never_raises_anything_else(data: st.DataObject, is_native: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        if is_native:
            native(path, 3)
        else:
            pascal_frame(of(3), RESOURCE).write_parquet(path)
        text = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            text[data.draw(st.integers(4, len(text) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(text))
        told = ""
        try:
            read(path, Path(folder) / "out")
        except InputError as error:
            told = str(error)
    assert "\n" not in told
