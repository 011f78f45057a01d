"""Cuts bytes into the texts that they hold: whole lines, in blocks or byte ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

MAX_TEXT_BYTES: Final = 128 * 2**20  # of one line, or of one pretty-printed object
BLOCK_BYTES: Final = 8 * 2**20
READ_BYTES: Final = 4 * 2**20


@dataclass(frozen=True)
class Block:
    """Whole lines out of a stream.

    Args:
        data: the bytes; `None` stands for one text that is too long to be read.
        line: the number of the first line, from 1.
    """

    data: bytes | None
    line: int


def blocks_of(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Yields a stream as blocks of whole lines; ends at a line over `MAX_TEXT_BYTES`."""
    rest: list[bytes] = []
    n_rest = 0
    line = 1
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            data = b"".join([*rest, chunk[:cut]])
            yield Block(data, line)
            line += data.count(b"\n")
            rest, n_rest = [], 0
        if cut < len(chunk):
            rest.append(chunk[cut:])
            n_rest += len(chunk) - cut
        if n_rest > MAX_TEXT_BYTES:
            yield Block(None, line)
            return
    if rest:
        yield Block(b"".join(rest), line)


def whole_text(chunks: Iterable[bytes]) -> bytes | None:
    """Returns a stream in one piece, or None if it is over `MAX_TEXT_BYTES`."""
    parts: list[bytes] = []
    n_bytes = 0
    for chunk in chunks:
        parts.append(chunk)
        n_bytes += len(chunk)
        if n_bytes > MAX_TEXT_BYTES:
            return None
    return b"".join(parts)


def lines_of(
    stream: IO[bytes], start: int, end: int | None
) -> Iterator[tuple[int, memoryview | None]]:
    """Yields the lines that begin in a byte range, with their offsets, bounded in size.

    All lines lie in one buffer that is used again, since copying each line and giving its
    memory back costs as much as parsing half of it.

    Args:
        stream: seekable bytes, best without a buffer of its own.
        start: the range's first byte; a line that began before it is left to the range
            before.
        end: the first byte after the range, None for the end of the stream.

    Yields:
        The offset and the line with its newline, good until the next is asked for; `None`
        for a line over `MAX_TEXT_BYTES`.
    """
    # From the byte before, whose newline says that a line begins at the start.
    stream.seek(max(start - 1, 0))
    window = _Window(stream, max(start - 1, 0))
    if start and not window.skip_line(end):
        return
    while end is None or window.offset < end:
        offset = window.offset
        n_bytes = window.line_bytes()
        if n_bytes == 0:
            return
        if n_bytes is None:
            yield offset, None
            if not window.skip_line(None):
                return
            continue
        yield offset, window.take(n_bytes)


class _Window:
    """A piece of a stream, moved along it in one buffer."""

    def __init__(self, stream: IO[bytes], offset: int) -> None:
        self.offset = offset  # of the first byte that is not taken
        self._stream = stream
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._first = self._last = 0  # what is held and not taken

    def line_bytes(self) -> int | None:
        """The length of the next line, 0 at the end of the stream, None if it is too long."""
        n_seen = 0
        while True:
            found = self._buffer.find(b"\n", self._first + n_seen, self._last)
            if found >= 0:
                n_bytes = found + 1 - self._first
                return n_bytes if n_bytes <= MAX_TEXT_BYTES + 1 else None
            n_seen = self._last - self._first
            if n_seen > MAX_TEXT_BYTES:
                return None
            if not self._fill():
                return n_seen

    def take(self, n_bytes: int) -> memoryview:
        first = self._first
        self._first += n_bytes
        self.offset += n_bytes
        return self._view[first : self._first]

    def skip_line(self, end: int | None) -> bool:
        """Moves behind the next newline; False if the stream or the range ends before."""
        while True:
            found = self._buffer.find(b"\n", self._first, self._last)
            self.take((found + 1 if found >= 0 else self._last) - self._first)
            if found >= 0:
                return True
            if (end is not None and self.offset > end) or not self._fill():
                return False

    def _fill(self) -> bool:
        """Reads on, into a larger buffer if this one is full of one line."""
        held = bytes(self._view[self._first : self._last])
        if len(held) > len(self._buffer) // 2:
            self._buffer = bytearray(2 * len(self._buffer))
            self._view = memoryview(self._buffer)
        self._view[: len(held)] = held
        self._first, self._last = 0, len(held)
        n_read: int = self._stream.readinto(self._view[self._last :])  # type: ignore[attr-defined]
        self._last += n_read
        return n_read > 0


def line_number(path: Path, offset: int) -> int:
    """Returns the number of the line, from 1, that holds a byte of a plain file."""
    n_left, n_lines = offset, 1
    with path.open("rb") as file:
        while n_left > 0 and (chunk := file.read(min(n_left, BLOCK_BYTES))):
            n_lines += chunk.count(b"\n")
            n_left -= len(chunk)
    return n_lines


def is_one_text(head: bytes) -> bool:
    """Returns whether a file is JSON texts over several lines instead of one a line.

    A pretty-printed object's first line is not JSON by itself, and its second does not
    begin a new object at the margin, as the second line after a cut first one would.
    """
    import msgspec

    lines = head.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 2)
    first = lines[0].strip()
    if len(lines) < 2 or first[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(first, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return first in (b"{", b"[") or not lines[1].startswith((b"{", b"["))
    return False
