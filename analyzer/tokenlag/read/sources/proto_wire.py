"""Protobuf's wire format for many messages at a time, with numpy instead of a loop.

All messages of one kind in a block take one step together: the first field of each, then
the second, and so on. What a step costs does not depend on how many messages take it, so
a thousand spans cost little more than one; where few messages have many fields, a plain
loop does it. Anything out of the ordinary raises `UnusualError`: then a real decoder has
to say what it is. Nothing here trusts a length: a value that ends behind its message is
unusual.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np

from tokenlag.read.sources import proto_frames

Int64s = np.ndarray[Any, np.dtype[np.int64]]
Uint64s = np.ndarray[Any, np.dtype[np.uint64]]

PADDING: Final = 32  # zero bytes behind the data, so that a look ahead stays inside
FEW_MESSAGES: Final = 128  # below it, a plain loop is faster than a step
KEY_TAG, VALUE_TAG = 0x0A, 0x12  # of an attribute
MAX_STEPS: Final = 4096  # fields of one message, where many messages are taken together


class UnusualError(ValueError):
    """Data that is damaged, or right and rare."""


class Part(NamedTuple):
    """Fields of one tag: whose they are, and where their values begin and end."""

    owner: Int64s
    begin: Int64s
    end: Int64s


class Buffer:
    """Bytes to be looked at in many places at once.

    Args:
        data: the bytes.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data + bytes(PADDING)
        self.n_bytes = len(data)
        self.is_repaired = False  # some text was not UTF-8
        self.bytes = np.frombuffer(self.data, np.uint8)
        self._words: Uint64s = np.ndarray(
            (len(self.data) - 7,), np.dtype("<u8"), self.data, strides=(1,)
        )

    def words(self, at: Int64s) -> Uint64s:
        """Returns the eight bytes at each offset as a little-endian number."""
        return self._words[at]

    def doubles(self, at: Int64s) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Returns the eight bytes at each offset as a double."""
        return self._words[at].view(np.float64)

    def varints(self, at: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the varint at each offset, as signed 64 bits, and the offset behind it.

        Raises:
            UnusualError: one is longer than ten bytes.
        """
        first = self.bytes[at]
        values = first.astype(np.int64)
        more = np.flatnonzero(first >= 0x80)
        behind = at + 1
        if not len(more):
            return values, behind
        values[more] &= 0x7F
        shift = 7
        while len(more):
            if shift > 63:
                raise UnusualError("a varint of more than ten bytes")
            byte = self.bytes[behind[more]]
            values[more] |= (byte & 0x7F).astype(np.int64) << shift
            behind[more] += 1
            more = more[byte >= 0x80]
            shift += 7
        return values, behind

    def parts(self, begin: Int64s, end: Int64s, known: Iterable[int]) -> dict[int, Part]:
        """Returns the fields of messages, by tag, in each message's order.

        Args:
            begin: where the messages begin.
            end: where they end.
            known: the tags to give; of others only those count whose field has another
                wire type here.

        Raises:
            UnusualError: a message is damaged, or has a known field in an unknown form.
        """
        tags = set(known)
        numbers = {tag >> 3 for tag in tags}
        found: dict[int, list[tuple[Int64s, Int64s, Int64s]]] = {tag: [] for tag in tags}
        active = np.flatnonzero(begin < end)
        at, stop = begin[active], end[active]
        n_steps = 0
        while len(active):
            if len(active) < FEW_MESSAGES:
                self._walk(active, at, stop, tags, numbers, found)
                break
            n_steps += 1
            if n_steps > MAX_STEPS:
                raise UnusualError("a message of very many fields")
            tag, value, behind = self._step(at)
            if (behind > stop).any():
                raise UnusualError("a field that is longer than its message")
            first = int(tag[0])
            if (tag == first).all():
                _check(first, tags, numbers)
                if first in tags:
                    found[first].append((active, value, behind))
            else:
                for one in np.flatnonzero(np.bincount(tag)).tolist():
                    _check(one, tags, numbers)
                    if one in tags:
                        mine = tag == one
                        found[one].append((active[mine], value[mine], behind[mine]))
            more = behind < stop
            if more.all():
                at = behind
            else:
                active, at, stop = active[more], behind[more], stop[more]
        return {
            tag: Part(*(np.concatenate(column) for column in zip(*pieces, strict=True)))
            for tag, pieces in found.items()
            if pieces
        }

    def pairs(self, begin: Int64s, end: Int64s) -> tuple[Part, Part] | None:
        """Returns keys and values of messages that are nothing but one of each, in this order.

        That is how all writers have attributes; `None` if it is not so, which says nothing
        of whether they are right.
        """
        every = np.arange(len(begin))
        if (self.bytes[begin] != KEY_TAG).any():
            return None
        length, key = self.varints(begin + 1)
        key_end = key + length
        if ((length < 0) | (key_end >= end)).any() or (self.bytes[key_end] != VALUE_TAG).any():
            return None
        length, value = self.varints(key_end + 1)
        if (value + length != end).any():
            return None
        return Part(every, key, key_end), Part(every, value, end)

    def _step(self, at: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Returns the tag at each offset, and where its value begins and ends."""
        tag = self.bytes[at].astype(np.int64)
        value = at + 1
        long = np.flatnonzero(tag >= 0x80)
        if len(long):
            second = self.bytes[value[long]].astype(np.int64)
            if (second >= 0x80).any():
                raise UnusualError("a field number beyond 2,047")
            tag[long] = (tag[long] & 0x7F) | (second << 7)
            value[long] += 1
        wire = tag & 7
        first = int(wire[0])
        if (wire == first).all():
            return tag, *self._values(first, value)
        begin, behind = value.copy(), value.copy()
        for one in np.flatnonzero(np.bincount(wire)).tolist():
            mine = np.flatnonzero(wire == one)
            begin[mine], behind[mine] = self._values(one, value[mine])
        return tag, begin, behind

    def _values(self, wire: int, at: Int64s) -> tuple[Int64s, Int64s]:
        if wire == 2:
            length, begin = self.varints(at)
            # A length below zero, or past the end, would be found out too late.
            if ((length < 0) | (length > self.n_bytes)).any():
                raise UnusualError("a length beyond the data")
            return begin, begin + length
        if wire == 0:
            return at, self.varints(at)[1]
        if wire == 1:
            return at, at + 8
        if wire == 5:
            return at, at + 4
        raise UnusualError(f"a field of wire type {wire}")

    def _walk(
        self,
        active: Int64s,
        at: Int64s,
        stop: Int64s,
        tags: set[int],
        numbers: set[int],
        found: dict[int, list[tuple[Int64s, Int64s, Int64s]]],
    ) -> None:
        """The rest of a few messages, one field after another."""
        data = self.data
        lists: dict[int, list[tuple[int, int, int]]] = {tag: [] for tag in tags}
        for owner, begin, end in zip(active.tolist(), at.tolist(), stop.tolist(), strict=True):
            here = begin
            while here < end:
                tag, length, value = data[here], data[here + 1], here + 2
                if length >= 0x80:
                    length = length & 0x7F | data[value] << 7
                    value += 1
                if tag & 0x87 == 2 and length < 1 << 14:  # most: one byte, and two at most
                    behind = value + length
                else:
                    tag, value, behind = self._field(here)
                if behind > end:
                    raise UnusualError("a field that is longer than its message")
                if tag in lists:
                    lists[tag].append((owner, value, behind))
                else:
                    _check(tag, tags, numbers)
                here = behind
        for tag, rows in lists.items():
            if rows:
                owners, begins, ends = np.ascontiguousarray(np.array(rows, np.int64).T)
                found[tag].append((owners, begins, ends))

    def _field(self, at: int) -> tuple[int, int, int]:
        try:
            field = proto_frames.field(self.data, at)
        except proto_frames.FrameError as error:
            raise UnusualError(str(error)) from None
        if field is None:
            raise UnusualError("a field that is longer than its message")
        return field


def _check(tag: int, tags: set[int], numbers: set[int]) -> None:
    if tag not in tags and tag >> 3 in numbers:
        raise UnusualError("a known field of another wire type")
    if tag < 8:
        raise UnusualError("field number 0")


def gather(parts: dict[int, Part], tag: int) -> Part:
    """Returns the fields of a tag, none if there are none."""
    none = np.empty(0, np.int64)
    return parts.get(tag) or Part(none, none, none)


class KeyTable:
    """Byte strings that are looked for among many.

    Args:
        keys: what to look for.
    """

    _BITS: Final = 16
    _MIX: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = list(keys)
        self._encoded = [key.encode() for key in self.keys]
        lengths = np.array([len(key) for key in self._encoded], np.int64)
        begin = np.cumsum(lengths) - lengths
        self._tails = _tails(Buffer(b"".join(self._encoded)), begin, lengths)
        self._lengths = lengths
        # Keys of one length that end alike are in one slot, and are told apart last.
        slots: dict[int, list[int]] = {}
        for index, slot in enumerate(self._slots(self._tails, lengths).tolist()):
            slots.setdefault(slot, []).append(index)
        self._in_slot = list(slots.values())
        self._table = np.full(1 << self._BITS, -1, np.int32)
        self._table[list(slots)] = np.arange(len(slots))

    def _slots(self, tails: Uint64s, lengths: Int64s) -> Int64s:
        one, two = (np.uint64(value) for value in self._MIX)
        mixed = (tails * one) ^ (lengths.astype(np.uint64) * two)
        slots: Int64s = (mixed >> np.uint64(64 - self._BITS)).astype(np.int64)
        return slots

    def find(self, buffer: Buffer, begin: Int64s, end: Int64s) -> Int64s:
        """Returns which key each string is; −1 for none of them."""
        length = end - begin
        tails = _tails(buffer, begin, length)
        of_slot = self._table[self._slots(tails, length)]
        found = np.full(len(begin), -1, np.int64)
        maybe = np.flatnonzero(of_slot >= 0)
        order = maybe[np.argsort(of_slot[maybe], kind="stable")]
        bounds = np.searchsorted(of_slot[order], np.arange(len(self._in_slot) + 1))
        for indexes, first, last in zip(self._in_slot, bounds[:-1], bounds[1:], strict=True):
            mine = order[first:last]
            for index in indexes if len(mine) else ():
                same = (tails[mine] == self._tails[index]) & (length[mine] == self._lengths[index])
                rest = mine if same.all() else mine[same]
                head = self._encoded[index][:-8]
                at = begin[rest]
                for start in range(0, len(head), 8):
                    # Past the head is the tail, which is known to be the key's.
                    piece = self._encoded[index][start : start + 8]
                    equal = buffer.words(at + start) == np.uint64(int.from_bytes(piece, "little"))
                    if not equal.all():
                        rest, at = rest[equal], at[equal]
                found[rest] = index
        return found


def _tails(buffer: Buffer, begin: Int64s, length: Int64s) -> Uint64s:
    """The last eight bytes of each string, or all of a shorter one."""
    tails = buffer.words(begin + np.maximum(length - 8, 0))
    short = np.flatnonzero(length < 8)
    if len(short):
        bits = (8 * length[short]).astype(np.uint64)
        tails[short] &= (np.uint64(1) << bits) - np.uint64(1)
    return tails
