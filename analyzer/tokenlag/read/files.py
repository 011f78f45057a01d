"""Which files some paths mean: files, folders, patterns, standard input."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tokenlag.errors import InputError

STDIN: Final = "-"
GLOB_HINT: Final = (
    "give a file, a folder or a pattern of traces: OTLP, Jaeger or Zipkin, or Parquet of spans"
)


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
    if "\0" in given:
        raise InputError("not a path", place=repr(given), hint=GLOB_HINT)
    path = Path(given).expanduser()
    if os.path.lexists(path):
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
        raise InputError(os_reason(error), place=given, hint=os_hint(error)) from None


def os_reason(error: OSError) -> str:
    """Returns what kept a file from being opened, as the end of "this …"."""
    if error.errno == errno.ELOOP:
        return "is a link that leads back to itself"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "may not be read"
    if error.errno == errno.ENOENT:
        return "is a link to nothing"
    return f"cannot be read: {error.strerror or error}"


def os_hint(error: OSError) -> str | None:
    """Returns what to do about it, if anything."""
    return "check its permissions" if error.errno in (errno.EACCES, errno.EPERM) else None


def _find_in_folder(
    folder: Path, given: str, found: Found, seen: set[str], *, may_be_empty: bool = False
) -> None:
    n_met = 0
    visited: set[str] = set()

    def walk(current: Path, name: str) -> None:
        nonlocal n_met
        real = os.path.realpath(current)
        if real in visited:
            return  # a link to a folder that was or will be searched anyway
        visited.add(real)
        try:
            entries = sorted(os.scandir(current), key=lambda entry: entry.name)
        except OSError as error:
            found.problems.append(InputError(os_reason(error), place=name, hint=os_hint(error)))
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            inner = os.path.join(name, entry.name)  # noqa: PTH118 - keeps the name as given
            try:
                is_folder = entry.is_dir()
            except OSError as error:
                found.skipped.append((inner, os_reason(error)))
                continue
            n_met += not is_folder
            if is_folder:
                walk(Path(entry.path), inner)
            else:
                _add(Path(entry.path), inner, found, seen, is_named=False)

    walk(folder, given)
    if not n_met and not may_be_empty and not found.problems:
        raise InputError("this folder has no files in it", place=given, hint=GLOB_HINT)


def _add(path: Path, name: str, found: Found, seen: set[str], *, is_named: bool) -> None:
    try:
        real = os.path.realpath(path)
        status = path.stat()
    except OSError as error:
        if is_named:
            raise InputError(os_reason(error), place=name, hint=os_hint(error)) from None
        found.skipped.append((name, os_reason(error)))
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
