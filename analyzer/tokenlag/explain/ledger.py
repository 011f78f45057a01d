"""The ledger of gaps: where each gap between two tokens went, term by term.

    gap = alone + batch + context + others' prompts + skipped + host + residual

`alone` is what the stream's own step would cost with nobody beside it, `batch` what the other
decoding streams add to it, `context` what reading the batch's KV adds; `prefill` the marginal
time of prompt chunks in the gap (whole steps where nobody decoded); `skipped` the rest of
steps in which others decoded and this stream did not; `host` the time between steps; the
residual takes what is left, so that the terms sum to the gap exactly. Without a step model only
`prefill` of pure prompt steps, `host` and the residual are known. See docs/blame.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenlag.explain.stepmodel import StepModel
from tokenlag.explain.streams import Steps

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TERMS = (
    "alone_ms",
    "batch_ms",
    "context_ms",
    "prefill_ms",
    "skipped_ms",
    "host_ms",
    "residual_ms",
)


@dataclass(frozen=True)
class StepTerms:
    """Per step, in milliseconds; NaN where the model cannot say."""

    alone: Floats
    batch: Floats
    context: Floats
    prefill: Floats
    held: Floats
    decode_only: Floats
    idle: Floats


def step_terms(
    steps: Steps,
    model: StepModel,
    n_context: Floats,
    decode_only: Floats,
    prefill: Floats,
    held: Floats,
    idle_ms: Floats,
) -> StepTerms:
    """Splits each step's decode-only price into alone, batch and context."""
    n = len(steps.index)
    if not model.has_decode:
        nothing = np.full(n, np.nan)
        return StepTerms(nothing, nothing, nothing, prefill, held, nothing, idle_ms)
    zero, one = np.zeros(n), np.ones(n)
    context = model.per_context_ms * n_context
    alone = np.minimum(model.predict(zero, one, zero, zero), decode_only - context)
    batch = decode_only - context - alone
    return StepTerms(alone, batch, context, prefill, held, decode_only, idle_ms)


def split(terms: StepTerms, gap_ms: Floats, from_at: Ints, to_at: Ints) -> dict[str, Floats]:
    """The terms of gaps from the end of step `from_at` to the end of step `to_at` (positions).

    Returns one array for each of `TERMS`; together they sum to `gap_ms`.
    """

    def within(values: Floats) -> Floats:
        """Sum over the steps after `from_at` and before `to_at`."""
        until = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values, nan=0.0))])
        return np.asarray(until[to_at] - until[from_at + 1], dtype=np.float64)

    between_prefill = within(terms.held)
    # A step in between that others decoded in: its decode-only price is what was skipped.
    between_skipped = within(np.where(terms.held > terms.prefill, 0.0, terms.decode_only))
    between_skipped = np.where(to_at > from_at + 1, between_skipped, 0.0)
    out = {
        "alone_ms": terms.alone[to_at],
        "batch_ms": terms.batch[to_at],
        "context_ms": terms.context[to_at],
        "prefill_ms": terms.prefill[to_at] + between_prefill,
        "skipped_ms": between_skipped,
        "host_ms": within(terms.idle) + terms.idle[to_at],
    }
    known = sum(np.nan_to_num(values, nan=0.0) for values in out.values())
    out["residual_ms"] = gap_ms - known
    return out
