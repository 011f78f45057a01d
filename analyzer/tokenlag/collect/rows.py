"""Exports as they come over the wire to frames of span rows; nothing undeclared is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tokenlag.read.messages import Job, Report
from tokenlag.read.sources import OTLP_PROTO
from tokenlag.read.sources.otlp_columns import Columns
from tokenlag.read.sources.otlp_json import OtlpJsonReader, TextError
from tokenlag.read.sources.otlp_proto import OtlpProtoReader
from tokenlag.read.sources.proto_frames import MESSAGE
from tokenlag.read.sources.sink import Sink
from tokenlag.read.vocabulary import Vocabulary

if TYPE_CHECKING:
    import polars as pl

NAME: Final = "collect"  # the `source` of rows that came over the network


class RefusedError(ValueError):
    """An export that can never be taken; the message says why."""


@dataclass(frozen=True)
class Export:
    """One export that was looked at.

    Args:
        body: its bytes, decompressed.
        is_json: OTLP JSON, else protobuf.
        n_spans: in it.
    """

    body: bytes
    is_json: bool
    n_spans: int


class _SpanOnly(msgspec.Struct):
    """A span of which nothing is wanted but that it is there."""


class _Scope(msgspec.Struct, rename="camel"):
    spans: list[_SpanOnly] = []


class _Resource(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] = []


class _Json(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource]


_COUNT: Final = msgspec.json.Decoder(_Json)


def looked_at(body: bytes, *, is_json: bool) -> Export:
    """Counts an export's spans.

    Raises:
        RefusedError: it is no export of traces.
    """
    if is_json:
        try:
            parsed = _COUNT.decode(body)
        except (msgspec.DecodeError, RecursionError) as error:
            raise RefusedError(f"no OTLP JSON export of traces: {error}") from None
        n_spans = sum(len(s.spans) for r in parsed.resource_spans for s in r.scope_spans)
        return Export(body, is_json, n_spans)
    message = ExportTraceServiceRequest()
    try:
        message.ParseFromString(body)
    except DecodeError:
        raise RefusedError("no OTLP protobuf export of traces") from None
    n_spans = sum(len(s.spans) for r in message.resource_spans for s in r.scope_spans)
    return Export(body, is_json, n_spans)


class Rows:
    """Turns exports into one frame of span rows and one of event rows.

    Args:
        vocabulary: the attributes that are kept.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._spans: list[pl.DataFrame] = []
        self._events: list[pl.DataFrame] = []
        self._columns = Columns(vocabulary, self._add)
        sink = Sink(vocabulary, self._columns, self._add, _no_link)
        self._proto = OtlpProtoReader(sink)
        self._json = OtlpJsonReader(self._columns, vocabulary.span)
        self._report = Report()

    def add(self, export: Export) -> None:
        """Takes the spans of one export."""
        if export.is_json:
            try:
                self._json.read(export.body, NAME, self._report.seen)
            except TextError:  # what came before the fault counts
                return
        else:
            job = Job(NAME, n_payload=len(export.body), source=OTLP_PROTO, framing=MESSAGE)
            self._proto.read_block(export.body, job, self._report)

    def take(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the rows of what was added since the last call."""
        import polars as pl

        self._columns.flush()
        spans, events = self._spans, self._events
        self._spans, self._events = [], []
        return (
            pl.concat(spans, how="diagonal") if spans else pl.DataFrame(),
            pl.concat(events, how="diagonal") if events else pl.DataFrame(),
        )

    def _add(self, spans: pl.DataFrame, events: pl.DataFrame) -> None:
        if spans.height:
            self._spans.append(spans)
        if events.height:
            self._events.append(events)


def _no_link(path: str, n_rows: int, *, is_events: bool) -> None:
    raise AssertionError(f"a file over the network: {path}, {n_rows}, {is_events}")
