"""What reading noticed in a file, as notes for the coverage or as the file's problem."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tokenlag.errors import InputError
from tokenlag.read.files import InputFile
from tokenlag.read.lines import line_number
from tokenlag.read.loadtest.run import Run
from tokenlag.read.messages import MAX_BAD_KEPT, Bad, Report
from tokenlag.read.sources import ENGINE_RECORDS, JAEGER_JSON, Source
from tokenlag.read.sources.guess import OTLP_HINT, Guess, guess

MAX_NAMED = 3


@dataclass(frozen=True)
class ReadNote:
    """A row of the table `read_notes`, without its dataset."""

    kind: str
    place: str | None
    n: int
    text: str


@dataclass
class FileResult:
    """Everything known about one file, gathered from its jobs."""

    file: InputFile
    report: Report = field(default_factory=Report)
    head: bytes = b""
    source: Source | None = None  # the format, if it is one that is read
    guess: Guess | None = None  # what it is instead, where its head says so
    error: InputError | None = None  # it could not be opened
    broken: str | None = None  # its compressed stream ended early
    too_long: str | None = None  # where reading was given up
    runs: list[Run] = field(default_factory=list)  # of a load test, if that is what it holds

    def add(self, report: Report) -> None:
        """Takes the report of one more job."""
        mine = self.report
        mine.n_rows += report.n_rows
        mine.n_texts += report.n_texts
        mine.n_bad += report.n_bad
        mine.bad = (mine.bad + report.bad)[:MAX_BAD_KEPT]
        seen = mine.seen
        seen.n_spans += report.seen.n_spans
        seen.n_exports += report.seen.n_exports
        seen.n_foreign += report.seen.n_foreign
        seen.n_bad_spans += report.seen.n_bad_spans
        seen.n_repaired_utf8 += report.seen.n_repaired_utf8
        _sum(seen.other, report.seen.other)
        losses = mine.losses
        losses.n_without_ids += report.losses.n_without_ids
        losses.n_without_times += report.losses.n_without_times
        _sum(losses.unconvertible, report.losses.unconvertible)

    def why(self) -> str:
        """Returns why this file gives no spans, in a few words without the place."""
        problem = self.problem()
        return problem.message if problem else ""

    def problem(self) -> InputError | None:
        """Returns what is wrong if the file has no usable span, else None."""
        if self.error is not None:
            return self.error
        if self.report.n_rows or self.runs:
            return None
        name = self.file.name
        if self.guess is not None:
            return self._not_otlp(self.guess)
        seen = self.report.seen
        if self.too_long:
            hint = "write one export a line, as the Collector's file exporter does"
            if self.source is not None and self.source.name == JAEGER_JSON:
                hint = "fetch fewer traces at a time, or as OTLP from /api/v3/traces/ID"
            return InputError(f"{self.too_long}, which is not read", place=name, hint=hint)
        if self.report.n_bad:
            bad = self.report.bad[0]
            what = "cut off" if bad.is_cut and self.report.n_bad == 1 else "not readable"
            message = f"{what}: {bad.why}"
            return InputError(message, place=self._place(bad), hint=bad.hint or OTLP_HINT)
        if self.broken:
            return InputError(self.broken, place=name, hint="copy or export it again")
        if seen.n_spans or seen.n_bad_spans:
            n = seen.n_spans + seen.n_bad_spans
            if self.source is not None and self.source.name == ENGINE_RECORDS:
                return InputError(f"none of its {n} records says when it was", place=name)
            message = f"none of its {n} spans has a usable trace id and span id"
            return InputError(message, place=name, hint="ids are hex digits (or base64)")
        if seen.other:
            signals = " and ".join(sorted(seen.other))
            return InputError(f"{signals} only: 0 spans", place=name, hint="give the traces")
        if seen.n_exports:
            title = self.source.title if self.source else "OTLP"
            return InputError(f"{title} traces, but 0 spans in them", place=name)
        return self._not_otlp(guess(self.head))

    def _not_otlp(self, found: Guess) -> InputError:
        if found.what == "empty":
            return InputError(self.broken or "the file is empty", place=self.file.name)
        message = f"this is {found.what}" + (f"; {self.broken}" if self.broken else "")
        return InputError(message, place=self.file.name, hint=found.hint)

    def _place(self, bad: Bad) -> str:
        if bad.byte is not None:
            return f"{self.file.name}: byte {bad.byte:,}"
        line = bad.line
        if line is None and bad.offset is not None:
            try:
                line = line_number(self.file.path, bad.offset)
            except OSError:
                return f"{self.file.name}: byte {bad.offset}"
        return self.file.name if line is None else f"{self.file.name}:{line}"

    def notes(self) -> Iterator[ReadNote]:
        """Yields one note for each kind of thing noticed in a file that has spans."""
        name, report, seen, losses = self.file.name, self.report, self.report.seen, None
        losses = report.losses
        if report.n_bad:
            yield self._bad_lines()
        if self.broken:
            yield ReadNote("cut_file", name, 1, f"{name}: {self.broken}; what came before counts")
        if self.too_long:
            text = f"{name}: {self.too_long}; reading stopped there"
            yield ReadNote("too_long", name, 1, text)
        for signal, n in sorted(seen.other.items()):
            yield ReadNote("other_signal", name, n, f"{name}: {n} exports of {signal} not read")
        if seen.n_foreign:
            n = seen.n_foreign
            yield ReadNote("foreign_json", name, n, f"{name}: {n} JSON texts that are no OTLP")
        n_unusable = losses.n_without_ids + seen.n_bad_spans
        if n_unusable:
            text = f"{name}: {n_unusable} spans without usable ids left out"
            yield ReadNote("unusable_spans", name, n_unusable, text)
        if losses.n_without_times:
            n = losses.n_without_times
            text = f"{name}: {n} spans without a usable start or end time"
            yield ReadNote("untimed_spans", name, n, text)
        if seen.n_repaired_utf8:
            n = seen.n_repaired_utf8
            text = f"{name}: {n} pieces were not UTF-8; their bad bytes were replaced"
            yield ReadNote("repaired_text", name, n, text)
        if losses.unconvertible:
            n = sum(losses.unconvertible.values())
            keys = sorted(losses.unconvertible)
            named = ", ".join(keys[:MAX_NAMED]) + (", …" if len(keys) > MAX_NAMED else "")
            text = f"{name}: {n} attribute values not of their type, taken as absent: {named}"
            yield ReadNote("unconvertible_values", name, n, text)

    def _bad_lines(self) -> ReadNote:
        n, bad = self.report.n_bad, self.report.bad[0]
        place = self._place(bad)
        if n == 1 and bad.is_cut:
            text = f"{place}: the last line is cut off and does not count"
        else:
            what = "line" if bad.byte is None else "message"
            text = f"{place}: {what if n == 1 else f'the first of {n} {what}s'} not readable"
            text += f": {bad.why}"
        return ReadNote("skipped_lines", self.file.name, n, text)


def skipped_notes(skipped: Sequence[tuple[str, str]]) -> list[ReadNote]:
    """Returns one note for each reason why files in folders were passed over."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for name, why in skipped:
        by_reason[why].append(name)
    notes = []
    for why, names in by_reason.items():
        named = ", ".join(names[:MAX_NAMED]) + (", …" if len(names) > MAX_NAMED else "")
        files = "file" if len(names) == 1 else "files"
        text = f"{len(names)} {files} skipped ({why}): {named}"
        place = names[0] if len(names) == 1 else None
        notes.append(ReadNote("skipped_file", place, len(names), text))
    return notes


def _sum(into: dict[str, int], more: dict[str, int]) -> None:
    for key, n in more.items():
        into[key] = into.get(key, 0) + n
