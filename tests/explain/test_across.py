"""Slower steps in a window that holds no batch, chunk or context that the reference did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tokenlag.explain.across import complete, is_one_speed
from tokenlag.explain.shift import Observed, Shift, find_shift

Floats = np.ndarray
Change = Callable[[Floats, Floats], Floats]
N_STEPS = 3000


def steps(
    seed: int, grown: float, change: Change, knee: float = 0.0, noise: float = 0.005
) -> Observed:
    """Steps with contexts and prompt chunks `grown` times as large; every seventh has a chunk.

    Args:
        change: what the window's steps take, of what they would usually and of their prompt part.
        knee: prompt tokens are free up to here, softly.
    """
    rng = np.random.default_rng(seed)
    batch = rng.integers(2, 13, N_STEPS).astype(float)
    context = batch * grown * rng.uniform(150, 250, N_STEPS)
    is_mixed = np.arange(N_STEPS) % 7 == 0
    chunk = np.where(is_mixed, grown * rng.integers(100, 200, N_STEPS), 0).astype(float)
    paid = 20.0 * np.logaddexp(0.0, (chunk - knee) / 20.0) if knee else chunk
    prompt = 0.05 * paid + 1e-6 * chunk * chunk / 2
    usual = 11.0 + 0.3 * batch + 3e-4 * context + prompt
    wall = change(usual, prompt) * rng.lognormal(0, noise, N_STEPS)
    return Observed(wall, chunk, batch, chunk * chunk / 2, context, batch)


def compared(seed: int, change: Change, knee: float = 0.0, noise: float = 0.005) -> Shift | None:
    reference = steps(seed, 1.0, lambda usual, prompt: usual, knee, noise)
    window = steps(seed + 1000, 8.0, change, knee, noise)
    found = find_shift(reference, window)
    return complete(found, reference, window, is_jumping=False)


@pytest.mark.parametrize("seed", range(2))
def test_a_factor_is_seen_beyond_what_the_reference_held(seed: int) -> None:
    found = compared(seed, lambda usual, prompt: 1.3 * usual)
    assert found is not None
    assert found.is_across
    assert found.ratio_decode == pytest.approx(1.3, abs=0.04)
    assert found.ratio_mixed == pytest.approx(1.3, abs=0.04)
    assert found.slope == pytest.approx(1.3, abs=0.08)
    assert abs(found.intercept_ms) < 0.3 * 0.3 * found.expected_ms
    assert found.excess_ms / found.stream_ms == pytest.approx(1 - 1 / 1.3, abs=0.05)


@pytest.mark.parametrize("seed", range(2))
def test_a_constant_is_told_from_a_factor_there(seed: int) -> None:
    found = compared(seed, lambda usual, prompt: usual + 5.0)
    assert found is not None
    assert found.is_across
    assert found.slope == pytest.approx(1.0, abs=0.08)
    assert found.intercept_ms == pytest.approx(5.0, abs=0.8)


@pytest.mark.parametrize("seed", range(2))
def test_slower_prefill_leaves_decode_as_it_was(seed: int) -> None:
    found = compared(seed, lambda usual, prompt: usual + 0.6 * prompt)
    assert found is not None
    assert found.ratio_decode == pytest.approx(1.0, abs=0.05)
    assert found.ratio_mixed > 1.15


@pytest.mark.parametrize("knee", [0.0, 120.0, 400.0])
@pytest.mark.parametrize("seed", range(2))
def test_more_work_is_no_change_of_speed(seed: int, knee: float) -> None:
    """Neither a price by the token nor one that begins beyond the reference's chunks."""
    found = compared(seed, lambda usual, prompt: usual, knee)
    if found is not None:
        assert found.ratio_decode == pytest.approx(1.0, abs=0.06)
        assert np.isnan(found.ratio_mixed) or found.ratio_mixed < 1.1


def test_one_speed_and_two() -> None:
    def unchanged(usual: Floats, prompt: Floats) -> Floats:
        return usual

    reference = steps(1, 1.0, unchanged)
    assert is_one_speed(reference, steps(2, 8.0, unchanged))
    assert not is_one_speed(reference, steps(2, 8.0, lambda usual, prompt: 1.3 * usual))
    assert not is_one_speed(reference, steps(2, 1.0, lambda usual, prompt: 1.3 * usual))


def test_noise_hides_it_and_then_nothing_is_said() -> None:
    found = compared(5, lambda usual, prompt: 1.1 * usual, noise=0.2)
    assert found is None or not found.is_across or found.ratio_lo < 1.05


def test_what_is_known_of_both_kinds_stays_as_it_was() -> None:
    reference = steps(3, 1.0, lambda usual, prompt: usual)
    window = steps(4, 1.0, lambda usual, prompt: 1.2 * usual)
    found = find_shift(reference, window)
    assert found is not None
    assert complete(found, reference, window, is_jumping=False) is found


def test_a_few_steps_at_the_edge_say_nothing_where_one_model_fits_all() -> None:
    """A seventh of the chunks are of the reference's sizes, and those are dearer by chance."""
    reference = steps(6, 1.0, lambda usual, prompt: usual)
    window, small = (steps(7, grown, lambda usual, prompt: usual) for grown in (8.0, 1.0))
    few = np.arange(N_STEPS) % 49 == 0
    contexts = replace(window, n_context_tokens=small.n_context_tokens)
    contexts = replace(
        contexts, wall_ms=window.wall_ms - 3e-4 * (window.n_context_tokens - small.n_context_tokens)
    )
    mended = Observed(*(
        np.where(few, getattr(small, name), getattr(contexts, name))
        * (np.where(few, 1.3, 1.0) if name == "wall_ms" else 1.0)
        for name in Observed.__dataclass_fields__
    ))  # fmt: skip
    found = find_shift(reference, mended)
    assert found is not None
    assert found.known_mixed_frac < 0.5
    assert found.ratio_mixed > 1.2
    again = complete(found, reference, mended, is_jumping=False)
    assert again is not None
    assert again.n_mixed_steps == 0
    assert np.isnan(again.ratio_mixed)
    assert again.ratio_decode == pytest.approx(1.0, abs=0.02)


def test_few_steps_are_not_compared() -> None:
    reference = steps(9, 1.0, lambda usual, prompt: usual)
    window = steps(9, 8.0, lambda usual, prompt: 1.3 * usual)
    few = Observed(*(getattr(window, name)[:60] for name in Observed.__dataclass_fields__))
    assert complete(None, reference, few, is_jumping=False) is None


def test_steps_that_jump_at_a_batch_size_are_not_compared_by_models() -> None:
    reference = steps(11, 1.0, lambda usual, prompt: usual)
    window = steps(12, 8.0, lambda usual, prompt: 1.3 * usual)
    found = find_shift(reference, window)
    compared = complete(found, reference, window, is_jumping=False)
    assert compared is not None
    assert compared.is_across
    left = complete(found, reference, window, is_jumping=True)
    assert left is None or not left.is_across
