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
    _MIX: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)

    def __init__(self, keys: Iterable[str]) -> None:
        self.keys = list(keys)
        encoded = [key.encode() for key in self.keys]
        self._encoded = encoded
        buffer = Buffer(b"".join(encoded))
        lengths = np.array([len(key) for key in encoded], np.int64)
        ends = np.cumsum(lengths)
        # Keys that differ in their middles alone have one signature, and are told apart last.
        alike: dict[int, list[int]] = {}
        for index, signature in enumerate(self._sign(buffer, ends - lengths, lengths).tolist()):
            alike.setdefault(signature, []).append(index)
        self._alike = list(alike.values())
        self._signatures = np.array(list(alike), np.uint64)
        slots: dict[int, list[int]] = {}
        for group, signature in enumerate(alike):
            slots.setdefault(signature >> (64 - self._BITS), []).append(group)
        self._table = np.full(1 << self._BITS, -1, np.int32)
        for slot, groups in slots.items():
            self._table[slot] = groups[0]
        self._crowded = [groups for groups in slots.values() if len(groups) > 1]

    def _sign(self, buffer: Buffer, begin: Int64s, length: Int64s) -> Uint64s:
        """A number out of a string's length and its first and last eight bytes."""
        first, last_at = buffer.words(begin), begin + np.maximum(length - 8, 0)
        last = buffer.words(last_at)
        short = np.flatnonzero(length < 8)
        if len(short):
            bits = (8 * length[short]).astype(np.uint64)
            kept = (np.uint64(1) << bits) - np.uint64(1)
            first[short] &= kept
            last[short] = first[short]
        one, two, three = (np.uint64(value) for value in self._MIX)
        mixed: Uint64s = (first * one) ^ (last * two) ^ (length.astype(np.uint64) * three)
        return (mixed ^ (mixed >> np.uint64(29))) * one

    def find(self, buffer: Buffer, begin: Int64s, end: Int64s) -> Int64s:
        """Returns which key each string is; −1 for none of them."""
        length = end - begin
        signatures = self._sign(buffer, begin, length)
        slots = (signatures >> np.uint64(64 - self._BITS)).astype(np.int64)
        of_group = self._table[slots].astype(np.int64)
        for groups in self._crowded:
            for group in groups:
                of_group[signatures == self._signatures[group]] = group
        maybe = np.flatnonzero(of_group >= 0)
        maybe = maybe[self._signatures[of_group[maybe]] == signatures[maybe]]
        found = np.full(len(begin), -1, np.int64)
        for group in np.flatnonzero(np.bincount(of_group[maybe])).tolist():
            mine = maybe[of_group[maybe] == group]
            for index in self._alike[group]:
                found[mine[self._equals(buffer, begin[mine], length[mine], index)]] = index
        return found

    def _equals(self, buffer: Buffer, begin: Int64s, length: Int64s, index: int) -> Any:
        """Whether the strings are the key, byte for byte."""
        key = self._encoded[index]
        same = length == len(key)
        for at in range(0, len(key), 8):
            piece = key[at : at + 8]
            word = np.uint64(int.from_bytes(piece, "little"))
            mask = np.uint64((1 << (8 * len(piece))) - 1)
            there = np.minimum(begin + at, buffer.n_bytes)
            same &= (buffer.words(there) & mask) == word
        return same
