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

KIND_NOTHING: Final = 0
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

ADMIT_BOUNDS: Final = ("", "none", "slots", "tokens", "kv", "adapters", "grammar", "remote_kv")
GRAPHS: Final = ("", "full", "piecewise", "eager")
ADMIT_CODES: Final = {name: code for code, name in enumerate(ADMIT_BOUNDS)}
GRAPH_CODES: Final = {name: code for code, name in enumerate(GRAPHS)}

# kind, flags, admit bound, graph, decode count, index, start, end, context tokens, waiting
# tokens, oldest wait, kv usage, kv reserved, running, waiting, drafted, accepted, device's
# step and time, dropped, skipped
STEP_HEAD: Final = struct.Struct("=BBBBIQqqqqqddiiiiqqQQ")
# joined, left, full, prompt chunks, preempted, new tokens
STEP_COUNTS: Final = struct.Struct("=6I")
# kind, padding, index of the last step, time, dropped
BEAT: Final = struct.Struct("=B7xqqQ")

LISTS_AT: Final = STEP_HEAD.size + STEP_COUNTS.size
MAX_RECORD_BYTES: Final = 1 << 20
FRAME: Final = struct.Struct("=I")

# A value is a name, an id or a label; longer text has no business here.
MAX_TEXT: Final = 256

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
    admit_bound: str
    graph: str
    context_tokens: int
    waiting_tokens: int
    oldest_wait_ns: int
    kv_usage: float
    kv_reserved: float
    running: int
    waiting: int
    drafted: int
    accepted: int
    device_step: int
    device_ns: int
    dropped: int
    skipped: int
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
        _, flags, admit, graph, count, index, start_ns, end_ns, context, waiting_tokens, oldest,
        usage, reserved, running, waiting, drafted, accepted, device_step, device_ns, dropped,
        skipped,
    ) = STEP_HEAD.unpack_from(data)  # fmt: skip
    step = StepRecord(
        index, start_ns, end_ns, count,
        ADMIT_BOUNDS[admit] if admit < len(ADMIT_BOUNDS) else "",
        GRAPHS[graph] if graph < len(GRAPHS) else "",
        context, waiting_tokens, oldest, usage, reserved, running, waiting, drafted, accepted,
        device_step, device_ns, dropped, skipped,
    )  # fmt: skip
    if flags & HAS_LISTS:
        _unpack_lists(data, flags, step)
    return step


def _unpack_lists(data: memoryview, flags: int, step: StepRecord) -> None:
    if len(data) < LISTS_AT:
        raise WireError("a step's lists are cut off")
    n_joined, n_left, n_full, n_chunks, n_preempted, n_new = STEP_COUNTS.unpack_from(
        data, STEP_HEAD.size
    )
    sizes = (n_joined, n_left, n_full, n_chunks, n_chunks, n_chunks, n_preempted, n_new)
    if len(data) != LISTS_AT + 4 * sum(sizes):
        raise WireError("a step's lists have another size than it says")
    values = array(_UINT32)
    values.frombytes(data[LISTS_AT:])
    parts: list[list[int]] = []
    at = 0
    for size in sizes:
        parts.append(values[at : at + size].tolist())
        at += size
    step.joined, step.left = parts[0], parts[1]
    step.members = parts[2] if flags & HAS_FULL else None
    step.prefill_requests, step.prefill_tokens, step.prefill_context = parts[3:6]
    step.preempted = parts[6]
    step.new_tokens = parts[7] if flags & HAS_NEW_TOKENS else None
