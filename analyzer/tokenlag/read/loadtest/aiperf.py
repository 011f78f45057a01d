"""AIPerf: `profile_export.jsonl`, a request a line, and the summary beside it.

Its `inter_token_latency` is what is called time per output token here; its
`inter_chunk_latency` is the time between two chunks.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokenlag.errors import InputError
from tokenlag.read.loadtest.run import Floats, Requests, Run, Spread, floats, metrics_of
from tokenlag.read.loadtest.texts import decode, lines_of

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


class _Metadata(msgspec.Struct):
    request_start_ns: int
    request_end_ns: int | None = None
    credit_issued_ns: int | None = None
    x_request_id: str | None = None
    benchmark_phase: str | None = None
    was_cancelled: bool = False


class _Record(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Measure] = {}
    error: _Failure | None = None


def read(text: bytes, source: str) -> list[Run]:
    """The one run of a file of records or of a summary.

    Raises:
        InputError: it is neither.
    """
    lines = lines_of(text)
    if lines and b'"request_start_ns"' in lines[0] and b'"metadata"' in lines[0]:
        return [_of_records([decode(line, _Record, source) for line in lines], source)]
    return [_of_summary(decode(text, dict[str, Any], source), source)]


def _of_records(records: list[_Record], source: str) -> Run:
    records = [r for r in records if r.metadata.benchmark_phase in (None, "profiling")]
    if not records:
        raise InputError("every request in it belongs to the warm-up", place=source)
    gaps = [r.metrics.get("inter_chunk_latency", _Measure()).numbers() for r in records]
    sent = np.array([r.metadata.request_start_ns for r in records], dtype=np.int64)
    e2e = _column(records, "request_latency")
    spans = floats([
        None if end is None else (end - r.metadata.request_start_ns) / 1e6
        for r in records
        for end in (r.metadata.request_end_ns,)
    ])  # fmt: skip
    credits = [r.metadata.credit_issued_ns for r in records]
    requests = Requests(
        ttft_ms=_column(records, "time_to_first_token"),
        e2e_ms=np.where(np.isfinite(e2e), e2e, spans),
        n_prompt=_column(records, "input_sequence_length"),
        n_output=_column(records, "output_sequence_length"),
        n_chunks=np.array([len(row) + 1.0 if row else np.nan for row in gaps]),
        gap_p50_ms=np.array([np.median(row) if row else np.nan for row in gaps]),
        gap_max_ms=np.array([max(row) if row else np.nan for row in gaps]),
        sent_ns=sent,
        intended_ns=(
            np.array(credits, dtype=np.int64) if all(c is not None for c in credits) else None
        ),
        ids=[r.metadata.x_request_id for r in records],
        errors=[_error(r) for r in records],
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
        translations=(_TRANSLATION,),
    )


def _column(records: list[_Record], name: str) -> Floats:
    return floats([r.metrics[name].number() if name in r.metrics else None for r in records])


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
        figures = {
            ours: float(entry[theirs]) * scale
            for theirs, ours in _FIGURES.items()
            if entry.get(theirs) is not None
        }
        metrics[name] = Spread(n=None if n is None else int(n), **figures)
    if not metrics:
        raise InputError("no latency in this AIPerf summary", place=source)
    load = _load(told)
    rate, clients = load.get("request_rate"), load.get("concurrency")
    ended = _figure(told, "max_response_timestamp", "avg")
    return Run(
        tool=TOOL,
        source=source,
        metrics=metrics,
        ended_ns=None if ended is None else int(ended),
        duration_s=_figure(told, "benchmark_duration", "avg"),
        n_failed=int(_figure(told, "error_request_count", "avg") or 0),
        rate_per_s=rate if isinstance(rate, int | float) else None,
        max_concurrency=clients if isinstance(clients, int | float) else None,
        translations=(_TRANSLATION,),
    )


def _figure(told: dict[str, Any], key: str, figure: str) -> float | None:
    entry = told.get(key)
    value = entry.get(figure) if isinstance(entry, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _load(told: dict[str, Any]) -> dict[str, Any]:
    config = told.get("input_config")
    load = config.get("loadgen") if isinstance(config, dict) else None
    return load if isinstance(load, dict) else {}
