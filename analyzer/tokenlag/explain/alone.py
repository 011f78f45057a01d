"""The alone cost: what a request would cost with the engine to itself.

From the step model where there is one. From request spans alone, the fast share of the same
traffic stands for it: a low-load request shows what its shape costs. Both are said apart
(`alone_basis`), since the second cannot see a slowness that all requests share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FAST_QUANTILE = 0.2
MIN_REQUESTS = 3
MIN_REQUESTS_FOR_LINE = 20
N_BINS = 12


@dataclass(frozen=True)
class FastShare:
    """Prefill = `base_ms` + `per_token_ms` × tokens, and the time between tokens, of fast requests.

    NaN where there were too few requests to tell.
    """

    base_ms: float
    per_token_ms: float
    itl_ms: float

    def prefill_ms(self, n_new: Floats) -> Floats:
        """Milliseconds of prefill for these many computed prompt tokens."""
        return np.asarray(self.base_ms + self.per_token_ms * n_new, dtype=np.float64)


def fast_share(n_new: Floats, prefill_ms: Floats, tpot_ms: Floats) -> FastShare:
    """Fits the lower edge of prefill time against prompt tokens; the low quantile of TPOT.

    The edge: bins of equal count by prompt length, the low quantile of each, a line through
    those by non-negative least squares. Neighbours in a batch only ever add time, so the edge
    is what the shape itself costs.
    """
    known = np.isfinite(n_new) & np.isfinite(prefill_ms) & (n_new > 0)
    base, slope = np.nan, np.nan
    if known.sum() >= MIN_REQUESTS_FOR_LINE:
        base, slope = _edge(n_new[known], prefill_ms[known])
    elif known.sum() >= MIN_REQUESTS:
        base, slope = 0.0, float(np.quantile(prefill_ms[known] / n_new[known], FAST_QUANTILE))
    tpot = tpot_ms[np.isfinite(tpot_ms)]
    itl = float(np.quantile(tpot, FAST_QUANTILE)) if len(tpot) >= MIN_REQUESTS else np.nan
    return FastShare(base, slope, itl)


def _edge(n_new: Floats, prefill_ms: Floats) -> tuple[float, float]:
    """The lower edge: a first line through low quantiles, then one through what lies near it.

    In a wide bin the low quantile favours the shorter prompts; the second fit takes the requests
    at or below the first line's own low quantile of residuals, each at its own length.
    """
    base, slope = _first_edge(n_new, prefill_ms)
    relative = prefill_ms / np.maximum(base + slope * n_new, 1e-9)
    low = relative <= np.quantile(relative, FAST_QUANTILE)
    if low.sum() < MIN_REQUESTS or slope <= 0:
        return base, slope
    return _line(n_new[low], prefill_ms[low]) or (base, slope)


def _first_edge(n_new: Floats, prefill_ms: Floats) -> tuple[float, float]:
    order = np.argsort(n_new, kind="stable")
    parts = np.array_split(order, min(N_BINS, max(2, len(order) // 8)))
    x = np.array([float(np.median(n_new[p])) for p in parts])
    y = np.array([float(np.quantile(prefill_ms[p], FAST_QUANTILE)) for p in parts])
    return _line(x, y) or (0.0, float(np.median(prefill_ms / n_new)))


def _line(x: Floats, y: Floats) -> tuple[float, float] | None:
    """Non-negative line by relative errors; None where it cannot be drawn."""
    if len(x) == 0:
        return None
    weight = 1.0 / np.maximum(y, 1e-9)
    if np.ptp(x) < 0.05 * float(x.mean()):
        # One prompt length: the line's two terms cannot be told apart; price it per token.
        return 0.0, float(np.sum(weight * y) / np.sum(weight * x))
    design = np.column_stack([np.ones(len(x)), x]) * weight[:, None]
    beta, *_ = np.linalg.lstsq(design, y * weight, rcond=None)
    if beta[1] < 0:
        return float(np.median(y)), 0.0
    if beta[0] < 0:
        return 0.0, float(np.sum((x * weight) * (y * weight)) / np.sum((x * weight) ** 2))
    return float(beta[0]), float(beta[1])
