"""Small Parquet files that stand for gigabytes: refused in one line, within little memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenlag.errors import InputError
from tokenlag.read import parquet_pages
from tokenlag.read.parquet_parts import parquet_parts
from tokenlag.read.sources.frame_text import TextBudget, TooMuchTextError, text_bytes
from tokenlag.read.sources.parquet import ParquetReader

from tests.read.formats import varint
from tests.read.otlp import read, rows_of, told_or_read
from tests.read.parquet_bytes import (
    DELTA_BYTE_ARRAY,
    GZIP,
    PLAIN,
    Column,
    parquet,
    spans,
)
from tests.read.test_parquet import FEW

LIMIT_BYTES = 6 * 2**30  # of address space, most of which libraries reserve and never touch
MEGABYTE = b"y" * 2**20
RUN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from tokenlag.cli import main
sys.argv[0] = "diagnose"
sys.exit(main())
"""


def nested(n: int, value: bytes = b"z") -> bytes:
    return spans(1, Column("texts", value, n=n, is_list=True))


def endless_delta(n: int) -> bytes:
    """A text of a megabyte, and n − 1 times all of the one before it and nothing more."""
    lengths = b""
    for first, delta in ((0, 2**20), (2**20, -(2**20))):  # of what is shared; of what is new
        lengths += varint(2**31 & ~127) + varint(1) + varint(n) + varint(first << 1)
        least = min(delta, 0)
        lengths += varint((least << 1) ^ (least >> 63)) + bytes([0])
    page = (DELTA_BYTE_ARRAY, lengths + MEGABYTE, len(lengths) + len(MEGABYTE))
    return spans(n, Column("name", b"", page=page))


BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "ten million rows of one long text": (
        lambda: spans(10_000_000, name=MEGABYTE), "10,000,000 rows in"),
    "as many as a file may have": (
        lambda: spans(2_000_000, name=MEGABYTE), "MB of text"),
    "a list of one long text": (
        lambda: nested(20_000, MEGABYTE), "MB of text"),
    "a list without end": (
        lambda: nested(2**31 - 1), "in memory"),
    "the footer does not tell of the list": (
        lambda: spans(1, Column("texts", b"z", n=2**31 - 1, is_list=True, n_told=10)),
        "its footer says 10"),
    "the footer does not tell of the rows": (
        lambda: spans(10, Column("name", MEGABYTE, n=2**31 - 1, n_told=10)), "its footer says 10"),
    "a page of gigabytes": (
        lambda: spans(1, Column("name", b"", page=(PLAIN, b"", 2**31 - 1), codec=GZIP)),
        "a page of its column"),
    "fronts that are repeated": (
        lambda: endless_delta(1_000_000), "in memory"),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_are_refused_in_one_line(case: str, tmp_path: Path) -> None:
    make, said = BOMBS[case]
    path = tmp_path / "a.parquet"
    path.write_bytes(make())
    assert path.stat().st_size < 4 * 2**20
    with pytest.raises(InputError) as caught:
        read(path, tmp_path / "out")
    told = str(caught.value)
    assert told.startswith(str(path)), told
    assert "\n" not in told
    assert said in told, told
    assert caught.value.hint == parquet_pages.HINT


def limited(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN.format(limit=LIMIT_BYTES), "--no-cache", "--format=json"]
    return subprocess.run(
        [*command, *map(str, paths)], capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.skipif(sys.platform != "linux", reason="no other system holds such a limit")
def test_bombs_take_little_memory_and_what_is_beside_them_counts(
    tmp_path: Path, bundled_trace: Path
) -> None:
    bombs = [tmp_path / f"bomb-{index}.parquet" for index in range(len(BOMBS))]
    for path, (make, _) in zip(bombs, BOMBS.values(), strict=True):
        path.write_bytes(make())
    alone = limited(bombs[1])
    assert (alone.returncode, alone.stdout) == (2, "")
    (line,) = alone.stderr.splitlines()
    assert line.startswith(f"diagnose: {bombs[1]}: "), line
    beside = limited(*bombs, bundled_trace)
    assert beside.returncode == 2, beside.stderr  # as always where a named file is of no use
    told = beside.stderr.splitlines()
    decoded = bombs[2]  # its list is of no use to any real reader, and never decoded
    assert [line.split(": ")[1] for line in told] == [str(one) for one in bombs if one != decoded]
    assert json.loads(beside.stdout)["coverage"]["requests"] > 50


def test_no_more_is_decompressed_than_a_page_says(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    packed = gzip.compress(bytes(64 * 2**20))
    path.write_bytes(spans(1, Column("name", b"", page=(PLAIN, packed, 100), codec=GZIP)))
    (row,) = rows_of(read(path, tmp_path / "out").span_files)
    assert row["name"] == ""  # four of the hundred zeros: a length


def test_good_files_of_the_same_make_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(spans(3, Column("texts", b"q", n=3, is_list=True)))
    with pytest.raises(InputError):  # three values of one row, where there are three rows
        read(path, tmp_path / "out")
    path.write_bytes(spans(1, Column("texts", b"q", n=3, is_list=True)))
    (row,) = rows_of(read(path, tmp_path / "out2").span_files)
    assert (row["name"], row["texts"]) == ("x", ["q", "q", "q"])


@pytest.mark.parametrize("n_rows", [1, 5000])
def test_pages_are_what_the_library_writes(n_rows: int, tmp_path: Path) -> None:
    """Real files of several pages, with lists and NULLs, pass: heads and footer agree."""
    path = tmp_path / "a.parquet"
    frame = pl.DataFrame(
        {
            "trace_id": ["a" * 32] * n_rows,
            "span_id": [f"{i:016x}" for i in range(n_rows)],
            "name": ["x", None] * (n_rows // 2) or ["x"],
            "start_ns": range(n_rows),
            "end_ns": range(n_rows),
            "texts": [["q"] * (i % 4) for i in range(n_rows)],
        }
    )
    for version in ("zstd", "snappy", "uncompressed"):
        frame.write_parquet(path, compression=version, row_group_size=700, data_page_size=512)
        assert parquet_parts(path, "a") == [(0, n_rows)]


def test_columns_that_are_not_read_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    columns = [Column(name, b"x") for name in ("TraceId", "SpanId", "SpanName")]
    big = Column("Anything", b"z", n=2**31 - 1, is_list=True)
    path.write_bytes(parquet(1, [*columns, Column("Timestamp", 10**18), big]))
    assert parquet_parts(path, "a") == [(0, 1)]


@pytest.mark.parametrize("n_deep", [40, 100_000])
def test_a_schema_without_end_is_not_followed(n_deep: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet(1, [Column("trace_id", b"x")], nested=n_deep))
    with pytest.raises(InputError, match="its footer makes no sense"):
        read(path, tmp_path / "out")


def test_a_footer_of_lists_in_lists_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    footer = b"\x19" * 500_000
    path.write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(InputError, match="its footer makes no sense"):
        read(path, tmp_path / "out")


@FEW
@given(st.data())
def test_damage_in_heads_and_footer_is_told_in_one_line(data: st.DataObject) -> None:
    """Also where a field is of another type than it should be."""
    text = bytearray(spans(3, Column("other", b"z")))
    first = text.index(b"x", 40)  # the first page's head lies before it
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, 40) | st.integers(first, len(text) - 9))
        text[at] = data.draw(st.integers(0, 255))
    told, _ = told_or_read(bytes(text))
    assert "\n" not in told


@pytest.mark.parametrize("is_panic", [True, False])
def test_the_library_gives_up_in_silence(
    is_panic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """Its threads print a stack on standard error; what others say there is not lost."""

    def read_badly(*_args: Any, **_kwargs: Any) -> None:
        os.write(2, b"said there\n")
        if is_panic:
            raise pl.exceptions.PanicException("assertion failed")

    monkeypatch.setattr(ParquetReader, "_native", read_badly)
    path = tmp_path / "a.parquet"
    path.write_bytes(spans(1))
    with pytest.raises(InputError, match="damaged Parquet" if is_panic else "binary"):
        read(path, tmp_path / "out")
    assert capfd.readouterr().err == ("" if is_panic else "said there\n")


def test_text_is_counted_wherever_it_is() -> None:
    frame = pl.DataFrame(
        {
            "plain": ["ab", None, "cde"],
            "bytes": [b"1234", None, b""],
            "lists": [["x", "yz"], [], None],
            "entries": [[{"key": "k", "value": "vv"}], [], None],
            "numbers": [[1], [2, 3], None],
        }
    )
    assert text_bytes(frame) == 5 + 4 + 3 + 3


def test_rows_with_much_text_come_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenlag.read.sources.frame_text.BYTES_AT_ONCE", 100)
    monkeypatch.setattr("tokenlag.read.sources.frame_text.MAX_TEXT_BYTES", 300)
    frame = pl.DataFrame({"text": ["x" * 60] * 5 + ["y" * 200] + ["z"] * 20})
    pieces = list(TextBudget(10).pieces(frame, 10))
    assert pl.concat(pieces).equals(frame)
    assert max(text_bytes(one) for one in pieces if one.height > 1) <= 100
    with pytest.raises(TooMuchTextError, match="a row of it"):
        list(TextBudget(10).pieces(pl.DataFrame({"text": ["y" * 301]}), 10))
