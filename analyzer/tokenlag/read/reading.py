"""From paths to span rows: finds files, reads them with all cores, tells what was noticed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tokenlag.errors import InputError
from tokenlag.read.cutting import tasks
from tokenlag.read.files import GLOB_HINT, InputFile, find_files
from tokenlag.read.kept import keep, look_up
from tokenlag.read.loadtest.run import Run
from tokenlag.read.messages import Done
from tokenlag.read.noticed import FileResult, ReadNote, skipped_notes
from tokenlag.read.parquet_parts import PASCAL, checked_footer
from tokenlag.read.pool import InProcess, Processes, Readers
from tokenlag.read.sources.detect import is_parquet
from tokenlag.read.stores.summary import Fleet
from tokenlag.read.stream import GZIP_MAGIC, ZSTD_MAGIC
from tokenlag.read.vocabulary import Vocabulary
from tokenlag.store.cache import Cache

Progress = Callable[[int, int], None]

IN_PROCESS_BYTES: Final = 20 * 2**20  # below it, starting a process costs more than it saves
COMPRESSION_GUESS: Final = 12  # bytes of JSON in a compressed byte, for the same decision
MAGIC_BYTES: Final = 4
CACHED_BYTES: Final = 8 * 2**20  # below it, looking into the cache saves nothing
MAX_WORKERS: Final = 16


@dataclass
class ReadResult:
    """What was read.

    Args:
        span_files: Parquet files of one schema (`spans.span_schema`), some of them empty.
        event_files: the same for the wanted span events (`spans.event_schema`).
        notes: what coverage should say.
        problems: named inputs that could not be used; the others still count.
        n_spans: rows in the span files.
        n_files: files that held spans.
        load_tests: runs of load tests among the files, whose requests are not in span files.
        fleet: engines of a trace store that were summed up there, where there are many.
        only: span file → the sources whose rows count, where that is not all of its rows.
        n_kept: files that were not read again, for the cache had their rows.
    """

    span_files: list[Path] = field(default_factory=list)
    event_files: list[Path] = field(default_factory=list)
    notes: list[ReadNote] = field(default_factory=list)
    problems: list[InputError] = field(default_factory=list)
    n_spans: int = 0
    n_files: int = 0
    load_tests: list[Run] = field(default_factory=list)
    fleet: Fleet | None = None
    only: dict[Path, frozenset[str]] = field(default_factory=dict)
    n_kept: int = 0


def read_spans(
    paths: Sequence[str | Path],
    out_dir: Path,
    vocabulary: Vocabulary,
    *,
    n_workers: int | None = None,
    progress: Progress | None = None,
    cache: Cache | None = None,
    needed_ns: tuple[int, int] | None = None,
) -> ReadResult:
    """Reads all traces that the paths mean and writes their spans as Parquet.

    Args:
        paths: files, folders, patterns, or `-` for standard input.
        out_dir: an existing folder for the Parquet files.
        vocabulary: the attribute keys to keep; nothing else is.
        n_workers: processes; 0 reads in this one; None decides by size and cores.
        progress: is called with the bytes done and the bytes in all, as they lie on disk.
        cache: what earlier runs read; what is read now is kept there. It has to stay open
            while the result is used.
        needed_ns: the time of interest, unix nanoseconds; files of which the cache knows that
            they hold nothing of it are left out.

    Returns:
        The files written, and what was noticed.

    Raises:
        InputError: nothing at all could be read.
    """
    found = find_files(paths)
    if sum(map(_estimated_bytes, found.files)) < CACHED_BYTES:
        cache = None
    kept = look_up(cache, found.files, needed_ns)
    results, done = _read_files(kept.missing, out_dir, vocabulary, n_workers, progress)
    result = ReadResult(
        problems=list(found.problems),
        notes=kept.notes(),
        n_spans=sum(one.n_rows for _, one in kept.inputs),
        n_files=len(kept.inputs),
        only=kept.only,
        n_kept=len(kept.inputs),
    )
    skipped = list(found.skipped)
    for file_result in results:
        result.n_spans += file_result.report.n_rows
        result.n_files += file_result.report.n_rows > 0
        result.load_tests += file_result.runs
        problem = file_result.problem()
        if problem is None:
            result.notes += file_result.notes()
        elif file_result.file.is_named:
            result.problems.append(problem)
        else:
            skipped.append((file_result.file.name, file_result.why()))
    result.notes += skipped_notes(skipped)
    if not result.n_spans and not result.load_tests:
        raise _nothing(paths, result, skipped)
    span_files = [Path(path) for path in done.span_files]
    event_files = [Path(path) for path in done.event_files]
    if cache is not None:
        try:
            keep(cache, kept, results, span_files, event_files)
        except OSError as error:
            text = f"what was read could not be kept for the next time: {error.strerror or error}"
            result.notes.append(ReadNote("cache", str(cache.folder), 1, text))
    result.span_files = kept.span_files + span_files
    result.event_files = kept.event_files + event_files
    return result


def _read_files(
    files: list[InputFile],
    out_dir: Path,
    vocabulary: Vocabulary,
    n_workers: int | None,
    progress: Progress | None,
) -> tuple[list[FileResult], Done]:
    if not files:  # readers are dear to start
        return [], Done([], [])
    n_total = sum(file.n_bytes for file in files)
    results: list[FileResult] = []
    readers = _readers(files, n_workers, out_dir, vocabulary)
    n_done = 0
    try:
        for task, report in readers.run(tasks(files, results, out_dir)):
            task.result.add(report)
            n_done += task.n_done
            if progress:
                progress(min(n_done, n_total), n_total)
        done = readers.finish()
        if progress and n_done < n_total:  # what was skipped is done with, too
            progress(n_total, n_total)
    finally:
        readers.close()
    return results, done


def _nothing(
    paths: Sequence[str | Path], result: ReadResult, skipped: list[tuple[str, str]]
) -> InputError:
    """The one error when there is no span: the only problem there is, or a summary."""
    if len(result.problems) == 1 and not skipped:
        return result.problems[0]
    place = str(paths[0]) if len(paths) == 1 else None
    if result.problems:
        first = result.problems[0]
        n_more = len(result.problems) - 1 + len(skipped)
        return InputError(
            first.message + (f"; and {n_more} more without spans" if n_more else ""),
            place=first.place,
            hint=first.hint,
        )
    if skipped:
        reasons = "; ".join(note.text for note in skipped_notes(skipped))
        return InputError(f"no spans here: {reasons}", place=place, hint=GLOB_HINT)
    texts = "; ".join(note.text for note in result.notes)
    return InputError(f"no spans here{': ' + texts if texts else ''}", place=place, hint=GLOB_HINT)


def _readers(
    files: list[InputFile], n_workers: int | None, out_dir: Path, vocabulary: Vocabulary
) -> Readers:
    if n_workers is None:
        n_bytes = sum(_estimated_bytes(file) for file in files)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        n_cores = cores or os.cpu_count() or 1
        n_workers = min(n_cores, MAX_WORKERS) if n_bytes > IN_PROCESS_BYTES else 0
    if n_workers:
        return Processes(n_workers, out_dir, vocabulary)
    return InProcess(out_dir, vocabulary)


def _estimated_bytes(file: InputFile) -> int:
    """Bytes as JSON would have them; none of what is used as it is."""
    if file.n_bytes < IN_PROCESS_BYTES // COMPRESSION_GUESS:
        return file.n_bytes
    try:
        with file.path.open("rb") as opened:
            magic = opened.read(MAGIC_BYTES)
        if is_parquet(magic):
            is_native = checked_footer(file.path, file.name)[1] != PASCAL
            return 0 if is_native else file.n_bytes * COMPRESSION_GUESS
    except (OSError, InputError):  # told when it is read
        return file.n_bytes
    is_packed = magic.startswith(GZIP_MAGIC) or magic == ZSTD_MAGIC
    return file.n_bytes * (COMPRESSION_GUESS if is_packed else 1)
