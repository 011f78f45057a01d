"""The rhythm of stops: found though many were not seen, and not in stops at random times."""

from __future__ import annotations

import numpy as np
from tokenlag.explain.stoppage import rhythm

NS = 1_000_000_000
SPAN_S = 100.0


def stops(at_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return ((at_s + 0.2) * NS).astype(np.int64), np.full(len(at_s), 200.0)


def test_stops_at_random_times_have_no_rhythm() -> None:
    rng = np.random.default_rng(1)
    regular = 0
    for _ in range(500):
        found = rhythm(*stops(np.sort(rng.uniform(0, SPAN_S, rng.integers(6, 60)))))
        regular += found is not None and found.spacing_cv <= 0.15
    assert regular <= 0.01 * 500


def test_a_period_shows_though_most_stops_fell_into_idle_times() -> None:
    rng = np.random.default_rng(2)
    n_tried, n_found = 0, 0
    for _ in range(200):
        period = rng.uniform(1.2, 4.0)
        ticks = np.arange(0.0, SPAN_S, period)
        seen = ticks[rng.random(len(ticks)) < 0.4]
        if len(seen) < 10:
            continue
        # The first step after the tick is hit, wherever that is.
        found = rhythm(*stops(seen + rng.exponential(0.03 * period, len(seen))))
        n_tried += 1
        n_found += found is not None and (
            abs(found.period_s - period) <= 0.02 * period and found.spacing_cv <= 0.15
        )
    assert n_found >= 0.9 * n_tried


def test_every_stop_seen_is_the_plain_case() -> None:
    found = rhythm(*stops(np.arange(0.0, 30.0, 1.5)))
    assert found is not None
    assert abs(found.period_s - 1.5) < 1e-6
    assert found.spacing_cv < 1e-6
