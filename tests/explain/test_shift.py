"""Slower steps of one batch: a factor or a constant, though the model errs on a kind of step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tokenlag.explain.shift import Observed, Shift, _through, find_shift

Floats = np.ndarray
N_STEPS = 4000


def steps(seed: int, change: Callable[[Floats], Floats]) -> Observed:
    """Steps of an engine that pays prompts in tiles and sequences by fours; noise of 0.5 %.

    Every seventh step has a prompt chunk of 40 to 160 tokens, and is half as long again.
    """
    rng = np.random.default_rng(seed)
    batch = rng.integers(4, 13, N_STEPS).astype(float)
    context = batch * rng.uniform(150, 250, N_STEPS)
    prompt = np.where(np.arange(N_STEPS) % 7 == 0, rng.integers(40, 160, N_STEPS), 0).astype(float)
    work = prompt * prompt / 2
    tiles, fours = np.ceil(prompt / 64) * 64, np.ceil(batch / 4) * 4
    usual = 11.0 + 0.05 * tiles + 0.08 * fours + 2e-5 * context
    wall = change(usual) * rng.lognormal(0, 0.005, N_STEPS)
    return Observed(wall, prompt, batch, work, context, batch)


def shifted(seed: int, change: Callable[[Floats], Floats]) -> Shift:
    found = find_shift(steps(seed, lambda usual: usual), steps(seed + 1000, change))
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(6))
def test_a_factor_is_a_slope(seed: int) -> None:
    found = shifted(seed, lambda usual: 1.28 * usual)
    assert found.slope == pytest.approx(1.28, abs=0.06)
    assert abs(found.intercept_ms) < 0.3 * 0.28 * found.expected_ms
    assert found.ratio_decode == pytest.approx(1.28, abs=0.02)


@pytest.mark.parametrize("seed", range(6))
def test_a_constant_is_an_intercept(seed: int) -> None:
    found = shifted(seed, lambda usual: usual + 4.0)
    assert found.slope == pytest.approx(1.0, abs=0.08)
    assert found.intercept_ms == pytest.approx(4.0, abs=1.0)


def test_nothing_changed() -> None:
    found = shifted(3, lambda usual: usual)
    assert found.ratio_decode == pytest.approx(1.0, abs=0.01)
    assert abs(found.excess_ms) < 0.01 * found.stream_ms


def test_steps_beyond_the_reference_count_in_proportion() -> None:
    """Half of the window's batches are larger than any of the reference."""
    reference = steps(5, lambda usual: usual)
    window = steps(6, lambda usual: 1.5 * usual)
    large = np.arange(N_STEPS) % 2 == 0
    grown = Observed(
        np.where(large, 1.2, 1.0) * window.wall_ms, window.n_prefill_tokens,
        np.where(large, 40.0, window.n_decode), window.attention_work,
        window.n_context_tokens, np.where(large, 40.0, window.n_streams),
    )  # fmt: skip
    found = find_shift(reference, grown)
    assert found is not None
    assert found.stream_ms == pytest.approx(float((grown.wall_ms * grown.n_streams).sum()))
    assert found.excess_ms / found.stream_ms == pytest.approx(1 - 1 / 1.5, abs=0.02)


def test_a_line_that_misses_the_long_steps_gives_way_to_their_centre() -> None:
    rng = np.random.default_rng(1)
    mixed = np.arange(2000) % 8 == 0
    expected = np.where(mixed, rng.uniform(16, 19, 2000), rng.uniform(11.5, 12.5, 2000))
    late_by_factor = 1.28 * expected * rng.lognormal(0, 0.003, 2000)
    # What fits the short steps alone.
    slope, intercept = _through(expected, late_by_factor, mixed, (1.10, 2.16))
    assert slope == pytest.approx(1.28, abs=0.02)
    assert intercept == pytest.approx(0.0, abs=0.2)
    assert _through(expected, late_by_factor, mixed, (1.28, 0.0)) == (1.28, 0.0)
    late_by_constant = expected + 3.4 * rng.lognormal(0, 0.003, 2000)
    slope, intercept = _through(expected, late_by_constant, mixed, (1.28, 0.0))
    assert slope == pytest.approx(1.0, abs=0.02)
    assert intercept == pytest.approx(3.4, abs=0.2)
    few = np.arange(2000) < 3
    assert _through(expected, late_by_constant, few, (1.28, 0.0)) == (1.28, 0.0)
