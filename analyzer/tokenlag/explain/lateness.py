"""Does the lateness of steps grow with their length, or is it the same for all?

For where a line through all steps cannot tell a factor from a constant, because long steps are
hardly longer than short ones. Steps are grouped by what they hold; a group's lateness is its
median against the same group's of the reference, so that what the step model gets wrong of a
kind of step is wrong on both sides and goes out. Stretches of time are drawn again and again:
only where nearly all draws lean to one side is it said. See docs/step-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

N_BLOCKS = 20
N_DRAWS = 400
SEED = 20_261_129
MIN_IN_GROUP = 20
MIN_SURE = 0.9
# The constant's share of the lateness: near 0 for a factor, near 1 for a constant.
FACTOR_SHARE = (-0.5, 0.35)
CONSTANT_SHARE = (0.65, 1.5)
CLIPPED = 0.05
N_GROUPS = 6
# Beyond chance: batches of a group differ a little between the sides.
MIN_ERROR = 0.001
FITS = 4.0


@dataclass(frozen=True)
class Side:
    """Steps of the reference or of the window: expected and observed times, in time order."""

    expected: Floats
    observed: Floats
    mixed: Bools


@dataclass(frozen=True)
class Lateness:
    """What the lateness is: a pure factor (`intercept_ms` 0) or a pure constant (`slope` 1)."""

    slope: float
    intercept_ms: float


def lean(reference: Side, window: Side) -> Lateness | None:
    """A factor or a constant; None where draws of the same steps do not agree."""
    edges = _edges(reference, window)
    groups = [_groups(side, edges) for side in (reference, window)]
    before, now = (_by_block(s, g) for s, g in zip((reference, window), groups, strict=True))
    # In half of the blocks at least: what only some stretches of time hold is no fair sample.
    used = np.flatnonzero(_is_known(before) & _is_known(now))
    if len(used) < 2:
        return None
    before, now = ((sums[:, used], n[:, used]) for sums, n in (before, now))
    length = np.array([np.median(window.expected[groups[1] == g]) for g in used]) * _whole(before)
    rng = np.random.default_rng(SEED)
    late = np.array([_late(_drawn(before, rng), _drawn(now, rng), length) for _ in range(N_DRAWS)])
    whole = _late(_whole(before), _whole(now), length)
    weight = 1.0 / np.maximum(np.nanstd(late, axis=0), MIN_ERROR * length)
    at = float(length[np.argmax(now[1].sum(axis=0))])
    share, typical = _constant_share(whole, length, weight, at)
    shares = np.array([_constant_share(row, length, weight, at)[0] for row in late])
    # The chosen form must also fit each group by itself.
    near = FITS / weight
    is_factor = bool((np.abs(whole - typical * length / at) <= near).all())
    is_constant = bool((np.abs(whole - typical) <= near).all())
    low, high = FACTOR_SHARE
    if is_factor and low <= share <= high and (shares < 0.5).mean() >= MIN_SURE:
        return Lateness(1.0 + typical / at, 0.0)
    low, high = CONSTANT_SHARE
    if is_constant and low <= share <= high and (shares > 0.5).mean() >= MIN_SURE:
        return Lateness(1.0, typical)
    return None


def as_in(reference: Side, window: Side) -> Floats:
    """The window's expected times, each kind of step by what it took in the reference."""
    edges = _edges(reference, window)
    sums, n = _by_block(reference, _groups(reference, edges))
    known = _is_known((sums, n))
    ratio = np.where(known, _whole((sums, n)), 1.0)
    # As far as it is beyond chance: the spread of the blocks' own means around the whole.
    own = np.where(n > 0, sums / np.maximum(n, 1.0), ratio)
    error = np.sqrt((n * (own - ratio) ** 2).sum(axis=0) / np.maximum(n.sum(axis=0), 1.0))
    error /= np.sqrt(np.maximum((n > 0).sum(axis=0) - 1.0, 1.0))
    off = ratio - 1.0
    ratio = 1.0 + off * np.maximum(0.0, 1.0 - (2.0 * error / np.maximum(np.abs(off), 1e-9)) ** 2)
    return np.asarray(window.expected * ratio[_groups(window, edges)], dtype=np.float64)


def _edges(reference: Side, window: Side) -> list[Floats]:
    """Bounds of the groups by expected time, for steps without and with prompt chunks."""
    expected = np.concatenate([reference.expected, window.expected])
    mixed = np.concatenate([reference.mixed, window.mixed])
    return [
        np.quantile(expected[kind], [1 / 3, 2 / 3]) if kind.any() else np.array([np.inf] * 2)
        for kind in (~mixed, mixed)
    ]


def _groups(side: Side, edges: list[Floats]) -> Ints:
    """0 to 2 for decode-only steps by length, 3 to 5 for those with prompt chunks."""
    plain, mixed = (np.searchsorted(bounds, side.expected, side="right") for bounds in edges)
    return np.where(side.mixed, 3 + mixed, plain).astype(np.int64)


def _by_block(side: Side, groups: Ints) -> tuple[Floats, Floats]:
    """Sums and counts of observed over expected, by block of time and group."""
    ratio = side.observed / np.maximum(side.expected, 1e-9)
    block = np.arange(len(ratio)) * N_BLOCKS // max(len(ratio), 1)
    sums, n = np.zeros((N_BLOCKS, N_GROUPS)), np.zeros((N_BLOCKS, N_GROUPS))
    for group in np.unique(groups).tolist():
        own = groups == group
        low, high = np.quantile(ratio[own], [CLIPPED, 1.0 - CLIPPED])
        np.add.at(sums[:, group], block[own], np.clip(ratio[own], low, high))
        np.add.at(n[:, group], block[own], 1.0)
    return sums, n


def _is_known(blocks: tuple[Floats, Floats]) -> Bools:
    """Groups with enough steps, in enough of the blocks."""
    n = blocks[1]
    return np.asarray(
        (n.sum(axis=0) >= MIN_IN_GROUP) & ((n > 0).sum(axis=0) >= N_BLOCKS // 2), dtype=bool
    )


def _drawn(blocks: tuple[Floats, Floats], rng: np.random.Generator) -> Floats:
    chosen = rng.integers(0, N_BLOCKS, N_BLOCKS)
    return _whole((blocks[0][chosen], blocks[1][chosen]))


def _whole(blocks: tuple[Floats, Floats]) -> Floats:
    n = blocks[1].sum(axis=0)
    return np.where(n > 0, blocks[0].sum(axis=0) / np.maximum(n, 1.0), np.nan)


def _late(before: Floats, now: Floats, length: Floats) -> Floats:
    return np.asarray((now / before - 1.0) * length, dtype=np.float64)


def _constant_share(late: Floats, length: Floats, weight: Floats, at: float) -> tuple[float, float]:
    """Share of the lateness of a step of length `at` that does not grow with length; all of it."""
    known = np.isfinite(late)
    if known.sum() < 2:
        return np.nan, np.nan
    w, x, y = weight[known] ** 2, length[known], late[known]
    mean_x, mean_y = np.average(x, weights=w), np.average(y, weights=w)
    spread = float((w * (x - mean_x) ** 2).sum())
    if spread <= 0:
        return np.nan, np.nan
    slope = float((w * (x - mean_x) * (y - mean_y)).sum()) / spread
    constant = mean_y - slope * mean_x
    typical = float(constant + slope * at)
    return (float(constant) / typical if typical > 0 else np.nan), typical
