"""Are steps of the same batch slower than they were, and by a factor or by a constant?

A step model is fitted on the reference (the baseline's steps; or, where several engines run
and there is no baseline, the other engines') and asked what the window's batches should have
cost. Regressing observed on expected tells a factor (clock, power, kernel: slope above 1) from
a constant (the host is late: intercept above 0), if expected times differ enough; with one
kind of step the two cannot be told apart, and that is said. See docs/step-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenlag.explain import stepmodel
from tokenlag.explain.lateness import Side, as_in, lean

Floats = npt.NDArray[np.float64]

MIN_STEPS = 50
MIN_KNOWN_FRAC = 0.1
MIN_MIXED = 5
MIN_ALIKE = 3
NEAR_STEPS = 4
MIN_NEAR = 20
MIN_LENGTH_RATIO = 1.25
SURE = 4.0
TRIMMED = 0.05
MODEL_ERROR = 0.02
N_BLOCKS = 20
HUBER = 1.5
ITERATIONS = 20


@dataclass(frozen=True)
class Observed:
    """Steps with work in hand, in time order. `wall_ms`: end to end, the host's gap included."""

    wall_ms: Floats
    n_prefill_tokens: Floats
    n_decode: Floats
    attention_work: Floats
    n_context_tokens: Floats
    n_streams: Floats

    def arrays(self) -> stepmodel.StepArrays:
        """The same steps, all usable, for the step model."""
        return stepmodel.StepArrays(
            self.wall_ms, self.n_prefill_tokens, self.n_decode, self.attention_work,
            self.n_context_tokens, np.ones(len(self.wall_ms), dtype=bool),
        )  # fmt: skip

    def joined(self, other: Observed) -> Observed:
        """Both, one after the other."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        return Observed(*(np.concatenate(pair) for pair in pairs))


@dataclass(frozen=True)
class Shift:
    """How one engine's steps stand to the reference; see table `step_shift`."""

    n_decode_steps: int
    n_mixed_steps: int
    slope: float
    intercept_ms: float
    ratio_decode: float
    ratio_mixed: float
    ratio_near: float
    mixed_excess_ms: float
    mixed_error_ms: float
    ratio_lo: float
    ratio_hi: float
    expected_ms: float
    excess_ms: float
    stream_ms: float
    is_across: bool = False
    known_decode_frac: float = 1.0
    known_mixed_frac: float = 1.0


def find_shift(reference: Observed, window: Observed) -> Shift | None:
    """Compares; None where either side has too few steps or the reference cannot be fitted."""
    if len(reference.wall_ms) < MIN_STEPS or len(window.wall_ms) < MIN_STEPS:
        return None
    model = stepmodel.fit(reference.arrays())
    if not model.has_decode:
        return None
    expected, known = _expected(model, reference, window)
    # Larger batches or contexts than any of the reference are extrapolation: what is not
    # priced there (a term of little weight may be) says nothing of speed.
    known &= window.n_decode <= reference.n_decode.max()
    known &= window.n_prefill_tokens <= max(reference.n_prefill_tokens.max(), 0.0)
    known &= window.n_context_tokens <= reference.n_context_tokens.max()
    # A few steps at the edge of what the reference knows say nothing of the rest.
    if known.sum() < max(MIN_STEPS, MIN_KNOWN_FRAC * len(known)):
        return None
    is_mixed = window.n_prefill_tokens > 0
    observed, streams = window.wall_ms[known], window.n_streams[known]
    mixed = window.n_prefill_tokens[known] > 0
    usual, usable = _expected(model, reference, reference)
    before = Side(usual[usable], reference.wall_ms[usable], reference.n_prefill_tokens[usable] > 0)
    # What the model gets wrong of a kind of step in the reference is no news of the window.
    now = Side(expected[known], observed, mixed)
    expected = as_in(before, now)
    ratio = observed / np.maximum(expected, 1e-9)
    low, high = _block_interval(ratio)
    slope, intercept = _through(expected, observed, mixed, _line(expected, observed))
    if not _is_separable(expected, observed, mixed):
        told = lean(before, now)
        slope, intercept = (told.slope, told.intercept_ms) if told else (np.nan, np.nan)
    # By their place among all steps: those with chunks may all be beyond what is known.
    near = _near(is_mixed)[known]
    mixed_excess, mixed_error = _centre((observed - expected)[mixed])
    judged_ms = float((observed * streams).sum())
    all_ms = float((window.wall_ms * window.n_streams).sum())
    return Shift(
        n_decode_steps=int((~mixed).sum()),
        n_mixed_steps=int(mixed.sum()),
        slope=slope,
        intercept_ms=intercept,
        ratio_decode=float(np.median(ratio[~mixed])) if (~mixed).any() else np.nan,
        ratio_mixed=float(np.median(ratio[mixed])) if mixed.sum() >= MIN_MIXED else np.nan,
        ratio_near=float(np.median(ratio[near])) if near.sum() >= MIN_NEAR else np.nan,
        mixed_excess_ms=mixed_excess,
        mixed_error_ms=mixed_error,
        ratio_lo=low,
        ratio_hi=high,
        expected_ms=float(np.median(expected[~mixed] if (~mixed).any() else expected)),
        # Slower steps keep streams longer, so that batches grow beyond what the reference can
        # price: those steps are taken to be as late, by their share, as those that it can.
        excess_ms=float(((observed - expected) * streams).sum()) * all_ms / max(judged_ms, 1e-9),
        stream_ms=all_ms,
        known_decode_frac=float(known[~is_mixed].mean()) if (~is_mixed).any() else 1.0,
        known_mixed_frac=float(known[is_mixed].mean()) if is_mixed.any() else 1.0,
    )  # fmt: skip


def _expected(
    model: stepmodel.StepModel, reference: Observed, window: Observed
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """What the window's steps should have cost, and which of them the reference can price."""
    expected = model.predict(
        window.n_prefill_tokens, window.n_decode, window.attention_work, window.n_context_tokens
    )
    known = np.ones(len(window.wall_ms), dtype=bool)
    if not model.has_prefill:
        # Chunks of one size have no price by the token, but steps alike can be compared.
        matched = _alike(reference, window)
        known = (window.n_prefill_tokens == 0) | np.isfinite(matched)
        expected = np.where(np.isfinite(matched), matched, expected)
    return expected, known


def _alike(reference: Observed, window: Observed) -> Floats:
    """The median reference step with the same chunks and about the same batch; NaN where too few.

    Alike: prompt tokens and attention work within a tenth, streams within a quarter or by one.
    """

    def cells(steps: Observed) -> list[tuple[int, int, int]]:
        tokens = np.round(np.log(np.maximum(steps.n_prefill_tokens, 1.0)) / np.log(1.1))
        work = np.round(np.log(np.maximum(steps.attention_work, 1.0)) / np.log(1.1))
        streams = np.round(np.log(steps.n_decode + 2.0) / np.log(1.25))
        return list(zip(tokens.tolist(), work.tolist(), streams.tolist(), strict=True))

    by_cell: dict[tuple[int, int, int], list[float]] = {}
    for cell, wall, tokens in zip(
        cells(reference), reference.wall_ms.tolist(), reference.n_prefill_tokens, strict=True
    ):
        if tokens > 0:
            by_cell.setdefault(cell, []).append(wall)
    usual = {c: float(np.median(w)) for c, w in by_cell.items() if len(w) >= MIN_ALIKE}
    found = [
        usual.get(cell, np.nan) if tokens > 0 else np.nan
        for cell, tokens in zip(cells(window), window.n_prefill_tokens, strict=True)
    ]
    return np.array(found, dtype=np.float64)


def _near(mixed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The decode-only steps among the `NEAR_STEPS` after one with prompt chunks."""
    at = np.arange(len(mixed))
    last = np.maximum.accumulate(np.where(mixed, at, -NEAR_STEPS - 1))
    return np.asarray(~mixed & (at - last <= NEAR_STEPS), dtype=bool)


def _centre(values: Floats) -> tuple[float, float]:
    """Trimmed mean and its standard error (of the winsorised values); NaN of too few.

    Stops are trimmed away, and a clock that flips between two levels still has a centre.
    """
    if len(values) < MIN_MIXED:
        return np.nan, np.nan
    low, high = np.quantile(values, [TRIMMED, 1.0 - TRIMMED])
    kept = values[(values >= low) & (values <= high)]
    spread = float(np.clip(values, low, high).std(ddof=1))
    return float(kept.mean()), spread / ((1.0 - 2.0 * TRIMMED) * np.sqrt(len(values)))


def _is_separable(expected: Floats, observed: Floats, mixed: npt.NDArray[np.bool_]) -> bool:
    """Whether the excesses are sure enough to rule out a factor or a constant.

    Short steps have the excess e. A constant gives long steps e as well, a factor e times the
    ratio of their lengths. Either is ruled out if it is `SURE` standard errors from what the
    long steps have; without prompt chunks the longest tenth of the steps stands for them.
    """
    long = mixed
    if mixed.sum() < MIN_MIXED:
        long = expected >= np.quantile(expected, 0.9)
    short = ~mixed & (expected <= np.median(expected[~mixed])) if (~mixed).any() else ~long
    if long.sum() < MIN_MIXED or short.sum() < MIN_MIXED:
        return False
    ratio = float(np.median(expected[long]) / max(np.median(expected[short]), 1e-9))
    if ratio < MIN_LENGTH_RATIO:
        return False
    excess, error = _centre((observed - expected)[short])
    seen, seen_error = _centre((observed - expected)[long])

    def is_out(factor: float) -> bool:
        return abs(seen - excess * factor) >= SURE * float(np.hypot(error * factor, seen_error))

    return is_out(1.0) or is_out(ratio)


def _line(expected: Floats, observed: Floats) -> tuple[float, float]:
    """Robust line with relative errors: slope and intercept."""
    weight = 1.0 / np.maximum(expected, 1e-9)
    # Short steps are nearly all of the steps; long ones must weigh as a group as much.
    edges = np.quantile(expected, [0.0, 0.25, 0.5, 0.75, 1.0])
    group = np.clip(np.searchsorted(np.unique(edges), expected, side="right") - 1, 0, 3)
    long = expected > 2.0 * np.median(expected)
    group[long] = 4
    share = np.bincount(group, minlength=5).astype(np.float64)
    balance = 1.0 / share[group]
    huber = np.ones(len(expected))
    design = np.column_stack([expected, np.ones(len(expected))])
    beta = np.array([1.0, 0.0])
    for _ in range(ITERATIONS):
        total = weight * weight * balance * huber
        weighted = design * total[:, None]
        beta = np.linalg.lstsq(weighted.T @ design, weighted.T @ observed, rcond=None)[0]
        residual = (design @ beta - observed) * weight
        spread = 1.4826 * float(np.median(np.abs(residual))) + 1e-9
        huber = np.minimum(1.0, HUBER * spread / np.maximum(np.abs(residual), 1e-12))
    return float(beta[0]), float(beta[1])


def _through(
    expected: Floats, observed: Floats, mixed: npt.NDArray[np.bool_], line: tuple[float, float]
) -> tuple[float, float]:
    """The line, or the one through the centres of steps without and with prompt chunks.

    Where noise is small beside what the model gets wrong of a kind of step, a robust line may go
    by the many short steps alone and take the long ones for outliers. A line that surely misses
    the centre of the long steps, by more than the model's usual error, is not what they say.
    """
    if mixed.sum() < MIN_MIXED or (~mixed).sum() < MIN_MIXED:
        return line
    late, error = _centre((observed - expected)[mixed])
    at = float(np.mean(expected[mixed]))
    missed = abs((line[0] - 1.0) * at + line[1] - late)
    if missed <= SURE * error + MODEL_ERROR * at:
        return line
    late_short, _ = _centre((observed - expected)[~mixed])
    at_short = float(np.mean(expected[~mixed]))
    if at < MIN_LENGTH_RATIO * at_short:
        return line
    rise = (late - late_short) / (at - at_short)
    return 1.0 + rise, late_short - rise * at_short


def _block_interval(ratio: Floats) -> tuple[float, float]:
    """90 % interval of the median ratio, from the spread of medians of blocks of time."""
    blocks = [b for b in np.array_split(ratio, N_BLOCKS) if len(b)]
    medians = np.array([np.median(b) for b in blocks])
    centre = float(np.median(ratio))
    error = 1.645 * float(medians.std(ddof=1)) / np.sqrt(len(medians)) if len(medians) > 1 else 0.0
    return centre - error, centre + error
