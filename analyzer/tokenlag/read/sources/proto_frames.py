"""Where OTLP protobuf begins and ends: one message, or several, each behind its length.

The Collector's file exporter writes four bytes, big-endian, before each message (and
compresses each by itself where it is told to compress); protobuf's own tools write a
varint. One message alone is cut between its top-level fields, for any run of those is a
message again. Nothing is decoded here but headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

MESSAGE: Final = "message"  # a single one; what is cut off are top-level fields
BE32: Final = "be32"
VARINT: Final = "varint"

MAX_MESSAGE_BYTES: Final = 128 * 2**20
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
BE32_BYTES: Final = 4
MAX_VARINT_BYTES: Final = 10
LEN: Final = 2  # wire type of strings, bytes and messages
_FIXED_BYTES: Final = {1: 8, 5: 4}
_MAX_LEADING_EMPTY: Final = 64

RESOURCE_TAG: Final = 0x0A
SCOPE_TAG: Final = 0x12  # scope_spans, scope_logs, scope_metrics
_TOP_TAG: Final = 0x0A
_INNER_TAGS: Final = (RESOURCE_TAG, SCOPE_TAG, 0x1A)
_JSON_STARTS: Final = (b'{"resource', b'{"scope')


class FrameError(ValueError):
    """What stands where a header should is none."""


@dataclass(frozen=True)
class FrameBlock:
    """Whole frames out of a stream.

    Args:
        offset: of the first byte, from the beginning of the decompressed stream.
        data: the frames with their headers.
        broken: why nothing after them can be read, where that is so.
    """

    offset: int
    data: bytes
    broken: str | None = None


def varint(data: bytes, at: int) -> tuple[int, int] | None:
    """Returns a varint and the offset behind it, or None if its end is not there.

    Raises:
        FrameError: it is longer than ten bytes.
    """
    value = shift = 0
    for index in range(at, min(at + MAX_VARINT_BYTES, len(data))):
        byte = data[index]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index + 1
        shift += 7
    if len(data) - at >= MAX_VARINT_BYTES:
        raise FrameError("a number of more than ten bytes")
    return None


def field(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Returns a field's tag and where its value begins and ends.

    None if its header is not all there; the value need not be.

    Raises:
        FrameError: that is no field.
    """
    head = varint(data, at)
    if head is None:
        return None
    tag, begin = head
    wire = tag & 7
    if tag < 8 or tag >= 1 << 32:
        raise FrameError("not a field")
    if wire == LEN or not wire:
        value = varint(data, begin)
        if value is None:
            return None
        return (tag, value[1], value[1] + value[0]) if wire else (tag, begin, value[1])
    if wire not in _FIXED_BYTES:
        raise FrameError(f"a field of wire type {wire}")
    return tag, begin, begin + _FIXED_BYTES[wire]


def fields(data: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yields the fields of a message that is all there: tag, value's begin and end.

    Raises:
        FrameError: it is no message.
    """
    at = begin
    while at < end:
        found = field(data, at)
        if found is None or found[2] > end:
            raise FrameError("a field that is longer than its message")
        yield found
        at = found[2]


def _frame(data: bytes, at: int, framing: str) -> tuple[int, int] | None:
    """Returns where the body of the frame at an offset begins and ends."""
    if framing == MESSAGE:
        found = field(data, at)
        return None if found is None else (found[1], found[2])
    if framing == VARINT:
        length = varint(data, at)
        return None if length is None else (length[1], length[1] + length[0])
    begin = at + BE32_BYTES
    if begin > len(data):
        return None
    return begin, begin + int.from_bytes(data[at:begin], "big")


def bodies(data: bytes, framing: str) -> Iterator[tuple[int, int]]:
    """Yields where the messages of a block begin and end; all of them are there."""
    if framing == MESSAGE:
        yield 0, len(data)
        return
    at = 0
    while at < len(data):
        found = _frame(data, at, framing)
        if found is None or found[1] > len(data):
            raise FrameError("a message that is longer than its block")
        yield found
        at = found[1]


def frame_blocks(chunks: Iterable[bytes], framing: str, block_bytes: int) -> Iterator[FrameBlock]:
    """Yields a stream as blocks of whole frames; ends where one cannot be told from the next."""
    rest, parts, n_parts = b"", [], 0
    offset, n_needed = 0, block_bytes
    for chunk in chunks:
        parts.append(chunk)
        n_parts += len(chunk)
        if len(rest) + n_parts < n_needed:
            continue
        rest, parts, n_parts = b"".join([rest, *parts]), [], 0
        n_whole, n_next, broken = _whole_frames(rest, framing, offset)
        if n_whole or broken:
            yield FrameBlock(offset, rest[:n_whole], broken)
        if broken:
            return
        offset += n_whole
        rest = rest[n_whole:]
        n_needed = max(block_bytes, n_next)
    rest = b"".join([rest, *parts])
    if rest:
        n_whole, n_next, broken = _whole_frames(rest, framing, offset)
        n_left = len(rest) - n_whole
        if n_left and not broken:
            wanted = f"of {n_next:,} bytes, {n_left:,} are there" if n_next else "it is the length"
            broken = f"byte {offset + n_whole:,}: the last message is cut off ({wanted})"
        yield FrameBlock(offset, rest[:n_whole], broken)


def _whole_frames(data: bytes, framing: str, offset: int) -> tuple[int, int, str | None]:
    """Returns how many bytes whole frames take, how many the next one takes, and the fault."""
    at = 0
    while at < len(data):
        try:
            found = _frame(data, at, framing)
        except FrameError as error:
            return at, 0, f"byte {offset + at:,}: {error} where a message should begin"
        if found is None:
            return at, 0, None
        n_body = found[1] - found[0]
        if n_body > MAX_MESSAGE_BYTES:
            many = f"{n_body >> 20:,} MB"
            limit = f"{MAX_MESSAGE_BYTES >> 20} MB"
            where = f"byte {offset + at:,}"
            return at, 0, f"{where}: a message of {many} is announced, and {limit} is the limit"
        if found[1] > len(data):
            return at, found[1] - at, None
        at = found[1]
    return at, 0, None


def framing_of(head: bytes) -> str | None:
    """Returns how OTLP protobuf is framed that begins so; None if it is anything else.

    Args:
        head: the first bytes; a message may go on behind them.
    """
    try:
        if head[:1] == bytes([_TOP_TAG]) and _is_export(head, 0, 1 << 62):
            return MESSAGE
        # A length that cannot be is believed last: it is told, if nothing else fits.
        for limit in (MAX_MESSAGE_BYTES, 1 << 62):
            for framing in (BE32, VARINT):
                if _is_framed(head, framing, limit):
                    return framing
    except FrameError:
        return None
    return None


def _is_framed(head: bytes, framing: str, limit: int) -> bool:
    """Whether the first message behind a length is an export. Empty messages are passed over."""
    at = 0
    for _ in range(_MAX_LEADING_EMPTY):
        try:
            found = _frame(head, at, framing)
        except FrameError:
            return False
        if found is None:
            return False
        begin, end = found
        if end - begin > limit:
            return False
        if begin == end:
            at = end
            continue
        body = head[begin : begin + len(_JSON_STARTS[0])]
        if framing == BE32 and (body[:4] == ZSTD_MAGIC or body.startswith(_JSON_STARTS)):
            return True
        try:
            return _is_export(head, begin, end)
        except FrameError:
            return False
    return False


def _is_export(head: bytes, begin: int, end: int) -> bool:
    """Whether a message looks like resources with scopes, as all signals have them.

    Down to the first key of an attribute, or the first scope; what is behind the head is
    taken for good.
    """
    top = field(head, begin)
    if top is None or top[0] != _TOP_TAG or top[2] > end or top[1] == top[2]:
        return False
    if top[1] >= len(head):
        return False
    inner = field(head, top[1])
    if inner is None:
        return False
    if inner[0] not in _INNER_TAGS or inner[2] > top[2]:
        return False
    if inner[1] == inner[2]:
        return True
    # A resource's first attribute, a scope's name, or (in Tempo's wrapper) a resource.
    third = field(head, inner[1])
    if third is None:
        return len(head) <= inner[1] + 2
    return third[0] in (0x0A, 0x12, 0x10, 0x1A) and third[2] <= inner[2]
