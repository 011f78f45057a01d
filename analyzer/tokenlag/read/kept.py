"""What an earlier run read and the cache still has: which files need not be read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tokenlag import __version__
from tokenlag.read.files import STDIN, InputFile
from tokenlag.read.noticed import FileResult, ReadNote
from tokenlag.read.sources import PARQUET
from tokenlag.read.sources.detect import PARQUET_MAGIC, is_parquet
from tokenlag.read.vocabulary import Vocabulary
from tokenlag.store.cache import Cache, InputKey, KeptInput, KeptNote, input_key
from tokenlag.store.extents import times_by_source, times_of_footers

# Changes whenever the same file gives other rows than before.
ROWS_FORMAT: Final = 1


@dataclass
class Kept:
    """The files that are in the cache, and those that are not.

    Attributes:
        missing: to be read.
        span_files: Parquet of the others.
        event_files: the same for span events.
        only: Parquet file → the sources whose rows count, where that is not all of its rows.
        inputs: the others, with the names by which they were given this time.
        n_outside: of the others, how many lie wholly outside the time that is needed.
    """

    missing: list[InputFile] = field(default_factory=list)
    span_files: list[Path] = field(default_factory=list)
    event_files: list[Path] = field(default_factory=list)
    only: dict[Path, frozenset[str]] = field(default_factory=dict)
    inputs: list[tuple[InputFile, KeptInput]] = field(default_factory=list)
    n_outside: int = 0
    keys: dict[str, InputKey] = field(default_factory=dict)  # of the missing, by name

    def notes(self) -> list[ReadNote]:
        """What was noticed when they were read, by today's names, and how much is left out."""
        notes = [
            ReadNote(note.kind, _renamed(note.place, kept.source, file.name), note.n, note.text)
            for file, kept in self.inputs
            for note in kept.notes
        ]
        if self.n_outside:
            text = f"{self.n_outside} files hold nothing of the time that is asked for"
            notes.append(ReadNote("outside_window", None, self.n_outside, text))
        return notes


def rows_schema(vocabulary: Vocabulary) -> str:
    """What rows of a cache have to fit: the version, and every key that is kept with its type."""
    parts = [
        __version__, ROWS_FORMAT, sorted(vocabulary.span.items()),
        sorted(vocabulary.resource.items()), sorted(vocabulary.event.items()),
        sorted(vocabulary.event_names), sorted(vocabulary.link_names),
    ]  # fmt: skip
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def look_up(
    cache: Cache | None, files: Sequence[InputFile], needed_ns: tuple[int, int] | None = None
) -> Kept:
    """Divides files into those that the cache has and those that it lacks.

    Args:
        cache: None: it lacks all.
        files: in order.
        needed_ns: the time of interest; kept files without a span in it are left out.
    """
    if cache is None:
        return _without_outside(Kept(missing=list(files)), needed_ns)
    keys = {file.name: key for file in files if (key := _key(file)) is not None}
    named = {key: file for file in files if (key := keys.get(file.name)) is not None}
    kept = Kept(keys=keys)
    found = cache.find(list(named))
    n_found = sum(len(inputs) for _, inputs in found)
    if n_found == len(files) and not any(_is_needed(o, needed_ns) for _, i in found for o in i):
        needed_ns = None  # so that the answer can say what time they hold instead
    for segment, inputs in found:
        inside = [one for one in inputs if _is_needed(one, needed_ns)]
        kept.inputs += [(named[one.key], one) for one in inputs]
        kept.n_outside += len(inputs) - len(inside)
        if not inside:
            continue
        paths = segment.paths(events=False)
        kept.span_files += paths
        kept.event_files += segment.paths(events=True)
        if len(inside) < segment.manifest.n_sources:
            sources = frozenset(one.source for one in inside)
            kept.only |= dict.fromkeys(paths, sources)
    held = {file.name for file, _ in kept.inputs}
    kept.missing = [file for file in files if file.name not in held]
    return _without_outside(kept, needed_ns)


def keep(
    cache: Cache,
    kept: Kept,
    results: Sequence[FileResult],
    span_files: Sequence[Path],
    event_files: Sequence[Path],
) -> None:
    """Puts what was read into the cache; files that changed meanwhile or made trouble are not.

    Raises:
        OSError: the cache's folder cannot be written.
    """
    good = [
        (result, key)
        for result in results
        if result.report.n_rows
        and not result.runs
        and result.problem() is None
        and not (result.source is not None and result.source.name == PARQUET)
        and (key := kept.keys.get(result.file.name)) is not None
        and key == _key(result.file)
    ]
    if not good:
        return
    # Links are Parquet of the user's, which is as quick to read where it lies.
    span_files = [path for path in span_files if not path.is_symlink()]
    event_files = [path for path in event_files if not path.is_symlink()]
    times = times_by_source(span_files)
    inputs = [
        KeptInput(
            key=key,
            source=result.file.name,
            n_rows=result.report.n_rows,
            notes=[KeptNote(n.kind, n.place, n.n, n.text) for n in result.notes()],
            first_ns=times.get(result.file.name, (None, None))[0],
            last_ns=times.get(result.file.name, (None, None))[1],
        )
        for result, key in good
    ]
    n_sources = sum(result.report.n_rows > 0 for result in results)
    cache.keep(inputs, span_files, event_files, n_sources)


def _without_outside(kept: Kept, needed_ns: tuple[int, int] | None) -> Kept:
    """Leaves Parquet files out whose footers say that they hold nothing of the needed time."""
    if needed_ns is None:
        return kept
    times = times_of_footers([file.path for file in kept.missing if _is_parquet(file)])
    inside = [
        file
        for file in kept.missing
        if (time := times.get(file.path)) is None
        or (time[0] <= needed_ns[1] and time[1] >= needed_ns[0])
    ]
    if inside or kept.span_files:  # else the answer has to say what time there is
        kept.n_outside += len(kept.missing) - len(inside)
        kept.missing = inside
    return kept


def _is_parquet(file: InputFile) -> bool:
    if file.name == STDIN or not file.path.is_file():
        return False
    try:
        with file.path.open("rb") as opened:
            return is_parquet(opened.read(len(PARQUET_MAGIC)))
    except OSError:
        return False


def _key(file: InputFile) -> InputKey | None:
    return None if file.name == STDIN else input_key(file.path)


def _is_needed(one: KeptInput, needed_ns: tuple[int, int] | None) -> bool:
    if needed_ns is None or one.first_ns is None or one.last_ns is None:
        return True
    return one.first_ns <= needed_ns[1] and one.last_ns >= needed_ns[0]


def _renamed(place: str | None, before: str, now: str) -> str | None:
    if place is None or not place.startswith(before):
        return place
    return now + place.removeprefix(before)
