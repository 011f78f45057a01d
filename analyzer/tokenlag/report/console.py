"""Where a report goes: what the terminal can show, writing to it, progress beside it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TextIO

from tokenlag.errors import UsageError
from tokenlag.report.format import clean, to_ascii

DEFAULT_WIDTH: Final = 100
_MAX_WIDTH: Final = 120  # longer lines are harder to read, not easier
_PROBE: Final = "×–→≥µ"
_SHOW_AFTER_S: Final = 1.0
_REFRESH_S: Final = 0.1


class ReaderLeftError(Exception):
    """Whoever read standard output has left, such as `head`: no error, and nothing to say.

    Not an OSError, which the command-line library would take for itself.
    """


@dataclass(frozen=True)
class Terminal:
    """What an output stream can show."""

    width: int
    color: bool
    ascii_only: bool


def terminal_of(stream: TextIO, environ: Mapping[str, str] = os.environ) -> Terminal:
    """The abilities of a stream, with NO_COLOR, FORCE_COLOR, TERM and COLUMNS respected."""
    is_terminal = stream.isatty()
    if environ.get("NO_COLOR"):
        color = False
    elif environ.get("FORCE_COLOR"):
        color = True
    else:
        color = is_terminal and environ.get("TERM") != "dumb"
    if is_terminal or environ.get("COLUMNS", "").isdecimal():
        width = min(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, _MAX_WIDTH)
    else:
        width = DEFAULT_WIDTH
    return Terminal(width, color, not _can_show(_PROBE, stream))


def write_out(text: str, *, is_json: bool = False) -> None:
    """Write to standard output whatever its encoding; JSON stays JSON.

    Raises:
        ReaderLeftError: nobody reads any more.
    """
    if not _can_show(text, sys.stdout):
        text = _escaped_json(text) if is_json else to_ascii(text)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderLeftError from None


def write_file(path: Path, text: str) -> None:
    """Write a report to a file as UTF-8, whole or not at all.

    Raises:
        UsageError: it cannot be written there.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        if not path.exists() or path.is_file():
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        else:  # /dev/stdout, a named pipe
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UsageError(
            f"cannot write the report: {error.strerror}", place=clean(str(path))
        ) from None


def say(line: str) -> None:
    """One line on standard error, whatever its encoding."""
    text = clean(line)
    print(text if _can_show(text, sys.stderr) else to_ascii(text), file=sys.stderr)


class Progress:
    """A line on standard error that says what is being done, once that takes over a second.

    Without a terminal it does nothing. Call it with a stage and a share of it (0 to 1).
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._is_on = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._next_s = time.monotonic() + _SHOW_AFTER_S
        self._is_shown = False

    def __call__(self, stage: str, share: float) -> None:
        """Show a stage, at most ten times a second."""
        now_s = time.monotonic()
        if not self._is_on or now_s < self._next_s:
            return
        self._next_s = now_s + _REFRESH_S
        self._is_shown = True
        line = clean(stage) if share <= 0 else f"{clean(stage)} {min(share, 1.0):.0%}"
        columns = shutil.get_terminal_size((80, 24)).columns
        self._stream.write("\r\x1b[K" + to_ascii(line)[: columns - 1])
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Clear the line, so that what follows starts clean."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._is_shown = False


def _can_show(text: str, stream: TextIO) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _escaped_json(text: str) -> str:
    return re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], text)
