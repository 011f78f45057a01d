"""What goes to a reader and comes back, as JSON lines if it is another process."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tokenlag.read.sources import OTLP_JSON
from tokenlag.read.vocabulary import Vocabulary

MAX_BAD_KEPT: Final = 3


class Setup(msgspec.Struct, frozen=True):
    """What a reader needs to know once."""

    out_dir: str
    prefix: str
    span: dict[str, str]
    resource: dict[str, str]
    event_names: list[str]
    event: dict[str, str]
    link_names: list[str]

    @staticmethod
    def of(out_dir: Path, prefix: str, vocabulary: Vocabulary) -> Setup:
        """Returns the setup of a reader that writes files of one prefix."""
        return Setup(
            str(out_dir),
            prefix,
            dict(vocabulary.span),
            dict(vocabulary.resource),
            sorted(vocabulary.event_names),
            dict(vocabulary.event),
            sorted(vocabulary.link_names),
        )

    def vocabulary(self) -> Vocabulary:
        """Returns the vocabulary again."""
        return Vocabulary(
            self.span,
            self.resource,
            frozenset(self.event_names),
            self.event,
            frozenset(self.link_names),
        )


class Job(msgspec.Struct, frozen=True):
    """A piece of a file: a byte range of a plain file, or bytes that are sent along."""

    name: str  # of the file, as rows and messages call it
    path: str = ""
    start: int = 0  # bytes, also of a payload's first one; of a file that is cut by rows: rows
    end: int | None = None
    n_payload: int | None = None
    line: int = 1  # number of the payload's first line
    is_one_text: bool = False  # JSON over several lines
    source: str = OTLP_JSON
    framing: str = ""  # of binary messages
    n_parts: int = 1  # in which its file is read


class Bad(msgspec.Struct):
    """A text that could not be read: where and why."""

    why: str
    line: int | None = None
    offset: int | None = None  # where the line is not known
    byte: int | None = None  # in a file without lines
    is_cut: bool = False  # the last line, without its end
    hint: str | None = None  # what to do, if it is not to write OTLP as it should be


class Seen(msgspec.Struct):
    """What the texts read so far held."""

    n_spans: int = 0
    n_exports: int = 0  # trace exports, with or without spans
    n_foreign: int = 0  # JSON that is no OTLP
    other: dict[str, int] = {}  # signal → exports
    n_bad_spans: int = 0
    n_repaired_utf8: int = 0


class Losses(msgspec.Struct):
    """What was noticed while spans became rows, counted."""

    n_without_ids: int = 0
    n_without_times: int = 0
    unconvertible: dict[str, int] = {}

    def add(self, more: Losses) -> None:
        """Takes what was counted elsewhere."""
        self.n_without_ids += more.n_without_ids
        self.n_without_times += more.n_without_times
        for key, n in more.unconvertible.items():
            self.unconvertible[key] = self.unconvertible.get(key, 0) + n


class Report(msgspec.Struct):
    """What a job read and noticed."""

    seen: Seen = msgspec.field(default_factory=Seen)
    losses: Losses = msgspec.field(default_factory=Losses)
    n_rows: int = 0
    n_texts: int = 0
    n_bad: int = 0
    bad: list[Bad] = []


def note_bad(report: Report, bad: Bad) -> None:
    """Counts something that could not be read, and keeps the first few."""
    report.n_bad += 1
    if len(report.bad) < MAX_BAD_KEPT:
        report.bad.append(bad)


class Done(msgspec.Struct):
    """The files that a reader wrote."""

    span_files: list[str]
    event_files: list[str]
