"""OTLP protobuf: framings, the fast way against the decoder, and what is damaged."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from tokenlag.errors import InputError
from tokenlag.read import cutting
from tokenlag.read.jobs import SpanReader
from tokenlag.read.messages import Job, Report, Setup
from tokenlag.read.sources import otlp_proto, proto_frames, proto_wire
from tokenlag.read.sources.proto_frames import BE32, MESSAGE, VARINT

from tests.read.formats import be32, delimited, proto, wrapped
from tests.read.otlp import SPAN, TRACE, VOCABULARY, Json, export, read, rows_of, span, told_or_read
from tests.read.test_same_rows import RESOURCE, spans

SOME = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def of(n: int) -> list[Json]:
    return [span(f"s{i}", spanId=f"{i + 1:016x}", whole=i, text="ä") for i in range(n)]


def rows_in(data: bytes, framing: str) -> tuple[list[Json], Report]:
    """The rows of a block, without those columns that are NULL."""
    with tempfile.TemporaryDirectory() as folder:
        reader = SpanReader(Setup.of(Path(folder), "0", VOCABULARY))
        job = Job("a", n_payload=len(data), source="otlp_proto", framing=framing)
        report = reader.run(job, data)
        found = rows_of([Path(file) for file in reader.finish().span_files])
        kept = [{key: value for key, value in row.items() if value is not None} for row in found]
    return sorted(kept, key=lambda row: repr(sorted(row.items()))), report


def refuse(*_: Any) -> Any:
    raise AssertionError("the decoder was not to be needed")


@SOME
@given(st.lists(spans(), min_size=1, max_size=60), st.booleans())
def test_the_fast_way_gives_what_the_decoder_gives(made: list[Json], are_steps: bool) -> None:
    half = len(made) // 2
    data = be32(proto(made[:half], RESOURCE), proto(made[half:], RESOURCE | {"slots": 7}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proto_wire, "FEW_MESSAGES", 1 if are_steps else 10**6)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(otlp_proto.OtlpProtoReader, "_read_one", refuse)
            inner.setattr(otlp_proto.TracesData, "FromString", refuse, raising=False)
            if half:  # a scope without spans is for the decoder
                fast, report = rows_in(data, BE32)
            else:
                fast, report = rows_in(be32(proto(made, RESOURCE)), BE32)
                data = be32(proto(made, RESOURCE))
        patch.setattr(otlp_proto.OtlpProtoReader, "_read_fast", lambda *_: False)
        slow, other = rows_in(data, BE32)
    assert fast == slow
    assert report.losses == other.losses
    assert report.seen.n_spans == other.seen.n_spans == len(made)


ODD_VALUES: dict[str, Any] = {
    "an integer as text": ({"stringValue": "17"}, 17),
    "an integer as a whole double": ({"doubleValue": 4.0}, 4),
    "text that is no integer": ({"stringValue": "many"}, None),
    "bytes": ({"bytesValue": "AAA="}, None),
}


@pytest.mark.parametrize("case", ODD_VALUES)
def test_values_of_another_type_are_converted(case: str) -> None:
    value, expected = ODD_VALUES[case]
    found, report = rows_in(proto([span(whole=value), *of(40)], RESOURCE), MESSAGE)
    assert [row.get("whole") for row in found if row["name"] == "a"] == [expected]
    assert report.losses.unconvertible == ({"whole": 1} if case.startswith("text") else {})


def built(**changes: Any) -> TracesData:
    traces = TracesData()
    made = traces.resource_spans.add().scope_spans.add().spans.add()
    made.trace_id, made.span_id = bytes.fromhex(TRACE), bytes.fromhex(SPAN)
    made.name, made.start_time_unix_nano, made.end_time_unix_nano = "a", 5, 9
    for key, value in changes.items():
        setattr(made, key, value)
    return traces


def test_ids_of_another_length_are_no_ids() -> None:
    for changes, n_rows in (({"trace_id": b"abc"}, 0), ({"parent_span_id": b"abc"}, 1)):
        both = built(**changes)
        both.MergeFrom(built())
        found, report = rows_in(both.SerializeToString(), MESSAGE)
        assert len(found) == n_rows + 1
        assert report.losses.n_without_ids == 1 - n_rows
        assert not any("parent_id" in row for row in found)


def test_unknown_enums_and_absurd_times_are_absent() -> None:
    both = built(kind=9, start_time_unix_nano=2**64 - 1)
    both.resource_spans[0].scope_spans[0].spans[0].status.code = 7
    (row,), report = rows_in(both.SerializeToString(), MESSAGE)
    assert not {"kind", "status_code", "start_ns"} & row.keys()
    assert report.losses.n_without_times == 1


def test_what_comes_twice_counts_as_its_last() -> None:
    data = built().SerializeToString()
    inner = built().resource_spans[0].scope_spans[0].spans[0]
    body = inner.SerializeToString() + b"\x2a\x01b"  # the name again
    scope = b"\x12" + bytes([len(body)]) + body
    block = b"\x12" + bytes([len(scope)]) + scope
    twice = b"\x0a" + bytes([len(block)]) + block
    found, _ = rows_in(data + twice, MESSAGE)
    assert [row["name"] for row in found] == ["a", "b"]
    doubled = [span(whole=1), *of(30)]
    doubled[0]["attributes"] *= 2
    doubled[0]["attributes"][1] = {"key": "whole", "value": {"intValue": "2"}}
    found, _ = rows_in(proto(doubled, RESOURCE), MESSAGE)
    assert [row["whole"] for row in found if row["name"] == "a"] == [2]


def test_unknown_fields_are_passed_over() -> None:
    body = built().resource_spans[0].scope_spans[0].spans[0].SerializeToString()
    body += b"\xfa\x3f\x01x" + b"\xf8\xff\x0f\x05" + b"\xdd\x07abcd"  # 1023, 32767, and 123 as I32
    scope = b"\x12" + bytes([len(body)]) + body
    block = b"\x12" + bytes([len(scope)]) + scope
    (row,), report = rows_in(b"\x0a" + bytes([len(block)]) + block, MESSAGE)
    assert (row["name"], report.n_bad) == ("a", 0)


def test_text_that_is_not_utf8_is_repaired_and_told() -> None:
    data = proto([span(text="ABCD"), *of(30)], RESOURCE).replace(b"ABCD", b"AB\xff\xfe")
    found, report = rows_in(data, MESSAGE)
    assert [row["text"] for row in found if row["name"] == "a"] == ["AB\ufffd\ufffd"]
    assert report.seen.n_repaired_utf8 == 1


def compressed(one: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(one)


FRAMINGS = {
    "one message": lambda parts: b"".join(parts),
    "lengths": lambda parts: be32(*parts),
    "empty messages": lambda parts: be32(b"", *parts, b""),
    "varints": lambda parts: delimited(*parts),
    "messages compressed each": lambda parts: be32(*map(compressed, parts)),
    "JSON compressed each": lambda parts: be32(
        *(compressed(json.dumps(export(of(3), resource=RESOURCE)).encode()) for _ in parts[:1])
    ),
    "Tempo's wrapper": lambda parts: wrapped(b"".join(parts)),
}


@pytest.mark.parametrize("packing", ["plain", "gzip", "zstd", "stdin"])
@pytest.mark.parametrize("framing", FRAMINGS)
def test_framings_and_compressions(
    framing: str, packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = FRAMINGS[framing]([proto(of(3)[i : i + 1], RESOURCE) for i in range(3)])
    monkeypatch.setattr(cutting, "BLOCK_BYTES", 100)
    path: Path | str = tmp_path / "whatever.txt"
    if packing == "stdin":
        path = "-"
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    else:
        pack = {"plain": bytes, "gzip": gzip.compress, "zstd": compressed}[packing]
        Path(path).write_bytes(pack(data))
    result = read(path, tmp_path / "out")
    assert (result.n_spans, result.notes) == (3, [])
    found = rows_of(result.span_files)
    assert [row["whole"] for row in found] == [0, 1, 2]
    assert {row["resource.slots"] for row in found} == {32}


def test_two_processes_share_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BLOCK_BYTES", 1000)
    path = tmp_path / "a"
    path.write_bytes(be32(*(proto(of(5), RESOURCE) for _ in range(40))))
    result = read(path, tmp_path / "out", n_workers=2)
    assert (result.n_spans, result.notes) == (200, [])
    alone = read(path, tmp_path / "alone")
    assert rows_of(result.span_files) == rows_of(alone.span_files)


def only_error(path: Path, out: Path) -> str:
    with pytest.raises(InputError) as caught:
        read(path, out)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (be32(proto(of(1), RESOURCE))[:-3], "the last message is cut off"),
        (proto(of(1), RESOURCE)[:-3], "the last message is cut off"),
        (be32(proto(of(1), RESOURCE))[:4] + b"", "binary"),
        (b"\x7f\xff\xff\xff" + proto(of(1), RESOURCE), "2,047 MB is announced, and 128 MB is"),
        (b"\xff\xff\xff\xff\xff\x01" + proto(of(1), RESOURCE), "MB is announced, and 128 MB is"),
        (be32(proto(of(1), RESOURCE).replace(b"\x0a\x10", b"\x0a\x7f")), "byte 4: "),
        (be32(compressed(b"x" * 200_000_000)), "more than 128 MB when decompressed"),
        (be32(compressed(proto(of(1), RESOURCE))[:-5]), "compression is damaged"),
    ],
)
def test_damage_is_told_with_its_place(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pb"
    path.write_bytes(data)
    told = only_error(path, tmp_path / "out")
    assert said in told
    assert told.startswith(str(path))


def signals() -> dict[str, bytes]:
    logs = LogsData()
    block = logs.resource_logs.add()
    block.resource.attributes.add(key="service.name").value.string_value = "a"
    block.scope_logs.add().log_records.add(time_unix_nano=5, severity_number=9)
    metrics = MetricsData()
    scope = metrics.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="sixteen.letters.", description="x").gauge.data_points.add(as_int=1)
    return {"logs": logs.SerializeToString(), "metrics": metrics.SerializeToString()}


@pytest.mark.parametrize("signal", ["logs", "metrics"])
def test_other_signals_are_counted_and_not_read(signal: str, tmp_path: Path) -> None:
    other = signals()[signal]
    path = tmp_path / "a"
    path.write_bytes(other)
    assert f"{signal} only: 0 spans" in only_error(path, tmp_path / "a1")
    path.write_bytes(be32(other, proto(of(2), RESOURCE), other))
    result = read(path, tmp_path / "a2")
    assert result.n_spans == 2
    (note,) = result.notes
    assert (note.kind, note.n) == ("other_signal", 2)


@SOME
@given(st.data(), st.sampled_from([BE32, VARINT]))
def test_cutting_the_file_off_keeps_the_whole_messages(data: st.DataObject, framing: str) -> None:
    parts = [proto(of(40)[i : i + 2], RESOURCE) for i in range(0, 40, 2)]
    frame = be32 if framing == BE32 else delimited
    whole = frame(*parts)
    n = data.draw(st.integers(len(frame(parts[0])), len(whole)))
    n_whole = sum(len(frame(*parts[: i + 1])) <= n for i in range(len(parts)))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "BLOCK_BYTES", 700)
        path = Path(folder) / "a"
        path.write_bytes(whole[:n])
        result = read(path, Path(folder) / "out")
    assert result.n_spans == 2 * n_whole
    is_cut = n not in {len(frame(*parts[: i + 1])) for i in range(len(parts))}
    assert [note.kind for note in result.notes] == (["cut_file"] if is_cut else [])


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from([MESSAGE, BE32, VARINT]), st.booleans())
def test_damage_never_raises_anything_else(
    data: st.DataObject, framing: str, are_steps: bool
) -> None:
    parts = [proto(of(6), RESOURCE), proto(of(3), RESOURCE)]
    joined = {MESSAGE: b"".join(parts), BE32: be32(*parts), VARINT: delimited(*parts)}[framing]
    text = bytearray(joined)
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proto_wire, "FEW_MESSAGES", 1 if are_steps else 10**6)
        told, n_spans = told_or_read(bytes(text))
    assert "\n" not in told
    assert bool(told) != bool(n_spans)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60)), st.sampled_from([BE32, VARINT]), st.integers(1, 99))
def test_frames_lose_nothing(bodies: list[bytes], framing: str, n_chunk: int) -> None:
    whole = be32(*bodies) if framing == BE32 else delimited(*bodies)
    chunks = [whole[i : i + n_chunk] for i in range(0, len(whole), n_chunk)]
    found = []
    for block in proto_frames.frame_blocks(chunks, framing, 64):
        assert block.broken is None
        assert whole[block.offset :].startswith(block.data)
        found += [block.data[a:b] for a, b in proto_frames.bodies(block.data, framing)]
    assert found == bodies
