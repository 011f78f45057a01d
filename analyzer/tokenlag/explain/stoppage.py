"""Steps that stop for longer than their batch explains: at intervals, or the first of a shape.

A stoppage is a step whose end-to-end time, with work in hand, exceeds what the model says by
several times the usual spread and by several usual steps. Their spacing tells pauses of the
host or engine (regular, any shape) from first uses of a shape (compilation, capture). What
paused it is not in the trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MIN_EXCESS_MS = 40.0
MIN_USUAL_STEPS = 4.0
MIN_SPREADS = 8.0
MAX_STEPS_FRAC = 0.05
MIN_PAUSES = 5
MAX_FOLDED_CV = 0.15
MIN_BREAK = 1.5
MIN_OUTSTANDING_FRAC = 0.5
MAX_PHASED = 200
MAX_TRIALS = 300.0
MAX_CHANCE = 0.002
NEAR_PERIOD = 0.1
SAME_STRENGTH = 0.03


def find_stoppages(excess_ms: Floats, expected_ms: Floats, n_streams: Ints) -> Bools:
    """Which steps are stoppages. `excess_ms` = observed − expected; NaN where unknown."""
    known = np.isfinite(excess_ms)
    if not known.any():
        return np.zeros(len(excess_ms), dtype=bool)
    relative = excess_ms[known] / np.maximum(expected_ms[known], 1e-9)
    spread = 1.4826 * float(np.median(np.abs(relative - np.median(relative))))
    usual = float(np.median(expected_ms[known]))
    floor = np.maximum(MIN_EXCESS_MS, MIN_USUAL_STEPS * usual)
    out = known & (excess_ms >= floor) & (n_streams > 0)
    # Long steps err by more milliseconds: an outlier must also be one relative to its own size.
    out[known] &= relative >= np.maximum(MIN_SPREADS * spread, 0.5)
    # What is common is not a stoppage but another speed.
    return out if out.mean() <= MAX_STEPS_FRAC else np.zeros(len(out), dtype=bool)


def shape_classes(n_prefill_tokens: Ints, n_decode: Ints) -> Ints:
    """A class a step: next power of two of its prompt tokens, else (negative) of its streams."""
    prefill = np.ceil(np.log2(np.maximum(n_prefill_tokens, 1))).astype(np.int64)
    decode = np.ceil(np.log2(np.maximum(n_decode, 1))).astype(np.int64)
    return np.where(n_prefill_tokens > 0, prefill, -1 - decode)


def is_first_of_shape(classes: Ints) -> Bools:
    """For each step, in order, whether no earlier one had its class."""
    out = np.zeros(len(classes), dtype=bool)
    out[np.unique(classes, return_index=True)[1]] = True
    return out


@dataclass(frozen=True)
class Rhythm:
    """Spacing and size of an engine's stoppages."""

    n_pauses: int
    period_s: float
    spacing_cv: float
    size_ms: float
    size_cv: float
    duty_frac: float


def outstanding(excess_ms: Floats) -> Bools:
    """The largest stops, if a break in size sets them apart and most of the lost time is theirs.

    A busy machine stops an engine often and at random for some tens of milliseconds; what stops
    it for longer may still come by the clock. None if nothing stands out.
    """
    sizes = np.sort(excess_ms)[::-1]
    breaks = sizes[MIN_PAUSES - 1 : -1] / np.maximum(sizes[MIN_PAUSES:], 1e-9)
    if len(breaks) == 0 or breaks.max() < MIN_BREAK:
        return np.zeros(len(excess_ms), dtype=bool)
    out: Bools = excess_ms >= sizes[MIN_PAUSES - 1 + int(np.argmax(breaks))]
    is_most = excess_ms[out].sum() >= MIN_OUTSTANDING_FRAC * excess_ms.sum()
    return out if is_most else np.zeros(len(excess_ms), dtype=bool)


def rhythm(end_ns: Ints, excess_ms: Floats) -> Rhythm | None:
    """How regular stoppages are; None for fewer than `MIN_PAUSES`.

    Spacings are measured in periods, so that one that was missed (the engine was idle, or two
    fell together) does not make a regular series look irregular.
    """
    if len(end_ns) < MIN_PAUSES:
        return None
    spacing = np.diff(end_ns) / 1e9
    spacing = spacing[spacing > 0]
    if len(spacing) < MIN_PAUSES - 1:
        return None
    period = float(np.median(spacing))
    # Fold multiples of the period onto it.
    turns = np.maximum(np.round(spacing / period), 1.0)
    folded = spacing / turns
    period = float(np.median(folded))
    off = np.abs(folded - period) * np.minimum(turns, 1.0)
    in_one = turns <= 3
    cv = 1.4826 * float(np.median(off[in_one])) / period if in_one.any() else np.inf
    # Uniform chance folded this way is near 0.25 of a period off; report the part that is regular.
    if cv <= MAX_FOLDED_CV and _chance(off[in_one] / period) > MAX_CHANCE:
        cv = np.inf
    if cv > MAX_FOLDED_CV:
        # Stops that nobody sees while the engine idles leave long and odd spacings.
        clocked = _by_phase(end_ns - (excess_ms * 1e6).astype(np.int64))
        period, cv = clocked or (period, cv)
    size = float(np.median(excess_ms))
    size_cv = 1.4826 * float(np.median(np.abs(excess_ms - size))) / max(size, 1e-9)
    length = max((int(end_ns[-1]) - int(end_ns[0])) / 1e6, 1e-9)
    return Rhythm(len(end_ns), period, cv, size, size_cv, float(excess_ms.sum()) / length)


def _chance(off: Floats) -> float:
    """How likely so many spacings fold this close to a period, where stops come at random."""
    off = off[:MAX_PHASED]
    n, k = len(off), int((off <= NEAR_PERIOD).sum())
    p = 2.0 * NEAR_PERIOD
    return sum(math.comb(n, i) * p**i * (1.0 - p) ** (n - i) for i in range(k, n + 1))


def _by_phase(begin_ns: Ints) -> tuple[float, float] | None:
    """Period and spread (in periods) of stops of which many were not seen; None if by chance.

    Every period down to the shortest spacing is tried: stops of that period fall on one phase
    of it. Of phases at random a mean vector of length R has the chance exp(−n R²), and there
    are as many periods to try as the longest span holds shortest ones.
    """
    at_s = (begin_ns[:MAX_PHASED] - begin_ns[0]) / 1e9
    span, shortest = float(at_s[-1]), float(np.diff(at_s).min())
    if shortest <= 0 or span <= 0:
        return None
    n_trials = 1.1 * span / shortest
    if n_trials > MAX_TRIALS:
        return None
    frequency = np.arange(2.0 / span, 1.1 / shortest, 1.0 / (6.0 * span))
    if len(frequency) == 0:
        return None
    vectors = np.exp(2j * np.pi * frequency[:, None] * at_s[None, :]).mean(axis=1)
    strength = np.abs(vectors)
    # A half or a third of the period fits as well: the longest of those that do is meant.
    best = int(np.argmax(strength >= strength.max() - SAME_STRENGTH))
    best += int(np.argmax(strength[best : best + 6]))
    if n_trials * float(np.exp(-len(at_s) * strength[best] ** 2)) > MAX_CHANCE:
        return None
    phase = np.angle(np.exp(2j * np.pi * frequency[best] * at_s) / vectors[best]) / (2 * np.pi)
    return 1.0 / float(frequency[best]), 1.4826 * float(np.median(np.abs(phase)))


@dataclass(frozen=True)
class Ceiling:
    """A jump of decode step time at one batch size."""

    threshold: int
    jump_ms: float
    below_ms: float
    n_below: int
    n_above: int
    sharpness: float


MIN_SIDE = 10
MIN_NEAR = 5
MIN_JUMP_FRAC = 0.2
MAX_ROWS_A_SIZE = 64
MAX_OF_PLAIN = 0.7
MIN_REACH = 3.0
MIN_AT_CROSSINGS = 0.5
FIT_ROUNDS = 4


def find_ceiling(wall_ms: Floats, n_decode: Ints, n_context: Floats) -> Ceiling | None:
    """The batch size above which decode-only steps cost a constant more, or None.

    For each candidate size a line in batch and context with a jump above it is fitted; the best
    counts if it beats both the plain line and the best line with a bend, the jump is a fifth
    of the step below it, and most of it lies between the two neighbouring sizes (costs that
    grow with the batch are smooth). An engine sits in one of two states most of the time and
    only few steps lie near the size in question, so that each size weighs alike, and an error
    counts up to a fifth of a usual step: neither trimmed away, nor more for a pause.

    The jump must also be there whenever the batch passes the size: steps that became slower at
    some time, while the batch grew, differ between the two sizes, but not from one step to the
    next that lies on the other side.

    Args:
        wall_ms: decode-only steps, in time order.
        n_decode: their batch sizes.
        n_context: KV tokens they attend to.
    """
    rows = _rows_by_size(n_decode)
    wall, size_of, context = wall_ms[rows], n_decode[rows], n_context[rows]
    sizes = np.unique(size_of)
    if len(sizes) < 3:
        return None
    cap = MIN_JUMP_FRAC * float(np.median(wall))
    others = [_fit(wall, size_of, context, None, cap)[0]]
    best: tuple[float, int, float, Floats] | None = None
    for size in sizes[:-1].tolist():
        above = size_of > size
        if above.sum() < MIN_SIDE or (~above).sum() < MIN_SIDE:
            continue
        error, jump = _fit(wall, size_of, context, above.astype(np.float64), cap)
        bend = np.maximum(size_of - size, 0).astype(np.float64)
        others.append(_fit(wall, size_of, context, bend, cap)[0])
        if best is None or error.sum() < best[0]:
            best = (float(error.sum()), int(size), jump, error)
    if best is None:
        return None
    _, threshold, jump, error = best
    # Judged where it matters: far from the size the noise of all other steps would drown it.
    near = np.abs(size_of - threshold) <= max(MIN_REACH, 0.5 * threshold)
    if error[near].sum() > MAX_OF_PLAIN * min(float(o[near].sum()) for o in others):
        return None
    near_below = wall_ms[(n_decode <= threshold) & (n_decode > 0.85 * threshold - 1)]
    near_above = wall_ms[(n_decode > threshold) & (n_decode < 1.15 * threshold + 2)]
    if len(near_below) < MIN_NEAR or len(near_above) < MIN_NEAR:
        # An engine that fills up once passes the size in a few steps, and again when it empties.
        if not _is_passed_both_ways(n_decode > threshold):
            return None
        near_below = _nearest(wall_ms, threshold - n_decode, 0.5 * threshold)
        near_above = _nearest(wall_ms, n_decode - threshold - 1, 0.5 * threshold)
    if len(near_below) < MIN_NEAR or len(near_above) < MIN_NEAR:
        return None
    below = float(np.median(near_below))
    step = float(np.median(near_above)) - below
    if jump < MIN_JUMP_FRAC * below or step < MIN_JUMP_FRAC * below:
        return None
    if _at_crossings(wall_ms, n_decode > threshold) < MIN_AT_CROSSINGS * step:
        return None
    return Ceiling(
        threshold, step, below, int((n_decode <= threshold).sum()),
        int((n_decode > threshold).sum()), float(step / jump),
    )  # fmt: skip


def _is_passed_both_ways(is_above: Bools) -> bool:
    """Whether the size is passed upwards and downwards: what changed with time would stay."""
    turns = np.diff(is_above.astype(np.int64))
    return bool((turns > 0).any() and (turns < 0).any())


def _nearest(wall_ms: Floats, distance: Ints, most: float) -> Floats:
    """The `MIN_NEAR` steps of the sizes nearest to a size, on one side of it and not far away."""
    side = np.flatnonzero((distance >= 0) & (distance <= most))
    nearest = side[np.argsort(distance[side], kind="stable")][:MIN_NEAR]
    return wall_ms[nearest]


def _at_crossings(wall_ms: Floats, is_above: Bools) -> float:
    """By how much a step above the size is longer than its neighbour below it (median, ms)."""
    at = np.flatnonzero(is_above[1:] != is_above[:-1])
    rise = wall_ms[at + 1] - wall_ms[at]
    return float(np.median(np.where(is_above[at + 1], rise, -rise)))


def _rows_by_size(n_decode: Ints) -> Ints:
    """At most `MAX_ROWS_A_SIZE` steps of each batch size, evenly over time."""
    order = np.argsort(n_decode, kind="stable")
    starts = np.flatnonzero(np.diff(n_decode[order], prepend=-1))
    picked = []
    for own in np.split(order, starts[1:]):
        n = min(len(own), MAX_ROWS_A_SIZE)
        picked.append(own[np.linspace(0, len(own) - 1, n).astype(np.intp)])
    return np.sort(np.concatenate(picked)).astype(np.int64) if picked else order


def _fit(
    wall_ms: Floats, n_decode: Ints, n_context: Floats, extra: Floats | None, cap: float
) -> tuple[Floats, float]:
    """Absolute residuals, each up to `cap`, and the coefficient of `extra`."""
    columns = [np.ones(len(wall_ms)), n_decode.astype(np.float64), n_context]
    if extra is not None:
        columns.append(extra)
    design = np.column_stack(columns)
    weight = np.ones(len(wall_ms))
    beta = np.zeros(design.shape[1])
    residual = np.zeros(len(wall_ms))
    for _ in range(FIT_ROUNDS):
        beta = np.linalg.lstsq(design * weight[:, None], wall_ms * weight, rcond=None)[0]
        residual = np.abs(design @ beta - wall_ms)
        # What is far off by more than the cap is a stop, not this size's price.
        weight = np.sqrt(np.minimum(1.0, cap / np.maximum(residual, 1e-12)))
    return np.minimum(residual, cap), float(beta[-1]) if extra is not None else 0.0
