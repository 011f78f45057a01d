"""A change is found where there is one, and hardly ever elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
from tokenlag.explain.changepoint import (
    at_one_batch,
    find_more_arrivals,
    find_rise,
    find_slower,
)

NS = 1_000_000_000
N_SEEDS = 200
N_POWER = 60
MAX_FALSE = 0.02


def noise(seed: int, n: int = 200, sigma: float = 0.6) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(6.0, sigma, n)


def correlated(seed: int, n: int = 200) -> np.ndarray:
    """Neighbours resemble each other: a mood of traffic that comes and goes."""
    rng = np.random.default_rng(seed)
    level = np.zeros(n)
    for i in range(1, n):
        level[i] = 0.8 * level[i - 1] + rng.normal(0, 0.15)
    return np.exp(6.0 + level + rng.normal(0, 0.4, n))


def ramp(seed: int, n: int = 200, factor: float = 3.0) -> np.ndarray:
    return noise(seed, n, 0.2) * np.linspace(1.0, factor, n)


def turns(seed: int, n: int = 200) -> np.ndarray:
    """First turns of conversations, two in five, and later ones that compute far less."""
    rng = np.random.default_rng(seed)
    level = np.where(rng.random(n) < 0.4, 2500.0, 1200.0)
    return np.asarray(level * rng.lognormal(0.0, 0.15, n))


def fall(seed: int, n: int = 200) -> np.ndarray:
    return noise(seed, n, 0.3) * np.where(np.arange(n) < n // 2, 3.0, 1.0)


@pytest.mark.parametrize("series", [noise, correlated, ramp, turns, fall])
def test_no_false_alarms(series) -> None:
    alarms = sum(find_rise(series(seed)) is not None for seed in range(N_SEEDS))
    assert alarms <= MAX_FALSE * N_SEEDS


@pytest.mark.parametrize(("factor", "power"), [(2.0, 0.9), (4.0, 0.99)])
@pytest.mark.parametrize("where", [0.3, 0.5, 0.8])
def test_a_step_is_found_near_where_it_is(factor: float, power: float, where: float) -> None:
    n, found = 200, 0
    at = int(n * where)
    for seed in range(N_POWER):
        values = noise(seed, n, 0.4) * np.where(np.arange(n) < at, 1.0, factor)
        got = find_rise(values)
        found += got is not None and abs(got - at) <= 10
    assert found >= power * N_POWER


def test_a_step_is_found_where_requests_are_of_two_kinds() -> None:
    found = 0
    for seed in range(N_POWER):
        values = turns(seed)
        values[120:] *= 2.5
        at = find_rise(values)
        found += at is not None and abs(at - 120) <= 4
    assert found >= 0.9 * N_POWER


def test_a_small_step_and_too_few_values_are_left_alone() -> None:
    n = 400
    small = noise(1, n, 0.02) * np.where(np.arange(n) < n // 2, 1.0, 1.3)
    assert find_rise(small) is None
    assert find_rise(np.array([1.0] * 11 + [9.0] * 11)) is None
    assert find_rise(np.array([])) is None


def arrivals(seed: int, before: float, after: float, seconds: float = 240.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    half = seconds / 2
    first = np.sort(rng.uniform(0, half, rng.poisson(before * half)))
    second = half + np.sort(rng.uniform(0, half, rng.poisson(after * half)))
    return (np.concatenate([first, second]) * NS).astype(np.int64)


def test_steady_arrivals_do_not_rise() -> None:
    alarms = sum(find_more_arrivals(arrivals(s, 4.0, 4.0)) is not None for s in range(N_SEEDS))
    assert alarms <= MAX_FALSE * N_SEEDS


def test_twice_the_arrivals_are_seen() -> None:
    found = 0
    for seed in range(N_POWER):
        at = find_more_arrivals(arrivals(seed, 4.0, 8.0))
        found += at is not None and abs(at / NS - 120) <= 12
    assert found >= 0.9 * N_POWER


def climb(seed: int, n: int = 200) -> np.ndarray:
    """Arrivals that become slowly denser: no step."""
    rng = np.random.default_rng(seed)
    seconds = 240.0 * np.sort(np.sqrt(rng.uniform(0.1, 1.0, n)))
    return (seconds * NS).astype(np.int64)


def hour_of_the_day(seed: int, climb_s: float) -> np.ndarray:
    """Half an hour in which arrivals go from one level to twice that, within so many seconds."""
    rng = np.random.default_rng(seed)
    at = np.arange(0.0, 1800.0, 1.0)
    per_s = np.interp(at, [700.0, 700.0 + climb_s], [1.0, 2.0])
    seconds = np.repeat(at, rng.poisson(per_s)) + rng.uniform(0.0, 1.0, 1)
    return np.sort(seconds * NS).astype(np.int64)


def test_arrivals_that_climb_for_a_while_make_no_step() -> None:
    steps = sum(find_more_arrivals(hour_of_the_day(s, 1.0)) is not None for s in range(N_POWER))
    climbs = sum(find_more_arrivals(hour_of_the_day(s, 900.0)) is not None for s in range(N_POWER))
    assert steps >= 0.9 * N_POWER
    assert climbs <= 0.2 * N_POWER, "without the test for climbs two in five are taken for steps"


def test_few_arrivals_are_searched_by_their_spacing() -> None:
    found, steady, slow = 0, 0, 0
    for seed in range(N_SEEDS):
        at = find_more_arrivals(arrivals(seed, 0.5, 1.3))
        found += at is not None and abs(at / NS - 120) <= 20
        steady += find_more_arrivals(arrivals(seed, 0.7, 0.7)) is not None
        slow += find_more_arrivals(climb(seed)) is not None
    assert found >= 0.8 * N_SEEDS
    assert steady <= MAX_FALSE * N_SEEDS
    assert slow <= 0.1 * N_SEEDS, "between a climb and a step few arrivals hardly tell"


def test_a_rise_below_what_anybody_notices_is_none() -> None:
    n = 200
    values = noise(1, n, 0.1) * np.where(np.arange(n) < n // 2, 1.0, 3.0) / 400
    assert find_rise(values) is not None
    assert find_rise(values, min_rise=20.0) is None
    assert find_rise(values * 20, min_rise=20.0) is not None


def test_too_few_arrivals_are_not_searched() -> None:
    assert find_more_arrivals(arrivals(1, 0.2, 2.0)[:24]) is None
    assert find_more_arrivals(np.zeros(0, dtype=np.int64)) is None


def ratios(seed: int, after: float, n: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ratio = rng.lognormal(0.0, 0.05, n) * np.where(np.arange(n) < n // 2, 1.0, after)
    ratio[rng.random(n) < 0.01] *= 5.0
    return (np.arange(n) * NS // 100).astype(np.int64), ratio


def test_steps_as_fast_as_ever_are_not_slower() -> None:
    alarms = sum(find_slower(*ratios(seed, 1.0)) is not None for seed in range(N_SEEDS))
    assert alarms <= MAX_FALSE * N_SEEDS


def test_steps_a_fifth_slower_are_seen() -> None:
    found = 0
    for seed in range(N_POWER):
        at = find_slower(*ratios(seed, 1.2))
        found += at is not None and abs(at / NS - 15) <= 1
    assert found >= 0.9 * N_POWER
    assert find_slower(*ratios(1, 1.05)) is None


def test_few_steps_show_a_large_change_and_no_false_one() -> None:
    found = [find_slower(*ratios(seed, 2.0, n=200)) for seed in range(N_POWER)]
    assert sum(at is not None and abs(at / NS - 1.0) <= 0.1 for at in found) >= 0.9 * N_POWER
    alarms = sum(find_slower(*ratios(seed, 1.0, n=200)) is not None for seed in range(N_SEEDS))
    assert alarms <= MAX_FALSE * N_SEEDS
    assert find_slower(*ratios(1, 2.0, n=45)) is None


def batch_that_grows(seed: int, n: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step times by batch and context, both higher after the middle, up and down by chance."""
    rng = np.random.default_rng(seed)
    mood = np.zeros(n)
    for i in range(1, n):
        mood[i] = 0.97 * mood[i - 1] + rng.normal(0, 1.0)
    grown = np.where(np.arange(n) < n // 2, 18.0, 34.0)
    batch = np.maximum(np.round(grown + mood), 1.0)
    context = batch * (180.0 + rng.normal(0, 6, n))
    wall = (12.0 + 0.06 * batch + 2e-5 * context) * rng.lognormal(0, 0.01, n)
    return wall, batch, context


def test_slower_steps_are_found_though_the_batch_grew_with_them() -> None:
    end_ns = np.arange(4000) * NS // 50
    for seed in range(20):
        wall, batch, context = batch_that_grows(seed)
        # The constant begins where the batch does: over the whole they cannot be told apart.
        late = wall + 4.0 * (np.arange(4000) >= 2000)
        at = find_slower(end_ns, at_one_batch(late, batch, context))
        assert at is not None
        assert abs(at - end_ns[2000]) < 0.05 * end_ns[-1]


def test_a_batch_that_grew_is_no_change_of_speed() -> None:
    end_ns = np.arange(4000) * NS // 50
    found = 0
    for seed in range(40):
        wall, batch, context = batch_that_grows(seed)
        found += find_slower(end_ns, at_one_batch(wall, batch, context)) is not None
    assert found <= 1


def test_no_step_has_no_level() -> None:
    nothing = np.array([])
    assert len(at_one_batch(nothing, nothing, nothing)) == 0
