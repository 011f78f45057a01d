"""The rhythm of stops: found though many were not seen, and not in stops at random times.

And a jump at a batch size, which steps that became slower in time are not.
"""

from __future__ import annotations

import numpy as np
from tokenlag.explain.stoppage import find_ceiling, outstanding, rhythm

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


def _with_noise(rng: np.random.Generator, at_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stops of half a second, and beside them many of some tens of ms at random times."""
    small = rng.uniform(0, SPAN_S, 60)
    end = ((np.concatenate([at_s + 0.5, small])) * NS).astype(np.int64)
    size = np.concatenate([rng.uniform(480, 560, len(at_s)), rng.uniform(40, 160, 60)])
    order = np.argsort(end)
    return end[order], size[order]


def test_long_stops_keep_their_rhythm_on_a_machine_with_many_short_ones() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        end, size = _with_noise(rng, np.arange(1.0, SPAN_S, rng.uniform(2.5, 8.0)))
        large = outstanding(size)
        assert set(size[large] > 400) == {True}
        found = rhythm(end[large], size[large])
        assert found is not None
        assert found.spacing_cv < 0.05


def test_long_stops_at_random_times_are_set_apart_and_have_no_rhythm() -> None:
    rng = np.random.default_rng(4)
    regular = 0
    for _ in range(300):
        end, size = _with_noise(rng, np.sort(rng.uniform(0, SPAN_S, rng.integers(8, 30))))
        large = outstanding(size)
        found = rhythm(end[large], size[large])
        regular += found is not None and found.spacing_cv <= 0.15
    assert regular <= 0.02 * 300


def test_nothing_stands_out_where_sizes_have_no_break_or_the_small_ones_cost_more() -> None:
    rng = np.random.default_rng(5)
    assert not outstanding(rng.uniform(100, 200, 40)).any()
    assert not outstanding(np.concatenate([np.full(6, 400.0), np.full(60, 60.0)])).any()
    assert not outstanding(np.full(3, 100.0)).any()


def _batches(rng: np.random.Generator) -> np.ndarray:
    """A batch that climbs over 2,000 steps from about 10 to about 30, up and down by chance."""
    slow = np.linspace(10, 30, 2000) + 4 * np.sin(np.arange(2000) / 15)
    return np.round(slow).astype(np.int64) + rng.integers(-1, 2, 2000)


def test_a_jump_above_a_size_is_a_ceiling() -> None:
    rng = np.random.default_rng(6)
    batch = _batches(rng)
    wall = (10 + 0.1 * batch + 6.0 * (batch > 22)) * rng.lognormal(0, 0.02, len(batch))
    found = find_ceiling(wall, batch, 100.0 * batch)
    assert found is not None
    assert found.threshold == 22
    assert abs(found.jump_ms - 6) < 1


def test_steps_that_became_slower_while_the_batch_grew_are_no_ceiling() -> None:
    """At one time by a constant, when the batch passed a size for good."""
    rng = np.random.default_rng(7)
    batch = np.where(np.arange(2000) < 1000, rng.integers(8, 20, 2000), rng.integers(17, 30, 2000))
    later = np.arange(len(batch)) >= 1000
    wall = (10 + 0.1 * batch + 6.0 * later) * rng.lognormal(0, 0.02, len(batch))
    assert find_ceiling(wall, batch, 100.0 * batch) is None


def _filled(empties: bool) -> np.ndarray:
    """A batch that fills up within some steps and stays; and empties at the end, or not."""
    parts = [np.repeat(np.arange(3, 9), 20), np.arange(9, 40, 2), np.repeat(np.arange(40, 60), 10)]
    if empties:
        parts += [np.arange(38, 9, -3), np.repeat(np.arange(8, 2, -1), 5)]
    return np.concatenate(parts)


def test_a_size_that_few_steps_pass_is_a_ceiling_if_it_is_passed_both_ways() -> None:
    rng = np.random.default_rng(8)
    batch = _filled(empties=True)
    wall = (20 + 0.2 * batch + 50.0 * (batch > 16)) * rng.lognormal(0, 0.01, len(batch))
    found = find_ceiling(wall, batch, 100.0 * batch)
    assert found is not None
    assert 14 <= found.threshold <= 18
    assert abs(found.jump_ms - 50) < 6
    # Only upwards, it may as well have become slower at that time.
    batch = _filled(empties=False)
    wall = (20 + 0.2 * batch + 50.0 * (batch > 16)) * rng.lognormal(0, 0.01, len(batch))
    assert find_ceiling(wall, batch, 100.0 * batch) is None
    # And costs that grow with the batch are no jump.
    batch = _filled(empties=True)
    wall = (20 + 1.5 * batch) * rng.lognormal(0, 0.01, len(batch))
    assert find_ceiling(wall, batch, 100.0 * batch) is None
