"""One result file, whoever wrote it, to its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tokenlag.errors import InputError
from tokenlag.read.files import InputFile
from tokenlag.read.lines import MAX_TEXT_BYTES, whole_text
from tokenlag.read.loadtest import AIPERF, GUIDELLM, LLMPERF, RECORDED, SERVING, find_format
from tokenlag.read.loadtest.run import Run
from tokenlag.read.stream import Bytes

Read = Callable[[bytes, str], list[Run]]


def is_load_test(path: str) -> bool:
    """Whether a path is one file, and that file a load test's result."""
    file = Path(path).expanduser()
    if not file.is_file():
        return False
    with Bytes(InputFile(file, path, file.stat().st_size, is_named=True)) as stream:
        return find_format(stream.head) is not None


def read_file(path: str) -> list[Run]:
    """Reads a result file, plain or compressed.

    Raises:
        InputError: it cannot be opened, is too large or is no result file.
    """
    file = Path(path).expanduser()
    named = InputFile(file, path, file.stat().st_size if file.exists() else 0, is_named=True)
    with Bytes(named) as stream:
        name = find_format(stream.head)
        if name is None:
            raise InputError("no load test's result file", place=path)
        runs = read_stream(stream, name, path)
        broken = stream.broken
    if broken:
        raise InputError(broken, place=path, hint="copy or export it again")
    return runs


def read_stream(stream: Bytes, name: str, source: str) -> list[Run]:
    """The runs of a file whose format is known by its head.

    AIPerf's records, which are large, are read as they come; the other formats are one text.

    Raises:
        InputError: it is too large, or not of that format.
    """
    if name == AIPERF:
        from tokenlag.read.loadtest import aiperf

        if aiperf.has_records(stream.head):
            return aiperf.read_lines(_lines(stream.chunks()), source)
    text = whole_text(stream.chunks())
    if text is None:
        why = f"a load test's result of more than {MAX_TEXT_BYTES >> 20} MB, which is not read"
        raise InputError(why, place=source, hint="write it without the generated texts")
    return read_text(text, name, source)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line.strip())
    if rest.strip():
        yield rest


def read_text(text: bytes, name: str, source: str) -> list[Run]:
    """The runs of a text whose format is known.

    Raises:
        InputError: it is not of that format.
    """
    return _READERS[name]()(text, source)


def _serving() -> Read:
    from tokenlag.read.loadtest import serving

    return serving.read


def _aiperf() -> Read:
    from tokenlag.read.loadtest import aiperf

    return aiperf.read


def _guidellm() -> Read:
    from tokenlag.read.loadtest import guidellm

    return guidellm.read


def _llmperf() -> Read:
    from tokenlag.read.loadtest import llmperf

    return llmperf.read


def _recorded() -> Read:
    from tokenlag.read.loadtest import recorded

    return recorded.read


_READERS: Final[dict[str, Callable[[], Read]]] = {
    SERVING: _serving,
    AIPERF: _aiperf,
    GUIDELLM: _guidellm,
    LLMPERF: _llmperf,
    RECORDED: _recorded,
}
