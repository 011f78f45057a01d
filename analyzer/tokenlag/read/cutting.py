"""From files to jobs: each file's bytes are cut as its format allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tokenlag.errors import InputError
from tokenlag.read.elements import element_blocks
from tokenlag.read.files import InputFile
from tokenlag.read.lines import (
    BLOCK_BYTES,
    MAX_TEXT_BYTES,
    Block,
    blocks_of,
    is_one_text,
    whole_text,
)
from tokenlag.read.loadtest import find_format
from tokenlag.read.loadtest.reader import read_stream
from tokenlag.read.messages import Job
from tokenlag.read.noticed import FileResult
from tokenlag.read.parquet_parts import parquet_parts, spooled
from tokenlag.read.sources import ELEMENTS, FILE, FRAMES, Source, find_source
from tokenlag.read.sources.guess import guess
from tokenlag.read.sources.proto_frames import frame_blocks, framing_of
from tokenlag.read.stream import Bytes

RANGE_BYTES: Final = 32 * 2**20  # of a plain file, one job


@dataclass(frozen=True)
class Task:
    """A job, what goes with it, and whose it is."""

    job: Job
    payload: bytes
    result: FileResult
    n_done: int  # bytes on disk that are read once this is done


def tasks(files: list[InputFile], results: list[FileResult], work_dir: Path) -> Iterator[Task]:
    """Yields the jobs of all files; appends a result for each file as it gets to it.

    Args:
        files: what to read.
        results: grows.
        work_dir: takes what has to lie in a file to be read and does not.
    """
    for file in files:
        result = FileResult(file)
        results.append(result)
        try:
            with Bytes(file) as stream:
                yield from _tasks_of(file, stream, result, work_dir)
                result.broken = result.broken or stream.broken
        except InputError as error:
            result.error = error


def _tasks_of(file: InputFile, stream: Bytes, result: FileResult, work_dir: Path) -> Iterator[Task]:
    result.head = stream.head
    source = find_source(stream.head)
    if source is None:
        if (format_name := find_format(stream.head)) is not None:
            # Small beside traces: read here and now.
            result.runs = read_stream(stream, format_name, file.name)
            return
        result.guess = guess(stream.head)
        return
    result.source = source
    if source.cut == FILE:
        yield from _file_tasks(file, stream, result, source, work_dir)
    elif source.cut == FRAMES:
        yield from _frame_tasks(file, stream, result, source)
    elif source.cut == ELEMENTS:
        blocks = element_blocks(_gathered(stream.chunks()), BLOCK_BYTES)
        yield from _block_tasks(file, stream, result, source, blocks)
    elif is_one_text(stream.head):
        text = whole_text(stream.chunks())
        if text is None:
            result.too_long = f"one JSON text of more than {MAX_TEXT_BYTES >> 20} MB"
            return
        job = Job(file.name, n_payload=len(text), is_one_text=True, source=source.name)
        yield Task(job, text, result, file.n_bytes)
    elif stream.is_seekable:
        for start in range(0, file.n_bytes, RANGE_BYTES):
            end = min(start + RANGE_BYTES, file.n_bytes)
            job = Job(file.name, str(file.path), start, end, source=source.name)
            yield Task(job, b"", result, end - start)
    else:
        blocks = blocks_of(_gathered(stream.chunks()))
        yield from _block_tasks(file, stream, result, source, blocks)


def _block_tasks(
    file: InputFile, stream: Bytes, result: FileResult, source: Source, blocks: Iterator[Block]
) -> Iterator[Task]:
    n_before = 0
    for block in blocks:
        if block.data is None:
            result.too_long = f"line {block.line} is longer than {MAX_TEXT_BYTES >> 20} MB"
            if source.cut == ELEMENTS:
                limit = f"{MAX_TEXT_BYTES >> 20} MB"
                result.too_long = f"a trace of more than {limit} begins in line {block.line}"
            return
        n_read = min(stream.n_read(), file.n_bytes)
        job = Job(file.name, n_payload=len(block.data), line=block.line, source=source.name)
        yield Task(job, block.data, result, n_read - n_before)
        n_before = n_read


def _frame_tasks(
    file: InputFile, stream: Bytes, result: FileResult, source: Source
) -> Iterator[Task]:
    framing = framing_of(stream.head)
    assert framing is not None  # as the source was found by it
    n_before = 0
    for block in frame_blocks(stream.chunks(), framing, BLOCK_BYTES):
        result.broken = block.broken
        if not block.data:
            continue
        start, n_bytes = block.offset, len(block.data)
        if stream.is_seekable:
            job = Job(
                file.name,
                str(file.path),
                start,
                start + n_bytes,
                source=source.name,
                framing=framing,
            )
            yield Task(job, b"", result, n_bytes)
            continue
        n_read = min(stream.n_read(), file.n_bytes)
        job = Job(file.name, start=start, n_payload=n_bytes, source=source.name, framing=framing)
        yield Task(job, block.data, result, n_read - n_before)
        n_before = n_read


def _file_tasks(
    file: InputFile, stream: Bytes, result: FileResult, source: Source, work_dir: Path
) -> Iterator[Task]:
    path = file.path if stream.is_seekable else spooled(stream, file.name, work_dir)
    parts = parquet_parts(path, file.name)
    n_parts = len(parts)
    shares = [file.n_bytes * index // n_parts for index in range(n_parts + 1)] if parts else []
    for (start, end), (before, after) in zip(parts, itertools.pairwise(shares), strict=True):
        job = Job(file.name, str(path), start, end, source=source.name, n_parts=n_parts)
        yield Task(job, b"", result, after - before)


def _gathered(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Chunks of about a block's size, for decompressors give small ones."""
    parts: list[bytes] = []
    n_bytes = 0
    for chunk in chunks:
        parts.append(chunk)
        n_bytes += len(chunk)
        if n_bytes >= BLOCK_BYTES:
            yield b"".join(parts)
            parts, n_bytes = [], 0
    if parts:
        yield b"".join(parts)
