"""Whether requests alone tell that their tokens became slower within the window.

Where engine steps were not recorded nothing says why; that it happened must not be called healthy.
More company in the engine lengthens the time per token as well: what a neighbour costs is taken
from short stretches of time, in which the speed is one, and put aside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenlag.explain.changepoint import at_one_batch, find_rise
from tokenlag.judge.figures import Requests

Floats = npt.NDArray[np.float64]

# As much as makes a mean count as risen over a baseline.
MIN_RATIO = 1.3
MIN_OUTPUT = 8
MIN_REQUESTS = 80
MAX_BINS = 240
MAX_ENGINES = 8
LEAST_LEVEL = 0.05


@dataclass(frozen=True)
class Drift:
    """By what factor tokens became slower, and on which engine alone; None where on all."""

    ratio: float
    engine: str | None


def token_drift(requests: Requests) -> Drift | None:
    """By what factor the time per token rose for good within the window, at equal company.

    Of all requests, or of those of one engine where that alone became slower. Rather too low:
    slower tokens keep streams longer, and a part is booked to the company. None if it did not, or
    if too few requests tell it.
    """
    tpot, n_output = requests.floats("tpot_ms"), requests.floats("n_output")
    ttft, arrival = requests.floats("ttft_ms"), requests.floats("arrival_ns") / 1e6
    known = np.isfinite(tpot) & np.isfinite(ttft) & (tpot > 0) & (n_output >= MIN_OUTPUT)
    if known.sum() < MIN_REQUESTS:
        return None
    first = arrival + ttft
    end = first + tpot * (n_output - 1)
    streams, prompts = np.zeros(len(tpot)), np.zeros(len(tpot))
    n_new = np.nan_to_num(requests.floats("n_new"), nan=0.0)
    engines = np.array([str(e) for e in requests.objects("engine_id").tolist()])
    names, counts = np.unique(engines[known], return_counts=True)
    for engine in names:
        here = known & (engines == engine)
        streams[here] = _mean_count(first[here], end[here])
        prompts[here] = _rate(first[here], n_new[here], end[here])

    def rise(chosen: npt.NDArray[np.bool_]) -> float | None:
        return _rise(at_one_batch(tpot[chosen], streams[chosen], prompts[chosen]))

    # The more engines are asked, the more often chance answers.
    if 1 < len(names) <= MAX_ENGINES:
        each = [(rise(known & (engines == e)), e) for e in names[counts >= MIN_REQUESTS].tolist()]
        slower = [Drift(ratio, engine) for ratio, engine in each if ratio is not None]
        if len(slower) == 1:
            return slower[0]
    ratio = rise(known)
    return None if ratio is None else Drift(ratio, None)


def _rise(level: Floats) -> float | None:
    """The factor by which a level rises for good, or None."""
    parts = np.array_split(np.maximum(level, LEAST_LEVEL), min(MAX_BINS, len(level)))
    series = np.array([float(np.median(part)) for part in parts])
    at = find_rise(series, min_ratio=MIN_RATIO, climbs=True)
    if at is None:
        return None
    return float(np.exp(np.log(series[at:]).mean() - np.log(series[:at]).mean()))


def _mean_count(start: Floats, end: Floats) -> Floats:
    """How many of the intervals are open, on average over each of them."""
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    times = at[order]
    n_open = np.cumsum(np.concatenate([np.ones(len(start)), -np.ones(len(end))])[order])
    area = np.concatenate([[0.0], np.cumsum(n_open[:-1] * np.diff(times))])
    within = np.interp(end, times, area) - np.interp(start, times, area)
    return np.asarray(within / np.maximum(end - start, 1e-9), dtype=np.float64)


def _rate(first: Floats, n_new: Floats, end: Floats) -> Floats:
    """Prompt tokens of others whose first token falls into each interval, by its length."""
    order = np.argsort(first)
    total = np.concatenate([[0.0], np.cumsum(n_new[order])])
    times = first[order]
    inside = total[np.searchsorted(times, end)] - total[np.searchsorted(times, first, "right")]
    return np.asarray(inside / np.maximum(end - first, 1e-9), dtype=np.float64)
