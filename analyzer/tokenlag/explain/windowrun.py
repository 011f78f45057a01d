"""The requests of a window as the run of a load test, so that two windows compare like two."""

from __future__ import annotations

import numpy as np

from tokenlag.explain.sql import query
from tokenlag.read.loadtest.run import NS_PER_S, Floats, Requests, Run, metrics_of
from tokenlag.store.connection import Store


def run_of_window(store: Store, name: str, source: str) -> Run:
    """Reads a window.

    Args:
        store: with `request_facts` filled.
        name: "current" or "baseline".
        source: what the reports call it.
    """
    told = store.fetchnumpy(query("load_rows"), [name])
    n = len(told["arrival_ns"])
    nan = np.full(n, np.nan)
    is_aborted = np.asarray(told["is_aborted"], dtype=bool)
    sent = np.asarray(told["arrival_ns"], dtype=np.int64)
    requests = Requests(
        ttft_ms=_floats(told["ttft_ms"]),
        e2e_ms=_floats(told["e2e_ms"]),
        n_prompt=_floats(told["n_prompt"]),
        n_output=_floats(told["n_output"]),
        n_chunks=nan,
        gap_p50_ms=nan,
        gap_max_ms=nan,
        sent_ns=sent,
        ids=[None] * n,
        errors=["aborted" if aborted else None for aborted in is_aborted],
    )
    ends = sent + np.nan_to_num(requests.e2e_ms) * 1e6
    models = [model for model in told["model"].tolist() if model]
    is_sample = bool(n) and bool((np.asarray(told["weight"], dtype=np.float64) != 1).any())
    sampled = "its requests are a sample: what was in flight is not known from them"
    return Run(
        tool="traces",
        source=source,
        model=models[0] if models else None,
        duration_s=float(ends.max() - sent.min()) / NS_PER_S if n else None,
        n_failed=int(is_aborted.sum()),
        metrics=metrics_of(requests),
        requests=requests,
        translations=(sampled,) if is_sample else (),
    )


def _floats(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Floats:
    if isinstance(values, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(values), np.nan, values.data.astype(np.float64))
    return np.asarray(values, dtype=np.float64)
