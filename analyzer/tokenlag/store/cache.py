"""Parquet that was made of trace files once, and is used again while those files stay the same.

A *segment* is what one run read: a folder with Parquet files and a manifest, which names every
input by its path, size, time of change and a hash of its ends. Segments are moved into place
whole, and checked against the hashes of their manifest before they are used; one that does not fit
is thrown away, for it can be made again. A segment in use is locked, so that nobody evicts it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import msgspec

try:
    import fcntl
except ImportError:  # no locks there; a segment that is evicted while in use is an error once
    fcntl = None  # type: ignore[assignment]

FORMAT: Final = 1
END_BYTES: Final = 65_536  # of either end of an input, hashed
STALE_S: Final = 86_400.0  # a half-made segment of that age is nobody's any more
_MANIFEST: Final = "segment.json"
_HASH_BYTES: Final = 16


class InputKey(msgspec.Struct, frozen=True):
    """What tells that an input is still the same file with the same content."""

    path: str
    n_bytes: int
    mtime_ns: int
    ends: str  # hash of its first and last bytes


class KeptNote(msgspec.Struct, frozen=True):
    """What was noticed in an input; the fields of a row of `read_notes`."""

    kind: str
    place: str | None
    n: int
    text: str


class KeptInput(msgspec.Struct, frozen=True):
    """One input of a segment: its rows are those of this `source`."""

    key: InputKey
    source: str
    n_rows: int
    notes: list[KeptNote]
    first_ns: int | None = None
    last_ns: int | None = None


class KeptFile(msgspec.Struct, frozen=True):
    """One Parquet file of a segment."""

    name: str
    is_events: bool
    n_bytes: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """What a segment holds."""

    format: int
    schema: str  # of the rows: another version of the reader makes others
    inputs: list[KeptInput]
    files: list[KeptFile]
    n_sources: int  # that have rows in the files, also those that are not to be used again


@dataclass(frozen=True)
class Segment:
    """A segment that was checked and is locked until its cache is closed."""

    folder: Path
    manifest: Manifest

    def paths(self, *, events: bool) -> list[Path]:
        """Its Parquet files of one kind."""
        files = (file for file in self.manifest.files if file.is_events == events)
        return [self.folder / file.name for file in files]


def input_key(path: Path) -> InputKey | None:
    """The key of a regular file, None for anything else or what cannot be read."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not path.is_file():
                return None
            ends = hashlib.blake2b(file.read(END_BYTES), digest_size=_HASH_BYTES)
            if status.st_size > END_BYTES:
                file.seek(max(status.st_size - END_BYTES, END_BYTES))
                ends.update(file.read(END_BYTES))
    except OSError:
        return None
    real = os.path.realpath(path)
    return InputKey(real, status.st_size, status.st_mtime_ns, ends.hexdigest())


class Cache:
    """The segments of one folder.

    Args:
        folder: where they lie; it is made when the first is kept.
        schema: which segments are understood.
        max_bytes: what all of them may take; the longest unused go first.
    """

    def __init__(self, folder: Path, schema: str, max_bytes: int) -> None:
        self.folder = folder
        self.schema = schema
        self.max_bytes = max_bytes
        self._locks: list[IO[bytes]] = []

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the segments that were found or kept."""
        for lock in self._locks:
            lock.close()
        self._locks = []

    def find(self, keys: Sequence[InputKey]) -> list[tuple[Segment, list[KeptInput]]]:
        """Segments that hold some of these inputs, each input once, newest segments first."""
        wanted = set(keys)
        found = []
        for folder in self._folders():
            manifest = _manifest(folder)
            if manifest is None or manifest.format != FORMAT:
                _remove(folder)
                continue
            inputs = [one for one in manifest.inputs if one.key in wanted]
            if manifest.schema != self.schema or not inputs:
                continue
            lock = _lock(folder, shared=True)
            if lock is None:  # it is being evicted
                continue
            if not _is_whole(folder, manifest):
                lock.close()
                _remove(folder)
                continue
            self._locks.append(lock)
            with suppress(OSError):
                os.utime(folder / _MANIFEST)
            wanted -= {one.key for one in inputs}
            found.append((Segment(folder, manifest), inputs))
        return found

    def keep(
        self,
        inputs: Sequence[KeptInput],
        span_files: Sequence[Path],
        event_files: Sequence[Path],
        n_sources: int,
    ) -> Segment | None:
        """Makes a segment of Parquet files, which are not touched; None if they are too large.

        Raises:
            OSError: the folder cannot be written.
        """
        n_bytes = sum(path.stat().st_size for path in (*span_files, *event_files))
        if n_bytes > self.max_bytes:
            return None
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        half = self.folder / f".{name}"
        half.mkdir(mode=0o700)
        files = []
        for path, is_events in (
            *((path, False) for path in span_files),
            *((path, True) for path in event_files),
        ):
            target = half / path.name
            _copy(path, target)
            files.append(KeptFile(path.name, is_events, target.stat().st_size, _digest(target)))
        manifest = Manifest(FORMAT, self.schema, list(inputs), files, n_sources)
        (half / _MANIFEST).write_bytes(msgspec.json.encode(manifest))
        folder = self.folder / name
        half.rename(folder)
        lock = _lock(folder, shared=True)
        if lock is not None:
            self._locks.append(lock)
        self.evict()
        return Segment(folder, manifest)

    def evict(self) -> None:
        """Removes what is longest unused until the rest fits; what is in use stays."""
        sizes = {folder: _size(folder) for folder in self._folders()}
        n_bytes = sum(sizes.values())
        for folder in sorted(sizes, key=_used_at):
            if n_bytes <= self.max_bytes:
                break
            if _remove(folder):
                n_bytes -= sizes[folder]
        for half in self.folder.glob(".*-*"):
            with suppress(OSError):
                if time.time() - half.stat().st_mtime > STALE_S:
                    shutil.rmtree(half, ignore_errors=True)

    def clear(self) -> tuple[int, int]:
        """Removes all that is not in use; returns how many segments went and how many stay."""
        gone = [_remove(folder) for folder in self._folders()]
        return sum(gone), len(gone) - sum(gone)

    def segments(self) -> Iterator[tuple[Path, Manifest | None, int, float]]:
        """Each segment's folder, manifest (None: damaged), bytes, and when it was last used."""
        for folder in self._folders():
            yield folder, _manifest(folder), _size(folder), _used_at(folder)

    def _folders(self) -> list[Path]:
        """Newest first."""
        try:
            entries = sorted(self.folder.iterdir(), reverse=True)
        except OSError:
            return []
        return [path for path in entries if not path.name.startswith(".") and path.is_dir()]


def _manifest(folder: Path) -> Manifest | None:
    try:
        return msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def _is_whole(folder: Path, manifest: Manifest) -> bool:
    try:
        return all(
            (folder / file.name).stat().st_size == file.n_bytes
            and _digest(folder / file.name) == file.digest
            for file in manifest.files
        )
    except OSError:
        return False


def _copy(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, target)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, _hash).hexdigest()


def _hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=_HASH_BYTES)


def _size(folder: Path) -> int:
    n_bytes = 0
    with suppress(OSError):
        n_bytes = sum(entry.stat().st_size for entry in os.scandir(folder))
    return n_bytes


def _used_at(folder: Path) -> float:
    try:
        return (folder / _MANIFEST).stat().st_mtime
    except OSError:
        return 0.0


def _lock(folder: Path, *, shared: bool) -> IO[bytes] | None:
    """The open manifest with a lock on it, None if somebody else's is in the way."""
    try:
        file = (folder / _MANIFEST).open("rb")
    except OSError:
        return None
    if fcntl is not None:
        try:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
    return file


def _remove(folder: Path) -> bool:
    """Removes a segment unless it is in use; returns whether it is gone."""
    lock = _lock(folder, shared=False)
    if lock is None and (folder / _MANIFEST).exists():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        lock.close()
    return not folder.exists()
