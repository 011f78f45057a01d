"""AIPerf: `profile_export.jsonl`, a request a line, and the summary beside it.

Its `inter_token_latency` is what is called time per output token here; its
`inter_chunk_latency` is the time between two chunks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from tokenlag.errors import InputError
from tokenlag.read.loadtest.run import (
    Requests,
    Run,
    Spread,
    believed,
    floats,
    metrics_of,
    scaled,
)
from tokenlag.read.loadtest.texts import decode, lines_of
from tokenlag.read.stream import HEAD_BYTES

TOOL = "AIPerf"
_TRANSLATION = "its inter-token latency is the time per output token here"

_TO_MS = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "sec": 1e3, "s": 1e3, "seconds": 1e3}
_SUMMARY = {
    "time_to_first_token": "ttft_ms",
    "inter_token_latency": "tpot_ms",
    "inter_chunk_latency": "itl_ms",
    "request_latency": "e2e_ms",
    "input_sequence_length": "n_prompt",
    "output_sequence_length": "n_output",
}

_FIGURES = {"avg": "mean", "std": "sd", "p50": "p50", "p90": "p90", "p99": "p99"}


class _Measure(msgspec.Struct):
    value: float | list[float] | None = None
    unit: str = ""

    def number(self) -> float | None:
        """The value; times in ms."""
        if self.value is None or isinstance(self.value, list):
            return None
        return self.value * _TO_MS.get(self.unit, 1.0)

    def numbers(self) -> list[float]:
        """The values of an array; times in ms."""
        if not isinstance(self.value, list):
            return []
        return [value * _TO_MS.get(self.unit, 1.0) for value in self.value]


class _Failure(msgspec.Struct):
    type: str | None = None
    code: Any = None


_Moment = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _Metadata(msgspec.Struct):
    request_start_ns: _Moment
    request_end_ns: _Moment | None = None
    credit_issued_ns: _Moment | None = None
    x_request_id: str | None = None
    benchmark_phase: str | None = None
    was_cancelled: bool = False


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Measure] = {}
    error: _Failure | None = None


class _Row(NamedTuple):
    """What is kept of a record: a long answer's gaps are thousands of numbers."""

    metadata: _Metadata
    ttft_ms: float | None
    e2e_ms: float | None
    n_prompt: float | None
    n_output: float | None
    n_chunks: float | None
    gap_p50_ms: float | None
    gap_max_ms: float | None
    error: str | None


def has_records(head: bytes) -> bool:
    """Whether a file that begins so has a record a line, and no summary."""
    first = head.lstrip(b"\xef\xbb\xbf \t\r\n").split(b"\n", 1)[0]
    return b'"request_start_ns"' in first and b'"metadata"' in first


def read(text: bytes, source: str) -> list[Run]:
    """The one run of a file of records or of a summary.

    Raises:
        InputError: it is neither.
    """
    if has_records(text[:HEAD_BYTES]):
        return read_lines(lines_of(text), source)
    return [_of_summary(decode(text, dict[str, Any], source), source)]


def read_lines(lines: Iterable[bytes], source: str) -> list[Run]:
    """The one run of records as they come, a line each.

    Lines that cannot be read, as the last of a run that was stopped, are left out and counted.

    Raises:
        InputError: no line is a record of the test itself.
    """
    rows: list[_Row] = []
    n_lines, first_bad, n_bad = 0, None, 0
    for line in lines:
        n_lines += 1
        try:
            record = decode(line, _Record, source)
        except InputError as error:
            first_bad, n_bad = first_bad or error, n_bad + 1
            continue
        if record.metadata.benchmark_phase in (None, "profiling"):
            rows.append(_row(record))
    if not rows:
        raise first_bad or InputError("every request in it belongs to the warm-up", place=source)
    notes = [_TRANSLATION]
    if n_bad:
        notes.append(f"{n_bad} of its {n_lines} lines are not readable and are left out")
    return [_of_rows(rows, source, tuple(notes))]


def _row(record: _Record) -> _Row:
    def told(name: str) -> float | None:
        return record.metrics[name].number() if name in record.metrics else None

    metadata, e2e_ms = record.metadata, told("request_latency")
    if e2e_ms is None and metadata.request_end_ns is not None:
        e2e_ms = (metadata.request_end_ns - metadata.request_start_ns) / 1e6
    gaps = np.asarray(record.metrics.get("inter_chunk_latency", _Measure()).numbers())
    has_gaps = len(gaps) > 0
    return _Row(
        metadata,
        told("time_to_first_token"),
        e2e_ms,
        told("input_sequence_length"),
        told("output_sequence_length"),
        len(gaps) + 1.0 if has_gaps else None,
        float(np.median(gaps)) if has_gaps else None,
        float(gaps.max()) if has_gaps else None,
        _error(record),
    )


def _of_rows(rows: list[_Row], source: str, notes: tuple[str, ...]) -> Run:
    sent = np.array([row.metadata.request_start_ns for row in rows], dtype=np.int64)
    credits = [row.metadata.credit_issued_ns for row in rows]
    requests = Requests(
        ttft_ms=floats([row.ttft_ms for row in rows]),
        e2e_ms=floats([row.e2e_ms for row in rows]),
        n_prompt=floats([row.n_prompt for row in rows]),
        n_output=floats([row.n_output for row in rows]),
        n_chunks=floats([row.n_chunks for row in rows]),
        gap_p50_ms=floats([row.gap_p50_ms for row in rows]),
        gap_max_ms=floats([row.gap_max_ms for row in rows]),
        sent_ns=sent,
        intended_ns=(
            np.array(credits, dtype=np.int64) if all(c is not None for c in credits) else None
        ),
        ids=[row.metadata.x_request_id for row in rows],
        errors=[row.error for row in rows],
    )
    ends = sent / 1e9 + np.nan_to_num(requests.e2e_ms) / 1e3
    return Run(
        tool=TOOL,
        source=source,
        duration_s=float(ends.max() - sent.min() / 1e9),
        ended_ns=int(ends.max() * 1e9),
        n_failed=int((~requests.is_good).sum()),
        metrics=metrics_of(requests),
        requests=requests,
        translations=notes,
    )


def _error(record: _Record) -> str | None:
    if record.metadata.was_cancelled:
        return "cancelled"
    return None if record.error is None else record.error.type or str(record.error.code or "error")


def _of_summary(told: dict[str, Any], source: str) -> Run:
    n = _figure(told, "request_count", "avg")
    metrics = {}
    for key, name in _SUMMARY.items():
        entry = told.get(key)
        if not isinstance(entry, dict) or entry.get("avg") is None:
            continue
        scale = _TO_MS.get(str(entry.get("unit")), 1.0)
        figures = {ours: scaled(entry.get(theirs), scale) for theirs, ours in _FIGURES.items()}
        metrics[name] = Spread(n=None if n is None else int(n), **figures)
    if not metrics:
        raise InputError("no latency in this AIPerf summary", place=source)
    load = _load(told)
    rate, clients = load.get("request_rate"), load.get("concurrency")
    ended = told.get("max_response_timestamp")
    ended = ended.get("avg") if isinstance(ended, dict) else None
    return Run(
        tool=TOOL,
        source=source,
        metrics=metrics,
        ended_ns=int(ended) if isinstance(ended, int | float) and 0 < ended < 2**62 else None,
        duration_s=_figure(told, "benchmark_duration", "avg"),
        n_failed=int(_figure(told, "error_request_count", "avg") or 0),
        rate_per_s=believed(rate),
        max_concurrency=believed(clients),
        translations=(_TRANSLATION,),
    )


def _figure(told: dict[str, Any], key: str, figure: str) -> float | None:
    entry = told.get(key)
    value = entry.get(figure) if isinstance(entry, dict) else None
    return believed(value)


def _load(told: dict[str, Any]) -> dict[str, Any]:
    config = told.get("input_config")
    load = config.get("loadgen") if isinstance(config, dict) else None
    return load if isinstance(load, dict) else {}
