"""What each request would have cost alone, and what that leaves as excess."""

from __future__ import annotations

import numpy as np

from tokenlag.explain.alone import fast_share
from tokenlag.explain.arrays import Columns, Floats, nullable
from tokenlag.explain.sql import query
from tokenlag.explain.stepmodel import StepModel
from tokenlag.store.connection import Store


def write_alone_costs(
    store: Store, models: dict[int, StepModel], budgets: dict[int, float]
) -> None:
    """Sets the `alone_*` columns of `request_facts`.

    Args:
        store: with `request_facts` and `windows` filled.
        models: by epoch key.
        budgets: tokens a step may take, by epoch key; missing = unknown.
    """
    facts = Columns(store, query("alone_inputs"))
    epoch, n = facts.ints("epoch_key"), facts.n_rows
    n_new, n_prompt = facts.floats("n_new"), facts.floats("n_prompt")
    n_output = facts.floats("n_output")
    prefill, itl = np.full(n, np.nan), np.full(n, np.nan)
    basis = np.full(n, None, dtype=object)
    for key, model in models.items():
        rows = epoch == key
        if not rows.any() or not model.has_decode:
            continue
        cached = np.nan_to_num(n_prompt[rows] - n_new[rows], nan=0.0)
        if model.has_prefill:
            prefill[rows] = model.alone_prefill_ms(n_new[rows], cached, budgets.get(key))
        middle = n_prompt[rows] + np.nan_to_num(n_output[rows], nan=0.0) / 2.0
        if model.n_decode_steps > 0:
            itl[rows] = model.alone_itl_ms(np.nan_to_num(middle, nan=0.0))
        basis[rows] = "step_model"
    _fill_by_fast_share(facts, prefill, itl, basis)
    decode = np.where(n_output >= 2, (n_output - 1) * itl, 0.0)
    decode = np.where(np.isnan(n_output), np.nan, decode)
    only_prefill = facts.bools("is_prefill_only")
    ttft = np.where(only_prefill, np.nan, prefill)
    e2e = np.where(only_prefill, prefill, prefill + decode)
    known = np.isfinite(prefill) | np.isfinite(itl)
    basis[~known] = None
    store.execute(query("alone_table"))
    store.insert(
        "alone",
        {
            "request_key": facts.ints("request_key"),
            "alone_prefill_ms": nullable(prefill),
            "alone_itl_ms": nullable(itl),
            "alone_ttft_ms": nullable(ttft),
            "alone_e2e_ms": nullable(e2e),
            "alone_basis": basis,
        },
    )
    store.execute(query("alone_update"))


def _fill_by_fast_share(
    facts: Columns,
    prefill: Floats,
    itl: Floats,
    basis: np.ndarray[tuple[int], np.dtype[np.object_]],
) -> None:
    """Where there is no step model: the fast share of the baseline, else of the window itself."""
    missing = np.isnan(prefill) | np.isnan(itl)
    if not missing.any():
        return
    window = facts.objects("window_name")
    has_baseline = bool((window == "baseline").any())
    reference = (window == "baseline") if has_baseline else np.ones(facts.n_rows, dtype=bool)
    n_new = facts.floats("n_new")
    edge = fast_share(
        n_new[reference],
        facts.floats("prefill_ms")[reference],
        facts.floats("tpot_ms")[reference],
    )
    by_edge = np.isnan(prefill) & np.isfinite(n_new)
    prefill[by_edge] = edge.prefill_ms(n_new[by_edge])
    itl[np.isnan(itl)] = edge.itl_ms
    basis[missing & (basis == None)] = "low_load"  # noqa: E711
