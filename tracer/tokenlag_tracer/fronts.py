"""A request as its front end, and its client, saw it: what they told, as spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tokenlag_tracer import conventions as names
from tokenlag_tracer.sequences import Sequence as EngineSequence
from tokenlag_tracer.spans import Attributes, Row, attributes_of

Fields = dict[str, object]

# wire name → key, for what front ends tell
_FRONT_KEYS: Final = {
    "operation": names.OPERATION_NAME,
    "model": names.REQUEST_MODEL,
    "request_id": names.REQUEST_ID,
    "max_tokens": names.REQUEST_MAX_TOKENS,
    "stream": names.REQUEST_STREAM,
    "choice_count": names.REQUEST_CHOICE_COUNT,
    "conversation_id": names.CONVERSATION_ID,
    "input_tokens": names.USAGE_INPUT_TOKENS,
    "output_tokens": names.USAGE_OUTPUT_TOKENS,
    "cached_tokens": names.USAGE_CACHED_TOKENS,
    "finish_reasons": names.FINISH_REASONS,
    "error_type": names.ERROR_TYPE,
    "tenant": names.TENANT,
    "prefix_id": names.PREFIX_ID,
    "features": names.REQUEST_FEATURES,
    "adapter": names.ADAPTER,
    "priority": names.PRIORITY,
    "delivery_wait_ns": names.DELIVERY_WAIT_NS,
    "delivery_max_ns": names.DELIVERY_MAX_NS,
}

_CLIENT_KEYS: Final = {
    "operation": names.OPERATION_NAME,
    "model": names.REQUEST_MODEL,
    "stream": names.REQUEST_STREAM,
    "request_id": names.REQUEST_ID,
    "input_tokens": names.USAGE_INPUT_TOKENS,
    "output_tokens": names.USAGE_OUTPUT_TOKENS,
    "first_chunk_s": names.TIME_TO_FIRST_CHUNK,
    "error_type": names.ERROR_TYPE,
    "chunks": names.CLIENT_CHUNKS,
    "gap_p50_ns": names.CLIENT_GAP_P50_NS,
    "gap_p99_ns": names.CLIENT_GAP_P99_NS,
    "gap_max_ns": names.CLIENT_GAP_MAX_NS,
    "intended_ns": names.CLIENT_INTENDED_NS,
}
_MAX_CHUNK_MS: Final = 65_536


def int_of(value: object) -> int | None:
    """Returns a value if it is a whole number, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def hex_of(value: object) -> int:
    """Returns an id given in hexadecimal; 0 if it is none."""
    try:
        return int(value, 16) if isinstance(value, str) and len(value) <= 32 else 0
    except ValueError:
        return 0


def text_of(value: object) -> str | None:
    """Returns a value if it is text and not empty, else None."""
    return value if isinstance(value, str) and value else None


@dataclass(slots=True)
class Front:
    """A request as its front end saw it; times monotonic."""

    span_id: int
    parent_id: int
    arrived_ns: int
    offset_ns: int
    fields: Fields
    stages: list[tuple[str, int, int]] = field(default_factory=list)
    done_ns: int | None = None
    is_written: bool = False


def front_rows(
    front: Front,
    sequences: Sequence[EngineSequence],
    trace_id: int,
    weight: float | None,
    resource: int,
    new_id: Callable[[], int],
) -> Iterator[Row]:
    """Yields the spans of a request's front end; of one that is not done, those of its parts.

    Args:
        front: what it told.
        sequences: what engines did for the request: tells of tokens are theirs first.
        trace_id: of the request's trace.
        weight: how many requests it stands for; None is one.
        resource: number of the front end's resource.
        new_id: makes span ids.
    """
    offset_ns = front.offset_ns

    def row(parent_id: int, name: str, start_ns: int, end_ns: int, keys: Attributes) -> Row:
        return Row(
            trace_id, new_id(), parent_id, name, names.KIND_INTERNAL,
            start_ns + offset_ns, max(start_ns, end_ns) + offset_ns, keys, False,
            resource,
        )  # fmt: skip

    told = front.fields
    first_ns, last_ns = _token_times(sequences, told)
    sent_ns = int_of(told.get("sent_unix_ns"))
    if sent_ns is not None:
        is_same = told.get("is_same_clock") is True
        keys = {names.DIRECTION: "in", names.CLOCK: "same" if is_same else "remote"}
        inward = row(front.parent_id, names.SPAN_NETWORK, front.arrived_ns, 0, dict(keys))
        # A clock that is ahead shows as a span that would end before it starts.
        yield inward._replace(start_ns=min(sent_ns, inward.start_ns), end_ns=inward.start_ns)
    for stage, start_ns, end_ns in front.stages:
        words = attributes_of({names.STAGE: stage})
        yield row(front.span_id, names.SPAN_FRONTEND, start_ns, end_ns, words)
    if front.done_ns is None:
        return  # it never ended: only its parts are told
    values: Fields = {key: told.get(name) for name, key in _FRONT_KEYS.items()}
    _fill_from_engines(values, sequences)
    values[names.SAMPLE_WEIGHT] = weight
    if first_ns is not None:
        values[names.FIRST_TOKEN_NS] = first_ns - front.arrived_ns
    if last_ns is not None:
        values[names.LAST_TOKEN_NS] = last_ns - front.arrived_ns
    attributes = attributes_of(values)
    yield row(
        front.parent_id, names.SPAN_REQUEST, front.arrived_ns, front.done_ns, attributes
    )._replace(
        span_id=front.span_id, kind=names.KIND_SERVER, is_error=names.ERROR_TYPE in attributes
    )
    ready_ns = last_ns if last_ns is not None else _answer_ready_ns(sequences)
    if ready_ns is not None and ready_ns <= front.done_ns:
        keys = {names.DIRECTION: "out", names.CLOCK: "same"}
        yield row(front.span_id, names.SPAN_NETWORK, ready_ns, front.done_ns, dict(keys))


def _token_times(
    sequences: Sequence[EngineSequence], told: Fields
) -> tuple[int | None, int | None]:
    """First and last token's time: the engines' own, else as the front end saw them."""
    firsts = [ns for s in sequences if (ns := s.first_token_ns) is not None]
    lasts = [ns for s in sequences if (ns := s.last_token_ns) is not None]
    return (
        min(firsts) if firsts else int_of(told.get("first_token_at_ns")),
        max(lasts) if lasts else int_of(told.get("last_token_at_ns")),
    )


def _answer_ready_ns(sequences: Sequence[EngineSequence]) -> int | None:
    """When an answer without tokens (an embedding, a score) was there; None without one."""
    ends = [
        s.ended_ns
        for s in sequences
        if s.ended_ns is not None
        and s.n_output == 0
        and s.fields.get("finish_reason") != "abort"
        and not s.fields.get("error_type")
    ]
    return max(ends, default=None)


def _fill_from_engines(values: Fields, sequences: Sequence[EngineSequence]) -> None:
    """Takes from the engines what the front end did not tell."""
    if not sequences:
        return
    first = sequences[0].fields
    for name in ("model", "operation", "tenant", "prefix_id", "features", "adapter", "priority",
                 "conversation_id", "max_tokens", "input_tokens"):  # fmt: skip
        key = _FRONT_KEYS[name]
        if values.get(key) is None:
            values[key] = first.get(name)
    if values.get(names.USAGE_CACHED_TOKENS) is None:
        # Of several sequences the first to start finds what others left; the rest find, and do
        # not compute again, what it has computed: no reuse that the request came with.
        counts = [n for sequence in sequences if (n := sequence.n_cached) is not None]
        values[names.USAGE_CACHED_TOKENS] = min(counts, default=None)
    if values.get(names.USAGE_OUTPUT_TOKENS) is None:
        outputs = [sequence.n_output for sequence in sequences]
        known = [n for n in outputs if n is not None]
        values[names.USAGE_OUTPUT_TOKENS] = sum(known) if len(known) == len(outputs) else None
    if values.get(names.FINISH_REASONS) is None:
        reasons = [r for s in sequences if (r := s.fields.get("finish_reason")) is not None]
        values[names.FINISH_REASONS] = reasons or None


def client_row(at_ns: int, offset_ns: int, fields: Fields, resource: int) -> Row | None:
    """Returns a client's span of its call; None if its ids are none."""
    span_id, trace_id = hex_of(fields.get("key")), hex_of(fields.get("trace"))
    end_ns = int_of(fields.get("end_ns"))
    if not span_id or not trace_id or end_ns is None:
        return None
    attributes = attributes_of({key: fields.get(name) for name, key in _CLIENT_KEYS.items()})
    chunk_ms = fields.get("chunk_ms")
    if (
        isinstance(chunk_ms, str)
        and len(chunk_ms) <= _MAX_CHUNK_MS
        and not chunk_ms.strip("0123456789.,")
    ):
        attributes[names.CLIENT_CHUNK_MS] = chunk_ms
    operation = attributes.get(names.OPERATION_NAME, "chat")
    model = attributes.get(names.REQUEST_MODEL)
    return Row(
        trace_id, span_id, hex_of(fields.get("parent")),
        f"{operation} {model}" if model else str(operation), names.KIND_CLIENT,
        at_ns + offset_ns, max(at_ns, end_ns) + offset_ns, attributes,
        names.ERROR_TYPE in attributes, resource,
    )  # fmt: skip
