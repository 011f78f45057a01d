"""llmperf: `*_individual_responses.json` and `*_summary.json`.

Its inter-token latency is the sum of all waits, the one for the first token too, over the
tokens; the time per output token here leaves the first out and is computed anew.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokenlag.errors import InputError
from tokenlag.read.loadtest.run import (
    NS_PER_S,
    Requests,
    Run,
    Spread,
    believed,
    floats,
    metrics_of,
    scaled,
)
from tokenlag.read.loadtest.texts import decode

TOOL = "llmperf"
_TRANSLATIONS = (
    "its inter-token latency includes the wait for the first token; here the first is left out",
)
_NAMES = {
    "ttft_s": ("ttft_ms", 1e3),
    "end_to_end_latency_s": ("e2e_ms", 1e3),
    "number_input_tokens": ("n_prompt", 1.0),
    "number_output_tokens": ("n_output", 1.0),
}
_FIGURES = {
    "mean": "mean", "stddev": "sd", "quantiles_p50": "p50", "quantiles_p90": "p90",
    "quantiles_p99": "p99",
}  # fmt: skip


class _Response(msgspec.Struct):
    error_code: Any = None
    ttft_s: float | None = None
    end_to_end_latency_s: float | None = None
    number_input_tokens: float | None = None
    number_output_tokens: float | None = None


def read(text: bytes, source: str) -> list[Run]:
    """The one run of a file.

    Raises:
        InputError: it is neither a list of responses nor a summary.
    """
    if text.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        return [_of_responses(decode(text, list[_Response], source), source)]
    return [_of_summary(decode(text, dict[str, Any], source), source)]


def _of_responses(rows: list[_Response], source: str) -> Run:
    if not rows:
        raise InputError("an llmperf file without a response", place=source)
    nan = np.full(len(rows), np.nan)
    requests = Requests(
        ttft_ms=floats([r.ttft_s for r in rows]) * 1e3,
        e2e_ms=floats([r.end_to_end_latency_s for r in rows]) * 1e3,
        n_prompt=floats([r.number_input_tokens for r in rows]),
        n_output=floats([r.number_output_tokens for r in rows]),
        n_chunks=nan,
        gap_p50_ms=nan,
        gap_max_ms=nan,
        sent_ns=None,  # it does not say when anything was sent
        has_wall_clock=False,
        ids=[None] * len(rows),
        errors=[None if r.error_code is None else str(r.error_code) for r in rows],
    )
    return Run(
        tool=TOOL,
        source=source,
        metrics=metrics_of(requests),
        n_failed=int((~requests.is_good).sum()),
        requests=requests,
        translations=_TRANSLATIONS,
    )


def _of_summary(told: dict[str, Any], source: str) -> Run:
    n = told.get("results_num_completed_requests")
    n_done = int(told_n) if (told_n := believed(n)) is not None else None
    metrics = {}
    for theirs, (name, scale) in _NAMES.items():
        figures = {}
        for figure, ours in _FIGURES.items():
            value = scaled(told.get(f"results_{theirs}_{figure}"), scale)
            if value is not None:
                figures[ours] = value
        if figures:
            metrics[name] = Spread(n=n_done, **figures)
    if "ttft_ms" not in metrics and "e2e_ms" not in metrics:
        raise InputError("no latency in this llmperf summary", place=source)
    ttft, e2e = metrics.get("ttft_ms", Spread()).mean, metrics.get("e2e_ms", Spread()).mean
    n_output = metrics.get("n_output", Spread()).mean
    if ttft is not None and e2e is not None and n_output is not None and n_output > 1:
        # Of the means, since the file has no such figure; no spread is known.
        metrics["tpot_ms"] = Spread(n=n_done, mean=(e2e - ttft) / (n_output - 1))
    clients = believed(told.get("num_concurrent_requests"))
    per_minute = believed(told.get("results_num_completed_requests_per_min"))
    ended = believed(told.get("timestamp"))
    return Run(
        tool=TOOL,
        source=source,
        level=f"{clients:g} clients" if clients is not None else None,
        model=told.get("model") if isinstance(told.get("model"), str) else None,
        metrics=metrics,
        ended_ns=int(ended * NS_PER_S) if ended is not None and ended < 2**32 else None,
        duration_s=60.0 * n_done / per_minute if n_done and per_minute else None,
        n_failed=int(believed(told.get("results_number_errors")) or 0),
        max_concurrency=clients,
        translations=_TRANSLATIONS,
    )
