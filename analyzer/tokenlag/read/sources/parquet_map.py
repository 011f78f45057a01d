"""Span rows out of columns as ClickHouse's `otel_traces` has them, and otlp2parquet.

Attributes are maps of text to text, or JSON objects as text. Both become a long table of
row, key and text, of which the declared keys are kept, and that one column for each key.
Text is turned into the type that a key has, as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import polars as pl

from tokenlag.read.parquet_parts import PASCAL_EVENTS, PASCAL_LINKS, PASCAL_SPAN, folded
from tokenlag.read.sources.otlp_series import (
    KIND_NAMES,
    SPAN_ID_BYTES,
    STATUS_NAMES,
    TRACE_ID_BYTES,
    enums,
    hex_ids,
)
from tokenlag.read.sources.otlp_types import AnyValue
from tokenlag.read.sources.otlp_values import CONVERTERS, is_empty
from tokenlag.read.sources.plain_values import plain_value
from tokenlag.read.sources.sink import Sink
from tokenlag.read.spans import dtype
from tokenlag.read.vocabulary import LINK, LINK_SPAN_ID, LINK_TRACE_ID, MAX_LINKS, RESOURCE_PREFIX

_SERVICE_KEY: Final = "service.name"
_ENTRIES: Final = pl.List(pl.Struct({"key": pl.String, "value": pl.String}))


class MappedRows:
    """Turns batches of one file into frames.

    Args:
        schema: the file's.
        sink: whose vocabulary and losses.
    """

    def __init__(self, schema: Mapping[str, pl.DataType], sink: Sink) -> None:
        self._sink = sink
        wanted = (*PASCAL_SPAN, *PASCAL_EVENTS) if sink.vocabulary.event_names else PASCAL_SPAN
        wanted = (*wanted, *PASCAL_LINKS) if sink.vocabulary.link_names else wanted
        names = {folded(name): name for name in schema}
        self._names = {one: names[one] for one in wanted if one in names}
        self.columns = list(self._names.values())

    def frames(self, batch: pl.DataFrame, source: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the span rows and event rows of a batch."""
        there = {one: batch[name] for one, name in self._names.items()}
        n_rows, losses, vocabulary = batch.height, self._sink.losses, self._sink.vocabulary
        start, end = _times_of(there)
        trace_ids = _ids("trace_id", there["traceid"], TRACE_ID_BYTES)
        span_ids = _ids("span_id", there["spanid"], SPAN_ID_BYTES)
        columns = [
            pl.Series("source", [source]).new_from_index(0, n_rows),
            trace_ids,
            span_ids,
            _text("name", there["spanname"]).fill_null(""),
            start,
            end,
        ]
        if "parentspanid" in there:
            columns.append(_ids("parent_id", there["parentspanid"], SPAN_ID_BYTES))
        for name, one, names in (
            ("kind", "spankind", KIND_NAMES),
            ("status_code", "statuscode", STATUS_NAMES),
        ):
            if one in there:
                columns.append(_codes(name, there[one], names))
        if "scopename" in there:
            columns.append(_text("scope", there["scopename"]))
        found = self._attributes(there, "spanattributes", vocabulary.span, n_rows)
        columns += found.values()
        resource = self._attributes(there, "resourceattributes", vocabulary.resource, n_rows)
        if _SERVICE_KEY in vocabulary.resource and "servicename" in there:
            told = _text(_SERVICE_KEY, there["servicename"])
            told = told.set(told == "", None)
            known = resource.get(_SERVICE_KEY)
            resource[_SERVICE_KEY] = (
                told if known is None else known.zip_with(known.is_not_null(), told)
            )
        columns += [column.alias(RESOURCE_PREFIX + key) for key, column in resource.items()]
        frame = pl.DataFrame(columns)
        events = self._events(there, trace_ids, span_ids)
        links = self._links(there, frame.select("trace_id", "span_id", "start_ns", "name"))
        if links.height:
            events = pl.concat([events, links], how="diagonal") if events.height else links
        good = trace_ids.is_not_null() & span_ids.is_not_null()
        if not good.all():
            losses.n_without_ids += n_rows - int(good.sum())
            frame = frame.filter(good)
        timed = frame["start_ns"].is_not_null() & frame["end_ns"].is_not_null()
        losses.n_without_times += frame.height - int(timed.sum())
        return frame, events

    def _attributes(
        self, there: Mapping[str, pl.Series], one: str, declared: Mapping[str, str], n_rows: int
    ) -> dict[str, pl.Series]:
        if one not in there or not declared:
            return {}
        unconvertible = self._sink.losses.unconvertible
        return attribute_columns(there[one], declared, n_rows, unconvertible)

    def _events(
        self, there: Mapping[str, pl.Series], trace_ids: pl.Series, span_ids: pl.Series
    ) -> pl.DataFrame:
        vocabulary = self._sink.vocabulary
        if not vocabulary.event_names or not {"eventsname", "eventstimestamp"} <= there.keys():
            return pl.DataFrame()
        lists = [trace_ids, span_ids]
        lists.append(there["eventsname"].alias("name"))
        lists.append(there["eventstimestamp"].alias("time_ns"))
        exploded = ["name", "time_ns"]
        if "eventsattributes" in there and vocabulary.event:
            held = there["eventsattributes"].alias("held")
            inner = getattr(held.dtype, "inner", None)
            if inner is not None and not isinstance(inner, pl.String):
                held = held.cast(pl.List(_ENTRIES))
            lists.append(held)
            exploded.append("held")
        frame = pl.DataFrame(lists).filter(pl.col("name").list.len() > 0)
        frame = frame.explode(exploded).drop_nulls(["trace_id", "span_id", "name"])
        frame = frame.with_columns(_text("name", frame["name"]))
        frame = frame.filter(pl.col("name").is_in(sorted(vocabulary.event_names)))
        if not frame.height:
            return pl.DataFrame()
        frame = frame.with_columns(_ns("time_ns", frame["time_ns"]))
        if "held" in frame.columns:
            unconvertible = self._sink.losses.unconvertible
            found = attribute_columns(frame["held"], vocabulary.event, frame.height, unconvertible)
            frame = frame.drop("held").hstack(list(found.values()))
        return frame

    def _links(self, there: Mapping[str, pl.Series], spans: pl.DataFrame) -> pl.DataFrame:
        """The links of the spans whose are wanted, the first few of each, as events."""
        if not set(PASCAL_LINKS) <= there.keys():
            return pl.DataFrame()
        names, ids = sorted(self._sink.vocabulary.link_names), (LINK_TRACE_ID, LINK_SPAN_ID)
        frame = spans.with_columns(
            there[one].alias(key) for one, key in zip(PASCAL_LINKS, ids, strict=True)
        ).filter(pl.col("name").is_in(names))
        frame = frame.filter(pl.col(ids[0]).list.len() == pl.col(ids[1]).list.len())
        frame = frame.with_columns(pl.col(*ids).list.head(MAX_LINKS)).filter(
            pl.col(ids[0]).list.len() > 0
        )
        frame = frame.explode(*ids).drop_nulls(["trace_id", "span_id"])
        if not frame.height:
            return pl.DataFrame()
        return frame.select(
            "trace_id",
            "span_id",
            pl.col("start_ns").alias("time_ns"),
            pl.lit(LINK).alias("name"),
            _ids(ids[0], frame[ids[0]], TRACE_ID_BYTES),
            _ids(ids[1], frame[ids[1]], SPAN_ID_BYTES),
        )


def attribute_columns(
    held: pl.Series, declared: Mapping[str, str], n_rows: int, unconvertible: dict[str, int]
) -> dict[str, pl.Series]:
    """Returns the columns of the declared keys that occur in a column of attributes.

    Args:
        held: maps, lists of keys and values, or JSON objects as text.
        declared: keys and types.
        n_rows: of the column.
        unconvertible: counts values that are not of their type, by key.
    """
    if isinstance(held.dtype, (pl.String, pl.Binary)):
        return _from_json(_text("held", held), declared, n_rows, unconvertible)
    entries = held.cast(_ENTRIES).alias("held")
    long = pl.DataFrame([entries]).with_row_index("row").filter(pl.col("held").list.len() > 0)
    long = long.explode("held").unnest("held").filter(pl.col("key").is_in(list(declared)))
    found = {}
    for (key,), part in long.partition_by("key", as_dict=True).items():
        part = part.unique("row", keep="last", maintain_order=True)
        column, n_lost = from_texts(key, part["value"], declared[key])
        if n_lost:
            unconvertible[key] = unconvertible.get(key, 0) + n_lost
        found[key] = _scattered(column, part["row"], n_rows)
    return {key: found[key] for key in declared if key in found}


def from_texts(key: str, texts: pl.Series, kind: str) -> tuple[pl.Series, int]:
    """Returns a column of a type out of text, and how many texts are none of it."""
    wanted = dtype(kind)
    if kind == "str":
        return texts.alias(key), 0
    column = None
    if kind == "int":
        column = texts.cast(pl.Int64, strict=False)
    elif kind == "float":
        column = texts.cast(pl.Float64, strict=False)
        column = column.set((~column.is_finite()).fill_null(value=False), None)
    if column is not None and column.null_count() == texts.null_count():
        return column.alias(key), 0
    distinct = texts.unique().drop_nulls().to_list()
    convert = CONVERTERS[kind]
    values = [AnyValue(string_value=text) for text in distinct]
    made: dict[str, Any] = {
        text: convert(value) for text, value in zip(distinct, values, strict=True)
    }
    column = pl.Series(key, [made.get(text) for text in texts.to_list()], dtype=wanted)
    return column, column.null_count() - texts.null_count()


def _from_json(
    texts: pl.Series, declared: Mapping[str, str], n_rows: int, unconvertible: dict[str, int]
) -> dict[str, pl.Series]:
    """JSON objects; most rows have the same as another one, or at least are short."""
    known: dict[str, dict[str, Any]] = {}
    lists: dict[str, list[Any]] = {}
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for row, text in enumerate(texts.to_list()):
        if not text:
            continue
        values = known.get(text)
        if values is None:
            try:
                told = decode(text)
            except (msgspec.DecodeError, RecursionError):
                unconvertible["attributes"] = unconvertible.get("attributes", 0) + 1
                continue
            values = {}
            for key, value in told.items():
                if key in declared:
                    plain = plain_value(value)
                    values[key] = CONVERTERS[declared[key]](plain)
                    if values[key] is None and not is_empty(plain):
                        unconvertible[key] = unconvertible.get(key, 0) + 1
            if len(known) < 65_536:
                known[text] = values
        for key, value in values.items():
            column = lists.get(key)
            if column is None:
                column = lists[key] = [None] * n_rows
            column[row] = value
    return {
        key: pl.Series(key, lists[key], dtype=dtype(declared[key]))
        for key in declared
        if key in lists
    }


def _scattered(column: pl.Series, rows: pl.Series, n_rows: int) -> pl.Series:
    if len(column) == n_rows:
        return column
    told = pl.DataFrame([rows.cast(pl.UInt32).alias("row"), column])
    every = pl.DataFrame({"row": pl.Series(range(n_rows), dtype=pl.UInt32)})
    return every.join(told, on="row", how="left", maintain_order="left")[column.name]


def _text(name: str, column: pl.Series) -> pl.Series:
    """Text, also out of bytes, which ClickHouse writes where it is told to."""
    if isinstance(column.dtype, pl.Binary):
        try:
            return column.cast(pl.String).alias(name)
        except pl.exceptions.PolarsError:
            decoded = [
                None if value is None else value.decode("utf-8", "replace")
                for value in column.to_list()
            ]
            return pl.Series(name, decoded, dtype=pl.String)
    return column.cast(pl.String).alias(name)


def _ids(name: str, column: pl.Series, n_bytes: int) -> pl.Series:
    if isinstance(column.dtype, pl.Binary) and len(column):
        length = column.bin.size().max()
        if isinstance(length, int) and length <= n_bytes:  # the ids themselves
            return hex_ids(name, column.bin.encode("hex").to_list(), n_bytes)
    return hex_ids(name, _text(name, column).to_list(), n_bytes)


def _codes(name: str, column: pl.Series, names: tuple[str, ...]) -> pl.Series:
    if column.dtype.is_integer():
        return enums(name, column.to_list(), names)
    texts = _text(name, column).fill_null("")
    distinct = texts.unique().to_list()
    made = enums(name, [text or 0 for text in distinct], names)
    known = dict(zip(distinct, made.to_list(), strict=True))
    return texts.replace_strict(known, return_dtype=pl.Int8).alias(name)


def _ns(name: str, column: pl.Series) -> pl.Series:
    """Unix nanoseconds; NULL where there are none."""
    kind = column.dtype
    if isinstance(kind, pl.Datetime):
        column = column.dt.epoch("ns")
    elif isinstance(kind, pl.String):
        column = column.str.to_datetime(time_unit="ns", strict=False).dt.epoch("ns")
    column = column.cast(pl.Int64, strict=False).alias(name)
    unset = (column <= 0).fill_null(value=False)
    return column.set(unset, None) if unset.any() else column


def _times_of(there: Mapping[str, pl.Series]) -> tuple[pl.Series, pl.Series]:
    start = _ns("start_ns", there["timestamp"])
    if "duration" in there:
        lasted = there["duration"].cast(pl.Int64, strict=False)
        return start, (start + lasted).alias("end_ns")
    if "endtimestamp" in there:
        return start, _ns("end_ns", there["endtimestamp"])
    return start, pl.Series("end_ns", [None], dtype=pl.Int64).new_from_index(0, len(start))
