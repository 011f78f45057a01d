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

MIN_SIDE = 25
MIN_RATIO = 1.5
MAX_TREND_OF_JUMP = 0.34
BLOCK = 8
N_PERMUTATIONS = 199
MAX_P = 0.01
SEED = 20_261_129


def find_rise(values: Floats) -> int | None:
    """Index of the first value of a new, higher regime, or None.

    Only rises: what asks for less work makes nothing slower.

    Args:
        values: positive, in time order; NaN and non-positive ones must be left out before.
    """
    if len(values) < 2 * MIN_SIDE:
        return None
    logs = np.log(values)
    at, height = _best_split(logs)
    if height < np.log(MIN_RATIO):
        return None
    before, after = logs[:at], logs[at:]
    if max(_trend(before), _trend(after)) > MAX_TREND_OF_JUMP * abs(height):
        return None
    rng = np.random.default_rng(SEED)
    blocks = np.array_split(logs, max(2, len(logs) // BLOCK))
    larger = 0
    for _ in range(N_PERMUTATIONS):
        shuffled = np.concatenate([blocks[i] for i in rng.permutation(len(blocks))])
        larger += abs(_best_split(shuffled)[1]) >= abs(height)
    return at if (larger + 1) / (N_PERMUTATIONS + 1) <= MAX_P else None


def _best_split(logs: Floats) -> tuple[int, float]:
    """The split with the largest weighted difference of means, and that difference."""
    n = len(logs)
    left = np.arange(1, n)
    sums = np.cumsum(logs)[:-1]
    difference = (logs.sum() - sums) / (n - left) - sums / left
    score = np.abs(difference) * np.sqrt(left * (n - left)) / n
    score[(left < MIN_SIDE) | (n - left < MIN_SIDE)] = 0.0
    best = int(np.argmax(score))
    return int(left[best]), float(difference[best])


def _trend(logs: Floats) -> float:
    """How far a side moves in itself: its second half's median against its first half's."""
    half = len(logs) // 2
    return abs(float(np.median(logs[half:]) - np.median(logs[:half])))
