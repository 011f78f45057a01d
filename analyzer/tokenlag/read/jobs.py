"""One job of reading: a piece of a file to span rows, the same in process and in a worker."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tokenlag.read.lines import MAX_TEXT_BYTES, lines_of
from tokenlag.read.messages import MAX_BAD_KEPT, Bad, Done, Job, Report, Setup
from tokenlag.read.sources import otlp_json
from tokenlag.read.sources.otlp_columns import Columns
from tokenlag.read.spans import RowFiles, event_schema, span_schema

if TYPE_CHECKING:
    import polars as pl

_BLANK: Final = b" \t\r\n\xef\xbb\xbf\0"


class SpanReader:
    """Does jobs and writes what they read.

    Args:
        setup: where to, and which keys.
    """

    def __init__(self, setup: Setup) -> None:
        vocabulary = setup.vocabulary()
        out_dir = Path(setup.out_dir)
        self._columns = Columns(vocabulary, self._take)
        self._source = otlp_json.OtlpJsonReader(self._columns, vocabulary.span)
        self._n_rows = 0
        self._spans = RowFiles(out_dir, f"spans-{setup.prefix}", span_schema(vocabulary))
        self._events = RowFiles(out_dir, f"events-{setup.prefix}", event_schema(vocabulary))
        self._spans.write_empty()
        self._events.write_empty()

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
            self._range(job, report)
        self._columns.flush()
        report.n_rows, self._n_rows = self._n_rows, 0
        report.losses = self._columns.take_losses()
        return report

    def finish(self) -> Done:
        """Writes what waits; returns the files, of which the first of each kind is empty."""
        self._spans.flush()
        self._events.flush()
        return Done(
            [str(path) for path in self._spans.files], [str(path) for path in self._events.files]
        )

    def _range(self, job: Job, report: Report) -> None:
        try:
            file = Path(job.path).open("rb", buffering=0)  # noqa: SIM115 - used below
        except OSError as error:  # it was there a moment ago
            _note(report, Bad(f"cannot be opened: {error.strerror}", offset=job.start))
            return
        with file:
            for offset, text in lines_of(file, job.start, job.end):
                self._line(job, text, offset, report, None)

    def _lines(self, job: Job, report: Report, payload: bytes) -> None:
        number = job.line
        for offset, text in lines_of(io.BytesIO(payload), 0, None):
            self._line(job, text, offset, report, number)
            number += 1

    def _line(
        self, job: Job, text: memoryview | None, offset: int, report: Report, line: int | None
    ) -> None:
        if text is None:
            report.n_texts += 1
            why = f"longer than {MAX_TEXT_BYTES >> 20} MB, which is not read"
            _note(report, Bad(why, line, offset))
        elif bytes(text[:64]).strip(_BLANK) or bytes(text).strip(_BLANK):
            self._text(job, text, offset, report, line)

    def _text(
        self, job: Job, text: bytes | memoryview, offset: int, report: Report, line: int | None
    ) -> None:
        report.n_texts += 1
        if text[:1] not in (b"{", b"["):
            text = bytes(text).strip(_BLANK)
        try:
            self._source.read(text, job.name, report.seen)
        except otlp_json.TextError as error:
            is_cut = text[-1:] != b"\n"
            line = None if line is None else line + error.n_lines_before
            _note(report, Bad(str(error), line, offset, is_cut))

    def _take(self, spans: pl.DataFrame, events: pl.DataFrame) -> None:
        self._n_rows += spans.height
        self._spans.add(spans)
        self._events.add(events)


def _note(report: Report, bad: Bad) -> None:
    report.n_bad += 1
    if len(report.bad) < MAX_BAD_KEPT:
        report.bad.append(bad)
