"""The folder of Parquet: parts as they come, put together now and then, the oldest removed.

A part is one commit. Every file appears whole, by a rename; `spans-<first>-<last>.parquet` holds
the parts of those numbers. Whatever moment the process is killed at, the folder holds each part
alone or in a file that names it, and maybe both: then the part is removed at the next start.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenlag.errors import InputError

if TYPE_CHECKING:
    import polars as pl

LOCK: Final = ".collect.lock"
_NAME: Final = re.compile(r"(spans|events)-([0-9]{9})-([0-9]{9})\.parquet")
_HALF: Final = ".half-"
# Statistics let a window's reader pass over the row groups of other times.
_ROW_GROUP_ROWS: Final = 65_536
KINDS: Final = ("spans", "events")


@dataclass(frozen=True)
class Piece:
    """One file of the folder.

    Args:
        kind: `spans` or `events`.
        first: number of the first commit in it.
        last: number of the last.
        path: where it is.
        n_bytes: its size.
    """

    kind: str
    first: int
    last: int
    path: Path
    n_bytes: int


class Folder:
    """The files of one receiver.

    Args:
        path: made if it is not there.
        max_bytes: what all its files may take; the oldest go first.

    Raises:
        InputError: it cannot be written, or another receiver writes into it.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.n_removed = 0  # files that went because of the cap
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path / LOCK)
        except OSError as error:
            raise InputError(f"cannot be written: {error.strerror}", place=str(path)) from None
        self._clean()
        self._next = max((piece.last for piece in self.pieces()), default=0) + 1

    def close(self) -> None:
        """Lets another receiver have it."""
        os.close(self._lock)

    def pieces(self) -> list[Piece]:
        """All files, oldest first."""
        found = []
        for entry in os.scandir(self.path):
            match = _NAME.fullmatch(entry.name)
            if match:
                with suppress(FileNotFoundError):
                    n_bytes = entry.stat().st_size
                    numbers = int(match[2]), int(match[3])
                    found.append(Piece(match[1], *numbers, Path(entry.path), n_bytes))
        return sorted(found, key=lambda piece: (piece.first, piece.kind))

    def commit(self, spans: pl.DataFrame, events: pl.DataFrame) -> None:
        """Writes one part.

        Raises:
            OSError: nothing was written.
        """
        number = self._next
        # Events first: spans without their events would be a loss that nothing shows.
        for kind, frame in (("events", events), ("spans", spans)):
            if frame.height:
                self._write(kind, frame, number, number)
        self._next = number + 1

    def put_together(self, *, over: int) -> bool:
        """Makes one file of the parts that are left alone, if they are more than `over`.

        Raises:
            OSError: the parts stay as they are.
        """
        done = False
        for kind in KINDS:
            alone = [p for p in self.pieces() if p.kind == kind and p.first == p.last]
            if len(alone) > over:
                self._merge(kind, alone)
                done = True
        return done

    def _merge(self, kind: str, pieces: Sequence[Piece]) -> None:
        import polars as pl

        frame = pl.concat([pl.read_parquet(piece.path) for piece in pieces], how="diagonal_relaxed")
        self._write(kind, frame, pieces[0].first, pieces[-1].last)
        for piece in pieces:
            piece.path.unlink(missing_ok=True)

    def trim(self) -> None:
        """Removes the oldest files until the rest is within the cap."""
        pieces = self.pieces()
        n_bytes = sum(piece.n_bytes for piece in pieces)
        for piece in pieces[:-1]:
            if n_bytes <= self.max_bytes:
                return
            piece.path.unlink(missing_ok=True)
            n_bytes -= piece.n_bytes
            self.n_removed += 1

    def _write(self, kind: str, frame: pl.DataFrame, first: int, last: int) -> None:
        half = self.path / f"{_HALF}{kind}"
        try:
            frame.write_parquet(
                half, compression="zstd", statistics=True, row_group_size=_ROW_GROUP_ROWS
            )
            with half.open("rb") as file:
                os.fsync(file.fileno())
            half.rename(self.path / f"{kind}-{first:09d}-{last:09d}.parquet")
        except BaseException as error:
            half.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise
            if type(error).__module__.startswith("polars"):  # it wraps what the disk said
                raise OSError(None, str(error).splitlines()[0]) from None
            raise

    def _clean(self) -> None:
        """Removes half-written files, and parts that a larger file holds, too."""
        for half in self.path.glob(f"{_HALF}*"):
            half.unlink(missing_ok=True)
        pieces = self.pieces()
        for kind in KINDS:
            large = [(p.first, p.last) for p in pieces if p.kind == kind and p.first < p.last]
            for piece in pieces:
                is_part = piece.kind == kind and piece.first == piece.last
                if is_part and any(first <= piece.first <= last for first, last in large):
                    piece.path.unlink(missing_ok=True)


def _locked(path: Path) -> int:
    """An open file that only one process has."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # a system without such locks
        pass
    except OSError:
        os.close(handle)
        raise InputError(
            "another `diagnose collect` writes into this folder",
            place=str(path.parent),
            hint="give it another --dir",
        ) from None
    return handle
