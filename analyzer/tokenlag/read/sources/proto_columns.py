"""OTLP protobuf straight to columns: no object is made for a span or an attribute.

Attributes are told by their keys' bytes; the values of declared keys alone are looked at.
Strings are cut out of the block by polars. What is unusual (see `proto_wire`) makes the
whole block go through the decoder of `otlp_proto` instead, with the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import polars as pl
from opentelemetry.proto.common.v1.common_pb2 import AnyValue as ProtoValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource as ProtoResource

from tokenlag.read.messages import Losses
from tokenlag.read.sources.otlp_series import SPAN_ID_BYTES, TRACE_ID_BYTES
from tokenlag.read.sources.otlp_values import CONVERTERS, is_empty
from tokenlag.read.sources.proto_series import codes, ids, placed, texts, times
from tokenlag.read.sources.proto_values import any_value
from tokenlag.read.sources.proto_wire import (
    KEY_TAG,
    VALUE_TAG,
    Buffer,
    Int64s,
    KeyTable,
    Part,
    UnusualError,
    gather,
)
from tokenlag.read.spans import dtype
from tokenlag.read.vocabulary import (
    LINK,
    LINK_SPAN_ID,
    LINK_TRACE_ID,
    MAX_LINKS,
    RESOURCE_PREFIX,
    Vocabulary,
)

# Tags: field number and wire type.
_RESOURCE_SPANS: Final = 0x0A
_RESOURCE, _SCOPE_SPANS = 0x0A, 0x12
_SCOPE, _SPANS = 0x0A, 0x12
_SCOPE_NAME: Final = 0x0A
_TRACE_ID, _SPAN_ID, _PARENT_ID, _NAME, _KIND = 0x0A, 0x12, 0x22, 0x2A, 0x30
_START, _END, _ATTRIBUTES, _EVENTS, _LINKS, _STATUS = 0x39, 0x41, 0x4A, 0x5A, 0x6A, 0x7A
_CODE: Final = 0x18
_LINK_TRACE_ID, _LINK_SPAN_ID = 0x0A, 0x12
_EVENT_TIME, _EVENT_NAME, _EVENT_ATTRIBUTES = 0x09, 0x12, 0x1A
_TEXT, _TRUTH, _WHOLE, _NUMBER, _ARRAY = 0x0A, 0x10, 0x18, 0x21, 0x2A
_ARRAY_VALUES: Final = 0x0A
_PLAIN_TAGS: Final = {
    "str": _TEXT,
    "int": _WHOLE,
    "float": _NUMBER,
    "bool": _TRUTH,
    "int[]": _ARRAY,
    "str[]": _ARRAY,
}
_MAX_KIND, _MAX_CODE = 5, 2


class ProtoColumns:
    """Turns blocks of protobuf into frames of span rows and event rows.

    Args:
        vocabulary: the keys that are kept.
        losses: counts what became no row, and what rows lack.
    """

    def __init__(self, vocabulary: Vocabulary, losses: Losses) -> None:
        self._vocabulary = vocabulary
        self._losses = losses
        self._span_keys = KeyTable(vocabulary.span)
        self._event_keys = KeyTable(vocabulary.event)
        self._event_names = KeyTable(sorted(vocabulary.event_names))
        self._resources: dict[bytes, tuple[Any, ...]] = {}

    def frames(self, block: Block, source: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the rows of a block.

        Raises:
            UnusualError: the block has to be decoded another way; nothing was counted.
        """
        buffer, spans = block.buffer, block.spans
        n_spans = len(spans.owner)
        known = (_TRACE_ID, _SPAN_ID, _PARENT_ID, _NAME, _KIND, _START, _END, _STATUS, _ATTRIBUTES)
        wanted = (*known, _EVENTS) if self._vocabulary.event_names else known
        wanted = (*wanted, _LINKS) if self._vocabulary.link_names else wanted
        parts = buffer.parts(spans.begin, spans.end, wanted)
        for tag in known[:-1]:
            _check_single(gather(parts, tag), n_spans)
        losses = Losses()
        columns = [
            ids("trace_id", buffer, gather(parts, _TRACE_ID), n_spans, TRACE_ID_BYTES),
            ids("span_id", buffer, gather(parts, _SPAN_ID), n_spans, SPAN_ID_BYTES),
            ids("parent_id", buffer, gather(parts, _PARENT_ID), n_spans, SPAN_ID_BYTES),
            texts("name", buffer, gather(parts, _NAME), n_spans).fill_null(""),
            codes("kind", buffer, gather(parts, _KIND), n_spans, _MAX_KIND),
            times("start_ns", buffer, gather(parts, _START), n_spans),
            times("end_ns", buffer, gather(parts, _END), n_spans),
            self._status(buffer, gather(parts, _STATUS), n_spans),
        ]
        attributes = gather(parts, _ATTRIBUTES)
        columns += _attributes(
            buffer, attributes, n_spans, self._span_keys, self._vocabulary.span, losses
        )
        frame = pl.DataFrame(columns).hstack(self._origins(block, source))
        events = self._events(buffer, gather(parts, _EVENTS), columns, losses)
        links = self._links(buffer, gather(parts, _LINKS), columns)
        if links.height:
            events = pl.concat([events, links], how="diagonal") if events.height else links
        good = columns[0].is_not_null() & columns[1].is_not_null()
        if not good.all():
            losses.n_without_ids += n_spans - int(good.sum())
            frame = frame.filter(good)
        timed = frame["start_ns"].is_not_null() & frame["end_ns"].is_not_null()
        losses.n_without_times += frame.height - int(timed.sum())
        self._losses.add(losses)
        return frame, events

    def _status(self, buffer: Buffer, part: Part, n_spans: int) -> pl.Series:
        told = gather(buffer.parts(part.begin, part.end, [_CODE]), _CODE)
        _check_single(told, len(part.owner))
        owner = part.owner[told.owner]
        return codes("status_code", buffer, Part(owner, told.begin, told.end), n_spans, _MAX_CODE)

    def _origins(self, block: Block, source: str) -> pl.DataFrame:
        """Source, scope and resource of each span; nothing of what no origin says."""
        declared = self._vocabulary.resource
        schema = {"source": dtype("str"), "scope": dtype("str")}
        schema |= {RESOURCE_PREFIX + key: dtype(kind) for key, kind in declared.items()}
        numbers: dict[tuple[bytes, bytes | None], int] = {}
        of_scope = [
            numbers.setdefault(origin, len(numbers))
            for origin in zip(block.resources, block.scope_names, strict=True)
        ]
        rows = [
            (source, None if name is None else name.decode("utf-8", "replace"), *self._values(held))
            for held, name in numbers
        ]
        frame = pl.DataFrame(rows, schema=schema, orient="row")
        frame = frame.select(column for column in frame if column.null_count() < frame.height)
        n_spans = len(block.spans.owner)
        if frame.height == 1:
            return frame.select(column.new_from_index(0, n_spans) for column in frame)
        return frame[np.array(of_scope, np.int64)[block.spans.owner]]

    def _values(self, resource: bytes) -> tuple[Any, ...]:
        """The declared values of an encoded resource; most are the same again."""
        known = self._resources.get(resource)
        if known is not None:
            return known
        try:
            decoded = ProtoResource.FromString(resource)
        except Exception as error:  # the library's error has no stable home
            raise UnusualError("a damaged resource") from error
        declared = self._vocabulary.resource
        found: dict[str, Any] = dict.fromkeys(declared)
        for item in decoded.attributes:
            if item.key in declared:
                value = any_value(item.value)
                found[item.key] = CONVERTERS[declared[item.key]](value)
                if found[item.key] is None and not is_empty(value):
                    raise UnusualError("a resource's value of another type")  # to be counted
        if len(self._resources) > 4096:
            self._resources.clear()
        self._resources[resource] = tuple(found.values())
        return self._resources[resource]

    def _events(
        self, buffer: Buffer, part: Part, columns: list[pl.Series], losses: Losses
    ) -> pl.DataFrame:
        if not len(part.owner):
            return pl.DataFrame()
        tags = (_EVENT_TIME, _EVENT_NAME, _EVENT_ATTRIBUTES)
        names = gather(buffer.parts(part.begin, part.end, [_EVENT_NAME]), _EVENT_NAME)
        _check_single(names, len(part.owner))
        wanted = names.owner[self._event_names.find(buffer, names.begin, names.end) >= 0]
        if not len(wanted):
            return pl.DataFrame()
        wanted.sort()
        parts = buffer.parts(part.begin[wanted], part.end[wanted], tags)
        n_events = len(wanted)
        for tag in tags[:-1]:
            _check_single(gather(parts, tag), n_events)
        owner = part.owner[wanted]
        attributes = gather(parts, _EVENT_ATTRIBUTES)
        frame = pl.DataFrame(
            [
                columns[0][owner],
                columns[1][owner],
                times("time_ns", buffer, gather(parts, _EVENT_TIME), n_events),
                texts("name", buffer, gather(parts, _EVENT_NAME), n_events),
                *_attributes(
                    buffer, attributes, n_events, self._event_keys, self._vocabulary.event, losses
                ),
            ]
        )
        return frame.drop_nulls(["trace_id", "span_id"])

    def _links(self, buffer: Buffer, part: Part, columns: list[pl.Series]) -> pl.DataFrame:
        """The links of the spans whose are wanted, the first few of each, as events."""
        if not len(part.owner):
            return pl.DataFrame()
        is_named = columns[3].is_in(sorted(self._vocabulary.link_names)).to_numpy()
        wanted = np.flatnonzero(is_named[part.owner])
        wanted = wanted[np.lexsort((part.begin[wanted], part.owner[wanted]))]
        owner = part.owner[wanted]
        rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
        wanted, owner = wanted[rank < MAX_LINKS], owner[rank < MAX_LINKS]
        n_links = len(wanted)
        if not n_links:
            return pl.DataFrame()
        tags = (_LINK_TRACE_ID, _LINK_SPAN_ID)
        parts = buffer.parts(part.begin[wanted], part.end[wanted], tags)
        for tag in tags:
            _check_single(gather(parts, tag), n_links)
        trace_ids, span_ids = (gather(parts, tag) for tag in tags)
        frame = pl.DataFrame(
            [
                columns[0][owner],
                columns[1][owner],
                columns[5][owner].alias("time_ns"),
                pl.Series("name", [LINK]).new_from_index(0, n_links),
                ids(LINK_TRACE_ID, buffer, trace_ids, n_links, TRACE_ID_BYTES),
                ids(LINK_SPAN_ID, buffer, span_ids, n_links, SPAN_ID_BYTES),
            ]
        )
        return frame.drop_nulls(["trace_id", "span_id"])


class Block:
    """Messages that were cut down to spans, whose resources and scopes are known.

    Args:
        data: one or more messages.
        begin: where each message begins.
        end: and ends.

    Raises:
        UnusualError: they have to be decoded another way.
    """

    def __init__(self, data: bytes, begin: Int64s, end: Int64s) -> None:
        buffer = self.buffer = Buffer(data)
        blocks = gather(buffer.parts(begin, end, [_RESOURCE_SPANS, 0x12]), _RESOURCE_SPANS)
        if not len(blocks.owner):
            raise UnusualError("no resources")
        inner = buffer.parts(blocks.begin, blocks.end, [_RESOURCE, _SCOPE_SPANS])
        resource, scopes = gather(inner, _RESOURCE), gather(inner, _SCOPE_SPANS)
        n_blocks = len(blocks.owner)
        _check_single(resource, n_blocks)
        if not len(scopes.owner) or len(set(scopes.owner.tolist())) < n_blocks:
            raise UnusualError("a resource without scopes, or in a wrapper")
        encoded = [b""] * n_blocks
        for owner, at, to in zip(*(column.tolist() for column in resource), strict=True):
            encoded[owner] = data[at:to]
        self.resources = [encoded[owner] for owner in scopes.owner.tolist()]
        parts = buffer.parts(scopes.begin, scopes.end, [_SCOPE, _SPANS])
        scope, self.spans = gather(parts, _SCOPE), gather(parts, _SPANS)
        _check_single(scope, len(scopes.owner))
        names = gather(buffer.parts(scope.begin, scope.end, [_SCOPE_NAME]), _SCOPE_NAME)
        _check_single(names, len(scope.owner))
        self.scope_names: list[bytes | None] = [None] * len(scopes.owner)
        for owner in scope.owner.tolist():
            self.scope_names[owner] = b""
        owners = scope.owner[names.owner].tolist()
        for owner, at, to in zip(owners, names.begin.tolist(), names.end.tolist(), strict=True):
            self.scope_names[owner] = data[at:to]


def _is_single(owner: Int64s, n_owners: int) -> bool:
    if len(owner) > n_owners:
        return False
    is_met = np.zeros(n_owners, bool)
    is_met[owner] = True
    return int(is_met.sum()) == len(owner)


def _check_single(part: Part, n_owners: int) -> None:
    """A field that came twice in one message takes the last value, or is merged."""
    if not _is_single(part.owner, n_owners):
        raise UnusualError("a field that came twice")


def _attributes(
    buffer: Buffer,
    items: Part,
    n_rows: int,
    table: KeyTable,
    declared: Mapping[str, str],
    losses: Losses,
) -> list[pl.Series]:
    """The columns of the declared keys that occur."""
    if not len(items.owner):
        return []
    pairs = buffer.pairs(items.begin, items.end)
    if pairs is not None:
        keys, values = pairs
        of_value = table.find(buffer, keys.begin, keys.end)
    else:
        parts = buffer.parts(items.begin, items.end, [KEY_TAG, VALUE_TAG])
        keys, values = gather(parts, KEY_TAG), gather(parts, VALUE_TAG)
        _check_single(keys, len(items.owner))
        _check_single(values, len(items.owner))
        of_item = np.full(len(items.owner), -1, np.int64)
        of_item[keys.owner] = table.find(buffer, keys.begin, keys.end)
        of_value = of_item[values.owner]
    columns = []
    order = np.argsort(of_value, kind="stable")
    bounds = np.searchsorted(of_value[order], np.arange(len(table.keys) + 1))
    for index, key in enumerate(table.keys):
        mine = order[bounds[index] : bounds[index + 1]]
        if not len(mine):
            continue
        owner = items.owner[values.owner[mine]]
        if not _is_single(owner, n_rows):
            raise UnusualError("a key that came twice")
        part = Part(owner, values.begin[mine], values.end[mine])
        columns.append(_column(buffer, part, n_rows, key, declared[key], losses))
    return [column for column in columns if column.null_count() < n_rows]


def _column(
    buffer: Buffer, part: Part, n_rows: int, key: str, kind: str, losses: Losses
) -> pl.Series:
    """One key's values; those in another field than their type's are converted one by one."""
    filled = part.end > part.begin
    if not filled.all():
        part = Part(*(column[filled] for column in part))
    tags = buffer.bytes[part.begin]
    plain = tags == _PLAIN_TAGS[kind]
    if plain.all():
        return _plain_column(buffer, part, n_rows, key, kind, losses)
    odd = Part(*(column[~plain] for column in part))
    column = _plain_column(
        buffer, Part(*(column[plain] for column in part)), n_rows, key, kind, losses
    )
    converted: list[Any] = column.to_list()
    for owner, begin, end in zip(*(one.tolist() for one in odd), strict=True):
        try:
            value = any_value(ProtoValue.FromString(buffer.data[begin:end]))
        except Exception as error:  # the library's error has no stable home
            raise UnusualError("a damaged value") from error
        converted[owner] = CONVERTERS[kind](value)
        if converted[owner] is None and not is_empty(value):
            losses.unconvertible[key] = losses.unconvertible.get(key, 0) + 1
    return pl.Series(key, converted, dtype=dtype(kind))


def _plain_column(
    buffer: Buffer, part: Part, n_rows: int, key: str, kind: str, losses: Losses
) -> pl.Series:
    begin = part.begin + 1
    if kind in ("int", "bool"):
        values, behind = buffer.varints(begin)
        _check_whole(behind, part)
        held: Any = values if kind == "int" else values != 0
        return placed(key, held, part.owner, n_rows)
    if kind == "float":
        _check_whole(begin + 8, part)
        numbers = buffer.doubles(begin)
        finite = np.isfinite(numbers)
        n_lost = len(numbers) - int(finite.sum())
        if n_lost:
            losses.unconvertible[key] = losses.unconvertible.get(key, 0) + n_lost
        return placed(key, numbers[finite], part.owner[finite], n_rows)
    length, begin = buffer.varints(begin)
    _check_whole(begin + length, part)
    inner = Part(part.owner, begin, part.end)
    if kind == "str":
        return texts(key, buffer, inner, n_rows)
    return _lists(buffer, inner, n_rows, key, kind)


def _check_whole(behind: Int64s, part: Part) -> None:
    if (behind != part.end).any():
        raise UnusualError("a value with more than one field")


def _lists(buffer: Buffer, part: Part, n_rows: int, key: str, kind: str) -> pl.Series:
    items = gather(buffer.parts(part.begin, part.end, [_ARRAY_VALUES]), _ARRAY_VALUES)
    order = np.argsort(items.owner, kind="stable")
    item = Part(*(column[order] for column in items))
    wanted = _WHOLE if kind == "int[]" else _TEXT
    if (item.end <= item.begin).any() or (buffer.bytes[item.begin] != wanted).any():
        raise UnusualError("a list of other values")
    n_items = len(item.owner)
    every = np.arange(n_items)
    held = Part(every, item.begin, item.end)
    flat = _plain_column(buffer, held, n_items, "v", kind.removesuffix("[]"), Losses())
    rows = pl.DataFrame({"row": part.owner}, schema={"row": pl.Int64})
    told = pl.DataFrame([pl.Series("row", part.owner[item.owner]), flat])
    told = told.group_by("row", maintain_order=True).agg("v")
    empty = pl.lit([], dtype=dtype(kind))
    lists = rows.join(told, on="row", how="left").select("row", pl.col("v").fill_null(empty))
    every_row = pl.DataFrame({"row": np.arange(n_rows)})
    return every_row.join(lists, on="row", how="left", maintain_order="left")["v"].alias(key)
