"""Reading with a cache: the same rows as without, and only what is new is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tokenlag.collect.folder import Folder
from tokenlag.collect.rows import Rows, looked_at
from tokenlag.read import kept, reading
from tokenlag.read.load import load_traces
from tokenlag.read.reading import ReadResult, read_spans
from tokenlag.simulate.demo import write_demo
from tokenlag.store.cache import Cache
from tokenlag.store.connection import Store

from tests.collect.served import request
from tests.read.otlp import SPAN, T0, VOCABULARY, line, span

MB = 1_000_000


@pytest.fixture(autouse=True)
def _small_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CACHED_BYTES", 0)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    for number, name in enumerate(("a.jsonl", "b.jsonl", "c.jsonl")):
        start = T0 + number * 10_000_000_000_000
        spans = [
            span(
                name,
                spanId=f"{number}{i:015d}",
                startTimeUnixNano=str(start),
                endTimeUnixNano=str(start + 9),
            )
            for i in range(1, 6)
        ]
        (folder / name).write_text(line(*spans))
    return folder


class Reads:
    """Reads with one cache, into a new folder each time."""

    def __init__(self, root: Path, schema: str = "s") -> None:
        self.root = root
        self.schema = schema
        self.n = 0

    def __call__(self, *paths: Path | str, **options: Any) -> tuple[ReadResult, list[str]]:
        """What was read, and the names of the spans that count."""
        self.n += 1
        out = self.root / f"out-{self.n}"
        out.mkdir()
        with Cache(self.root / "cache", self.schema, 100 * MB) as cache:
            result = read_spans(paths, out, VOCABULARY, n_workers=0, cache=cache, **options)
            return result, names(result)


def names(result: ReadResult) -> list[str]:
    found: list[str] = []
    for path in result.span_files:
        frame = pl.read_parquet(path)
        only = result.only.get(path)
        if only is not None:
            frame = frame.filter(pl.col("source").is_in(sorted(only)))
        found += frame["name"].to_list()
    return sorted(found)


def five(*files: str) -> list[str]:
    return sorted(5 * files)


@pytest.fixture
def reads(tmp_path: Path) -> Reads:
    return Reads(tmp_path)


ALL = ("a.jsonl", "b.jsonl", "c.jsonl")


def test_the_second_time_nothing_is_read(traces: Path, reads: Reads) -> None:
    first, rows = reads(traces)
    assert (first.n_kept, first.n_spans, first.n_files) == (0, 15, 3)
    assert rows == five(*ALL)
    again, rows = reads(traces)
    assert (again.n_kept, again.n_spans, again.n_files) == (3, 15, 3)
    assert rows == five(*ALL)


def test_only_new_and_changed_files_are_read(traces: Path, reads: Reads) -> None:
    reads(traces)
    (traces / "b.jsonl").write_text(line(span("changed", spanId="f" * 16)))
    (traces / "d.jsonl").write_text(line(span("new", spanId="e" * 16)))
    result, rows = reads(traces)
    assert result.n_kept == 2
    assert rows == sorted([*five("a.jsonl", "c.jsonl"), "changed", "new"])
    (traces / "a.jsonl").unlink()
    result, rows = reads(traces)
    assert result.n_kept == 3
    assert rows == sorted([*five("c.jsonl"), "changed", "new"])


def test_some_of_the_files_by_another_name(
    traces: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads(traces)
    monkeypatch.chdir(traces)
    result, rows = reads("c.jsonl", "./a.jsonl")
    assert result.n_kept == 2
    assert rows == five("a.jsonl", "c.jsonl")


def test_notes_come_back_under_todays_name(
    traces: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (traces / "b.jsonl").open("a") as file:
        file.write("{damaged\n")
    before, _ = reads(traces)
    monkeypatch.chdir(traces)
    after, _ = reads("b.jsonl")
    assert after.n_kept == 1
    noted = [(note.kind, note.n) for note in before.notes]
    assert noted
    assert [(note.kind, note.n) for note in after.notes] == noted
    assert [note.place for note in after.notes] == [
        str(note.place).replace(f"{traces}{os.sep}", "") for note in before.notes
    ]


def test_a_file_that_changes_while_it_is_read_is_not_kept(
    traces: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    true_tasks = reading.tasks

    def tasks(*arguments: Any) -> Any:
        yield from true_tasks(*arguments)
        with (traces / "a.jsonl").open("a") as file:
            file.write(line(span("late", spanId="d" * 16)))

    with monkeypatch.context() as patch:
        patch.setattr(reading, "tasks", tasks)
        reads(traces)
    result, rows = reads(traces)
    assert result.n_kept == 2
    assert rows == sorted([*five(*ALL), "late"])


def test_files_outside_the_needed_time_are_left_out(traces: Path, reads: Reads) -> None:
    reads(traces)
    second = T0 + 10_000_000_000_000
    result, rows = reads(traces, needed_ns=(second - 5, second + 5))
    assert rows == five("b.jsonl")
    result, rows = reads(traces, needed_ns=(0, 1))
    assert rows == five(*ALL), "so that the answer can say what time there is"
    (traces / "a.jsonl").write_text(line(span("changed", spanId=SPAN)))
    result, rows = reads(traces, needed_ns=(second - 5, second + 5))
    assert rows == ["b.jsonl"] * 5 + ["changed"], "what is not known is read"
    assert result.n_files == 3


def test_standard_input_and_unreadable_files_are_never_kept(
    traces: Path, reads: Reads, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (traces / "other.txt").write_text("no trace at all\n")
    named = [traces / "a.jsonl", traces / "other.txt"]
    for _ in range(2):
        result, _ = reads(*named)
        assert len(result.problems) == 1
    assert result.n_kept == 1


def test_a_cache_that_cannot_be_written_is_told_and_harms_nothing(
    traces: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    out = tmp_path / "out"
    out.mkdir()
    with Cache(blocked / "cache", "s", MB) as cache:
        result = read_spans([traces], out, VOCABULARY, n_workers=0, cache=cache)
    assert result.n_spans == 15
    assert [note.kind for note in result.notes] == ["cache"]


def test_the_row_schema_follows_what_is_read() -> None:
    assert kept.rows_schema(VOCABULARY) == kept.rows_schema(VOCABULARY)
    assert kept.rows_schema(VOCABULARY) != kept.rows_schema(load_vocabulary())


def load_vocabulary() -> Any:
    from tokenlag.read.load import vocabulary

    return vocabulary()


def tables(store: Store) -> dict[str, Sequence[Any]]:
    wanted = (
        "requests",
        "sequences",
        "phases",
        "steps",
        "memberships",
        "chunks",
        "quality",
        "read_notes",
    )
    return {table: sorted(map(repr, store.fetchall(f"from {table}"))) for table in wanted}


def test_tables_are_the_same_with_and_without(tmp_path: Path) -> None:
    write_demo(tmp_path / "traces", healthy=False, end_ns=T0)
    found = []
    for n, has_cache in enumerate((False, True, True)):
        work = tmp_path / f"work-{n}"
        work.mkdir()
        with Cache(tmp_path / "cache", "s", 1000 * MB) as cache, Store() as store:
            result = load_traces(
                store, [tmp_path / "traces"], work_dir=work, cache=cache if has_cache else None
            )
            found.append(tables(store))
    assert result.n_kept > 0
    assert found[0] == found[1] == found[2]


def test_a_window_reads_its_part_of_parquet_files(tmp_path: Path) -> None:
    """Files of other times are not opened, row groups of other times not decompressed."""
    folder = Folder(tmp_path / "collected", 10**9)
    rows = Rows(load_vocabulary())
    hour_ns = 3_600_000_000_000
    for hour in range(10):
        body = request(hour * 100, 100)
        for one in body.resource_spans[0].scope_spans[0].spans:
            one.start_time_unix_nano += hour * hour_ns
            one.end_time_unix_nano += hour * hour_ns
        rows.add(looked_at(body.SerializeToString(), is_json=False))
        folder.commit(*rows.take())
    folder.close()
    whole = load_numbers(tmp_path, "whole", None)
    assert whole == (1000, [])
    part = load_numbers(tmp_path, "part", (T0 + 7 * hour_ns, T0 + 7 * hour_ns + hour_ns // 2))
    assert part == (100, ["9 files hold nothing of the time that is asked for"])
    assert load_numbers(tmp_path, "none", (T0 - 5, T0 - 1)) == whole, "to say what time there is"
    Folder(tmp_path / "collected", 10**9).put_together(over=1)
    half = (T0 + 7 * hour_ns + 700, T0 + 7 * hour_ns + 749)
    assert load_numbers(tmp_path, "one file", half) == (50, [])


def load_numbers(root: Path, work: str, needed_ns: tuple[int, int] | None) -> tuple[int, list[str]]:
    (root / work).mkdir()
    with Store() as store:
        result = load_traces(store, [root / "collected"], work_dir=root / work, needed_ns=needed_ns)
        n_requests = store.scalar("select count(*) from requests")
    return n_requests, [note.text for note in result.notes if note.kind == "outside_window"]
