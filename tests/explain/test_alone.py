"""The fast share of requests stands for what a shape costs alone, where there are no steps."""

from __future__ import annotations

import numpy as np
import pytest
from tokenlag.explain.alone import fast_share


def requests(n: int, seed: int, base: float, slope: float, busy: float):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(50, 4000, n).astype(np.float64)
    # Neighbours only ever add: half the requests are slowed, some a lot.
    late = np.where(rng.random(n) < 0.5, rng.exponential(busy, n), 0.0)
    return tokens, base + slope * tokens + late, rng


@pytest.mark.parametrize("seed", range(5))
def test_the_lower_edge_is_the_price_of_the_shape(seed: int) -> None:
    tokens, ms, rng = requests(400, seed, base=8.0, slope=0.1, busy=200.0)
    tpot = 10.0 + np.where(rng.random(400) < 0.5, rng.exponential(20.0, 400), 0.0)
    edge = fast_share(tokens, ms, tpot)
    at = np.array([1000.0, 3000.0])
    assert edge.prefill_ms(at) == pytest.approx(8.0 + 0.1 * at, rel=0.10)
    # The low quantile of a bin favours its shorter prompts: too low where bins are wide.
    short = np.array([200.0])
    assert edge.prefill_ms(short) == pytest.approx(8.0 + 0.1 * short, rel=0.25)
    assert edge.itl_ms == pytest.approx(10.0, rel=0.01)


def test_one_prompt_length_is_priced_by_the_token() -> None:
    edge = fast_share(np.full(50, 1000.0), np.full(50, 100.0), np.full(50, np.nan))
    assert (edge.base_ms, edge.per_token_ms) == (0.0, pytest.approx(0.1))
    assert np.isnan(edge.itl_ms)


def test_terms_are_never_below_zero() -> None:
    tokens = np.linspace(100, 4000, 200)
    falling = fast_share(tokens, 500.0 - 0.1 * tokens, tokens)
    assert falling.per_token_ms == 0.0
    assert falling.base_ms > 0
    through_zero = fast_share(tokens, 0.1 * tokens - 9.0, tokens)
    assert through_zero.base_ms == 0.0
    assert 0 < through_zero.per_token_ms < 0.1


def test_too_few_requests_tell_nothing() -> None:
    nothing = fast_share(np.array([5.0, 6.0]), np.array([1.0, 1.0]), np.array([1.0]))
    assert np.isnan([nothing.base_ms, nothing.per_token_ms, nothing.itl_ms]).all()
    few = fast_share(np.array([10.0, 20.0, 40.0]), np.array([1.0, 2.0, 4.0]), np.ones(3))
    assert (few.base_ms, few.per_token_ms, few.itl_ms) == (0.0, pytest.approx(0.1), 1.0)


def test_what_was_not_measured_is_left_out() -> None:
    tokens, ms, _ = requests(200, 1, base=8.0, slope=0.1, busy=50.0)
    known = fast_share(tokens, ms, ms)
    padded = [np.concatenate([v, np.full(50, np.nan)]) for v in (tokens, ms, ms)]
    assert fast_share(*padded) == known
