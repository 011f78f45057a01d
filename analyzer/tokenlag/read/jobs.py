"""One job of reading: a piece of a file to span rows, the same in process and in a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tokenlag.read.files import lines_of, memory_stream
from tokenlag.read.sources import otlp_json
from tokenlag.read.sources.otlp_columns import Columns, Losses
from tokenlag.read.spans import RowFiles, event_schema, span_schema
from tokenlag.read.vocabulary import Vocabulary

SPANS_PER_BATCH: Final = 8192  # parsed at a time: what a core's cache can hold
MAX_BAD_KEPT: Final = 3
_BLANK: Final = b" \t\r\n\xef\xbb\xbf\0"


class Setup(msgspec.Struct, frozen=True):
    """What a reader needs to know once."""

    out_dir: str
    prefix: str
    span: dict[str, str]
    resource: dict[str, str]
    event_names: list[str]
    event: dict[str, str]

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
        )

    def vocabulary(self) -> Vocabulary:
        """Returns the vocabulary again."""
        return Vocabulary(self.span, self.resource, frozenset(self.event_names), self.event)


class Job(msgspec.Struct, frozen=True):
    """A piece of a file: a byte range of a plain file, or bytes that are sent along."""

    name: str  # of the file, as rows and messages call it
    path: str = ""
    start: int = 0
    end: int | None = None
    n_payload: int | None = None
    line: int = 1  # number of the payload's first line
    is_one_text: bool = False  # JSON over several lines


class Bad(msgspec.Struct):
    """A text that could not be read: where and why."""

    why: str
    line: int | None = None
    offset: int | None = None  # where the line is not known
    is_cut: bool = False  # the last line, without its end


class Report(msgspec.Struct):
    """What a job read and noticed."""

    seen: otlp_json.Seen = msgspec.field(default_factory=otlp_json.Seen)
    losses: Losses = msgspec.field(default_factory=Losses)
    n_rows: int = 0
    n_texts: int = 0
    n_bad: int = 0
    bad: list[Bad] = []


class SpanReader:
    """Does jobs and writes what they read.

    Args:
        setup: where to, and which keys.
    """

    def __init__(self, setup: Setup) -> None:
        vocabulary = setup.vocabulary()
        out_dir = Path(setup.out_dir)
        self._columns = Columns(vocabulary)
        self.spans = RowFiles(out_dir, f"spans-{setup.prefix}", span_schema(vocabulary))
        self.events = RowFiles(out_dir, f"events-{setup.prefix}", event_schema(vocabulary))

    def run(self, job: Job, payload: bytes = b"") -> Report:
        """Reads one piece and reports.

        Raises:
            OSError: the file cannot be read, or the output cannot be written.
        """
        report = Report()
        if job.is_one_text:
            self._text(job, payload, 0, report, 1)
        elif job.n_payload is not None:
            self._lines(job, report, payload)
        else:
            with Path(job.path).open("rb", buffering=2**20) as file:
                for offset, text in lines_of(file, job.start, job.end):
                    self._line(job, text, offset, report, None)
        self._drain(report)
        report.losses = self._columns.take_losses()
        return report

    def finish(self) -> tuple[list[Path], list[Path]]:
        """Writes what waits; returns the span files and the event files."""
        self.spans.flush()
        self.events.flush()
        return self.spans.files, self.events.files

    def _lines(self, job: Job, report: Report, payload: bytes) -> None:
        number = job.line
        for offset, text in lines_of(memory_stream(payload), 0, None):
            self._line(job, text, offset, report, number)
            number += 1

    def _line(
        self, job: Job, text: bytes | None, offset: int, report: Report, line: int | None
    ) -> None:
        if text is None:
            report.n_texts += 1
            _note(report, Bad("longer than can be read", line, offset))
        elif text.strip(_BLANK):
            self._text(job, text, offset, report, line)

    def _text(self, job: Job, text: bytes, offset: int, report: Report, line: int | None) -> None:
        report.n_texts += 1
        try:
            otlp_json.read_text(text.strip(_BLANK), job.name, self._columns, report.seen)
        except ValueError as error:
            is_cut = not text.endswith(b"\n")
            _note(report, Bad(str(error), line, offset, is_cut))
        if self._columns.n_waiting >= SPANS_PER_BATCH:
            self._drain(report)

    def _drain(self, report: Report) -> None:
        if self._columns.n_waiting:
            spans, events = self._columns.take()
            report.n_rows += spans.height
            self.spans.add(spans)
            self.events.add(events)


def _note(report: Report, bad: Bad) -> None:
    report.n_bad += 1
    if len(report.bad) < MAX_BAD_KEPT:
        report.bad.append(bad)
