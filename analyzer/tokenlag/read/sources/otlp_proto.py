"""OTLP protobuf: one message, or the stream that the Collector's file exporter writes.

Messages may be compressed one by one (zstd), and hold OTLP JSON, as that exporter makes
them. Tempo's answers in protobuf are taken out of their wrapper. The fast way is
`proto_columns`; a block in which anything is unusual is decoded by the library here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tokenlag.read.messages import Bad, Job, Report, note_bad
from tokenlag.read.sources import proto_frames
from tokenlag.read.sources.otlp_json import OtlpJsonReader, TextError
from tokenlag.read.sources.otlp_types import Event, KeyValue, Link, Resource, Span, Status
from tokenlag.read.sources.proto_columns import Block, ProtoColumns
from tokenlag.read.sources.proto_frames import MAX_MESSAGE_BYTES, ZSTD_MAGIC, FrameError
from tokenlag.read.sources.proto_signal import EMPTY, TRACES, signal_of, unwrapped
from tokenlag.read.sources.proto_values import any_value
from tokenlag.read.sources.proto_wire import UnusualError
from tokenlag.read.sources.sink import Sink
from tokenlag.read.stream import ZSTD_PIECE_BYTES


def open_source(sink: Sink) -> OtlpProtoReader:
    """Returns the reader of this format."""
    return OtlpProtoReader(sink)


class OtlpProtoReader:
    """Reads blocks of messages.

    Args:
        sink: where spans go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._fast = ProtoColumns(sink.vocabulary, sink.losses)
        self._json = OtlpJsonReader(sink.columns, sink.vocabulary.span)

    def read_block(self, data: bytes, job: Job, report: Report) -> None:
        """Puts the spans of whole messages into the sink; notes what is unreadable."""
        messages = list(self._messages(data, job, report))
        report.n_texts += len(messages)
        plain = [(at, body) for at, body in messages if body[:1] != b"{"]
        for at, body in messages:
            if body[:1] == b"{":
                self._read_json(body, job, at, report)
        if plain and not self._read_fast(plain, job, report):
            for at, body in plain:
                self._read_one(body, job, at, report)

    def _messages(self, data: bytes, job: Job, report: Report) -> Iterator[tuple[int, bytes]]:
        """The messages with the offsets of their bodies, decompressed."""
        try:
            for begin, end in proto_frames.bodies(data, job.framing):
                body = data[begin:end] if begin or end < len(data) else data
                if body[:4] == ZSTD_MAGIC:
                    expanded = _expanded(body)
                    if isinstance(expanded, str):
                        note_bad(report, Bad(expanded, byte=job.start + begin))
                        continue
                    body = expanded
                if body:
                    yield job.start + begin, body
        except FrameError as error:
            note_bad(report, Bad(str(error), byte=job.start))

    def _read_json(self, text: bytes, job: Job, at: int, report: Report) -> None:
        try:
            self._json.read(text, job.name, report.seen)
        except TextError as error:
            note_bad(report, Bad(str(error), byte=at))

    def _read_fast(self, messages: list[tuple[int, bytes]], job: Job, report: Report) -> bool:
        """Reads all messages at once, or nothing."""
        lengths = np.array([len(body) for _, body in messages], np.int64)
        ends = np.cumsum(lengths)
        data = messages[0][1] if len(messages) == 1 else b"".join([body for _, body in messages])
        try:
            block = Block(data, ends - lengths, ends)
            n_spans = len(block.spans.owner)
            if n_spans:
                self._sink.add(*self._fast.frames(block, job.name))
        except UnusualError:
            return False
        report.seen.n_exports += len(messages)
        report.seen.n_spans += n_spans
        report.seen.n_repaired_utf8 += block.buffer.is_repaired
        return True

    def _read_one(self, body: bytes, job: Job, at: int, report: Report) -> None:
        """Decodes one message."""
        seen = report.seen
        try:
            body = unwrapped(body)
            signal = signal_of(body)
            if signal not in (TRACES, EMPTY):
                seen.other[signal] = seen.other.get(signal, 0) + 1
                return
            traces = TracesData.FromString(body)
        except (FrameError, DecodeError) as error:
            said = str(error) if isinstance(error, FrameError) else "no OTLP message"
            note_bad(report, Bad(said, byte=at))
            return
        seen.n_exports += 1
        for block in traces.resource_spans:
            held = [KeyValue(one.key, any_value(one.value)) for one in block.resource.attributes]
            for scope_spans in block.scope_spans:
                name = scope_spans.scope.name if scope_spans.HasField("scope") else None
                spans = [_span(span) for span in scope_spans.spans]
                seen.n_spans += len(spans)
                if spans:
                    self._sink.columns.add(job.name, Resource(held), name, spans)


def _span(span: ProtoSpan) -> Span:
    return Span(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        kind=span.kind,
        start_time_unix_nano=span.start_time_unix_nano,
        end_time_unix_nano=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        status=Status(span.status.code),
        events=[
            Event(event.name, event.time_unix_nano, _attributes(event.attributes))
            for event in span.events
        ],
        links=[Link(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
    )


def _attributes(items: object) -> list[KeyValue]:
    return [KeyValue(item.key, any_value(item.value)) for item in items]  # type: ignore[attr-defined]


def _expanded(body: bytes) -> bytes | str:
    """A message that was compressed by itself, or why it cannot be had."""
    import zstandard

    parts, n_bytes = [], 0
    frame = zstandard.ZstdDecompressor().decompressobj()
    try:
        for at in range(0, len(body), ZSTD_PIECE_BYTES):
            part = frame.decompress(body[at : at + ZSTD_PIECE_BYTES])
            n_bytes += len(part)
            if n_bytes > MAX_MESSAGE_BYTES:
                limit = f"{MAX_MESSAGE_BYTES >> 20} MB"
                return f"a message of more than {limit} when decompressed"
            parts.append(part)
            if frame.eof:
                return b"".join(parts)
    except zstandard.ZstdError as error:
        return f"a message whose compression is damaged ({error})"
    return "a message whose compression is damaged (it is cut off)"
