"""Whether a Parquet file may be decoded: what its pages would take in memory.

A kilobyte of Parquet may decode to gigabytes: runs of one value, dictionaries and what was
compressed away are all told in a few bytes. So before anything is decoded, the heads of all
pages that would be are read: how many values they have, and of how many bytes. What a
footer says is held against them, for the library believes both.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from tokenlag.errors import InputError
from tokenlag.read.parquet_footer import Chunk, Footer
from tokenlag.read.thrift import Thrift

ROWS_AT_ONCE: Final = 2**18
# No span with an id of its own is so small; the first is for what tests and people make.
FREE_ROWS: Final = 4 * 2**20
ROWS_PER_BYTE: Final = 4
MAX_PAGE_BYTES: Final = 256 * 2**20
MIN_BUDGET, MAX_BUDGET = 256 * 2**20, 8 * 2**30
# Of the memory there is: several readers run, and the tables need some, too.
BUDGET_SHARE: Final = 1 / 4
HEAD_BYTES: Final = 4096  # of a page's head at first; statistics may make it longer
MAX_HEAD_BYTES: Final = 2**20
# Kinds of pages, and the encoding that repeats the front of the text before.
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = 0, 1, 2, 3
_DELTA_BYTE_ARRAY: Final = 7
HINT: Final = "export it again with smaller row groups, or as OTLP"


class PageError(ValueError):
    """Pages that are not what the footer says, or too much."""


@dataclass(frozen=True)
class Page:
    """A page as its head tells it.

    Args:
        kind: of page.
        n_values: in it, NULLs too.
        n_bytes: when decompressed.
        encoding: of its values.
    """

    kind: int
    n_values: int
    n_bytes: int
    encoding: int


def check_pages(path: Path, name: str, footer: Footer, columns: Collection[str]) -> None:
    """Raises an error if decoding a file could take more than a share of the memory.

    Args:
        path: of the file.
        name: as messages call it.
        footer: of it.
        columns: the top-level columns that will be decoded.

    Raises:
        InputError: it could, or pages and footer contradict each other.
    """
    try:
        if footer.n_rows > max(FREE_ROWS, ROWS_PER_BYTE * footer.n_bytes):
            raise PageError(f"it says it has {footer.n_rows:,} rows in {footer.n_bytes:,} bytes")
        budget = memory_budget()
        with path.open("rb") as file:
            for (n_rows, _), chunks in zip(footer.groups, footer.chunks, strict=True):
                needed = sum(
                    _bytes_of(file, chunk, n_rows, footer.n_bytes)
                    for chunk in chunks
                    if chunk.leaf.column in columns
                )
                if needed > budget:
                    raise PageError(
                        f"{n_rows:,} of its rows could take {_size(needed)} in memory, "
                        f"more than the {_size(budget)} that may be used here"
                    )
    except PageError as error:
        message = f"this Parquet is not decoded: {error}"
        raise InputError(message, place=name, hint=HINT) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=name) from None


def memory_budget() -> int:
    """Returns the bytes that a group of rows may take when decoded."""
    there = [_physical_bytes()]
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            there.append(limit)
    except (ImportError, OSError, ValueError):  # not everywhere
        pass
    return min(max(int(min(there) * BUDGET_SHARE), MIN_BUDGET), MAX_BUDGET)


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not everywhere
        return MAX_BUDGET


def _bytes_of(file: IO[bytes], chunk: Chunk, n_rows: int, n_file: int) -> int:
    """Returns what a chunk's values take at most when all of them are decoded at once.

    Text out of a dictionary is not copied then: each value points to it. What it comes to
    when it is, is looked at afterwards.
    """
    leaf = chunk.leaf
    if not leaf.is_repeated and chunk.n_values != n_rows:
        raise PageError(
            f'its column "{leaf.column}" has {chunk.n_values:,} values for {n_rows:,} rows'
        )
    if chunk.start + chunk.n_packed > n_file:
        raise PageError(f'its column "{leaf.column}" goes on past the end of the file')
    n_values = n_text = 0
    for page in _pages(file, chunk):
        if page.n_bytes > MAX_PAGE_BYTES:
            raise PageError(f'a page of its column "{leaf.column}" has {_size(page.n_bytes)}')
        n_values += page.n_values if page.kind != _DICTIONARY else 0
        if leaf.is_text:
            # The front of each text may be all of the one before it.
            n_times = page.n_values if page.encoding == _DELTA_BYTE_ARRAY else 1
            n_text += page.n_bytes * n_times
    if n_values != chunk.n_values:
        raise PageError(
            f'the pages of its column "{leaf.column}" have {n_values:,} values, '
            f"its footer says {chunk.n_values:,}"
        )
    # Rows are decoded so many at a time; what repeats within a row could be all in one of them.
    n_at_once = n_values if leaf.is_repeated else min(n_values, ROWS_AT_ONCE)
    return n_at_once * leaf.width + n_text


def _pages(file: IO[bytes], chunk: Chunk) -> Iterator[Page]:
    at, end, n_values = chunk.start, chunk.start + chunk.n_packed, 0
    while at < end and n_values < chunk.n_values:
        head, n_head = _head(file, at, end)
        try:
            kind, n_packed = int(head[1]), int(head[3])
            told = head.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), {})
            page = Page(kind, int(told.get(1, 0)), int(head[2]), int(told.get(_ENCODING[kind], 0)))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise PageError(f'a page of its column "{chunk.leaf.column}" makes no sense') from None
        if min(page.n_values, page.n_bytes, n_packed) < 0:
            raise PageError(f'a page of its column "{chunk.leaf.column}" makes no sense')
        n_values += page.n_values if kind != _DICTIONARY else 0
        yield page
        at += n_head + n_packed


# Which field of a page's own head is the encoding.
_ENCODING: Final = {_DATA: 2, _INDEX: 0, _DICTIONARY: 2, _DATA_V2: 4}


def _head(file: IO[bytes], at: int, end: int) -> tuple[dict[int, Any], int]:
    n_bytes = HEAD_BYTES
    while True:
        file.seek(at)
        data = file.read(min(n_bytes, end - at))
        thrift = Thrift(data)
        try:
            return thrift.struct(0), thrift.n_read
        except IndexError:
            if n_bytes >= min(MAX_HEAD_BYTES, end - at):
                raise PageError("a page of it is cut off") from None
            n_bytes *= 16
        except (TypeError, ValueError):
            raise PageError("a page of it makes no sense") from None


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:,.1f} GB" if n_bytes >= 2**30 else f"{n_bytes / 2**20:,.0f} MB"
