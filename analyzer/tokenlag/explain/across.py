"""Are steps slower, where the window holds hardly a batch or context that the reference did?

With longer contexts, larger chunks or larger batches than the reference ever had, its model has
no price for the window's steps (`shift.find_shift` finds nothing to compare). Two models can be
compared all the same: the window's own, asked what the reference's nearest batches would cost
now, against the reference's, which knows. How sure that is, draws of whole stretches of time
tell. It counts only where one model of both sides fits clearly worse than one of each: what a
knee in the price of tokens explains is no change of speed. See docs/step-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tokenlag.explain import stepmodel
from tokenlag.explain.shift import MIN_LENGTH_RATIO, MIN_MIXED, MIN_STEPS, Observed, Shift

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

FEATURES = ("n_prefill_tokens", "n_decode", "attention_work", "n_context_tokens")
N_BLOCKS = 20
N_DRAWS = 30
MAX_ROWS = 1000
MAX_POINTS = 300
SEED = 20_261_129
# Of the draws' spread: 99 % to both sides.
N_SPREADS = 2.58
MAX_SPREAD = 0.05
N_FORM_ERRORS = 4.0
MIN_KNOWN = 0.5
# One model of both sides is worse than one of each, beyond chance and by half of the error.
MIN_WORSE = 1.5
SURE_Z = 4.0


@dataclass(frozen=True)
class Kind:
    """Steps without or with prompt chunks, at the reference's batches nearest to the window's.

    Attributes:
        usual_ms: what they cost in the reference.
        late_ms: how much more in the window, by draw.
        ratio: window over reference, by draw.
        form_error: what both models get wrong of such steps on their own side (relative, median,
            added up): draws know of chance alone.
    """

    usual_ms: float
    late_ms: Floats
    ratio: Floats
    form_error: float


def complete(
    found: Shift | None, reference: Observed, window: Observed, *, is_jumping: bool
) -> Shift | None:
    """Adds to what was found in steps alike what two models say of those that are not.

    Args:
        found: of `find_shift` for the same steps.
        reference: steps of the baseline, or of other engines.
        window: steps of the window.
        is_jumping: whether the window's steps jump at a batch size: models of steps on either
            side of it differ by the jump, and are not compared.

    Returns:
        `found` as it is where it knows most steps of both kinds, or nothing is sure. Where one
        model fits both sides, nothing of kinds of which it knows the lesser part.
    """
    if not _has_enough(reference, window):
        return found
    is_rest_known = found is not None and not _lacks_mixed(found, reference, window)
    if is_rest_known and found is not None and _knows_most(found):
        return found
    if is_jumping or is_one_speed(reference, window):
        return None if found is None else _without_edges(found)
    if is_rest_known:
        return found
    models = (stepmodel.fit(reference.arrays()), stepmodel.fit(window.arrays()))
    if not all(model.has_decode for model in models):
        return found
    plain, mixed = _kinds(reference, window, models)
    mixed = mixed if mixed is not None and _is_sure(mixed) else None
    if found is None:
        return None if plain is None or not _is_sure(plain) else _alone(plain, mixed, window)
    if mixed is None:
        return found
    if plain is not None and not np.isfinite(found.slope):
        slope, intercept = _line(plain, mixed)
        found = replace(found, slope=slope, intercept_ms=intercept)
    return _with_mixed(found, mixed, window)


def is_one_speed(reference: Observed, window: Observed) -> bool:
    """Whether one step model fits both sides (nearly) as well as one for each.

    Both sides need steps enough to be fitted; see `MIN_STEPS`. Steps with and without prompt
    chunks are judged apart, for a model may pay for one kind with the other.
    """
    sides = [
        _thin(side, np.arange(len(side.wall_ms)), 2 * MAX_ROWS) for side in (reference, window)
    ]
    parts = [_taken(side, rows) for side, rows in zip((reference, window), sides, strict=True)]
    n_each = min(len(part.wall_ms) for part in parts)
    even = [_taken(part, _evenly(len(part.wall_ms), n_each)) for part in parts]
    both = _fit(even[0].joined(even[1]))
    for part in parts:
        one, own = _off(part, both), _off(part, _fit(part))
        for kind in (part.n_prefill_tokens == 0, part.n_prefill_tokens > 0):
            if kind.sum() >= N_BLOCKS and _is_worse(one[kind], own[kind]):
                return False
    return True


def _is_worse(one: Floats, own: Floats) -> bool:
    blocks = np.array_split(one - own, N_BLOCKS)
    means = np.array([float(block.mean()) for block in blocks])
    error = float(means.std(ddof=1)) / np.sqrt(N_BLOCKS)
    is_sure = float(means.mean()) >= SURE_Z * error
    return is_sure and float(one.mean()) >= MIN_WORSE * float(own.mean())


def _off(part: Observed, fitted: tuple[Floats, float]) -> Floats:
    """Relative residuals, without sign; the largest tenth is cut down to the rest."""
    off = np.abs(_predicted(part, fitted) / part.wall_ms - 1.0)
    return np.asarray(np.minimum(off, np.quantile(off, 0.9)), dtype=np.float64)


def _kinds(
    reference: Observed, window: Observed, models: tuple[stepmodel.StepModel, stepmodel.StepModel]
) -> tuple[Kind | None, Kind | None]:
    """Steps without and with prompt chunks; None for a kind that either side cannot price."""
    points, errors = [], []
    for is_mixed in (False, True):
        ours, theirs = (
            ((side.n_prefill_tokens > 0) == is_mixed) & (is_mixed | (side.n_decode > 0))
            for side in (window, reference)
        )
        known = ours.sum() >= MIN_MIXED and theirs.sum() >= MIN_MIXED
        if is_mixed:
            known = known and all(model.has_prefill for model in models)
        off = (_off_median(reference, theirs, models[0]), _off_median(window, ours, models[1]))
        errors.append(sum(off))
        points.append(_nearest(reference, theirs, window, ours) if known else None)
    rng = np.random.default_rng(SEED)
    drawn: list[list[tuple[float, float, float]]] = [[], []]
    for _ in range(N_DRAWS):
        fitted = [
            _refit(side, _drawn(side, rng), model)
            for side, model in zip((reference, window), models, strict=True)
        ]
        for kind, at in enumerate(points):
            if at is not None:
                usual, now = (_predicted(at, one) for one in fitted)
                ratio = now / np.maximum(usual, 1e-9)
                row = (np.median(usual), np.median(now - usual), np.median(ratio))
                drawn[kind].append((float(row[0]), float(row[1]), float(row[2])))
    plain, mixed = (
        _kind(np.array(rows, dtype=np.float64), error) if rows else None
        for rows, error in zip(drawn, errors, strict=True)
    )
    return plain, mixed


def _kind(rows: Floats, error: float) -> Kind:
    return Kind(float(np.median(rows[:, 0])), rows[:, 1], rows[:, 2], error)


def _off_median(steps: Observed, chosen: Bools, model: stepmodel.StepModel) -> float:
    if not chosen.any():
        return 0.0
    own = _taken(steps, np.flatnonzero(chosen))
    expected = model.predict(*(getattr(own, name) for name in FEATURES))
    return float(np.median(np.abs(expected / own.wall_ms - 1.0)))


def _alone(plain: Kind, mixed: Kind | None, window: Observed) -> Shift:
    """What two models say, where no step of the window is like one of the reference."""
    slope, intercept = _line(plain, mixed)
    ratio, error = float(plain.ratio.mean()), _spread(plain.ratio)
    excess_ms = window.wall_ms * (1.0 - 1.0 / ratio)
    if np.isfinite(slope):
        excess_ms = window.wall_ms - (window.wall_ms - intercept) / max(slope, 1e-9)
    is_mixed = window.n_prefill_tokens > 0
    found = Shift(
        n_decode_steps=int((~is_mixed).sum()),
        n_mixed_steps=0,
        slope=slope,
        intercept_ms=intercept,
        ratio_decode=ratio,
        ratio_mixed=np.nan,
        ratio_near=ratio,
        mixed_excess_ms=np.nan,
        mixed_error_ms=np.nan,
        ratio_lo=ratio - error,
        ratio_hi=ratio + error,
        expected_ms=plain.usual_ms,
        excess_ms=float((excess_ms * window.n_streams).sum()),
        stream_ms=float((window.wall_ms * window.n_streams).sum()),
        is_across=True,
    )
    return found if mixed is None else _with_mixed(found, mixed, window)


def _is_sure(kind: Kind) -> bool:
    """Whether the draws agree on a change far beyond the models' own errors, or on none."""
    off = abs(float(kind.ratio.mean()) - 1.0)
    is_none, is_some = off <= MAX_SPREAD, off >= N_FORM_ERRORS * kind.form_error
    return (is_none or is_some) and _spread(kind.ratio) <= max(MAX_SPREAD, off)


def _spread(draws: Floats) -> float:
    return N_SPREADS * float(draws.std(ddof=1))


def _with_mixed(found: Shift, mixed: Kind, window: Observed) -> Shift:
    """The same, with what steps with prompt chunks would cost in the reference's sizes."""
    return replace(
        found,
        n_mixed_steps=int((window.n_prefill_tokens > 0).sum()),
        ratio_mixed=float(mixed.ratio.mean()),
        mixed_excess_ms=float(mixed.late_ms.mean()),
        mixed_error_ms=float(mixed.late_ms.std(ddof=1)),
        is_across=True,
    )


def _line(plain: Kind, mixed: Kind | None) -> tuple[float, float]:
    """Slope and intercept of now over usual: of a factor, of a constant, or of neither.

    A form is out if steps with chunks are off from what it says of them beyond the draws'
    spread and beyond what the models get wrong. NaN where neither is out.
    """
    if mixed is None or mixed.usual_ms < MIN_LENGTH_RATIO * plain.usual_ms:
        return np.nan, np.nan
    length = mixed.usual_ms / plain.usual_ms
    late, late_mixed = float(plain.late_ms.mean()), float(mixed.late_ms.mean())

    def is_out(times: float) -> bool:
        off = mixed.late_ms - times * plain.late_ms
        by_form = np.hypot(
            mixed.form_error * mixed.usual_ms, times * plain.form_error * plain.usual_ms
        )
        by_chance = SURE_Z * float(off.std(ddof=1))
        return abs(late_mixed - times * late) >= float(np.hypot(by_chance, N_FORM_ERRORS * by_form))

    is_constant_out, is_factor_out = is_out(1.0), is_out(length)
    if is_factor_out and not is_constant_out:
        return 1.0, late
    if is_constant_out and not is_factor_out:
        return 1.0 + late / plain.usual_ms, 0.0
    if not is_constant_out:
        return np.nan, np.nan
    rise = (late_mixed - late) / (mixed.usual_ms - plain.usual_ms)
    return 1.0 + rise, late - rise * plain.usual_ms


# --- steps and models --------------------------------------------------------------------------


def _knows_most(found: Shift) -> bool:
    return min(found.known_decode_frac, found.known_mixed_frac) >= MIN_KNOWN


def _without_edges(found: Shift) -> Shift | None:
    """Where one model fits all, a few steps at the edge of the reference say nothing else."""
    if found.known_decode_frac < MIN_KNOWN:
        return None
    if found.known_mixed_frac < MIN_KNOWN:
        return replace(
            found,
            n_mixed_steps=0,
            ratio_mixed=np.nan,
            mixed_excess_ms=np.nan,
            mixed_error_ms=np.nan,
        )
    return found


def _lacks_mixed(found: Shift, reference: Observed, window: Observed) -> bool:
    """Whether both sides have steps with prompt chunks that `found` could not compare."""
    n_mixed = min(int((side.n_prefill_tokens > 0).sum()) for side in (reference, window))
    return found.n_mixed_steps < MIN_MIXED <= n_mixed


def _has_enough(reference: Observed, window: Observed) -> bool:
    return min(len(reference.wall_ms), len(window.wall_ms)) >= 2 * MIN_STEPS


def _fit(steps: Observed) -> tuple[Floats, float]:
    """Coefficients with the best knee, be there many steps with chunks or few."""
    rows = np.arange(len(steps.wall_ms), dtype=np.int64)
    return stepmodel.fit_rows(steps.arrays(), rows, stepmodel.KNEES)


def _refit(steps: Observed, rows: Ints, model: stepmodel.StepModel) -> tuple[Floats, float]:
    return stepmodel.fit_rows(steps.arrays(), rows, (model.knee_tokens,))


def _predicted(steps: Observed, fitted: tuple[Floats, float]) -> Floats:
    rows = np.arange(len(steps.wall_ms), dtype=np.int64)
    return stepmodel.predict_rows(steps.arrays(), rows, fitted)


def _taken(steps: Observed, rows: Ints) -> Observed:
    return Observed(*(getattr(steps, name)[rows] for name in Observed.__dataclass_fields__))


def _evenly(n: int, n_wanted: int) -> Ints:
    return np.linspace(0, n - 1, min(n, n_wanted)).round().astype(np.int64)


def _thin(steps: Observed, rows: Ints, n_most: int) -> Ints:
    """At most so many rows, in time order: half of them with chunks, if there are so many."""
    is_mixed = steps.n_prefill_tokens[rows] > 0
    parts = [part[_evenly(len(part), n_most // 2)] for part in (rows[is_mixed], rows[~is_mixed])]
    return np.sort(np.concatenate(parts)).astype(np.int64)


def _drawn(steps: Observed, rng: np.random.Generator) -> Ints:
    """Rows of stretches of time drawn again and again, thinned."""
    blocks = np.array_split(np.arange(len(steps.wall_ms)), N_BLOCKS)
    rows = np.concatenate([blocks[at] for at in rng.integers(0, N_BLOCKS, N_BLOCKS)])
    return _thin(steps, rows, MAX_ROWS)


def _nearest(reference: Observed, theirs: Bools, window: Observed, ours: Bools) -> Observed:
    """The window's steps, moved to the nearest batches that the reference knows."""
    rows = np.flatnonzero(ours)
    rows = rows[_evenly(len(rows), MAX_POINTS)]
    values = {}
    for name in FEATURES:
        known = getattr(reference, name)[theirs]
        values[name] = np.clip(getattr(window, name)[rows], known.min(), known.max())
    return replace(_taken(window, rows), **values)
