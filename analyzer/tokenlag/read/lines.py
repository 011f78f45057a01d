"""Cuts bytes into the texts that they hold: whole lines, in blocks or byte ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

MAX_TEXT_BYTES: Final = 128 * 2**20  # of one line, or of one pretty-printed object
BLOCK_BYTES: Final = 8 * 2**20


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


def lines_of(stream: IO[bytes], start: int, end: int | None) -> Iterator[tuple[int, bytes | None]]:
    """Yields the lines that begin in a byte range, with their offsets, bounded in size.

    Args:
        stream: seekable bytes.
        start: the range's first byte; a line that began before it is left to the range
            before.
        end: the first byte after the range, None for the end of the stream.

    Yields:
        The offset and the line with its newline; `None` for a line over `MAX_TEXT_BYTES`.
    """
    offset = start
    if start:
        stream.seek(start - 1)
        offset -= 1
        while piece := stream.readline(2**20):
            offset += len(piece)
            if piece.endswith(b"\n") or (end is not None and offset > end):
                break
    else:
        stream.seek(0)
    while end is None or offset < end:
        line = stream.readline(MAX_TEXT_BYTES + 1)
        if not line:
            return
        if len(line) <= MAX_TEXT_BYTES or line.endswith(b"\n"):
            yield offset, line
            offset += len(line)
            continue
        yield offset, None
        offset += len(line)
        while piece := stream.readline(2**20):
            offset += len(piece)
            if piece.endswith(b"\n"):
                break


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
