"""How much of a change between two loads is shape, how much load, how much speed.

With both runs' requests, one regression: y = α(run) + β · (requests in flight) + γ · (tokens of
the request), β and γ common to both runs. The difference of means is then exactly
Δα + β·Δ(in flight) + γ·Δ(tokens): speed, load, shape. Errors are clustered by blocks of time,
because neighbours in time are not independent. A term whose factor hardly varies within the
runs is not known from them; then the part says so instead of a number (docs/load-tests.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenlag.read.loadtest.run import Floats

N_BLOCKS: Final = 20
MIN_REQUESTS: Final = 20
Z95: Final = 1.96
SAME_FRAC: Final = 0.02  # factors that differ by less between the runs are the same
MIN_VARIATION: Final = 0.01  # within a run, of the mean: below it a factor is a constant


@dataclass(frozen=True)
class Term:
    """One part of a change, ms, with the half-width of its 95 % interval.

    Args:
        ms: what it adds to the mean.
        half_ms: half the interval; infinite where the data do not tell.
    """

    ms: float
    half_ms: float


@dataclass(frozen=True)
class Split:
    """speed + load + shape = the change of the mean."""

    speed: Term
    load: Term
    shape: Term

    @property
    def is_identified(self) -> bool:
        """Whether each part is known to better than the whole change."""
        whole = abs(self.speed.ms + self.load.ms + self.shape.ms)
        return all(t.half_ms <= max(whole, 1e-9) for t in (self.speed, self.load, self.shape))


@dataclass(frozen=True)
class Rows:
    """One run's requests for the regression, in order of their sends."""

    y_ms: Floats
    in_flight: Floats
    tokens: Floats

    def known(self) -> Rows:
        """Those of which everything is known."""
        ok = np.isfinite(self.y_ms) & np.isfinite(self.in_flight) & np.isfinite(self.tokens)
        return Rows(self.y_ms[ok], self.in_flight[ok], self.tokens[ok])


def split(a: Rows, b: Rows, *, has_same_load: bool = False) -> Split | None:
    """The parts of mean(b) − mean(a), or None with too few requests.

    Args:
        a: the first run.
        b: the second.
        has_same_load: what was offered is the same in both. More requests in flight are then
            a consequence of speed or shape and no cause of their own: no load term.
    """
    a, b = a.known(), b.known()
    if min(len(a.y_ms), len(b.y_ms)) < MIN_REQUESTS:
        return None
    deltas = {
        "load": float(b.in_flight.mean() - a.in_flight.mean()),
        "shape": float(b.tokens.mean() - a.tokens.mean()),
    }
    factors = {
        "load": (a.in_flight, b.in_flight),
        "shape": (a.tokens, b.tokens),
    }
    used = [name for name in factors if _varies(*factors[name])]
    if has_same_load and "load" in used:
        used.remove("load")
    y = np.concatenate([a.y_ms, b.y_ms])
    is_b = np.repeat([0.0, 1.0], [len(a.y_ms), len(b.y_ms)])
    columns = [np.ones(len(y)), is_b, *(np.concatenate(factors[name]) for name in used)]
    x = np.column_stack(columns)
    scale = np.maximum(np.abs(x).max(axis=0), 1e-12)
    clusters = np.concatenate([_blocks(len(a.y_ms)), N_BLOCKS + _blocks(len(b.y_ms))])
    coefficients, covariance = _fit(x / scale, y, clusters)
    coefficients = coefficients / scale
    covariance = covariance / np.outer(scale, scale)
    terms: dict[str, Term] = {}
    for name, delta in deltas.items():
        base = np.concatenate(factors[name]).mean()
        if name in used:
            at = 2 + used.index(name)
            half = Z95 * float(np.sqrt(max(covariance[at, at], 0.0))) * abs(delta)
            terms[name] = Term(float(coefficients[at]) * delta, half)
        elif abs(delta) <= SAME_FRAC * abs(base) or (name == "load" and has_same_load):
            terms[name] = Term(0.0, 0.0)
        else:
            terms[name] = Term(0.0, np.inf)
    speed = Term(float(coefficients[1]), Z95 * float(np.sqrt(max(covariance[1, 1], 0.0))))
    if any(np.isinf(term.half_ms) for term in terms.values()):
        speed = Term(speed.ms, np.inf)
    return Split(speed, terms["load"], terms["shape"])


def _varies(a: Floats, b: Floats) -> bool:
    return all(float(v.std()) > MIN_VARIATION * max(abs(float(v.mean())), 1e-9) for v in (a, b))


def _blocks(n: int) -> npt.NDArray[np.int64]:
    return np.arange(n) * min(N_BLOCKS, n) // n


def _fit(x: Floats, y: Floats, clusters: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Least squares and the covariance of its coefficients, clustered."""
    bread = np.linalg.pinv(x.T @ x)
    coefficients = bread @ (x.T @ y)
    scores = x * (y - x @ coefficients)[:, None]
    sums = np.array([scores[clusters == c].sum(axis=0) for c in np.unique(clusters)])
    n = len(sums)
    meat = sums.T @ sums * (n / max(n - 1, 1))
    return coefficients, bread @ meat @ bread
