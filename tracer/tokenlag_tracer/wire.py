"""The bytes between recorders and the writer.

A record is one packet of a SOCK_SEQPACKET socket, so it arrives whole or not at all. Its first
byte is its kind. A step is a fixed header, and lists only if its flags say so; everything else
is rare and is JSON. Numbers are in the machine's own byte order, since both ends are on it;
times are monotonic nanoseconds; negative (for shares too) is "not measured".
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

VERSION: Final = 1

KIND_PING: Final = 0
KIND_HELLO: Final = 1
KIND_STEP: Final = 2
KIND_EVENT: Final = 3
KIND_BEAT: Final = 4
KIND_ASK: Final = 5

ASK_STATUS: Final = "status"
ASK_DUMP: Final = "dump"
ASK_FLUSH: Final = "flush"
ASK_BYE: Final = "bye"

# Events: what a front end, an engine and a client tell of a request.
ARRIVED: Final = "arrived"
UPDATED: Final = "updated"
STAGE: Final = "stage"
DELIVERED: Final = "delivered"
CLIENT: Final = "client"
QUEUED: Final = "queued"
WAITING: Final = "waiting"
ENDED: Final = "ended"

HAS_LISTS: Final = 1
HAS_FULL: Final = 2
HAS_NEW_TOKENS: Final = 4
HAS_EXTRA: Final = 8

ADMIT_BOUNDS: Final = ("", "none", "slots", "tokens", "kv", "adapters", "grammar", "remote_kv")
GRAPHS: Final = ("", "full", "piecewise", "eager")
# Already where they stand in a step's first word.
ADMIT_CODES: Final = {name: code << 16 for code, name in enumerate(ADMIT_BOUNDS)}
GRAPH_CODES: Final = {name: code << 24 for code, name in enumerate(GRAPHS)}

# One word of kind, flags, admit bound, graph and decode count (see `step_word`); index, start,
# end, context tokens, waiting tokens, oldest wait, one word of running and waiting, dropped; KV
# usage. Words of one size, and few, since packing is the dearest thing a cold caller does here.
STEP_HEAD: Final = struct.Struct("=9qd")
# KV reserved; drafted, accepted, device's step, device time
STEP_EXTRA: Final = struct.Struct("=d4q")
# kind, padding, index of the last step, time, dropped
BEAT: Final = struct.Struct("=B7xqqQ")

MAX_RECORD_BYTES: Final = 1 << 20
MAX_MEMBERS: Final = 1 << 17  # a step may list all that joined, left and are there
FRAME: Final = struct.Struct("=I")

# A value is a name, an id or a label; longer text has no business here.
MAX_TEXT: Final = 256

_N_COUNTS: Final = 6
_UINT32: Final = next(code for code in "IL" if array(code).itemsize == 4)
_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False, allow_nan=False).encode


class WireError(ValueError):
    """Bytes that are no record."""


@dataclass(slots=True)
class StepRecord:
    """A step as it was sent; see the contract's `llm.engine_step` for what each means."""

    index: int
    start_ns: int
    end_ns: int
    decode_count: int
    admit_bound: str = ""
    graph: str = ""
    context_tokens: int = -1
    waiting_tokens: int = -1
    oldest_wait_ns: int = -1
    kv_usage: float = -1.0
    kv_reserved: float = -1.0
    running: int = -1
    waiting: int = -1
    drafted: int = -1
    accepted: int = -1
    device_step: int = -1
    device_ns: int = -1
    dropped: int = 0
    joined: Sequence[int] = ()
    left: Sequence[int] = ()
    members: Sequence[int] | None = None
    prefill_requests: Sequence[int] = ()
    prefill_tokens: Sequence[int] = ()
    prefill_context: Sequence[int] = ()
    preempted: Sequence[int] = ()
    new_tokens: Sequence[int] | None = None


@dataclass(slots=True)
class BeatRecord:
    """An idle engine's sign of life."""

    index: int
    at_ns: int
    dropped: int


def numbers(values: Iterable[int]) -> bytes:
    """Returns counts as bytes.

    Raises:
        OverflowError: one is negative or does not fit into 32 bits.
    """
    return array(_UINT32, values).tobytes()


def pack_json(kind: int, body: Any) -> bytes:
    """Returns a record of a kind whose body is JSON."""
    return bytes((kind,)) + _encode(body).encode("ascii")


def pack_event(name: str, at_ns: int, fields: Mapping[str, Any]) -> bytes:
    """Returns an event of a request."""
    return pack_json(KIND_EVENT, (name, at_ns, fields))


def unpack_json(data: memoryview) -> Any:
    """Returns the body of a record that is JSON.

    Raises:
        WireError: it is not.
    """
    try:
        return json.loads(bytes(data[1:]))
    except (ValueError, RecursionError) as error:
        raise WireError(f"a record's body is not JSON: {error}") from None


def unpack_beat(data: memoryview) -> BeatRecord:
    """Returns a heartbeat.

    Raises:
        WireError: it has another size.
    """
    if len(data) != BEAT.size:
        raise WireError(f"a heartbeat of {len(data)} bytes")
    _, index, at_ns, dropped = BEAT.unpack(data)
    return BeatRecord(index, at_ns, dropped)


def unpack_step(data: memoryview) -> StepRecord:
    """Returns a step.

    Raises:
        WireError: its size is not what its header says.
    """
    if len(data) < STEP_HEAD.size:
        raise WireError(f"a step of {len(data)} bytes")
    (
        word, index, start_ns, end_ns, context, waiting_tokens, oldest_ns, queue, dropped, usage,
    ) = STEP_HEAD.unpack_from(data)  # fmt: skip
    admit, graph = word >> 16 & 0xFF, word >> 24 & 0xFF
    step = StepRecord(
        index=index,
        start_ns=start_ns,
        end_ns=end_ns,
        decode_count=word >> 32,
        admit_bound=ADMIT_BOUNDS[admit] if admit < len(ADMIT_BOUNDS) else "",
        graph=GRAPHS[graph] if graph < len(GRAPHS) else "",
        context_tokens=context,
        waiting_tokens=waiting_tokens,
        oldest_wait_ns=oldest_ns,
        kv_usage=usage,
        running=(queue >> 32) - 1,
        waiting=(queue & 0xFFFFFFFF) - 1,
        dropped=dropped,
    )
    flags = word >> 8 & 0xFF
    at = STEP_HEAD.size
    if flags & HAS_EXTRA:
        if len(data) < at + STEP_EXTRA.size:
            raise WireError("a step is cut off")
        (
            step.kv_reserved, step.drafted, step.accepted, step.device_step, step.device_ns,
        ) = STEP_EXTRA.unpack_from(data, at)  # fmt: skip
        at += STEP_EXTRA.size
    if flags & HAS_LISTS:
        _unpack_lists(data[at:], flags, step)
    elif len(data) != at:
        raise WireError("a step has another size than it says")
    return step


def _unpack_lists(data: memoryview, flags: int, step: StepRecord) -> None:
    """Reads six counts, and then so many joined, left, all members, chunks, preempted, new."""
    if len(data) < 4 * _N_COUNTS or len(data) % 4:
        raise WireError("a step's lists are cut off")
    values = array(_UINT32)
    values.frombytes(data)
    n_joined, n_left, n_full, n_chunks, n_preempted, n_new = values[:_N_COUNTS]
    sizes = (n_joined, n_left, n_full, 3 * n_chunks, n_preempted, n_new)
    if len(values) != _N_COUNTS + sum(sizes):
        raise WireError("a step's lists have another size than it says")
    parts: list[list[int]] = []
    at = _N_COUNTS
    for size in sizes:
        parts.append(values[at : at + size].tolist())
        at += size
    step.joined, step.left, members, chunks, step.preempted, new_tokens = parts
    step.prefill_requests = chunks[0::3]
    step.prefill_tokens, step.prefill_context = chunks[1::3], chunks[2::3]
    step.members = members if flags & HAS_FULL else None
    step.new_tokens = new_tokens if flags & HAS_NEW_TOKENS else None
