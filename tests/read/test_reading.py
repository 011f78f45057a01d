"""From paths to rows: many files, processes, notes, problems, and hostile input."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import zstandard
from tokenlag.errors import InputError, TokenlagError
from tokenlag.read import cutting, lines, pool, reading
from tokenlag.read.load import load_traces
from tokenlag.read.reading import read_spans
from tokenlag.read.sources import Source, otlp_json, otlp_lenient
from tokenlag.read.spans import event_schema, span_schema
from tokenlag.store.connection import Store

from tests.read.otlp import VOCABULARY, export, line, read, rows_of, span

METRICS = '{"resourceMetrics":[]}\n'


def many(n: int, per_line: int = 7) -> str:
    """Lines of spans of several shapes, each span different."""
    made = []
    for i in range(n):
        values: dict[str, Any] = {"whole": i, "text": f"t{i % 5}"}
        if i % 3 == 0:
            values["wholes"] = list(range(i % 4))
        if i % 7 == 0:
            values["number"] = i / 7
        made.append(span(f"n{i % 3}", spanId=f"{i + 1:016x}", **values))
    chunks = [made[i : i + per_line] for i in range(0, n, per_line)]
    return "".join(
        line(*chunk, resource={"service.name": f"s{i % 4}"}) for i, chunk in enumerate(chunks)
    )


def test_the_empty_file_has_the_full_schema_and_the_others_some_of_it(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(line(span()))
    result = read(tmp_path / "a.json", tmp_path / "out")
    for files, schema in (
        (result.span_files, span_schema(VOCABULARY)),
        (result.event_files, event_schema(VOCABULARY)),
    ):
        assert pl.read_parquet_schema(files[0]) == schema
        for file in files:
            assert pl.read_parquet_schema(file).items() <= schema.items()
    heights = [pl.read_parquet(file).height for file in result.span_files]
    assert heights == [0, 1]
    assert (result.n_spans, result.n_files) == (1, 1)
    assert result.notes == []
    assert result.problems == []


@pytest.mark.parametrize("n_workers", [1, 2, 3])
@pytest.mark.parametrize("form", ["plain", "gz", "zst", "pretty"])
def test_workers_and_ranges_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_workers: int, form: str
) -> None:
    text = many(500).encode()
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / "a.json"
    path.write_bytes(text)
    expected = rows_of(read(folder, tmp_path / "out").span_files)
    assert len(expected) == 500
    if form == "gz":
        path.write_bytes(gzip.compress(text))
    elif form == "zst":
        path.write_bytes(zstandard.compress(text))
    elif form == "pretty":
        whole = [json.loads(one) for one in text.splitlines()]
        path.write_text(json.dumps(whole, indent=2))
    monkeypatch.setattr(cutting, "RANGE_BYTES", 10_000)
    monkeypatch.setattr(cutting, "BLOCK_BYTES", 10_000)
    result = read(folder, tmp_path / f"out{n_workers}", n_workers=n_workers)
    assert rows_of(result.span_files) == expected
    assert (result.n_spans, result.n_files, result.notes) == (500, 1, [])


def test_large_input_is_read_by_processes_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    path.write_text(many(50))
    used: list[int] = []

    class Spy(pool.Processes):
        def __init__(self, n: int, *args: Any) -> None:
            used.append(n)
            super().__init__(1, *args)

    monkeypatch.setattr(reading, "Processes", Spy)
    assert read(path, tmp_path / "a", n_workers=None).n_spans == 50
    assert used == []
    monkeypatch.setattr(reading, "IN_PROCESS_BYTES", 1000)
    assert read(path, tmp_path / "b", n_workers=None).n_spans == 50
    assert len(used) == 1
    assert used[0] >= 1


def test_a_program_without_a_main_guard_may_use_processes(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(many(20))
    (tmp_path / "out").mkdir()
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import sys
            sys.path[:0] = {sys.path!r}
            from pathlib import Path
            from tokenlag.read.reading import read_spans
            from tokenlag.read.vocabulary import CONTRACT
            here = Path({str(tmp_path)!r})
            print(read_spans([here / "a.json"], here / "out", CONTRACT, n_workers=2).n_spans)
            """
        )
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("20\n", "")


def test_a_worker_that_dies_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.json").write_text(line(span()))
    fake = tmp_path / "fake"
    fake.write_text("#!/bin/sh\necho out of luck >&2\nexit 7\n")
    fake.chmod(0o755)
    monkeypatch.setattr(pool.sys, "executable", str(fake))
    with pytest.raises(TokenlagError, match=r"ended early \(status 7\): out of luck"):
        read(tmp_path / "a.json", tmp_path / "out", n_workers=2)


def test_progress_ends_at_all_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "RANGE_BYTES", 1000)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text(many(50))
    (tmp_path / "in/b.gz").write_bytes(gzip.compress(many(50).encode()))
    (tmp_path / "in/c.json").write_text(json.dumps(export([span()]), indent=1))
    (tmp_path / "out").mkdir()
    seen: list[tuple[int, int]] = []
    read_spans([tmp_path / "in"], tmp_path / "out", VOCABULARY, progress=lambda *x: seen.append(x))
    total = sum(file.stat().st_size for file in (tmp_path / "in").iterdir())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 3


def test_good_files_count_beside_bad_ones_that_were_named(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text(line(span()))
    (tmp_path / "bad.json").write_text('{"resourceSpans":[{"sco')
    (tmp_path / "empty.json").write_text("")
    names = ["good.json", "bad.json", "empty.json", "metrics.json", "gone.json"]
    (tmp_path / "metrics.json").write_text(METRICS)
    result = read([tmp_path / name for name in names], tmp_path / "out")
    assert result.n_spans == 1
    problems = {Path(str(one.place)).name: one.message for one in result.problems}
    assert problems["bad.json:1"].startswith("cut off: not JSON")
    assert problems["empty.json"] == "the file is empty"
    assert problems["metrics.json"] == "metrics only: 0 spans"
    assert problems["gone.json"] == "no such file or folder"
    assert all("\n" not in str(one) for one in result.problems)


def test_in_a_folder_what_is_no_trace_is_skipped_and_noted(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.json").write_text(line(span()))
    (folder / "README.md").write_text("# Look at resourceSpans\n")
    (folder / "how.txt").write_text("run it\n")
    (folder / "metrics.json").write_text(METRICS)
    (folder / ".hidden").write_text("{")
    result = read(folder, tmp_path / "out")
    assert (result.n_spans, result.problems) == (1, [])
    notes = {note.n: note for note in result.notes}
    assert {note.kind for note in result.notes} == {"skipped_file"}
    assert "README.md" in notes[2].text
    assert "how.txt" in notes[2].text
    assert notes[1].text.startswith("1 file skipped (metrics only: 0 spans)")


def test_nothing_readable_is_one_error(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("hello")
    (folder / "b.json").write_text(METRICS)
    with pytest.raises(InputError) as caught:
        read(folder, tmp_path / "out")
    assert "no spans here" in caught.value.message
    assert "metrics only" in caught.value.message
    assert caught.value.place == str(folder)
    (tmp_path / "e.json").write_text("")
    with pytest.raises(InputError, match="the file is empty"):
        read(tmp_path / "e.json", tmp_path / "out")
    (tmp_path / "e.json").write_text('{"resourceSpans":[]}')
    with pytest.raises(InputError, match="OTLP JSON traces, but 0 spans"):
        read(tmp_path / "e.json", tmp_path / "out")


def test_the_last_line_of_a_crash_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = many(70)
    path = tmp_path / "a.json"
    path.write_text(text[:-40])
    for range_bytes in (10**9, 1000):
        monkeypatch.setattr(cutting, "RANGE_BYTES", range_bytes)
        result = read(path, tmp_path / f"out{range_bytes}")
        assert result.n_spans == 63
        (note,) = result.notes
        assert note.text == f"{path}:10: the last line is cut off and does not count"


def test_bad_lines_of_ranges_have_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cutting, "RANGE_BYTES", 3000)
    pieces = many(140).splitlines(keepends=True)
    pieces[12] = "oops\n"
    pieces[15] = "oops\n"
    path = tmp_path / "a.json"
    path.write_text("".join(pieces))
    result = read(path, tmp_path / "out", n_workers=2)
    (note,) = result.notes
    assert result.n_spans == 140 - 14
    assert note.n == 2
    assert note.text.startswith(f"{path}:13: the first of 2 lines not readable")
    path.write_bytes(gzip.compress("".join(pieces).encode()))
    (note,) = read(path, tmp_path / "out2").notes
    assert note.text.startswith(f"{path}:13: ")


def test_a_pretty_file_says_the_line_of_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(export([span()]), indent=2) + '\n{\n  "resourceSpans": oops\n}\n')
    result = read(path, tmp_path / "out")
    assert result.n_spans == 1
    n_lines = len(json.dumps(export([span()]), indent=2).splitlines())
    assert result.notes[0].text.startswith(f"{path}:{n_lines + 2}: ")


def test_a_cut_gzip_counts_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    data = gzip.compress(many(7000).encode())
    path.write_bytes(data[: len(data) * 3 // 4])
    result = read(path, tmp_path / "out")
    assert 0 < result.n_spans < 7000
    kinds = {note.kind for note in result.notes}
    assert "cut_file" in kinds
    assert any("cut off" in note.text for note in result.notes)


def test_one_file_by_several_paths_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "in/a.json"
    path.parent.mkdir()
    path.write_text(line(span()))
    (tmp_path / "in/b.json").symlink_to(path)
    result = read([path, path, path.parent, f"{path.parent}/*"], tmp_path / "out")
    assert result.n_spans == 1


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (many(30).encode(), gzip.compress(many(30).encode())):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        result = read("-", tmp_path / "out")
        assert result.n_spans == 30
        assert {one["source"] for one in rows_of(result.span_files)} == {"-"}


def test_a_line_over_the_limit_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_TEXT_BYTES", 5000)
    path = tmp_path / "a.json"
    huge = line(span(text="x" * 9000))
    path.write_text(line(span()) + huge + line(span()))
    result = read(path, tmp_path / "out")
    assert result.n_spans == 2
    assert result.notes[0].text.startswith(f"{path}:2: line not readable: longer than")


def test_a_gzip_bomb_is_given_up_with_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_TEXT_BYTES", 10 * 2**20)
    path = tmp_path / "a.gz"
    bomb = gzip.compress(line(span()).encode()) + gzip.compress(b'{"a":"' + bytes(200 * 2**20))
    path.write_bytes(bomb)
    result = read(path, tmp_path / "out")
    assert result.n_spans == 1
    (note,) = [note for note in result.notes if note.kind == "too_long"]
    assert "line 2 is longer than" in note.text
    zipped = zstandard.ZstdCompressor(level=19).compress(b'{"resourceSpans":"' + b"x" * 10**8)
    path.write_bytes(zipped)
    with pytest.raises(InputError, match="longer than"):
        read(path, tmp_path / "out2")


def test_objects_that_cost_more_memory_than_text_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_json, "LARGE_BYTES", 100)
    monkeypatch.setattr(otlp_json, "MAX_OBJECTS", 50)
    path = tmp_path / "a.json"
    empty: list[Any] = [{}] * 100
    path.write_text(line(span()) + json.dumps(export(empty)) + "\n")
    result = read(path, tmp_path / "out")
    assert result.n_spans == 1
    assert "more than 50 JSON objects" in result.notes[0].text
    monkeypatch.setattr(otlp_json, "MAX_OBJECTS", 500)
    monkeypatch.setattr(otlp_lenient, "MAX_LENIENT_OBJECTS", 50)
    path.write_text(line(span()) + json.dumps(export([7, *empty])) + "\n")
    result = read(path, tmp_path / "out2")
    assert result.n_spans == 1
    assert "too much of it in one piece" in result.notes[0].text


@pytest.mark.slow
def test_a_line_of_70_mb(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(line(*[span(whole=1, text="x" * 700)] * 75_000) + line(span()))
    assert path.stat().st_size > 70 * 2**20
    result = read(path, tmp_path / "out", n_workers=1)
    assert (result.n_spans, result.notes) == (75_001, [])


def test_a_file_that_vanishes_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(line(span()))
    original = cutting.find_source

    def vanish(head: bytes) -> Source | None:
        path.unlink()
        return original(head)

    monkeypatch.setattr(cutting, "find_source", vanish)
    with pytest.raises(InputError, match="cannot be opened"):
        read(path, tmp_path / "out")


def test_spans_that_no_dialect_knows_are_named(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    made = [span(name) for name, n in (("forward", 7), ("sample", 3)) for _ in range(n)]
    path.write_text(line(*made))
    with (
        Store() as store,
        pytest.raises(InputError, match=r'10 spans, most named "forward" \(7\), "sample"') as said,
    ):
        load_traces(store, [path], work_dir=tmp_path)
    assert said.value.place == str(path)
