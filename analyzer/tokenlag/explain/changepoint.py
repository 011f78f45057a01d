"""Where the traffic's make-up changes within a window, when the user names no baseline.

One split, by the largest difference of means of a log series, kept if a permutation of
blocks of time rarely gives as large a difference, the change is big, and either side is
level: a slow climb (a conversation that grows) is no step. See docs/comparison.md.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_SIDE = 20  # as many as any other baseline has: fewer may be a warm-up
MIN_BINS_A_SIDE = 8
REQUESTS_A_BIN = 15
MAX_BINS = 60
MIN_RATIO = 1.5
MIN_SLOWER = 1.1
STEPS_A_BIN = 25
FEWEST_STEPS_A_BIN = 3  # a median of three still bears one pause
FEWEST_BINS = 40
MAX_TREND_OF_JUMP = 0.34
MIN_GAIN_OVER_CLIMB = 3.0
CLIMB_ITERATIONS = 12
MIN_CLIMB_FRAC = 0.2  # of the series
MIN_GAIN_OF_CLIMB = 4.0
BLOCK = 8
N_PERMUTATIONS = 199
MAX_P = 0.01
N_STRETCHES = 20
# Steps that are off by more than this share of a usual one (pauses) weigh less.
NEAR_FRAC = 0.1
FIT_ROUNDS = 6
SEED = 20_261_129


def find_more_arrivals(arrival_ns: Ints) -> int | None:
    """Time at which arrivals become denser for good, or None.

    Counts in equal bins of time (at least about `REQUESTS_A_BIN` each, so that chance does not
    make a step) are searched as any other series; too few arrivals for bins, by their spacing.

    Args:
        arrival_ns: sorted.
    """
    n_bins = min(MAX_BINS, len(arrival_ns) // REQUESTS_A_BIN)
    if n_bins < 2 * MIN_BINS_A_SIDE:
        return _find_denser(arrival_ns)
    edges = np.linspace(arrival_ns[0], arrival_ns[-1], n_bins + 1)
    counts = np.histogram(arrival_ns, edges)[0]
    at = find_rise(np.maximum(counts, 0.5), MIN_BINS_A_SIDE)
    return None if at is None else int(edges[at])


def _find_denser(arrival_ns: Ints) -> int | None:
    """Where few arrivals become denser: the split of the spacings that is likeliest by far.

    Spacings of arrivals at their own times are exponential, so the likelihood of two rates
    against one is exact; how high it gets by chance is again asked of permuted blocks.
    """
    gaps = np.maximum(np.diff(arrival_ns), 1).astype(np.float64)
    if len(gaps) < 2 * MIN_SIDE:
        return None
    at, gain = _best_rates(gaps)
    if gain <= 0:
        return None
    before, after = gaps[:at], gaps[at:]
    height = np.log(before.mean() / after.mean())
    if height < np.log(MIN_RATIO):
        return None
    if gain < _climb_gain(arrival_ns) + MIN_GAIN_OVER_CLIMB:
        return None
    blocks = np.array_split(gaps, max(2, len(gaps) // BLOCK))
    rng = np.random.default_rng(SEED)
    larger = 0
    for _ in range(N_PERMUTATIONS):
        shuffled = np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
        larger += _best_rates(shuffled)[1] >= gain
    if (larger + 1) / (N_PERMUTATIONS + 1) > MAX_P:
        return None
    return int(arrival_ns[at])


def _best_rates(gaps: Floats) -> tuple[int, float]:
    """The split into a lower and then a higher rate with the largest gain in log likelihood."""
    n = len(gaps)
    left = np.arange(1, n)
    sums, total = np.cumsum(gaps)[:-1], float(gaps.sum())
    first, second = sums / left, (total - sums) / (n - left)
    gain = n * np.log(total / n) - left * np.log(first) - (n - left) * np.log(second)
    gain[(left < MIN_SIDE) | (n - left < MIN_SIDE) | (second >= first)] = 0.0
    best = int(np.argmax(gain))
    return int(left[best]), float(gain[best])


def _climb_gain(arrival_ns: Ints) -> float:
    """Gain in log likelihood of a rate that climbs (or falls) steadily over one that stays."""
    at = (arrival_ns[1:] - arrival_ns[0]) / float(arrival_ns[-1] - arrival_ns[0])
    mean, slope = float(at.mean()), 0.0
    for _ in range(CLIMB_ITERATIONS):
        # The rate is exp(slope · t) over its integral: one Newton step on d log L / d slope.
        grid = np.linspace(0.0, 1.0, 201)
        weight = np.exp(slope * grid)
        weight /= weight.sum()
        centre = float((weight * grid).sum())
        spread = float((weight * (grid - centre) ** 2).sum())
        slope = float(np.clip(slope + (mean - centre) / spread, -20.0, 20.0))
    integral = np.expm1(slope) / slope if abs(slope) > 1e-9 else 1.0
    return float(len(at) * (slope * mean - np.log(integral)))


def at_one_batch(wall_ms: Floats, n_decode: Floats, n_context: Floats) -> Floats:
    """Decode-only steps as if all had one batch and context, over their median.

    What a sequence and a token of context cost is taken from steps of the same twentieth of the
    time alone: slower steps keep streams longer, so that speed and batch change together over the
    whole, but within a short stretch the batch goes up and down while the speed is one.

    Args:
        wall_ms: in time order.
        n_decode: sequences that decode in each step.
        n_context: KV tokens that they attend to.
    """
    if len(wall_ms) == 0:
        return wall_ms
    held = np.column_stack([n_decode, n_context]).astype(np.float64)
    scale = np.maximum(held.std(axis=0), 1e-9)
    parts = [part for part in np.array_split(np.arange(len(wall_ms)), N_STRETCHES) if len(part)]
    x = np.concatenate([held[part] - held[part].mean(axis=0) for part in parts]) / scale
    y = np.concatenate([wall_ms[part] - np.median(wall_ms[part]) for part in parts])
    near_ms = NEAR_FRAC * float(np.median(wall_ms))
    weight = np.ones(len(y))
    for _ in range(FIT_ROUNDS):
        beta = np.linalg.lstsq(x * weight[:, None], y * weight, rcond=None)[0]
        off = np.abs(x @ beta - y)
        weight = np.sqrt(np.minimum(1.0, near_ms / np.maximum(off, 1e-9)))
    price = np.maximum(beta / scale, 0.0)
    level = wall_ms - (held - held.mean(axis=0)) @ price
    return np.asarray(level / max(float(np.median(level)), 1e-9), dtype=np.float64)


def find_slower(end_ns: Ints, ratio: Floats) -> int | None:
    """Time at which steps become slower for their batch for good, or None.

    The series is the median ratio of observed to expected step time in bins of equally many
    steps: far quieter than any latency, so that a tenth can be seen.

    Args:
        end_ns: ends of the steps, sorted.
        ratio: observed over expected, same length.
    """
    n_bins = min(MAX_BINS, len(end_ns) // STEPS_A_BIN)
    # Few steps (those with prompt chunks may be) make smaller bins; their noise is permuted too.
    n_bins = max(n_bins, min(FEWEST_BINS, len(end_ns) // FEWEST_STEPS_A_BIN))
    if n_bins < 2 * MIN_BINS_A_SIDE:
        return None
    parts = np.array_split(np.arange(len(end_ns)), n_bins)
    series = np.array([float(np.median(ratio[part])) for part in parts])
    at = find_rise(np.maximum(series, 1e-6), MIN_BINS_A_SIDE, MIN_SLOWER, climbs=True)
    return None if at is None else int(end_ns[parts[at][0]])


def find_rise(
    values: Floats,
    min_side: int = MIN_SIDE,
    min_ratio: float = MIN_RATIO,
    min_rise: float = 0.0,
    *,
    climbs: bool = False,
) -> int | None:
    """Index of the first value of a new, higher regime, or None.

    Only rises: what asks for less work makes nothing slower.

    Args:
        values: positive, in time order; NaN and non-positive ones must be left out before.
        min_side: how many values each regime must have.
        min_ratio: how much higher the new regime must be.
        min_rise: the least difference of the two regimes' medians, in the series' own unit.
        climbs: a rise over a real part of the series counts as well (an hour of the day does
            that to arrivals; of what a step costs it is a fault).
    """
    if len(values) < 2 * min_side:
        return None
    logs = np.log(values)
    at, height, score = _best_split(logs, min_side)
    if height < np.log(min_ratio):
        return None
    if np.median(values[at:]) - np.median(values[:at]) < min_rise:
        return None
    before, after = logs[:at], logs[at:]
    if max(_trend(before), _trend(after)) > MAX_TREND_OF_JUMP * abs(height):
        return None
    if not climbs and _is_climb(logs):
        return None
    rng = np.random.default_rng(SEED)
    block = min(BLOCK, max(1, len(logs) // 16))
    blocks = np.array_split(logs, max(2, len(logs) // block))
    larger = 0
    for _ in range(N_PERMUTATIONS):
        shuffled = np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
        larger += _best_split(shuffled, min_side)[2] >= score
    return at if (larger + 1) / (N_PERMUTATIONS + 1) <= MAX_P else None


def _best_split(logs: Floats, min_side: int) -> tuple[int, float, float]:
    """The split with the largest weighted difference of means, that difference and its weight."""
    n = len(logs)
    left = np.arange(1, n)
    sums = np.cumsum(logs)[:-1]
    difference = (logs.sum() - sums) / (n - left) - sums / left
    score = np.abs(difference) * np.sqrt(left * (n - left)) / n
    score[(left < min_side) | (n - left < min_side)] = 0.0
    best = int(np.argmax(score))
    return int(left[best]), float(difference[best]), float(score[best])


def _is_climb(logs: Floats) -> bool:
    """Whether a level that climbs to another for a while fits clearly better than a step.

    By log likelihood, of means of at most `MAX_BINS` bins; their noise is that of neighbours.
    """
    parts = np.array_split(logs, min(MAX_BINS, len(logs)))
    means = np.array([float(part.mean()) for part in parts])
    n = len(means)
    if n < 2 * MIN_BINS_A_SIDE:
        return False
    variance = float((np.diff(means) ** 2).mean()) / 2.0
    place = np.arange(n, dtype=np.float64)
    begin, end = np.triu_indices(n, 1)
    ramp = np.clip((place - begin[:, None]) / (end - begin)[:, None], 0.0, 1.0)
    ramp -= ramp.mean(axis=1, keepdims=True)
    explained = (ramp @ (means - means.mean())) ** 2 / (ramp**2).sum(axis=1)
    # A step may fall into the middle of a bin.
    step = float(explained[end - begin <= 2].max())
    climb = float(explained[end - begin >= MIN_CLIMB_FRAC * n].max())
    return climb - step > 2.0 * MIN_GAIN_OF_CLIMB * variance


def _trend(logs: Floats) -> float:
    """How far a side moves in itself: its second half's level against its first half's.

    A climb moves the median and the mean. Of two kinds of requests (first turns and later ones)
    the median jumps from one to the other by chance, and a few giants move the mean alone.
    """
    first, second = logs[: len(logs) // 2], logs[len(logs) // 2 :]
    moved = (np.median(second) - np.median(first), np.mean(second) - np.mean(first))
    return min(abs(float(value)) for value in moved)
