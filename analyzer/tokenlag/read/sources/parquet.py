"""Parquet of spans: native rows, and the columns that OpenTelemetry's exporter for ClickHouse has.

Native files whose rows are in order are not copied: they are linked into the rows' folder
as they are, once everything in them was decoded and looked at. The other layout goes
through `parquet_map`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import polars as pl

from tokenlag.errors import InputError
from tokenlag.read.messages import Bad, Job, Report, note_bad
from tokenlag.read.parquet_footer import Footer
from tokenlag.read.parquet_pages import HINT, ROWS_AT_ONCE
from tokenlag.read.parquet_parts import NATIVE_EVENTS, PASCAL, checked_footer
from tokenlag.read.sources.frame_text import TextBudget, TooMuchTextError
from tokenlag.read.sources.otlp_series import SPAN_ID_BYTES, TRACE_ID_BYTES
from tokenlag.read.sources.parquet_map import MappedRows
from tokenlag.read.sources.sink import Sink
from tokenlag.read.spans import event_schema, span_schema

ROWS_PER_BATCH: Final = ROWS_AT_ONCE
ROWS_PER_FRAME: Final = 2**16
ZERO: Final = "0"
_STANDARD_ERROR: Final = 2


def open_source(sink: Sink) -> ParquetReader:
    """Returns the reader of this format."""
    return ParquetReader(sink)


class ParquetReader:
    """Reads files, or parts of them.

    Args:
        sink: where rows go.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._span_schema = span_schema(sink.vocabulary)
        self._event_schema = event_schema(sink.vocabulary)

    def read_part(self, job: Job, report: Report) -> None:
        """Puts rows of a file into the sink; notes what is unreadable."""
        try:
            footer, layout = checked_footer(Path(job.path), job.name)
            with _without_panics():
                if layout == PASCAL:
                    self._mapped(job, report, footer)
                else:
                    self._native(job, report, footer, is_events=layout == NATIVE_EVENTS)
        except TooMuchTextError as error:
            note_bad(report, Bad(str(error), hint=HINT))
        except InputError as error:  # it was readable a moment ago
            note_bad(report, Bad(error.message))
        except (pl.exceptions.PolarsError, OSError, ValueError) as error:
            said = str(error).splitlines()
            note_bad(report, Bad(f"damaged Parquet ({said[0][:120] if said else 'no more said'})"))
        except BaseException as error:
            # A panic in the library is no Exception; anything else is not for here.
            if not isinstance(error, pl.exceptions.PanicException):
                raise
            note_bad(report, Bad("damaged Parquet"))

    def _mapped(self, job: Job, report: Report, footer: Footer) -> None:
        scan = pl.scan_parquet(job.path)
        rows = MappedRows(scan.collect_schema(), self._sink)
        if not job.start:
            report.seen.n_exports += 1
        scan = scan.select(rows.columns)
        budget = TextBudget(footer.n_bytes)
        for batch in _batches(scan, job.start, job.end or 0, footer.groups):
            budget.take(batch)
            report.seen.n_spans += batch.height
            for piece in budget.pieces(batch, ROWS_PER_FRAME):
                self._sink.add(*rows.frames(piece, job.name))

    def _native(self, job: Job, report: Report, footer: Footer, *, is_events: bool) -> None:
        schema = self._event_schema if is_events else self._span_schema
        scan = pl.scan_parquet(job.path)
        there = scan.collect_schema()
        held = [name for name in schema if name in there]
        scan = scan.select(held)
        is_typed = all(there[name] == schema[name] for name in held) and not (
            set(schema) & set(there) - set(held)
        )
        report.seen.n_exports += 1
        losses, n_rows, budget = self._sink.losses, 0, TextBudget(footer.n_bytes)
        if is_typed:
            is_fine = True
            n_untimed = 0
            for batch in _batches(scan, 0, footer.n_rows, footer.groups):
                budget.take(batch)
                is_fine = is_fine and bool(batch.select(_is_good(batch)).to_series().all())
                n_rows += batch.height
                if not is_events:
                    n_untimed += _n_untimed(batch)
            if is_fine:
                if not is_events:
                    report.seen.n_spans += n_rows
                    losses.n_without_times += n_untimed
                self._sink.link(job.path, 0 if is_events else n_rows, is_events=is_events)
                return
        budget = TextBudget(footer.n_bytes)
        for batch in _batches(scan, 0, footer.n_rows, footer.groups):
            budget.take(batch)
            frame = self._repaired(batch, schema, job.name)
            if is_events:
                self._sink.add(pl.DataFrame(), frame)
                continue
            report.seen.n_spans += batch.height
            losses.n_without_ids += batch.height - frame.height
            losses.n_without_times += _n_untimed(frame)
            self._sink.add(frame, pl.DataFrame())

    def _repaired(self, batch: pl.DataFrame, schema: dict[str, pl.DataType], name: str) -> Any:
        """Rows in the types that belong there; those without ids are left out."""
        columns = []
        for column in batch:
            kind = schema[column.name]
            made = column if column.dtype == kind else column.cast(kind, strict=False)
            n_lost = made.null_count() - column.null_count()
            if n_lost:
                unconvertible = self._sink.losses.unconvertible
                unconvertible[column.name] = unconvertible.get(column.name, 0) + n_lost
            columns.append(made)
        frame = pl.DataFrame(columns)
        if "source" in schema and "source" not in frame.columns:
            frame = frame.with_columns(source=pl.lit(name))
        frame = frame.with_columns(
            _repaired_id(pl.col("trace_id"), 2 * TRACE_ID_BYTES),
            _repaired_id(pl.col("span_id"), 2 * SPAN_ID_BYTES),
        )
        times = [one for one in ("start_ns", "end_ns", "time_ns") if one in frame.columns]
        frame = frame.with_columns(pl.when(pl.col(one) > 0).then(pl.col(one)) for one in times)
        if "parent_id" in frame.columns:
            parent = _repaired_id(pl.col("parent_id"), 2 * SPAN_ID_BYTES)
            frame = frame.with_columns(parent)
        return frame.drop_nulls(["trace_id", "span_id"])


@contextmanager
def _without_panics() -> Iterator[None]:
    """Keeps to itself what the library's threads say on standard error as they give up.

    They print where in the library that was, before there is anything to catch. What others
    say there meanwhile comes through, afterwards.
    """
    try:
        error = os.dup(_STANDARD_ERROR)
    except OSError:  # there is none
        yield
        return
    with os.fdopen(error, "wb", buffering=0) as real, tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), _STANDARD_ERROR)
        is_panic = False
        try:
            yield
        except pl.exceptions.PanicException:
            is_panic = True
            raise
        finally:
            os.dup2(real.fileno(), _STANDARD_ERROR)
            kept.seek(0)
            if not is_panic and (said := kept.read()):
                real.write(said)


def _batches(
    scan: pl.LazyFrame, start: int, end: int, groups: Iterable[tuple[int, int]]
) -> Iterator[pl.DataFrame]:
    """Rows of a range, some whole row groups at a time, for those are decoded whole."""
    begin = at = 0
    for n_rows, _ in groups:
        if at > begin and at - begin + n_rows > ROWS_PER_BATCH:
            yield from _slices(scan, max(begin, start), min(at, end))
            begin = at
        at += n_rows
    yield from _slices(scan, max(begin, start), min(at, end))


def _slices(scan: pl.LazyFrame, start: int, end: int) -> Iterator[pl.DataFrame]:
    for at in range(start, end, ROWS_AT_ONCE):
        yield scan.slice(at, min(ROWS_AT_ONCE, end - at)).collect()


def _is_id(column: pl.Expr, n_digits: int) -> pl.Expr:
    return column.str.contains(f"^[0-9a-f]{{{n_digits}}}$") & (column != ZERO * n_digits)


def _is_good(batch: pl.DataFrame) -> pl.Expr:
    """Whether rows are as this program writes them."""
    checks = [
        _is_id(pl.col("trace_id"), 2 * TRACE_ID_BYTES).fill_null(value=False),
        _is_id(pl.col("span_id"), 2 * SPAN_ID_BYTES).fill_null(value=False),
    ]
    if "parent_id" in batch.columns:
        checks.append(_is_id(pl.col("parent_id"), 2 * SPAN_ID_BYTES).fill_null(value=True))
    times = [one for one in ("start_ns", "end_ns", "time_ns") if one in batch.columns]
    checks += [(pl.col(one) > 0).fill_null(value=True) for one in times]
    return pl.all_horizontal(checks)


def _repaired_id(column: pl.Expr, n_digits: int) -> pl.Expr:
    lower = column.str.to_lowercase()
    return pl.when(_is_id(lower, n_digits)).then(lower).alias(column.meta.output_name())


def _n_untimed(frame: pl.DataFrame) -> int:
    timed = frame["start_ns"].is_not_null() & frame["end_ns"].is_not_null()
    return frame.height - int(timed.sum())
