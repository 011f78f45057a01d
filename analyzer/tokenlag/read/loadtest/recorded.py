"""Recordings of requests, one a line, as vLLM's vcr writes them: times but no text.

`itl_ms` are the gaps between steps that gave tokens, `itl_tokens` how many each gave.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tokenlag.errors import InputError
from tokenlag.read.loadtest.run import Requests, Run, floats, metrics_of
from tokenlag.read.loadtest.texts import decode, lines_of

TOOL = "vLLM vcr recording"


class _Meta(msgspec.Struct):
    model: str | None = None


class _Line(msgspec.Struct):
    meta: _Meta | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    ttft_ms: float | None = None
    itl_ms: list[float] | None = None
    arrival_ms: float | None = None


def read(text: bytes, source: str) -> list[Run]:
    """The one run of a file.

    Raises:
        InputError: no line of it is a request.
    """
    lines = [decode(line, _Line, source) for line in lines_of(text)]
    model = next((line.meta.model for line in lines if line.meta is not None), None)
    rows = [line for line in lines if line.ttft_ms is not None]
    if not rows:
        raise InputError("a recording without a request", place=source)
    gaps = [np.asarray(row.itl_ms or [], dtype=np.float64) for row in rows]
    arrivals = floats([row.arrival_ms for row in rows])
    ttft_ms = floats([row.ttft_ms for row in rows])
    requests = Requests(
        ttft_ms=ttft_ms,
        e2e_ms=ttft_ms + np.array([gap.sum() for gap in gaps]),
        n_prompt=floats([row.prompt_tokens for row in rows]),
        n_output=floats([row.output_tokens for row in rows]),
        n_chunks=np.array([len(gap) + 1.0 for gap in gaps]),
        gap_p50_ms=np.array([np.median(gap) if len(gap) else np.nan for gap in gaps]),
        gap_max_ms=np.array([gap.max() if len(gap) else np.nan for gap in gaps]),
        sent_ns=(
            np.round(arrivals * 1e6).astype(np.int64) if np.isfinite(arrivals).all() else None
        ),
        has_wall_clock=False,
        ids=[None] * len(rows),
        errors=[None] * len(rows),
    )
    return [Run(TOOL, source, metrics_of(requests), model=model, requests=requests)]
