"""The receiver's folder: parts put together, the cap, what a crash leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from tokenlag.collect.folder import Folder

NOTHING = pl.DataFrame()


def frame(*numbers: int) -> pl.DataFrame:
    return pl.DataFrame({"n": list(numbers)})


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir() if not file.name.startswith("."))


def numbers(path: Path) -> list[int]:
    return sorted(
        n for file in path.glob("spans-*.parquet") for n in pl.read_parquet(file)["n"].to_list()
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "t", 10**9)
    yield made
    with suppress(OSError):  # the test has done it
        made.close()


def test_parts_are_put_together_when_there_are_more_than_so_many(folder: Folder) -> None:
    for n in range(5):
        folder.commit(frame(n), frame(n) if n % 2 else NOTHING)
    assert not folder.put_together(over=5)
    assert folder.put_together(over=4)
    parts = [f"events-{n:09d}-{n:09d}.parquet" for n in (2, 4)]
    assert names(folder.path) == [*parts, "spans-000000001-000000005.parquet"]
    assert numbers(folder.path) == [0, 1, 2, 3, 4]
    folder.commit(frame(5), NOTHING)
    assert "spans-000000006-000000006.parquet" in names(folder.path)


def test_columns_may_differ(folder: Folder) -> None:
    folder.commit(frame(1), NOTHING)
    folder.commit(pl.DataFrame({"n": [2], "more": ["x"]}), NOTHING)
    folder.put_together(over=1)
    (file,) = folder.path.glob("spans-*.parquet")
    assert pl.read_parquet(file).sort("n").to_dict(as_series=False) == {
        "n": [1, 2],
        "more": [None, "x"],
    }


def test_the_oldest_go_beyond_the_cap_and_the_newest_stays(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "t", 1)
    for n in range(3):
        folder.commit(frame(n), NOTHING)
    folder.trim()
    assert numbers(folder.path) == [2]
    assert folder.n_removed == 2
    folder.close()


def test_what_a_crash_leaves_is_put_right_at_the_next_start(folder: Folder) -> None:
    for n in range(3):
        folder.commit(frame(n), NOTHING)
    parts = {file: file.read_bytes() for file in folder.path.glob("spans-*")}
    folder.put_together(over=1)
    for file, content in parts.items():  # as if killed before the parts were removed
        file.write_bytes(content)
    (folder.path / ".half-spans").write_bytes(b"PAR1")
    (folder.path / "mine.parquet").write_bytes(b"somebody's")
    folder.close()
    again = Folder(folder.path, 10**9)
    assert names(again.path) == ["mine.parquet", "spans-000000001-000000003.parquet"]
    assert not (again.path / ".half-spans").exists()
    again.commit(frame(3), NOTHING)
    assert numbers(again.path) == [0, 1, 2, 3]
    again.close()
