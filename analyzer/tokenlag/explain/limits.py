"""Which limit kept the head of the queue out, step by step.

Where the engine tells (`admit_bound`) it is believed. Elsewhere it is inferred for steps after
which requests were left waiting: all slots taken, the step's token budget full, KV (in use or
promised) full; what fits none of these is 'capacity'. An inference is never mixed with what was
told: rules see which it was.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]

BUDGET_FULL_FRAC = 0.98
KV_FULL_FRAC = 0.95
PINNED_FRAC = 0.9
MIN_WAITING_STEPS = 20


@dataclass(frozen=True)
class LimitInputs:
    """One epoch's steps; NaN where not measured."""

    n_waiting: Floats
    n_running: Floats
    n_tokens: Floats
    kv_usage_frac: Floats
    kv_reserved_frac: Floats
    told: Objects
    wall_ms: Floats
    max_seqs: float
    max_batch_tokens: float


def find_bounds(steps: LimitInputs) -> tuple[Objects, Bools]:
    """The bound of each step (None where nothing waited or nothing is known), and whether told."""
    n = len(steps.n_waiting)
    bound = np.full(n, None, dtype=object)
    told = np.array([t is not None and t == t for t in steps.told], dtype=bool)
    bound[told] = steps.told[told]
    waiting = np.nan_to_num(steps.n_waiting, nan=0.0) > 0
    open_question = waiting & ~told
    if not open_question.any():
        return bound, told
    slots = _effective_slots(steps, open_question)
    by_rule: list[tuple[str, Bools]] = [
        ("slots", steps.n_running >= slots),
        (
            "kv",
            (steps.kv_usage_frac >= KV_FULL_FRAC) | (steps.kv_reserved_frac >= KV_FULL_FRAC),
        ),
        ("tokens", steps.n_tokens >= BUDGET_FULL_FRAC * steps.max_batch_tokens),
    ]
    for name, holds in by_rule:
        fits = open_question & holds & (bound == None)  # noqa: E711
        bound[fits] = name
    bound[open_question & (bound == None)] = "capacity"  # noqa: E711
    return bound, told


def _effective_slots(steps: LimitInputs, waiting: Bools) -> float:
    """The slot limit: as configured, else the count that running is pinned at while others wait."""
    if np.isfinite(steps.max_seqs):
        return steps.max_seqs
    running = steps.n_running[waiting]
    running = running[np.isfinite(running)]
    if len(running) < MIN_WAITING_STEPS:
        return np.inf
    top = float(running.max())
    # Pinned means nearly always at its own maximum; a fluctuating batch is not a slot limit.
    return top if float((running == top).mean()) >= PINNED_FRAC else np.inf
