"""Which files a path means, and their bytes: plain, gzip or zstd, by content not by name."""

from __future__ import annotations

import errno
import glob
import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from tokenlag.errors import InputError

STDIN: Final = "-"
GZIP_MAGIC: Final = b"\x1f\x8b"
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
HEAD_BYTES: Final = 2**18
MAX_TEXT_BYTES: Final = 128 * 2**20  # of one line, or of one pretty-printed object
BLOCK_BYTES: Final = 8 * 2**20
GLOB_HINT: Final = "give a file, a folder or a pattern of OTLP JSON (.json, .jsonl, .gz, .zst)"


@dataclass(frozen=True)
class InputFile:
    """A file to be read.

    Args:
        path: where it is; `-` is standard input.
        name: how messages and rows call it: as it was given.
        n_bytes: its size on disk.
        is_named: it was named itself, not found in a folder or by a pattern.
    """

    path: Path
    name: str
    n_bytes: int
    is_named: bool


@dataclass
class Found:
    """The files that some paths mean, and what stood in the way."""

    files: list[InputFile] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)  # name, why
    problems: list[InputError] = field(default_factory=list)


def find_files(paths: Sequence[str | Path]) -> Found:
    """Returns the files that the paths mean, each real file once, in a stable order.

    A folder is searched with all its folders, through links, without hidden files. What
    cannot be used is a problem if it was named, else it is listed as skipped.
    """
    found = Found()
    seen: set[str] = set()
    for path in paths:
        try:
            _find(str(path), found, seen)
        except InputError as error:
            found.problems.append(error)
    return found


def _find(given: str, found: Found, seen: set[str]) -> None:
    if given == STDIN:
        if STDIN not in seen:
            seen.add(STDIN)
            found.files.append(InputFile(Path(STDIN), STDIN, 0, is_named=True))
        return
    if not given:
        raise InputError("an empty path", hint=GLOB_HINT)
    path = Path(given).expanduser()
    try:
        is_there = os.path.lexists(path)
    except ValueError:
        raise InputError("not a path", place=repr(given), hint=GLOB_HINT) from None
    if is_there:
        if _is_folder(path, given):
            _find_in_folder(path, given, found, seen)
        else:
            _add(path, given, found, seen, is_named=True)
        return
    if not glob.has_magic(given):
        raise InputError("no such file or folder", place=given, hint=GLOB_HINT)
    matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207 - takes absolute ones too
    if not matches:
        raise InputError("no file matches this pattern", place=given, hint=GLOB_HINT)
    for match in matches:
        if Path(match).is_dir():
            _find_in_folder(Path(match), match, found, seen, may_be_empty=True)
        else:
            _add(Path(match), match, found, seen, is_named=False)


def _is_folder(path: Path, given: str) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise InputError(_os_reason(error), place=given, hint=_os_hint(error)) from None


def _os_reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be read"
    if error.errno == errno.ENOENT:
        return "is a link to nothing"
    return f"cannot be read: {error.strerror or error}"


def _os_hint(error: OSError) -> str | None:
    return "check its permissions" if error.errno in (errno.EACCES, errno.EPERM) else None


def _find_in_folder(
    folder: Path, given: str, found: Found, seen: set[str], *, may_be_empty: bool = False
) -> None:
    n_before = len(found.files) + len(found.skipped)
    n_seen_before = len(seen)
    on_path: set[str] = set()

    def walk(current: Path, name: str) -> None:
        real = os.path.realpath(current)
        if real in on_path:
            return  # a link up its own path: everything below was or will be visited
        on_path.add(real)
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append(InputError(_os_reason(error), place=name, hint=_os_hint(error)))
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            inner = os.path.join(name, entry.name)  # noqa: PTH118 - keeps the name as given
            try:
                is_folder = entry.is_dir()
            except OSError as error:
                found.skipped.append((inner, _os_reason(error)))
                continue
            if is_folder:
                walk(Path(entry.path), inner)
            else:
                _add(Path(entry.path), inner, found, seen, is_named=False)

    walk(folder, given)
    is_empty = len(found.files) + len(found.skipped) == n_before and len(seen) == n_seen_before
    if is_empty and not may_be_empty and not found.problems:
        raise InputError("this folder has no files in it", place=given, hint=GLOB_HINT)


def _add(path: Path, name: str, found: Found, seen: set[str], *, is_named: bool) -> None:
    try:
        real = os.path.realpath(path)
        status = path.stat()
    except OSError as error:
        if is_named:
            raise InputError(_os_reason(error), place=name, hint=_os_hint(error)) from None
        found.skipped.append((name, _os_reason(error)))
        return
    if real in seen:
        return
    seen.add(real)
    if not path.is_file() and not (is_named and path.is_fifo()):
        if is_named:
            raise InputError("is neither a file nor a folder", place=name, hint=GLOB_HINT)
        found.skipped.append((name, "not a file"))
        return
    found.files.append(InputFile(path, name, status.st_size, is_named=is_named))


class Bytes:
    """A file's decompressed bytes, read once from front to back.

    Args:
        file: what to open.

    Raises:
        InputError: it cannot be opened.
    """

    def __init__(self, file: InputFile) -> None:
        self.file = file
        try:
            self._raw: IO[bytes] = (
                sys.stdin.buffer if file.name == STDIN else file.path.open("rb", buffering=2**20)
            )
            magic = _peek(self._raw, 4)
        except OSError as error:
            raise InputError(_os_reason(error), place=file.name, hint=_os_hint(error)) from None
        self.is_plain = True
        self._read: Callable[[int], bytes] = self._raw.read
        if magic.startswith(GZIP_MAGIC):
            self.is_plain = False
            self._read = gzip.GzipFile(fileobj=self._raw).read
        elif magic == ZSTD_MAGIC:
            import zstandard

            self.is_plain = False
            self._read = (
                zstandard.ZstdDecompressor().stream_reader(self._raw, read_across_frames=True).read
            )
        self.is_seekable = self.is_plain and file.name != STDIN and self._raw.seekable()
        self.broken: str | None = None
        self.head = b""
        while len(self.head) < HEAD_BYTES:
            more = self._more(HEAD_BYTES - len(self.head))
            if not more:
                break
            self.head += more

    def __enter__(self) -> Bytes:
        return self

    def __exit__(self, *_: object) -> None:
        if self.file.name != STDIN:
            self._raw.close()

    def n_read(self) -> int:
        """Returns how many bytes of the file on disk were used so far."""
        return self._raw.tell() if self._raw.seekable() else 0

    def chunks(self) -> Iterator[bytes]:
        """Yields everything, the head first. A cut or damaged stream ends early: `broken`."""
        if self.head:
            yield self.head
        while chunk := self._more(BLOCK_BYTES):
            yield chunk

    def _more(self, n: int) -> bytes:
        try:
            return self._read(n)
        except EOFError:
            self.broken = "the compressed stream is cut off"
        except (zlib.error, gzip.BadGzipFile, OSError) as error:
            self.broken = f"the compressed stream is damaged: {error}"
        except Exception as error:
            if type(error).__name__ != "ZstdError":
                raise
            self.broken = f"the compressed stream is damaged: {error}"
        return b""


def _peek(raw: IO[bytes], n: int) -> bytes:
    peek = getattr(raw, "peek", None)
    return bytes(peek(n)[:n]) if peek else b""


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


def memory_stream(data: bytes) -> IO[bytes]:
    """Returns bytes as a stream."""
    return io.BytesIO(data)
