"""Spans to columns: transposed by groups that hold the same keys in the same order.

Looking at each attribute of each span in a Python loop costs more than parsing it. Spans
of one producer come in few shapes, so spans are grouped by the tuple of their keys; the
attributes at one position of a group are then one column, which a list comprehension
takes, and only the positions of declared keys are touched at all. Shapes that are rare
take the loop. Values are taken out of some hundred spans at a time, while those are in the
processor's cache, and the objects are let go; columns are built of many more, shape after
shape, so that a shape costs nothing in the columns that it lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import polars as pl
from msgspec.structs import astuple

from tokenlag.read.messages import Losses
from tokenlag.read.sources.otlp_series import (
    KIND_NAMES,
    SPAN_ID_BYTES,
    STATUS_NAMES,
    TRACE_ID_BYTES,
    enums,
    hex_ids,
    times,
)
from tokenlag.read.sources.otlp_taken import Values
from tokenlag.read.sources.otlp_types import AnyValue, KeyValue, Resource, Span
from tokenlag.read.sources.otlp_values import CONVERTERS, is_empty
from tokenlag.read.spans import dtype
from tokenlag.read.vocabulary import (
    LINK,
    LINK_SPAN_ID,
    LINK_TRACE_ID,
    MAX_LINKS,
    RESOURCE_PREFIX,
    Vocabulary,
)

SPANS_PER_TAKE: Final = 512
SPANS_PER_FRAME: Final = 32_768
MIN_GROUP: Final = 4  # below this, setting up a group's columns costs more than the loop
MAX_SHAPES: Final = 64  # above this, shapes are too many to be built one after another
SPAN_FIELDS: Final = Span.__struct_fields__
_ORDER: Final = "\0"  # no key; gives frames without values their height
ORIGIN_SCHEMA: Final = {"source": pl.String(), "scope": pl.String()}


class _Shape:
    """The rows of spans that all have the same keys in the same order."""

    def __init__(self, keys: tuple[str, ...], values: Values) -> None:
        self.rows = _SpanLists()
        self._values = values
        positions = {key: index for index, key in enumerate(keys) if key in values.declared}
        self._kept = [(index, key, values.declared[key]) for key, index in positions.items()]
        self._lists: dict[str, list[Any]] = {key: [] for key in positions}

    def take(self, origin: int, spans: list[Span]) -> None:
        self.rows.take(origin, spans)
        if self._kept:
            columns = list(zip(*[span.attributes or () for span in spans], strict=True))
            for index, key, value_type in self._kept:
                self._lists[key] += self._values.of(columns[index], value_type)

    def series(self) -> dict[str, pl.Series]:
        return {key: self._values.series(key, taken) for key, taken in self._lists.items()}


class _Mixed:
    """The rows of spans or events of any shape, one after the other."""

    def __init__(self, values: Values) -> None:
        self.rows = _SpanLists()
        self._values = values
        self._lists: dict[str, list[Any]] = {}

    def take(self, origin: int, spans: list[Span]) -> None:
        row = len(self.rows.origins)
        for index, span in enumerate(spans):
            self.take_one(span.attributes or (), row + index)
        self.rows.take(origin, spans)

    def take_one(self, attributes: Sequence[KeyValue], row: int) -> None:
        for item in attributes:
            value_type = self._values.declared.get(item.key)
            if value_type is not None:
                values = self._padded(item.key, row)
                values[row:] = [self._values.convert(item, value_type)]

    def series(self, n_rows: int) -> dict[str, pl.Series]:
        return {key: self._values.series(key, self._padded(key, n_rows)) for key in self._lists}

    def _padded(self, key: str, n_rows: int) -> list[Any]:
        values = self._lists.setdefault(key, [])
        n_missing = n_rows - len(values)
        if n_missing > 0:
            values += [None] * n_missing
        return values


class Columns:
    """Takes spans and gives frames of span rows and event rows.

    Columns that hold nothing are left out of a frame. Spans without usable ids are no rows;
    they are counted in the losses, as are spans without times (which are rows).

    Args:
        vocabulary: the keys that are kept.
        sink: gets the span rows and event rows whenever there are enough of them.
    """

    def __init__(
        self, vocabulary: Vocabulary, sink: Callable[[pl.DataFrame, pl.DataFrame], None]
    ) -> None:
        self._vocabulary = vocabulary
        self._sink = sink
        self._losses = Losses()
        self._values = Values(vocabulary.span)
        self._resource_values = Values(vocabulary.resource)
        self._event_values = Values(
            {
                **vocabulary.event,
                **({LINK_TRACE_ID: "str", LINK_SPAN_ID: "str"} if vocabulary.link_names else {}),
            }
        )
        self._groups: dict[int, dict[tuple[Any, ...], list[Span]]] = {}
        self._keys_of: dict[tuple[Any, ...], tuple[str, ...]] = {}
        self._n_grouped = 0
        self._clear()

    def _clear(self) -> None:
        self._origins: dict[tuple[Any, ...], int] = {}
        self._shapes: dict[tuple[str, ...], _Shape] = {}
        self._mixed = _Mixed(self._values)
        self._n_rows = 0
        self._events = _EventLists(self._event_values)

    def add(
        self, source: str, resource: Resource | None, scope: str | None, spans: list[Span]
    ) -> None:
        """Takes the spans of one scope of one resource of one file."""
        for start in range(0, len(spans), SPANS_PER_TAKE):
            origin = self._origin(source, resource, scope)
            self._group(origin, spans[start : start + SPANS_PER_TAKE])
            if self._n_grouped >= SPANS_PER_TAKE:
                self._take_values()
                if self._n_rows >= SPANS_PER_FRAME:
                    self.flush()

    def flush(self) -> None:
        """Hands everything that was added to the sink."""
        self._take_values()
        if self._n_rows:
            self._sink(self._frame(), self._event_frame())
        self._clear()

    def take_losses(self) -> Losses:
        """Returns what was counted since the last call."""
        losses, self._losses = self._losses, Losses()
        total: Counter[str] = Counter()
        for values in (self._values, self._resource_values, self._event_values):
            total.update(values.unconvertible)
            values.unconvertible.clear()
        losses.unconvertible = dict(total)
        return losses

    def _origin(self, source: str, resource: Resource | None, scope: str | None) -> int:
        """The number of a (file, scope, resource); the same values give the same number."""
        declared = self._vocabulary.resource
        found: dict[str, Any] = dict.fromkeys(declared)
        for item in (resource.attributes if resource else None) or ():
            if item.key in declared:
                value = CONVERTERS[declared[item.key]](item.value)
                if value is None and not is_empty(item.value):
                    self._resource_values.unconvertible[item.key] += 1
                found[item.key] = tuple(value) if isinstance(value, list) else value
        key = (source, scope, *found.values())
        return self._origins.setdefault(key, len(self._origins))

    def _group(self, origin: int, spans: list[Span]) -> None:
        """Sorts spans by their keys, in order. Keyed attributes have one type for each key.

        All spans of one text were decoded in one way.
        """
        groups = self._groups.setdefault(origin, {})
        first = next((span.attributes[0] for span in spans if span.attributes), None)
        is_keyed = type(first) is not KeyValue
        for span in spans:
            attributes = span.attributes
            if not attributes:
                shape: tuple[Any, ...] = ()
            elif is_keyed:
                shape = tuple(map(type, attributes))
            else:
                shape = tuple([item.key for item in attributes])
            try:
                groups[shape].append(span)
            except KeyError:
                groups[shape] = [span]
        self._n_grouped += len(spans)

    def _take_values(self) -> None:
        """Takes all that is kept of the grouped spans and lets them go."""
        for origin, groups in self._groups.items():
            for shape, spans in groups.items():
                self._rows_for(self._keys(shape), len(spans)).take(origin, spans)
                if self._vocabulary.event_names:
                    self._take_events(spans)
                if self._vocabulary.link_names:
                    self._take_links(spans)
        self._n_rows += self._n_grouped
        self._groups = {}
        self._n_grouped = 0

    def _keys(self, shape: tuple[Any, ...]) -> tuple[str, ...]:
        """The keys of a shape that is made of them, or of the types that stand for them."""
        if not shape or isinstance(shape[0], str):
            return shape
        keys = self._keys_of.get(shape)
        if keys is None:
            if len(self._keys_of) > MAX_SHAPES:
                self._keys_of.clear()
            keys = self._keys_of[shape] = tuple([kind.key for kind in shape])
        return keys

    def _rows_for(self, keys: tuple[str, ...], n_spans: int) -> _Shape | _Mixed:
        if n_spans < MIN_GROUP:
            return self._mixed
        shape = self._shapes.get(keys)
        if shape is None:
            if len(self._shapes) >= MAX_SHAPES:
                return self._mixed
            shape = self._shapes[keys] = _Shape(keys, self._values)
        return shape

    def _take_events(self, spans: list[Span]) -> None:
        names = self._vocabulary.event_names
        lists = self._events
        for span in spans:
            for event in span.events or ():
                if event.name in names:
                    lists.values.take_one(event.attributes or (), len(lists.names))
                    lists.trace_ids.append(span.trace_id)
                    lists.span_ids.append(span.span_id)
                    lists.times.append(event.time_unix_nano)
                    lists.names.append(event.name)

    def _take_links(self, spans: list[Span]) -> None:
        names = self._vocabulary.link_names
        lists = self._events
        for span in spans:
            if not span.links or span.name not in names:
                continue
            for link in span.links[:MAX_LINKS]:
                told = [
                    KeyValue(LINK_TRACE_ID, AnyValue(string_value=link.trace_id)),
                    KeyValue(LINK_SPAN_ID, AnyValue(string_value=link.span_id)),
                ]
                lists.values.take_one(told, len(lists.names))
                lists.trace_ids.append(span.trace_id)
                lists.span_ids.append(span.span_id)
                lists.times.append(span.start_time_unix_nano)
                lists.names.append(LINK)

    def _frame(self) -> pl.DataFrame:
        parts = [(shape.rows, shape.series()) for shape in self._shapes.values()]
        n_mixed = len(self._mixed.rows.origins)
        parts.append((self._mixed.rows, self._mixed.series(n_mixed)))
        rows = _SpanLists()
        for part, _ in parts:
            rows.extend(part)
        trace_ids = hex_ids("trace_id", rows.trace_ids, TRACE_ID_BYTES)
        span_ids = hex_ids("span_id", rows.span_ids, SPAN_ID_BYTES)
        columns = [
            trace_ids,
            span_ids,
            hex_ids("parent_id", rows.parent_ids, SPAN_ID_BYTES),
            pl.Series("name", rows.names, dtype=pl.String),
            enums("kind", rows.kinds, KIND_NAMES),
            times("start_ns", rows.starts),
            times("end_ns", rows.ends),
            enums("status_code", rows.codes, STATUS_NAMES),
        ]
        values = [
            pl.DataFrame([pl.Series(_ORDER, part.origins, dtype=pl.Int32), *series.values()])
            for part, series in parts
        ]
        taken = pl.concat(values, how="diagonal").drop(_ORDER)
        frame = pl.DataFrame(columns).hstack(taken).hstack(self._origin_columns(rows.origins))
        good = trace_ids.is_not_null() & span_ids.is_not_null()
        if not good.all():
            self._losses.n_without_ids += frame.height - int(good.sum())
            frame = frame.filter(good)
        timed = frame["start_ns"].is_not_null() & frame["end_ns"].is_not_null()
        self._losses.n_without_times += frame.height - int(timed.sum())
        return frame

    def _origin_columns(self, origins: list[int]) -> pl.DataFrame:
        """What the origins say, for each row; nothing of what no origin says."""
        frame = self._origin_frame()
        frame = frame.select(column for column in frame if column.null_count() < frame.height)
        if frame.height == 1:
            return frame.select(column.new_from_index(0, len(origins)) for column in frame)
        return frame[origins]

    def _origin_frame(self) -> pl.DataFrame:
        """One row for each origin, in the order of their numbers."""
        declared = self._vocabulary.resource
        schema = ORIGIN_SCHEMA | {
            RESOURCE_PREFIX + key: dtype(kind) for key, kind in declared.items()
        }
        rows = [
            [list(value) if isinstance(value, tuple) else value for value in key]
            for key in self._origins
        ]
        return pl.DataFrame(rows, schema=schema, orient="row")

    def _event_frame(self) -> pl.DataFrame:
        lists = self._events
        if not lists.names:
            return pl.DataFrame()
        values = lists.values.series(len(lists.names))
        for key, n_bytes in ((LINK_TRACE_ID, TRACE_ID_BYTES), (LINK_SPAN_ID, SPAN_ID_BYTES)):
            if key in values:
                values[key] = hex_ids(key, values[key].to_list(), n_bytes)
        columns = [
            hex_ids("trace_id", lists.trace_ids, TRACE_ID_BYTES),
            hex_ids("span_id", lists.span_ids, SPAN_ID_BYTES),
            times("time_ns", lists.times),
            pl.Series("name", lists.names, dtype=pl.String),
            *values.values(),
        ]
        return pl.DataFrame(columns).drop_nulls(["trace_id", "span_id"])


class _SpanLists:
    """The core of spans, field by field."""

    def __init__(self) -> None:
        self.origins: list[int] = []
        self.trace_ids: list[str] = []
        self.span_ids: list[str] = []
        self.parent_ids: list[str | None] = []
        self.names: list[str | None] = []
        self.kinds: list[int | str | None] = []
        self.starts: list[Any] = []
        self.ends: list[Any] = []
        self.codes: list[int | str | None] = []

    def take(self, origin: int, spans: list[Span]) -> None:
        self.origins += [origin] * len(spans)
        # All fields at once: a loop for each costs several times as much.
        fields = dict(zip(SPAN_FIELDS, zip(*map(astuple, spans), strict=True), strict=True))
        self.trace_ids += fields["trace_id"]
        self.span_ids += fields["span_id"]
        self.parent_ids += fields["parent_span_id"]
        self.names += fields["name"]
        self.kinds += fields["kind"]
        self.starts += fields["start_time_unix_nano"]
        self.ends += fields["end_time_unix_nano"]
        self.codes += [status.code if status else 0 for status in fields["status"]]

    def extend(self, more: _SpanLists) -> None:
        for mine, others in zip(vars(self).values(), vars(more).values(), strict=True):
            mine += others


class _EventLists:
    """The wanted events, field by field."""

    def __init__(self, values: Values) -> None:
        self.trace_ids: list[str] = []
        self.span_ids: list[str] = []
        self.times: list[Any] = []
        self.names: list[str | None] = []
        self.values = _Mixed(values)
