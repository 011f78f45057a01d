"""The cache of Parquet: what it finds again, what it refuses, what it throws away."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenlag.errors import UsageError
from tokenlag.store import cachefolder
from tokenlag.store.cache import STALE_S, Cache, InputKey, KeptInput, input_key

MB = 1_000_000


def kept(path: Path, n_rows: int = 3) -> KeptInput:
    key = input_key(path)
    assert key is not None
    return KeptInput(key, path.name, n_rows, [])


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "in").mkdir()
    (tmp_path / "out").mkdir()
    for name in "ab":
        (tmp_path / "in" / name).write_bytes(name.encode() * 1000)
        (tmp_path / "out" / f"{name}.parquet").write_bytes(name.encode() * 5000)
    yield tmp_path
    shutil.rmtree(tmp_path)


def open_cache(made: Path, schema: str = "s", max_bytes: int = 10 * MB) -> Cache:
    return Cache(made / "cache", schema, max_bytes)


def fill(made: Path, name: str = "a", **options: int) -> KeptInput:
    one = kept(made / "in" / name)
    with open_cache(made, **options) as cache:  # type: ignore[arg-type]
        cache.keep([one], [made / "out" / f"{name}.parquet"], [], 1)
    return one


def found(made: Path, *keys: InputKey, schema: str = "s") -> list[str]:
    with open_cache(made, schema) as cache:
        return [one.source for _, inputs in cache.find(keys) for one in inputs]


def test_what_was_kept_is_found_while_its_input_stays_the_same(made: Path) -> None:
    one = fill(made)
    assert found(made, one.key) == ["a"]
    with open_cache(made) as cache:
        ((segment, _),) = cache.find([one.key])
        assert [path.read_bytes() for path in segment.paths(events=False)] == [b"a" * 5000]
        assert segment.paths(events=True) == []
    path = made / "in" / "a"
    path.write_bytes(b"a" * 999 + b"x")
    changed = input_key(path)
    assert changed is not None
    assert changed != one.key
    assert found(made, changed) == []


def test_a_change_in_either_end_changes_the_key_even_if_size_and_time_do_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "big"
    keys = set()
    for at in (0, 65_535, 65_536 + 7, 199_999, None):
        content = bytearray(200_000)
        if at is not None:
            content[at] = 1
        path.write_bytes(content)
        os.utime(path, ns=(0, 0))
        keys.add(input_key(path))
    # The middle is not looked at: there a change shows in the time.
    assert len(keys) == 4
    assert input_key(tmp_path) is None
    assert input_key(tmp_path / "none") is None


def test_another_version_of_the_reader_finds_nothing(made: Path) -> None:
    one = fill(made)
    assert found(made, one.key, schema="other") == []
    assert found(made, one.key) == ["a"]


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "manifest", "no manifest"])
def test_a_damaged_segment_is_removed_and_not_used(made: Path, damage: str) -> None:
    one = fill(made)
    (segment,) = (made / "cache").iterdir()
    parquet = segment / "a.parquet"
    if damage == "cut":
        # Not in place: the file that was read is another name of the same bytes.
        content = parquet.read_bytes()
        parquet.unlink()
        parquet.write_bytes(content[:-1])
    elif damage == "flipped":
        parquet.unlink()
        parquet.write_bytes(b"a" * 4999 + b"b")
    elif damage == "gone":
        parquet.unlink()
    elif damage == "manifest":
        (segment / "segment.json").write_text("{")
    else:
        (segment / "segment.json").unlink()
    assert found(made, one.key) == []
    assert list((made / "cache").iterdir()) == []


def test_the_longest_unused_go_first_and_what_is_in_use_stays(made: Path) -> None:
    first, second = fill(made, "a"), fill(made, "b")
    for age, folder in enumerate(sorted((made / "cache").iterdir(), reverse=True)):
        when = time.time() - 1000 * (age + 1)
        os.utime(folder / "segment.json", (when, when))
    with open_cache(made) as using:
        using.find([first.key])  # which also makes it the last used
        with open_cache(made, max_bytes=6000) as small:
            small.evict()
    assert found(made, first.key, second.key) == ["a"]
    with open_cache(made) as using:
        using.find([first.key])
        with open_cache(made, max_bytes=0) as none:
            none.evict()
            assert none.clear() == (0, 1)
    assert found(made, first.key) == ["a"]
    with open_cache(made) as cache:
        assert cache.clear() == (1, 0)


def test_more_than_the_cap_is_not_kept_at_all(made: Path) -> None:
    one = fill(made, max_bytes=4999)
    assert found(made, one.key) == []


def test_leftovers_of_a_run_that_was_killed_go_after_a_day(made: Path) -> None:
    fill(made)
    half = made / "cache" / ".00000000000000000001-abcd"
    half.mkdir()
    with open_cache(made) as cache:
        cache.evict()
        assert half.exists()
        when = time.time() - STALE_S - 10
        os.utime(half, (when, when))
        cache.evict()
        assert not half.exists()


def hold(made: Path, key: InputKey, ready: str, done: str) -> None:
    with open_cache(made) as cache:
        cache.find([key])
        Path(ready).touch()
        while not Path(done).exists():
            time.sleep(0.01)


def test_another_process_cannot_evict_what_is_used(made: Path) -> None:
    one = fill(made)
    ready, done = str(made / "ready"), str(made / "done")
    other = multiprocessing.get_context("spawn").Process(
        target=hold, args=(made, one.key, ready, done)
    )
    other.start()
    while not Path(ready).exists():
        assert other.is_alive()
        time.sleep(0.01)
    with open_cache(made) as cache:
        assert cache.clear() == (0, 1)
        Path(done).touch()
        other.join()
        assert cache.clear() == (1, 0)


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cachefolder.default_folder() == tmp_path / "tokenlag"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cachefolder.default_folder() == Path.home() / ".cache" / "tokenlag"
    (tmp_path / "t").mkdir()
    hidden = tmp_path / "t" / ".tokenlag-cache"
    assert cachefolder.beside_traces(str(tmp_path / "t")) == hidden
    assert cachefolder.beside_traces(str(tmp_path / "t" / "*.jsonl")) == hidden


def test_the_cap_is_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENLAG_CACHE_SIZE", raising=False)
    assert cachefolder.max_bytes() == 4 * 2**30
    monkeypatch.setenv("TOKENLAG_CACHE_SIZE", "1.5GB")
    assert cachefolder.max_bytes() == 1_500_000_000
    monkeypatch.setenv("TOKENLAG_CACHE_SIZE", "much")
    with pytest.raises(UsageError, match="not a size"):
        cachefolder.max_bytes()
