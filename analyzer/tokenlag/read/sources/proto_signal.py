"""Which signal an OTLP protobuf message carries: all of them have the same outer shape.

A decoder for traces takes logs without a word, as spans of nothing but unknown fields, so
the first records' fields are looked at: their numbers and wire types differ.
"""

from __future__ import annotations

from typing import Final

from tokenlag.read.sources.proto_frames import (
    RESOURCE_TAG,
    SCOPE_TAG,
    FrameError,
    fields,
)

TRACES: Final = "traces"
EMPTY: Final = "empty"
_RECORDS_TAG: Final = 0x12  # spans, log_records and metrics of a scope
_FIRST_TAG, _SECOND_TAG = 0x0A, 0x12  # ids of a span; name and description of a metric
TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
_MAX_RECORDS: Final = 20

# Tags that only one signal's records have.
_TELLING: Final = {
    0x39: TRACES,  # start_time_unix_nano
    0x41: TRACES,
    0x30: TRACES,  # kind
    0x09: "logs",  # time_unix_nano
    0x10: "logs",  # severity_number
    0x59: "logs",  # observed_time_unix_nano
    0x3A: "metrics",  # sum
    0x52: "metrics",  # exponential histogram
}
_PROFILES_DICTIONARY_TAG: Final = 0x12


def signal_of(data: bytes) -> str:
    """Returns "traces", "logs", "metrics", "profiles", or "empty" if there is no record.

    Raises:
        FrameError: that is no protobuf.
    """
    n_seen = 0
    for tag, begin, end in fields(data, 0, len(data)):
        if tag == _PROFILES_DICTIONARY_TAG:
            return "profiles"
        if tag != RESOURCE_TAG:
            continue
        for inner_tag, scope_begin, scope_end in fields(data, begin, end):
            if inner_tag != SCOPE_TAG:
                continue
            for record_tag, at, record_end in fields(data, scope_begin, scope_end):
                if record_tag != _RECORDS_TAG:
                    continue
                found = _of_record(data, at, record_end)
                if found is not None:
                    return found
                n_seen += 1
                if n_seen >= _MAX_RECORDS:
                    return TRACES
    return TRACES if n_seen else EMPTY


def _of_record(data: bytes, begin: int, end: int) -> str | None:
    """What a record's fields say. A gauge looks like a span with odd ids, and a name."""
    lengths = {_FIRST_TAG: 0, _SECOND_TAG: 0}
    for tag, at, value_end in fields(data, begin, end):
        found = _TELLING.get(tag)
        if found is not None:
            return found
        if tag in lengths:
            lengths[tag] = value_end - at
    are_ids = lengths[_FIRST_TAG] in (0, TRACE_ID_BYTES) and lengths[_SECOND_TAG] in (
        0,
        SPAN_ID_BYTES,
    )
    return None if are_ids else "metrics"


def unwrapped(data: bytes) -> bytes:
    """Returns what is in the wrapper of Tempo's answers, which holds a trace and no scopes.

    A message that is not wrapped comes back as it is.

    Raises:
        FrameError: that is no protobuf.
    """
    inside, is_wrapped = [], False
    for tag, begin, end in fields(data, 0, len(data)):
        if tag != RESOURCE_TAG:
            continue
        for inner_tag, inner_begin, inner_end in fields(data, begin, end):
            if inner_tag != RESOURCE_TAG:
                return data
            is_wrapped = is_wrapped or _has_scopes(data, inner_begin, inner_end)
        inside.append(data[begin:end])
    return b"".join(inside) if is_wrapped else data


def _has_scopes(data: bytes, begin: int, end: int) -> bool:
    """Whether something is a resource with its scopes, which a resource alone has not."""
    try:
        return any(tag == SCOPE_TAG for tag, _, _ in fields(data, begin, end))
    except FrameError:
        return False
