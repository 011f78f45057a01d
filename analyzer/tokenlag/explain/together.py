"""What contexts cost, by a model of both windows together.

Within one window the context of a step and its number of streams rise and fall together, and a
fit may give the price of one to the other. Between two windows of which one has longer contexts
they do not: there one model of both tells them apart, where both windows fit it equally well.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tokenlag.explain.arrays import Columns, Floats
from tokenlag.explain.sql import query
from tokenlag.explain.stepmodel import StepArrays, fit
from tokenlag.store.connection import Store

Bools = npt.NDArray[np.bool_]

MIN_STEPS = 50
MIN_CONTEXT_RATIO = 1.1
# Where a window is slower or faster than the common model, speed changed and not the context.
MAX_BIAS = 0.05
MAX_ERROR = 0.10


def write_contexts(store: Store, rows: Columns, plain: Bools, shifted: Collection[str]) -> None:
    """Prices `step_costs.context_ms` anew where a baseline has other contexts than the window.

    Args:
        store: with `step_costs` filled.
        rows: of the query `observed`.
        plain: steps whose time no feature of their requests makes longer: in the window with
            the longer contexts such steps would be taken for what contexts cost.
        shifted: engines whose speed changed: there, too, one model would take it for contexts.
    """
    window, engine = rows.objects("window_name"), rows.objects("engine_id")
    n_decode, context = rows.floats("n_decode"), rows.floats("n_context_tokens")
    usable = (n_decode > 0) & (context > 0) & plain
    for name in sorted(set(engine[window == "current"].tolist()) - set(shifted)):
        now = usable & (window == "current") & (engine == name)
        before = usable & (window == "baseline") & (engine == name)
        if not before.any():
            before = usable & (window == "baseline")
        if now.sum() < MIN_STEPS or before.sum() < MIN_STEPS:
            continue
        grew = _per_stream(context, n_decode, now) / _per_stream(context, n_decode, before)
        if grew < MIN_CONTEXT_RATIO:
            continue
        per_context_ms = _price(rows, now, before)
        if per_context_ms is not None:
            keys = np.unique(rows.ints("epoch_key")[now | before]).tolist()
            store.execute(query("context_price"), [per_context_ms, keys])


def _per_stream(context: Floats, n_decode: Floats, chosen: Bools) -> float:
    return float(context[chosen].sum() / n_decode[chosen].sum())


def _price(rows: Columns, now: Bools, before: Bools) -> float | None:
    """Milliseconds for a context token by both windows; None where they do not fit one model."""
    observed, n_decode = rows.floats("wall_ms"), rows.floats("n_decode")
    prefill, attention = rows.floats("n_prefill_tokens"), rows.floats("attention_work")
    context = rows.floats("n_context_tokens")
    both = _evenly(now, before)
    model = fit(
        StepArrays(
            observed[both], prefill[both], n_decode[both], attention[both], context[both],
            np.ones(len(both), dtype=bool),
        )
    )  # fmt: skip
    if not model.has_decode or model.per_context_ms <= 0:
        return None
    expected = model.predict(prefill, n_decode, attention, context)
    for side in (now, before):
        plain = side & (prefill == 0)
        if plain.sum() < MIN_STEPS:
            return None
        ratio = observed[plain] / np.maximum(expected[plain], 1e-9)
        if abs(float(np.median(ratio)) - 1.0) > MAX_BIAS:
            return None
        if float(np.median(np.abs(ratio - 1.0))) > MAX_ERROR:
            return None
    return model.per_context_ms


def _evenly(now: Bools, before: Bools) -> npt.NDArray[np.int64]:
    """As many steps of one window as of the other, evenly over time."""
    sides = [np.flatnonzero(side) for side in (before, now)]
    n = min(len(side) for side in sides)
    picked = [side[np.linspace(0, len(side) - 1, n).round().astype(np.int64)] for side in sides]
    return np.concatenate(picked).astype(np.int64)
