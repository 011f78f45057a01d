"""The step model: what an engine step of a given batch costs.

    t = base + per_seq·n + per_token·max(0, T − knee)
        + per_attention·Σ c(k + c/2) + per_context·Σ ctx

with n decoding sequences, T scheduled tokens (prompt tokens + n), prompt chunks of c tokens
on k tokens already in the KV cache, and ctx the contexts that the decoding sequences attend
to. Times in milliseconds. One model for an engine epoch; see docs/step-model.md for where
the form comes from, and why its error is told for steps with prompt chunks apart.

The fit is robust (Huber weights on relative residuals, iterated), its coefficients are
non-negative (exact, by trying the supports of five columns), the knee is chosen on a grid.
The last quarter of the time is held out to tell the error.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

MIN_STEPS = 30
MIN_CHUNK_STEPS = 8
MIN_CHUNK_SIZES = 3
MIN_DECODE_FOR_KNEE = 500
MIN_MIXED_FOR_KNEE = 200
KNEES = (0.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0, 512.0, 768.0, 1024.0)
MAX_FIT_ROWS = 12_000
HOLD_OUT_FRAC = 0.25
HUBER = 1.5
ITERATIONS = 8


@dataclass(frozen=True)
class StepArrays:
    """Steps of one epoch in time order; equal lengths, milliseconds and counts."""

    cadence_ms: Floats
    n_prefill_tokens: Floats
    n_decode: Floats
    attention_work: Floats
    n_context_tokens: Floats
    usable: Bools = field(repr=False)
    """False where the record should not shape the fit: after a hole, after idling, zero length."""


@dataclass(frozen=True)
class StepModel:
    """A fitted model of one epoch.

    `level` says how much of it could be fitted: 'hinge' (all of it), 'linear' (knee at 0: too
    few steps with chunks to place it), 'decode' (no price for prompt chunks), 'none'.
    Errors are medians of |relative residual| on held-out steps; None where none were held out.
    """

    level: str
    reason: str | None
    n_steps: int
    n_decode_steps: int
    n_mixed_steps: int
    base_ms: float = 0.0
    per_seq_ms: float = 0.0
    per_token_ms: float = 0.0
    knee_tokens: float = 0.0
    per_attention_ms: float = 0.0
    per_context_ms: float = 0.0
    error_decode_frac: float | None = None
    error_mixed_frac: float | None = None
    residual_sd_frac: float | None = None

    @property
    def has_prefill(self) -> bool:
        """Whether prompt chunks have a fitted price."""
        return self.level in ("hinge", "linear")

    @property
    def has_decode(self) -> bool:
        """Whether decode-only steps have a fitted price."""
        return self.level != "none"

    def predict(
        self, n_prefill: Floats, n_decode: Floats, attention: Floats, ctx: Floats
    ) -> Floats:
        """Milliseconds for steps of these batches."""
        over_knee = _over_knee(n_prefill, n_decode, self.knee_tokens)
        return np.asarray(
            self.base_ms
            + self.per_seq_ms * n_decode
            + self.per_token_ms * over_knee
            + self.per_attention_ms * attention
            + self.per_context_ms * ctx,
            dtype=np.float64,
        )

    def alone_prefill_ms(self, n_new: Floats, n_cached: Floats, budget: float | None) -> Floats:
        """A prompt's prefill with the engine to itself: its chunks one after another.

        Args:
            n_new: tokens to compute.
            n_cached: tokens whose KV is there.
            budget: tokens a step may take; None = the whole prompt in one step.
        """
        size = np.inf if not budget else float(budget)
        n_full = np.floor(n_new / size) if np.isfinite(size) else np.zeros_like(n_new)
        rest = n_new - n_full * (size if np.isfinite(size) else 0.0)
        n_chunks = n_full + (rest > 0)
        over = np.maximum(0.0, rest - self.knee_tokens)
        if np.isfinite(size):
            over = over + n_full * max(0.0, size - self.knee_tokens)
        attention = n_new * (n_cached + n_new / 2.0)
        return np.asarray(
            n_chunks * self.base_ms + self.per_token_ms * over + self.per_attention_ms * attention,
            dtype=np.float64,
        )

    def alone_itl_ms(self, context: Floats) -> Floats:
        """A stream's time between tokens with the engine to itself, at this context length."""
        ones = np.ones_like(context)
        return self.predict(np.zeros_like(context), ones, np.zeros_like(context), context)


def _over_knee(n_prefill: Floats, n_decode: Floats, knee: float) -> Floats:
    """Tokens that cost by the token. Without a knee those of prompts alone.

    Below a knee tokens ride free, so decoding ones count towards it; a line without a knee
    already prices decoding sequences by their own term.
    """
    if knee <= 0:
        return n_prefill
    return np.asarray(np.maximum(0.0, n_prefill + n_decode - knee), dtype=np.float64)


def fit(steps: StepArrays) -> StepModel:
    """Fits one epoch. Never raises: what cannot be fitted is said in `level` and `reason`."""
    usable = steps.usable & (steps.cadence_ms > 0)
    n_steps = int(usable.sum())
    mixed = usable & (steps.n_prefill_tokens > 0)
    n_mixed, n_decode = int(mixed.sum()), int((usable & ~mixed).sum())
    empty = StepModel("none", None, n_steps, n_decode, n_mixed)
    if n_steps < MIN_STEPS:
        return replace(empty, reason=f"{n_steps} usable steps, at least {MIN_STEPS} are needed")
    n_sizes = len(np.unique(steps.n_prefill_tokens[mixed]))
    can_price_chunks = n_mixed >= MIN_CHUNK_STEPS and n_sizes >= MIN_CHUNK_SIZES
    if not can_price_chunks and n_decode < MIN_STEPS:
        return replace(
            empty, reason=f"{n_decode} decode-only steps and {n_sizes} sizes of prompt chunks"
        )
    can_place_knee = n_mixed >= MIN_MIXED_FOR_KNEE and n_decode >= MIN_DECODE_FOR_KNEE
    knees = KNEES if can_place_knee else (0.0,)
    rows = _fit_rows(usable, mixed) if can_price_chunks else _fit_rows(usable & ~mixed, mixed)
    train = rows[rows < _hold_out_from(usable)]
    held = np.flatnonzero(usable)[np.flatnonzero(usable) >= _hold_out_from(usable)]
    level = "hinge" if can_place_knee else ("linear" if can_price_chunks else "decode")
    reason = None
    if level == "linear":
        reason = f"{n_mixed} steps with prompt chunks: too few to place a knee"
    elif level == "decode":
        reason = f"{n_mixed} steps with prompt chunks of {n_sizes} sizes: too few to price them"
    enough_train = len(train) >= MIN_STEPS and (not can_price_chunks or bool(mixed[train].any()))
    early = fit_rows(steps, train if enough_train else rows, knees)
    error_decode, error_mixed = _errors(steps, early, held if enough_train else rows, mixed)
    beta, knee = fit_rows(steps, rows, knees)
    model = StepModel(
        level, reason, n_steps, n_decode, n_mixed,
        *_coefficients(beta, knee),
        error_decode_frac=error_decode,
        error_mixed_frac=error_mixed if can_price_chunks else None,
    )  # fmt: skip
    relative = _relative_residual(
        steps, (beta, knee), np.flatnonzero(usable & (~mixed | can_price_chunks))
    )
    spread = 1.4826 * float(np.median(np.abs(relative - np.median(relative))))
    return replace(model, residual_sd_frac=spread)


def _coefficients(beta: Floats, knee: float) -> tuple[float, float, float, float, float, float]:
    base, per_seq, per_token, per_attention, per_context = (float(b) for b in beta)
    return base, per_seq, per_token, knee, per_attention, per_context


def _hold_out_from(usable: Bools) -> int:
    """Index of the first held-out step: the last quarter of the usable ones, in time."""
    where = np.flatnonzero(usable)
    return int(where[int(len(where) * (1.0 - HOLD_OUT_FRAC))])


def _fit_rows(usable: Bools, mixed: Bools) -> npt.NDArray[np.int64]:
    """At most `MAX_FIT_ROWS` rows, evenly over time, half of them with chunks if there are so many.

    Decode-only steps are nine tenths and more of all; an even sample would fit them alone.
    """
    with_chunks = np.flatnonzero(usable & mixed)
    without = np.flatnonzero(usable & ~mixed)
    half = MAX_FIT_ROWS // 2
    picked = np.concatenate([_evenly(with_chunks, half), _evenly(without, half)])
    return np.sort(picked).astype(np.int64)


def _evenly(where: npt.NDArray[np.intp], n: int) -> npt.NDArray[np.intp]:
    if len(where) <= n:
        return where
    return where[np.linspace(0, len(where) - 1, n).astype(np.intp)]


def _columns(steps: StepArrays, rows: npt.NDArray[np.int64], knee: float) -> Floats:
    return np.column_stack([
        np.ones(len(rows)),
        steps.n_decode[rows],
        _over_knee(steps.n_prefill_tokens[rows], steps.n_decode[rows], knee),
        steps.attention_work[rows],
        steps.n_context_tokens[rows],
    ])  # fmt: skip


def fit_rows(
    steps: StepArrays, rows: npt.NDArray[np.int64], knees: tuple[float, ...]
) -> tuple[Floats, float]:
    """Best coefficients and knee on these rows, by the trimmed sum of relative residuals.

    Returns:
        Base, and the prices of a sequence, a token, attention work and a context token, in
        milliseconds; and the knee, in tokens.
    """
    best: tuple[float, Floats, float] | None = None
    for knee in knees:
        columns = _columns(steps, rows, knee)
        beta = _robust_non_negative(columns, steps.cadence_ms[rows])
        relative = np.abs(columns @ beta / steps.cadence_ms[rows] - 1.0)
        loss = _balanced_loss(relative, steps.n_prefill_tokens[rows] > 0)
        # A later knee must earn its place: noise alone makes neighbours on the grid differ by less.
        if best is None or loss < best[0] * 0.995:
            best = (loss, beta, knee)
    assert best is not None
    return best[1], best[2]


def predict_rows(
    steps: StepArrays, rows: npt.NDArray[np.int64], fitted: tuple[Floats, float]
) -> Floats:
    """Milliseconds for these rows by coefficients and knee of `fit_rows`."""
    beta, knee = fitted
    return np.asarray(_columns(steps, rows, knee) @ beta, dtype=np.float64)


def _balanced_loss(relative: Floats, mixed: Bools) -> float:
    """Trimmed mean of the residuals; steps with and without chunks weigh alike."""
    parts = []
    for part in (relative[mixed], relative[~mixed]):
        if len(part):
            keep = max(1, int(len(part) * 0.9))
            parts.append(float(np.partition(part, keep - 1)[:keep].mean()))
    return sum(parts) / len(parts)


def _robust_non_negative(columns: Floats, t: Floats) -> Floats:
    """Huber regression of relative residuals with coefficients ≥ 0."""
    scaled = columns / t[:, None]
    norms = np.sqrt((scaled**2).sum(axis=0))
    used = norms > 0
    unit = scaled[:, used] / norms[used]
    target = np.ones(len(t))
    weights = np.ones(len(t))
    beta = np.ones(int(used.sum()))  # all columns are tried first, then those of the last round
    for _ in range(ITERATIONS):
        weighted = unit * weights[:, None]
        beta = _non_negative(weighted.T @ unit, weighted.T @ target, beta > 0)
        residual = unit @ beta - target
        spread = 1.4826 * float(np.median(np.abs(residual))) + 1e-9
        weights = np.minimum(1.0, HUBER * spread / np.maximum(np.abs(residual), 1e-12))
    full = np.zeros(columns.shape[1])
    full[used] = beta / norms[used]
    return full


def _non_negative(gram: Floats, moment: Floats, first: Bools) -> Floats:
    """Exact non-negative least squares for a handful of columns: the best feasible support.

    Args:
        gram: columns by columns.
        moment: columns by target.
        first: the support to try before the others, as that of nearly the same problem.

    Returns:
        The coefficients: on the first support at which none is negative and none outside it
        would lessen the sum of squares (the problem is convex, so that this is the least); where
        rounding leaves none, on the best feasible one.
    """
    n = len(moment)
    gram = gram + 1e-10 * np.eye(n)
    slack = 1e-12 * float(np.abs(moment).max(initial=0.0))
    best_value, best = 0.0, np.zeros(n)
    for support in (np.flatnonzero(first), *_supports(n)):
        part, wanted = gram[np.ix_(support, support)], moment[support]
        try:
            found = np.linalg.solve(part, wanted)
        except np.linalg.LinAlgError:
            continue
        if (found < 0).any():
            continue
        beta = np.zeros(n)
        beta[support] = found
        downhill = moment - gram @ beta
        downhill[support] = 0.0
        if (downhill <= slack).all():
            return beta
        value = float(found @ part @ found - 2.0 * found @ wanted)
        if value < best_value - 1e-15:
            best_value, best = value, beta
    return best


@functools.cache
def _supports(n: int) -> tuple[npt.NDArray[np.intp], ...]:
    """Every set of so many columns, the largest first."""
    return tuple(
        np.array(support, dtype=np.intp)
        for size in range(n, 0, -1)
        for support in itertools.combinations(range(n), size)
    )


def _relative_residual(
    steps: StepArrays, fitted: tuple[Floats, float], rows: npt.NDArray[np.intp]
) -> Floats:
    predicted = predict_rows(steps, rows.astype(np.int64), fitted)
    return np.asarray(steps.cadence_ms[rows] / np.maximum(predicted, 1e-9) - 1.0, dtype=np.float64)


def _errors(
    steps: StepArrays, fitted: tuple[Floats, float], rows: npt.NDArray[np.int64], mixed: Bools
) -> tuple[float | None, float | None]:
    errors: list[float | None] = []
    for wanted in (rows[~mixed[rows]], rows[mixed[rows]]):
        if len(wanted) == 0:
            errors.append(None)
            continue
        predicted = predict_rows(steps, wanted.astype(np.int64), fitted)
        t = steps.cadence_ms[wanted]
        errors.append(float(np.median(np.abs(predicted / t - 1.0))))
    return errors[0], errors[1]
