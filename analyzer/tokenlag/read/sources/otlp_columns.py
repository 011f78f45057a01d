"""Spans to columns: transposed by groups that hold the same keys in the same order.

Looking at each attribute of each span in a Python loop costs more than parsing it. Spans
of one producer come in few shapes, so spans are grouped by the tuple of their keys; the
attributes at one position of a group are then one column, which a list comprehension
takes, and only the positions of declared keys are touched at all. Shapes that are rare
take the loop.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec
import polars as pl

from tokenlag.read.sources.otlp_types import AnyValue, Event, KeyValue, Resource, Span
from tokenlag.read.sources.otlp_values import CONVERTERS, int_of, is_empty
from tokenlag.read.spans import CORE_SCHEMA, DTYPES
from tokenlag.read.vocabulary import RESOURCE_PREFIX, Vocabulary

LIST_TYPES: Final = frozenset({"int[]", "str[]"})
LIST_SEPARATOR: Final = "\x1f"
MIN_GROUP: Final = 24  # below this, setting up a group's columns costs more than the loop
TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
KIND_NAMES: Final = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUS_NAMES: Final = ("UNSET", "OK", "ERROR")
ORIGIN_SCHEMA: Final = {"source": pl.String(), "scope": pl.String()}


class Losses(msgspec.Struct):
    """What was noticed while spans became rows, counted."""

    n_without_ids: int = 0
    n_without_times: int = 0
    unconvertible: dict[str, int] = {}


class Columns:
    """Takes spans and gives frames of span rows and event rows.

    Args:
        vocabulary: the keys that are kept.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.n_waiting = 0
        self.losses = Losses()
        self._origins: dict[tuple[object, ...], int] = {}
        self._groups: dict[tuple[int, tuple[str, ...]], list[Span]] = {}
        self._unconvertible: Counter[str] = Counter()

    def add(
        self, source: str, resource: Resource | None, scope: str | None, spans: list[Span]
    ) -> None:
        """Takes the spans of one scope of one resource."""
        origin = self._origin(source, resource, scope)
        groups = self._groups
        for span in spans:
            attributes = span.attributes
            keys = (origin, tuple([item.key for item in attributes]) if attributes else ())
            try:
                groups[keys].append(span)
            except KeyError:
                groups[keys] = [span]
        self.n_waiting += len(spans)

    def take(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Returns the span rows and event rows of all that was added since the last call.

        Columns that hold nothing are left out. Spans without usable ids are no rows; they
        are counted in `losses`, as are spans without times (which are rows).
        """
        order: list[Span] = []
        origins: list[int] = []
        values: dict[str, list[object]] = {}
        rare: list[tuple[int, Span]] = []
        n = self.n_waiting
        for (origin, keys), spans in self._groups.items():
            if len(spans) < MIN_GROUP:
                rare.extend([(origin, span) for span in spans])
                continue
            self._transpose(keys, spans, len(order), n, values)
            order += spans
            origins += [origin] * len(spans)
        self._loop(rare, len(order), n, values)
        order += [span for _, span in rare]
        origins += [origin for origin, _ in rare]
        frame = self._frame(order, origins, values)
        events = self._events(order)
        self._groups = {}
        self._origins = {}
        self.n_waiting = 0
        self.losses.unconvertible = dict(self._unconvertible)
        return frame, events

    def take_losses(self) -> Losses:
        """Returns what was counted since the last call."""
        losses, self.losses = self.losses, Losses()
        self._unconvertible = Counter()
        return losses

    def _origin(self, source: str, resource: Resource | None, scope: str | None) -> int:
        """The number of a (file, scope, resource); the same values give the same number."""
        declared = self.vocabulary.resource
        found: dict[str, object] = dict.fromkeys(declared)
        for item in (resource.attributes if resource else None) or ():
            if item.key in declared:
                value = CONVERTERS[declared[item.key]](item.value)
                if value is None and not is_empty(item.value):
                    self._unconvertible[item.key] += 1
                found[item.key] = tuple(value) if isinstance(value, list) else value
        key = (source, scope, *found.values())
        return self._origins.setdefault(key, len(self._origins))

    def _convert(self, item: KeyValue, value_type: str) -> object:
        value = CONVERTERS[value_type](item.value)
        if value is None and not is_empty(item.value):
            self._unconvertible[item.key] += 1
        # Integers go on as decimal text, which is what OTLP JSON writes: a list of one type
        # becomes a column several times as fast as a mixed one.
        return str(value) if value_type == "int" and value is not None else value

    def _transpose(
        self,
        keys: tuple[str, ...],
        spans: list[Span],
        start: int,
        n: int,
        values: dict[str, list[object]],
    ) -> None:
        """Fills `values` at the rows from `start` on out of a group with the same keys."""
        declared = self.vocabulary.span
        if declared.keys().isdisjoint(keys):
            return
        columns = list(zip(*[span.attributes or () for span in spans], strict=True))
        for key, column in zip(keys, columns, strict=True):
            value_type = declared.get(key)
            if value_type is None:
                continue
            into = values.get(key)
            if into is None:
                into = values[key] = [None] * n
            into[start : start + len(column)] = self._take_values(column, value_type)

    def _take_values(self, column: Sequence[KeyValue], value_type: str) -> list[object]:
        """One key's values, as `_series` wants them: integers may still be decimal text."""
        taken: list[object]
        if value_type == "int":
            taken = [item.value.int_value for item in column]
        elif value_type == "str":
            taken = [item.value.string_value for item in column]
        elif value_type == "float":
            taken = [item.value.double_value for item in column]
        elif value_type == "bool":
            taken = [item.value.bool_value for item in column]
        else:
            return [self._convert(item, value_type) for item in column]
        # A value that came in another field than its type's is the exception.
        if None in taken:
            for index, value in enumerate(taken):
                if value is None:
                    taken[index] = self._convert(column[index], value_type)
        return taken

    def _loop(
        self, rare: list[tuple[int, Span]], start: int, n: int, values: dict[str, list[object]]
    ) -> None:
        declared = self.vocabulary.span
        for row, (_, span) in enumerate(rare, start):
            for item in span.attributes or ():
                value_type = declared.get(item.key)
                if value_type is not None:
                    if item.key not in values:
                        values[item.key] = [None] * n
                    values[item.key][row] = self._convert(item, value_type)

    def _frame(
        self, spans: list[Span], origins: list[int], values: dict[str, list[object]]
    ) -> pl.DataFrame:
        if not spans:
            return pl.DataFrame(schema=CORE_SCHEMA)
        trace_ids = hex_ids([span.trace_id for span in spans], TRACE_ID_BYTES)
        span_ids = hex_ids([span.span_id for span in spans], SPAN_ID_BYTES)
        columns = [
            trace_ids.alias("trace_id"),
            span_ids.alias("span_id"),
            hex_ids([span.parent_span_id for span in spans], SPAN_ID_BYTES).alias("parent_id"),
            pl.Series("name", [span.name for span in spans], dtype=pl.String),
            _enums("kind", [span.kind for span in spans], KIND_NAMES),
            times("start_ns", [span.start_time_unix_nano for span in spans]),
            times("end_ns", [span.end_time_unix_nano for span in spans]),
            _enums(
                "status_code",
                [span.status.code if span.status else 0 for span in spans],
                STATUS_NAMES,
            ),
        ]
        columns += [self._series(key, self.vocabulary.span[key], values[key]) for key in values]
        frame = pl.DataFrame(columns).hstack(self._origin_frame()[origins])
        good = trace_ids.is_not_null() & span_ids.is_not_null()
        if not good.all():
            self.losses.n_without_ids += frame.height - int(good.sum())
            frame = frame.filter(good)
        timed = frame["start_ns"].is_not_null() & frame["end_ns"].is_not_null()
        self.losses.n_without_times += frame.height - int(timed.sum())
        return frame

    def _origin_frame(self) -> pl.DataFrame:
        """One row for each origin, in the order of their numbers."""
        declared = self.vocabulary.resource
        schema = ORIGIN_SCHEMA | {
            RESOURCE_PREFIX + key: DTYPES[kind] for key, kind in declared.items()
        }
        rows = [
            [list(value) if isinstance(value, tuple) else value for value in key]
            for key in self._origins
        ]
        return pl.DataFrame(rows, schema=schema, orient="row")

    def _series(self, key: str, value_type: str, values: list[object]) -> pl.Series:
        n_lost = 0
        if value_type == "int":
            series, n_lost = _ints(key, values)
        elif value_type == "float":
            series, n_lost = _floats(key, values)
        elif value_type in LIST_TYPES:
            series = _lists(key, values, DTYPES[value_type])
        else:
            series = pl.Series(key, values, dtype=DTYPES[value_type])
        if n_lost:
            self._unconvertible[key] += n_lost
        return series

    def _events(self, spans: list[Span]) -> pl.DataFrame:
        names = self.vocabulary.event_names
        declared = self.vocabulary.event
        found: list[tuple[Span, Event]] = []
        if names:
            found = [
                (span, event)
                for span in spans
                if span.events
                for event in span.events
                if event.name in names
            ]
        if not found:
            return pl.DataFrame()
        values: dict[str, list[object]] = {}
        for row, (_, event) in enumerate(found):
            for item in event.attributes or ():
                if item.key in declared:
                    if item.key not in values:
                        values[item.key] = [None] * len(found)
                    values[item.key][row] = self._convert(item, declared[item.key])
        columns = [
            hex_ids([span.trace_id for span, _ in found], TRACE_ID_BYTES).alias("trace_id"),
            hex_ids([span.span_id for span, _ in found], SPAN_ID_BYTES).alias("span_id"),
            times("time_ns", [event.time_unix_nano for _, event in found]),
            pl.Series("name", [event.name for _, event in found], dtype=pl.String),
        ]
        columns += [self._series(key, declared[key], values[key]) for key in values]
        return pl.DataFrame(columns).drop_nulls(["trace_id", "span_id"])


def hex_ids(ids: Sequence[str | None], n_bytes: int) -> pl.Series:
    """Returns ids as lower-case hex; NULL for empty, all-zero and unusable ones.

    Hex of any case is the rule. Base64 of the right length is what the plain protobuf JSON
    mapping writes. A 64-bit trace id is padded on the left, as W3C trace context says.
    """
    texts = pl.Series(ids, dtype=pl.String)
    pattern = f"^[0-9a-f]{{{2 * n_bytes}}}$"
    good = texts.str.contains(pattern).fill_null(value=False)
    if not good.all():
        odd = {text: _odd_id(text, n_bytes) for text in texts.filter(~good).unique().to_list()}
        replaced = texts.filter(~good).replace_strict(odd, default=None, return_dtype=pl.String)
        texts = texts.scatter((~good).arg_true(), replaced)
    zeros = (texts == "00" * n_bytes).fill_null(value=False)
    return texts.set(zeros, None) if zeros.any() else texts


def _odd_id(text: str | None, n_bytes: int) -> str | None:
    if not text:
        return None
    text = text.strip()
    if text.startswith(("0x", "0X")):
        text = text[2:]
    try:
        return (
            bytes.fromhex(text).rjust(n_bytes, b"\0").hex()
            if _is_short(text, n_bytes)
            else (_base64_id(text, n_bytes))
        )
    except (ValueError, binascii.Error):
        return None


def _is_short(text: str, n_bytes: int) -> bool:
    is_half_trace_id = n_bytes == TRACE_ID_BYTES and len(text) == TRACE_ID_BYTES
    return is_half_trace_id or len(text) == 2 * n_bytes


def _base64_id(text: str, n_bytes: int) -> str | None:
    padded = text.replace("-", "+").replace("_", "/")
    raw = base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)
    return raw.hex() if len(raw) == n_bytes else None


def times(name: str, values: Sequence[object]) -> pl.Series:
    """Returns unix nanoseconds; NULL where absent, not positive or beyond 63 bits."""
    series, _ = _ints(name, list(values))
    return series.set(series <= 0, None) if (series <= 0).any() else series


def _ints(name: str, values: list[object]) -> tuple[pl.Series, int]:
    """Integers out of integers and decimal text, and how many of them were neither."""
    try:
        texts = pl.Series(name, values, dtype=pl.String)
    except TypeError:
        n_before = sum(value is not None for value in values)
        whole = [int_of(value) if isinstance(value, (str, int)) else None for value in values]
        series = pl.Series(name, whole, dtype=pl.Int64)
        return series, n_before - (len(series) - series.null_count())
    series = texts.cast(pl.Int64, strict=False)
    n_lost = series.null_count() - texts.null_count()
    if not n_lost:
        return series, 0
    whole = [int_of(text) for text in texts.to_list()]
    series = pl.Series(name, whole, dtype=pl.Int64)
    return series, series.null_count() - texts.null_count()


def _lists(name: str, values: list[object], dtype: pl.DataType) -> pl.Series:
    """Lists out of lists; by way of text, for polars makes a Series of each Python list."""
    texts = [
        LIST_SEPARATOR.join(map(str, value)) if isinstance(value, list) else None
        for value in values
    ]
    n_items = sum(len(value) for value in values if isinstance(value, list))
    lists = pl.Series(name, texts, dtype=pl.String).str.split(LIST_SEPARATOR)
    empty = [row for row, value in enumerate(values) if value == [] or value == [""]]
    if empty or int(lists.list.len().sum() or 0) != n_items:
        return pl.Series(name, values, dtype=dtype)
    return lists.cast(dtype)


def _floats(name: str, values: list[object]) -> tuple[pl.Series, int]:
    """Finite numbers, and how many values were something else."""
    n_before = sum(value is not None for value in values)
    try:
        series = pl.Series(name, values, dtype=pl.Float64)
    except TypeError:
        numbers = [
            CONVERTERS["float"](AnyValue(double_value=value))
            if isinstance(value, (str, float, int))
            else None
            for value in values
        ]
        series = pl.Series(name, numbers, dtype=pl.Float64)
    finite = series.is_finite().fill_null(value=True)
    if not finite.all():
        series = series.set(~finite, None)
    return series, n_before - (len(series) - series.null_count())


def _enums(name: str, codes: list[int | str | None], names: tuple[str, ...]) -> pl.Series:
    """Enum numbers out of numbers, names and names with OTLP's prefix; NULL if unknown."""
    numbers: list[int | str | None] = codes
    if str in set(map(type, codes)):
        known = {code: _enum(code, names) for code in set(codes)}
        numbers = [known[code] for code in codes]
    series = pl.Series(name, numbers, dtype=pl.Int64, strict=False).fill_null(0)
    return series.cast(pl.Int8, strict=False)


def _enum(code: int | str | None, names: tuple[str, ...]) -> int | None:
    if not isinstance(code, str):
        return code
    word = code.strip().upper().rsplit("_", 1)[-1]
    return names.index(word) if word in names else int_of(word)
