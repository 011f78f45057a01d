"""One job of reading: a piece of a file to span rows, the same in process and in a worker."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tokenlag.read.lines import MAX_TEXT_BYTES, lines_of
from tokenlag.read.messages import Bad, Done, Job, Losses, Report, Setup, note_bad
from tokenlag.read.sources import FILE, FRAMES, SOURCES
from tokenlag.read.sources.otlp_columns import Columns
from tokenlag.read.sources.otlp_json import TextError
from tokenlag.read.sources.sink import Sink
from tokenlag.read.spans import RowFiles, event_schema, span_schema

if TYPE_CHECKING:
    import polars as pl

_BLANK: Final = b" \t\r\n\xef\xbb\xbf\0"
_CUT_OF: Final = {source.name: source.cut for source in SOURCES}


class SpanReader:
    """Does jobs and writes what they read.

    Args:
        setup: where to, and which keys.
    """

    def __init__(self, setup: Setup) -> None:
        vocabulary = setup.vocabulary()
        out_dir = Path(setup.out_dir)
        self._columns = Columns(vocabulary, self._take)
        self._sink = Sink(vocabulary, self._columns, self._take, self._link)
        self._sources: dict[str, Any] = {}
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
        cut = _CUT_OF[job.source]
        if cut == FILE:
            self._source(job).read_part(job, report)
        elif cut == FRAMES:
            self._frames(job, report, payload)
        elif job.is_one_text:
            self._text(job, payload, 0, report, 1)
        elif job.n_payload is not None:
            self._lines(job, report, payload)
        else:
            self._range(job, report)
        self._columns.flush()
        report.n_rows, self._n_rows = self._n_rows, 0
        report.losses = self._columns.take_losses()
        report.losses.add(self._sink.losses)
        self._sink.losses = Losses()
        return report

    def finish(self) -> Done:
        """Writes what waits; returns the files, of which the first of each kind is empty."""
        self._spans.flush()
        self._events.flush()
        return Done(
            [str(path) for path in self._spans.files], [str(path) for path in self._events.files]
        )

    def _source(self, job: Job) -> Any:
        """The reader of a job's format; only the formats that occur are imported."""
        reader = self._sources.get(job.source)
        if reader is None:
            module = importlib.import_module(f"tokenlag.read.sources.{job.source}")
            reader = self._sources[job.source] = module.open_source(self._sink)
        return reader

    def _frames(self, job: Job, report: Report, payload: bytes) -> None:
        if job.n_payload is None:
            try:
                with Path(job.path).open("rb") as file:
                    file.seek(job.start)
                    payload = file.read((job.end or 0) - job.start)
            except OSError as error:  # it was there a moment ago
                note_bad(report, Bad(f"cannot be opened: {error.strerror}", byte=job.start))
                return
        self._source(job).read_block(payload, job, report)

    def _range(self, job: Job, report: Report) -> None:
        try:
            file = Path(job.path).open("rb", buffering=0)  # noqa: SIM115 - used below
        except OSError as error:  # it was there a moment ago
            note_bad(report, Bad(f"cannot be opened: {error.strerror}", offset=job.start))
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
            note_bad(report, Bad(why, line, offset))
        elif bytes(text[:64]).strip(_BLANK) or bytes(text).strip(_BLANK):
            self._text(job, text, offset, report, line)

    def _text(
        self, job: Job, text: bytes | memoryview, offset: int, report: Report, line: int | None
    ) -> None:
        report.n_texts += 1
        if text[:1] not in (b"{", b"["):
            text = bytes(text).strip(_BLANK)
        try:
            self._source(job).read(text, job.name, report.seen)
        except TextError as error:
            is_cut = text[-1:] != b"\n"
            line = None if line is None else line + error.n_lines_before
            note_bad(report, Bad(str(error), line, offset, is_cut=is_cut))

    def _take(self, spans: pl.DataFrame, events: pl.DataFrame) -> None:
        self._n_rows += spans.height
        self._spans.add(spans)
        self._events.add(events)

    def _link(self, path: str, n_rows: int, *, is_events: bool) -> None:
        self._n_rows += n_rows
        (self._events if is_events else self._spans).link(Path(path), n_rows)
