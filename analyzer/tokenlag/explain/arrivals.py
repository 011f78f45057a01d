"""How the load arrives: from users at their own times, or from clients that wait for answers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MIN_ARRIVALS = 8
CLOSE_FRAC = 0.1
CLOSED_SHARE = 0.8
CONSTANT_SHARE = 0.9
MIN_ARRIVALS_CONSTANT = 12
MIN_WAVE = 4
WAVE_DENSITY = 3.0


def is_closed_loop(arrival_ns: Ints, end_ns: Ints) -> bool:
    """Whether the load is a fixed number of clients that each wait for their answer.

    Either each arrival follows a completion at once: with arrivals at their own times, the time
    since the latest completion is under a tenth of the mean spacing of arrivals for about a
    tenth of them. Or the number in flight that an arrival finds is nearly always the same: at
    their own times it varies as the root of its mean. Such a queue is set by the number of
    clients, and says nothing of what users would wait.

    Args:
        arrival_ns: sorted arrivals, as sent by the client.
        end_ns: completions, any order; those unknown left out.
    """
    first_end = int(end_ns.min()) if len(end_ns) else None
    if first_end is None:
        return False
    later = arrival_ns[arrival_ns >= first_end]
    if len(later) < MIN_ARRIVALS:
        return False
    ends = np.sort(end_ns)
    since = later - ends[np.searchsorted(ends, later, side="right") - 1]
    # The mean: answers that end with one step send their clients' next requests at one moment.
    spacing = float(later[-1] - later[0]) / (len(later) - 1)
    # Completions denser than arrivals are near to everything; then nothing follows from it.
    if spacing > 0 and float((since < CLOSE_FRAC * spacing).mean()) >= CLOSED_SHARE:
        return True
    return _is_constant(arrival_ns, ends, later)


def _is_constant(arrival_ns: Ints, ends: Ints, later: Ints) -> bool:
    """Whether arrivals after the first completion find one number in flight, or one less."""
    if len(later) < MIN_ARRIVALS_CONSTANT:
        return False
    began = np.searchsorted(arrival_ns, later, side="left")
    ended = np.searchsorted(ends, later, side="right")
    counts = np.bincount(np.maximum(began - ended, 0))
    usual = int(np.argmax(counts))
    # An idle engine between lone requests is no constant load.
    if usual < 1:
        return False
    return float(counts[usual - 1 : usual + 1].sum() / counts.sum()) >= CONSTANT_SHARE


def first_wave(arrival_ns: Ints, first_token_ns: Ints) -> Bools:
    """Requests sent together into an idle engine when the data begin, before any got a token.

    Their waits show the start of a test, not the service. Fewer than `MIN_WAVE`, or no denser
    than arrivals are anyway, is no wave.

    Args:
        arrival_ns: sorted arrivals.
        first_token_ns: first tokens, any order; those unknown left out.
    """
    none = np.zeros(len(arrival_ns), dtype=bool)
    if len(arrival_ns) < 2 or len(first_token_ns) == 0:
        return none
    until = int(first_token_ns.min())
    wave = arrival_ns <= until
    n_wave, n_later = int(wave.sum()), int((~wave).sum())
    if n_wave < MIN_WAVE:
        return none
    length = max(int(until - arrival_ns[0]), 1)
    rest = max(int(arrival_ns[-1]) - until, 1)
    return wave if n_wave / length >= WAVE_DENSITY * max(n_later / rest, 1e-30) else none
