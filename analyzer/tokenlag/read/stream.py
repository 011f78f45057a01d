"""A file's bytes, decompressed as they come: plain, gzip or zstd, by content not by name."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from typing import IO, Final

from tokenlag.errors import InputError
from tokenlag.read.files import STDIN, InputFile, os_hint, os_reason

GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
HEAD_BYTES: Final = 2**18
CHUNK_BYTES: Final = 2**20
ZSTD_PIECE_BYTES: Final = 1024  # of input: what it can grow to at once stays under 50 MB
_GZIP_WBITS: Final = 31


class Bytes:
    """A file's decompressed bytes, read once from front to back.

    Args:
        file: what to open.

    Raises:
        InputError: it cannot be opened.
    """

    def __init__(self, file: InputFile) -> None:
        self.file = file
        self.broken: str | None = None
        self.head = b""
        try:
            self._raw: IO[bytes] = (
                sys.stdin.buffer if file.name == STDIN else file.path.open("rb", buffering=2**20)
            )
            magic = self._raw.read(4)
        except OSError as error:
            raise InputError(os_reason(error), place=file.name, hint=os_hint(error)) from None
        self.is_plain = False
        if magic.startswith(GZIP_MAGIC):
            self._chunks = self._guarded(_gunzip(magic, self._raw))
        elif magic == ZSTD_MAGIC:
            self._chunks = self._guarded(_unzstd(magic, self._raw))
        else:
            self.is_plain = True
            self._chunks = self._guarded(_plain(magic, self._raw))
        self.is_seekable = self.is_plain and file.name != STDIN and self._raw.seekable()
        self._first: list[bytes] = []
        n_bytes = 0
        while n_bytes < HEAD_BYTES and (chunk := next(self._chunks, b"")):
            self._first.append(chunk)
            n_bytes += len(chunk)
        self.head = b"".join(self._first)[:HEAD_BYTES]

    def __enter__(self) -> Bytes:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file.name != STDIN:
            self._raw.close()

    def n_read(self) -> int:
        """Returns how many bytes of the file on disk were used so far."""
        return self._raw.tell() if self._raw.seekable() else 0

    def chunks(self) -> Iterator[bytes]:
        """Yields everything, once. A cut or damaged stream ends early and sets `broken`."""
        first, self._first = self._first, []
        yield from first
        yield from self._chunks

    def _guarded(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        try:
            yield from chunks
        except EOFError:
            self.broken = "the compressed stream is cut off"
        except (zlib.error, ValueError) as error:
            self.broken = f"the compressed stream is damaged ({error})"
        except OSError as error:
            self.broken = f"reading it failed ({error.strerror or error})"


def _plain(first: bytes, raw: IO[bytes]) -> Iterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = raw.read(CHUNK_BYTES)


def _gunzip(first: bytes, raw: IO[bytes]) -> Iterator[bytes]:
    """All members of a gzip file. The library's reader loses what came before a cut."""
    data = first
    member = zlib.decompressobj(_GZIP_WBITS)
    while data or (data := raw.read(CHUNK_BYTES)):
        if member.eof:
            data = data.lstrip(b"\0")  # padding after a member is allowed
            if not data:
                continue
            member = zlib.decompressobj(_GZIP_WBITS)
        chunk = member.decompress(data, CHUNK_BYTES)
        data = member.unused_data if member.eof else member.unconsumed_tail
        if chunk:
            yield chunk
    while chunk := member.decompress(b"", CHUNK_BYTES):
        yield chunk
    if not member.eof:
        raise EOFError


def _unzstd(first: bytes, raw: IO[bytes]) -> Iterator[bytes]:
    """All frames of a zstd file. The library's reader does not tell a cut from an end."""
    import zstandard

    data = first
    decompressor = zstandard.ZstdDecompressor()
    frame = decompressor.decompressobj()
    try:
        while data or (data := raw.read(ZSTD_PIECE_BYTES)):
            if frame.eof:
                frame = decompressor.decompressobj()
            chunk = frame.decompress(data)
            data = frame.unused_data if frame.eof else b""
            if chunk:
                yield chunk
    except zstandard.ZstdError as error:
        raise ValueError(error) from None
    if not frame.eof:
        raise EOFError
