"""Which files a path means, and their bytes."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from tokenlag.read import lines
from tokenlag.read.files import Found, InputFile, find_files
from tokenlag.read.lines import (
    Block,
    blocks_of,
    is_one_text,
    line_number,
    lines_of,
    whole_text,
)
from tokenlag.read.stream import HEAD_BYTES, Bytes

from tests.read.otlp import line, span


def names(found: Found, root: Path) -> list[str]:
    return [os.path.relpath(file.name, root) for file in found.files]


def kept_lines(text: bytes, start: int, end: int | None) -> list[tuple[int, bytes | None]]:
    """What `lines_of` yields, copied, for each is good until the next only."""
    found = lines_of(io.BytesIO(text), start, end)
    return [(at, None if piece is None else bytes(piece)) for at, piece in found]


def make(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")


def test_a_folder_is_searched_deep_in_a_stable_order(tmp_path: Path) -> None:
    make(tmp_path, "b.json", "a/z.json", "a/y/x.json", "c.gz", ".hidden", ".git/a.json")
    found = find_files([tmp_path])
    assert names(found, tmp_path) == ["a/y/x.json", "a/z.json", "b.json", "c.gz"]
    assert not found.problems
    assert not any(file.is_named for file in found.files)


def test_names_are_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "d/a.json")
    monkeypatch.chdir(tmp_path)
    assert [file.name for file in find_files(["d", "d/a.json"]).files] == ["d/a.json"]
    assert [file.name for file in find_files(["./d/a.json"]).files] == ["./d/a.json"]


def test_one_real_file_is_read_once(tmp_path: Path) -> None:
    make(tmp_path, "d/a.json", "d/b.json")
    (tmp_path / "d/link.json").symlink_to(tmp_path / "d/a.json")
    (tmp_path / "e").symlink_to(tmp_path / "d")
    paths = [tmp_path / "d/a.json", tmp_path, tmp_path / "e", str(tmp_path / "*" / "*.json")]
    found = find_files(paths)
    assert names(found, tmp_path) == ["d/a.json", "d/b.json"]
    assert found.files[0].is_named
    assert not found.problems


def test_links_that_lead_in_circles_end(tmp_path: Path) -> None:
    make(tmp_path, "d/a.json", "d/e/b.json")
    (tmp_path / "d/e/up").symlink_to(tmp_path / "d")
    (tmp_path / "d/self").symlink_to(tmp_path / "d/self")
    (tmp_path / "d/gone").symlink_to(tmp_path / "nowhere")
    found = find_files([tmp_path])
    assert names(found, tmp_path) == ["d/a.json", "d/e/b.json"]
    assert not found.problems
    whys = {os.path.relpath(name, tmp_path): why for name, why in found.skipped}
    assert "back to itself" in whys["d/self"]
    assert "link to nothing" in whys["d/gone"]
    (problem,) = find_files([tmp_path / "d/self"]).problems
    assert "back to itself" in problem.message
    (problem,) = find_files([tmp_path / "d/gone"]).problems
    assert "link to nothing" in problem.message


def test_patterns(tmp_path: Path) -> None:
    make(tmp_path, "a.json", "b.jsonl", "d/c.json", "odd[1].json")
    assert names(find_files([f"{tmp_path}/*.json*"]), tmp_path) == [
        "a.json",
        "b.jsonl",
        "odd[1].json",
    ]
    assert names(find_files([f"{tmp_path}/**/c.json"]), tmp_path) == ["d/c.json"]
    assert names(find_files([f"{tmp_path}/d*"]), tmp_path) == ["d/c.json"]
    literal = find_files([f"{tmp_path}/odd[1].json"])
    assert names(literal, tmp_path) == ["odd[1].json"]
    assert literal.files[0].is_named


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.json", "no such file"),
        ("no*.json", "no file matches"),
        ("empty", "no files in it"),
        ("nul\0byte", "not a path"),
        ("a.json/b.json", "no such file"),
    ],
)
def test_paths_of_no_use_are_problems_with_hints(tmp_path: Path, path: str, message: str) -> None:
    make(tmp_path, "a.json")
    (tmp_path / "empty").mkdir()
    (problem,) = find_files([f"{tmp_path}/{path}"]).problems
    assert message in problem.message
    assert problem.hint


def test_an_empty_path_is_a_problem() -> None:
    (problem,) = find_files([""]).problems
    assert "empty path" in problem.message


def test_files_that_may_not_be_read(tmp_path: Path) -> None:
    make(tmp_path, "d/a.json")
    (tmp_path / "d").chmod(0)
    try:
        if os.access(tmp_path / "d", os.R_OK):
            pytest.skip("this user may read everything")
        (problem,) = find_files([tmp_path / "d"]).problems
    finally:
        (tmp_path / "d").chmod(0o755)
    assert "may not be read" in problem.message
    assert problem.hint == "check its permissions"


def test_sockets_and_pipes_in_a_folder_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "a.json")
    os.mkfifo(tmp_path / "pipe")
    found = find_files([tmp_path])
    assert names(found, tmp_path) == ["a.json"]
    assert [why for _, why in found.skipped] == ["not a file"]


def content(path: Path) -> tuple[bytes, Bytes]:
    stream = Bytes(InputFile(path, str(path), path.stat().st_size, is_named=True))
    with stream:
        return b"".join(stream.chunks()), stream


TEXT = b"".join(b"line %d\n" % i for i in range(200_000))


@pytest.mark.parametrize("name", ["a.json", "a.gz", "a.zst"])
def test_compression_is_seen_in_the_bytes_not_the_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frames = zstandard.compress(TEXT[:1000]) + zstandard.compress(TEXT[1000:])
    for data in (TEXT, gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:]), frames):
        path.write_bytes(data)
        found, stream = content(path)
        assert found == TEXT
        assert stream.broken is None
        assert stream.is_plain == (data is TEXT)
        assert stream.head == TEXT[:HEAD_BYTES]


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_cut_stream_gives_what_came_before(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    noisy = os.urandom(500_000)
    data = compress(noisy)
    path = tmp_path / "a"
    for n in (5, 20, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:n])
        found, stream = content(path)
        assert noisy.startswith(found)
        assert len(found) >= n - 200_000
        assert stream.broken == "the compressed stream is cut off"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_damaged_stream_is_told(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    data = compress(TEXT)
    path = tmp_path / "a"
    path.write_bytes(data[: len(data) // 2] + bytes(100) + data[len(data) // 2 + 100 :])
    found, stream = content(path)
    assert stream.broken is not None
    assert found != TEXT
    path.write_bytes(data + b"something else")
    found, stream = content(path)
    assert found == TEXT
    assert stream.broken is not None


def test_padding_after_gzip_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(TEXT) + bytes(5000))
    found, stream = content(path)
    assert (found == TEXT, stream.broken) == (True, None)


@pytest.mark.parametrize("n_chunk", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("text", [b"", b"a", b"\n", b"a\nbb\n", b"a\n\nbb\nccc", b"\n\n\na"])
def test_blocks_are_whole_lines_with_their_numbers(text: bytes, n_chunk: int) -> None:
    chunks = [text[i : i + n_chunk] for i in range(0, len(text), n_chunk)]
    blocks = list(blocks_of(chunks))
    assert b"".join(block.data or b"" for block in blocks) == text
    assert all((block.data or b"").endswith(b"\n") for block in blocks[:-1])
    n_lines = 0
    for block in blocks:
        assert block.line == n_lines + 1
        n_lines += (block.data or b"").count(b"\n")


@pytest.mark.parametrize("n_buffer", [1, 2, 3, 4096])
@pytest.mark.parametrize("text", [b"", b"a", b"\n", b"a\nbb\n", b"a\n\nbb\nccc", b"\n\n\na"])
def test_ranges_share_the_lines_out(
    text: bytes, n_buffer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "READ_BYTES", n_buffer)
    whole = [(0, piece) for piece in text.splitlines(keepends=True)]
    for n in range(1, len(text) + 2):
        found = []
        for start in range(0, len(text), n):
            found += kept_lines(text, start, min(start + n, len(text)))
        assert [piece for _, piece in found] == [piece for _, piece in whole]
        assert all(piece is not None and text[at:].startswith(piece) for at, piece in found)


def test_texts_over_the_limit_are_told_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_TEXT_BYTES", 10)
    text = b"short\n" + b"x" * 25 + b"\n" + b"end\n"
    assert kept_lines(text, 0, None) == [
        (0, b"short\n"),
        (6, None),
        (32, b"end\n"),
    ]
    assert kept_lines(text, 8, 12) == []
    assert kept_lines(text, 8, 40) == [(32, b"end\n")]
    chunks = [text[i : i + 4] for i in range(0, len(text), 4)]
    assert list(blocks_of(chunks)) == [Block(b"short\n", 1), Block(None, 2)]
    assert whole_text(chunks) is None
    assert whole_text([b"a", b"b"]) == b"ab"


def test_line_numbers_from_offsets(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"a\nbb\nccc")
    assert [line_number(path, offset) for offset in (0, 1, 2, 4, 5, 7)] == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (line(span()) * 2, False),
        ('{"resourceSpans": []}', False),
        ('{\n  "resourceSpans": []\n}', True),
        ('{"resourceSpans": [\n  {}\n]}', True),
        ('[\n{"resourceSpans": []},\n{"resourceSpans": []}\n]', True),
        ('{"resourceSpans": [{"scope\n{"resourceSpans": []}\n', False),
        ('Spans": []}\n{"resourceSpans": []}\n', False),
        ("", False),
    ],
)
def test_one_text_or_lines(head: str, expected: bool) -> None:
    assert is_one_text(head.encode()) == expected
    assert is_one_text(("\ufeff\n" + head).encode()) == expected
