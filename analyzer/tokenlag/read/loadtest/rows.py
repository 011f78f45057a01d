"""Requests of load tests as span rows: a client's span for each, so that dialects read them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

import numpy as np
from tokenlag_tracer import conventions as names

from tokenlag.read.loadtest.run import NS_PER_S, Floats, Requests, Run
from tokenlag.read.noticed import ReadNote
from tokenlag.read.spans import dtype

if TYPE_CHECKING:
    import polars as pl

SCOPE: Final = "load test"
SCOPE_OWN_CLOCK: Final = "load test, own clock"
# Where a file says no moment at all. Any would do: its moments are relative.
_NO_MOMENT_NS: Final = 1_000_000_000 * NS_PER_S


def frame_of(run: Run) -> pl.DataFrame | None:
    """The span rows of a run; None where it does not say when its requests were sent."""
    import polars as pl

    requests = run.requests
    if requests is None or requests.sent_ns is None:
        return None
    start_ns = requests.sent_ns + _anchor_ns(run, requests)
    n = len(start_ns)
    took_ns = np.round(np.nan_to_num(requests.e2e_ms, nan=-1.0) * 1e6).astype(np.int64)
    ends = [
        start + took if took >= 0 else None
        for start, took in zip(start_ns.tolist(), took_ns.tolist(), strict=True)
    ]
    intended = requests.intended_ns
    columns = {
        "source": pl.Series([run.source] * n),
        "trace_id": pl.Series([_id(run, i, 16) for i in range(n)]),
        "span_id": pl.Series([_id(run, i, 8) for i in range(n)]),
        "name": pl.Series(["chat"] * n),
        "kind": pl.Series([names.KIND_CLIENT] * n, dtype=dtype("code")),
        "start_ns": pl.Series(start_ns),
        # What failed has an end where the tool says how long it took, else none.
        "end_ns": pl.Series(ends, dtype=dtype("int")),
        "status_code": pl.Series(
            [0 if error is None else names.STATUS_ERROR for error in requests.errors],
            dtype=dtype("code"),
        ),
        "scope": pl.Series([SCOPE if requests.has_wall_clock else SCOPE_OWN_CLOCK] * n),
        names.OPERATION_NAME: pl.Series(["chat"] * n),
        names.REQUEST_MODEL: pl.Series([run.model] * n, dtype=dtype("str")),
        names.REQUEST_ID: pl.Series(list(requests.ids), dtype=dtype("str")),
        names.ERROR_TYPE: pl.Series(
            [None if error is None else error[:60] for error in requests.errors],
            dtype=dtype("str"),
        ),
        names.USAGE_INPUT_TOKENS: _ints(requests.n_prompt),
        names.USAGE_OUTPUT_TOKENS: _ints(requests.n_output),
        names.TIME_TO_FIRST_CHUNK: _known(requests.ttft_ms / 1e3),
        names.CLIENT_CHUNKS: _ints(requests.n_chunks),
        names.CLIENT_GAP_P50_NS: _ints(requests.gap_p50_ms * 1e6),
        names.CLIENT_GAP_MAX_NS: _ints(requests.gap_max_ms * 1e6),
        names.CLIENT_INTENDED_NS: pl.Series(
            [None] * n if intended is None else requests.sent_ns - intended, dtype=dtype("int")
        ),
    }  # fmt: skip
    return pl.DataFrame(columns)


def notes_of(run: Run) -> list[ReadNote]:
    """What coverage should say of a run that was read."""
    n = 0 if run.requests is None else len(run.requests.ttft_ms)
    level = f" ({run.level})" if run.level else ""
    notes = [
        ReadNote("load_test", run.source, n, f"{run.source}: {n:,} requests of {run.tool}{level}")
    ]
    notes += [
        ReadNote("load_test_names", run.source, n, f"{run.source}: {text}")
        for text in run.translations
    ]
    return notes


def why_not(run: Run) -> str:
    """Why a run's requests cannot be diagnosed by themselves."""
    if run.requests is None:
        return f"a summary of {run.tool}, without its requests"
    return f"requests of {run.tool} without the moments of their sends"


def _anchor_ns(run: Run, requests: Requests) -> int:
    """What turns its moments into unix ns: exact with a wall clock, else about right."""
    assert requests.sent_ns is not None
    if requests.has_wall_clock:
        return 0
    if run.ended_ns is None:
        return _NO_MOMENT_NS
    last = requests.sent_ns + np.round(np.nan_to_num(requests.e2e_ms) * 1e6).astype(np.int64)
    return run.ended_ns - int(last.max())


def _id(run: Run, index: int, n_bytes: int) -> str:
    text = f"{run.source}\0{run.level}\0{index}\0{n_bytes}"
    return hashlib.blake2b(text.encode(), digest_size=n_bytes).hexdigest()


def _ints(values: Floats) -> pl.Series:
    import polars as pl

    return pl.Series(
        [None if not np.isfinite(v) else round(v) for v in values.tolist()], dtype=dtype("int")
    )


def _known(values: Floats) -> pl.Series:
    import polars as pl

    return pl.Series(values, dtype=dtype("float")).fill_nan(None)
