"""One result file, whoever wrote it, to its runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tokenlag.errors import InputError
from tokenlag.read.files import InputFile
from tokenlag.read.lines import MAX_TEXT_BYTES
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
        parts, n_bytes = [], 0
        for chunk in stream.chunks():
            parts.append(chunk)
            n_bytes += len(chunk)
            if n_bytes > MAX_TEXT_BYTES:
                why = f"larger than {MAX_TEXT_BYTES >> 20} MB, which is not read"
                raise InputError(why, place=path, hint="write it without the generated texts")
        broken = stream.broken
    if broken:
        raise InputError(broken, place=path, hint="copy or export it again")
    return read_text(b"".join(parts), name, path)


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
