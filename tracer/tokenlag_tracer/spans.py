"""Records as spans of the trace contract. Pure: no clock, no socket, ids are handed in.

A `Row` is a span as plain values, cheap to keep and to pickle; `readable` makes it what the
OpenTelemetry SDK's exporters take. Only keys of the contract get into a row: `attributes_of`
is the one way in for values from outside, and it knows no others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tokenlag_tracer import conventions as names
from tokenlag_tracer import wire
from tokenlag_tracer.identity import engine_trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

Value = str | int | float | bool | list[int] | list[str]
Attributes = dict[str, Value]

_MAX_LIST: Final = 64

# Keys whose values are words: a message of an exception, which may quote a prompt, is none.
_WORD_KEYS: Final = frozenset(
    (
        names.ERROR_TYPE, names.FINISH_REASONS, names.ROLE, names.STAGE, names.QUEUE_REASON,
        names.DIRECTION, names.CLOCK, names.REQUEST_FEATURES, names.OPERATION_NAME,
    )
)  # fmt: skip
_WORD: Final = re.compile(r"[\w.:,/+-]{1,64}")
_NO_WORD: Final = "_OTHER"
_MAX_INT: Final = (1 << 63) - 1


class Row(NamedTuple):
    """A span: ids as numbers (0: none), unix nanoseconds, attributes, number of its resource."""

    trace_id: int
    span_id: int
    parent_id: int
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Attributes
    is_error: bool
    resource: int


def ranges(indexes: Iterable[int]) -> str:
    """Returns rising request indexes as the contract's range list: `"101-140,143"`."""
    parts: list[str] = []
    first = last = -2
    for index in indexes:
        if index == last + 1:
            last = index
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = index
    if first >= 0:
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def _text(value: object, most: int = wire.MAX_TEXT) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    # Half a surrogate pair cannot be written as UTF-8, and would fail a whole batch.
    return value[:most].encode("utf-8", "replace").decode()


def _convert(kind: str, value: object) -> Value | None:
    if kind == "str":
        return _text(value)
    if kind == "bool":
        return value if isinstance(value, bool) else None
    if kind == "str[]":
        if not isinstance(value, (list, tuple)):
            return None
        return [text for item in value[:_MAX_LIST] if (text := _text(item))] or None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if not math.isfinite(value):
        return None
    if kind == "int":
        return int(value) if abs(value) <= _MAX_INT else None
    return float(value) if kind == "float" else None


def _word(value: Value | None) -> Value | None:
    if isinstance(value, list):
        return [_word_of(item) for item in value]
    return _word_of(value) if isinstance(value, str) else value


def _word_of(value: object) -> str:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else _NO_WORD


def attributes_of(
    values: Mapping[str, object], types: Mapping[str, str] = names.SPAN_ATTRIBUTE_TYPES
) -> Attributes:
    """Returns those values that the contract names, in its types; the rest is left out.

    Text is cut at `wire.MAX_TEXT` characters: a name or an id is shorter, and anything longer
    has no business in a trace.
    """
    found: Attributes = {}
    for key, value in values.items():
        kind = types.get(key)
        if kind is not None and value is not None:
            converted = _convert(kind, value)
            if key in _WORD_KEYS:
                converted = _word(converted)
            if converted is not None:
                found[key] = converted
    return found


# --- engine steps -----------------------------------------------------------------------------


def step_attributes(
    step: wire.StepRecord, members: Sequence[int] | None, dropped: int, skipped: int
) -> Attributes:
    """Returns what a step's span says of it.

    Args:
        step: the record.
        members: all that decode in it, rising, if they are to be listed.
        dropped: records lost so far, on the way here and here.
        skipped: records not exported by choice.
    """
    found: Attributes = {names.STEP_INDEX: step.index, names.STEP_DECODE_COUNT: step.decode_count}
    if step.prefill_requests:
        found[names.STEP_PREFILL_REQUESTS] = list(step.prefill_requests)
        found[names.STEP_PREFILL_TOKENS] = list(step.prefill_tokens)
        found[names.STEP_PREFILL_CONTEXT] = list(step.prefill_context)
    if step.joined:
        found[names.STEP_DECODE_JOINED] = ranges(sorted(step.joined))
    if step.left:
        found[names.STEP_DECODE_LEFT] = ranges(sorted(step.left))
    if members:
        found[names.STEP_DECODE_REQUESTS] = ranges(members)
    if step.new_tokens and any(n != 1 for n in step.new_tokens):
        found[names.STEP_DECODE_NEW_TOKENS] = list(step.new_tokens)
    for key, count in (
        (names.STEP_CONTEXT_TOKENS, step.context_tokens), (names.STEP_RUNNING, step.running),
        (names.STEP_WAITING, step.waiting), (names.STEP_WAITING_TOKENS, step.waiting_tokens),
        (names.STEP_OLDEST_WAIT_NS, step.oldest_wait_ns), (names.STEP_DRAFTED, step.drafted),
        (names.STEP_ACCEPTED, step.accepted),
    ):  # fmt: skip
        if count >= 0:
            found[key] = count
    for key, share in (
        (names.STEP_KV_USAGE, step.kv_usage), (names.STEP_KV_RESERVED, step.kv_reserved),
    ):  # fmt: skip
        if share >= 0:
            found[key] = round(float(share), 6)
    if step.preempted:
        found[names.STEP_PREEMPTED] = list(step.preempted)
    if step.admit_bound:
        found[names.STEP_ADMIT_BOUND] = step.admit_bound
    if step.graph:
        found[names.STEP_GRAPH] = step.graph
    found[names.STEP_DROPPED] = dropped
    if skipped:
        found[names.STEP_SKIPPED] = skipped
    return found


def step_row(
    engine_id: str,
    epoch_ns: int,
    start_ns: int,
    end_ns: int,
    attributes: Attributes,
    *,
    span_id: int,
    resource: int,
) -> Row:
    """Returns an engine step (or a heartbeat) in the trace of its ten seconds; unix times."""
    return Row(
        engine_trace_id(engine_id, epoch_ns, start_ns), span_id, 0, names.SPAN_ENGINE_STEP,
        names.KIND_INTERNAL, start_ns, max(start_ns, end_ns),
        {names.ENGINE_ID: engine_id, names.ENGINE_EPOCH: epoch_ns, **attributes},
        False, resource,
    )  # fmt: skip


# --- the SDK's own form -----------------------------------------------------------------------


def reader_of(resources: Mapping[int, Resource]) -> Callable[[Row], ReadableSpan]:
    """Returns a function that makes rows the SDK's `ReadableSpan`s.

    Args:
        resources: by their numbers in rows.
    """
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode

    scope = InstrumentationScope(names.SCOPE_NAME, names.CONTRACT_VERSION)
    kinds = {
        names.KIND_INTERNAL: SpanKind.INTERNAL,
        names.KIND_SERVER: SpanKind.SERVER,
        names.KIND_CLIENT: SpanKind.CLIENT,
    }
    sampled = TraceFlags(TraceFlags.SAMPLED)
    unset, failed = Status(StatusCode.UNSET), Status(StatusCode.ERROR)
    nothing = Resource({})

    def context(trace_id: int, span_id: int, is_remote: bool) -> SpanContext:
        return SpanContext(trace_id, span_id, is_remote, sampled)

    def readable(row: Row) -> ReadableSpan:
        attributes: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in row.attributes.items()
        }
        return ReadableSpan(
            name=row.name,
            context=context(row.trace_id, row.span_id, False),
            parent=context(row.trace_id, row.parent_id, True) if row.parent_id else None,
            resource=resources.get(row.resource, nothing),
            attributes=attributes,
            kind=kinds[row.kind],
            status=failed if row.is_error else unset,
            start_time=row.start_ns,
            end_time=row.end_ns,
            instrumentation_scope=scope,
        )

    return readable
