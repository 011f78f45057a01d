"""A factor or a constant, told by groups of steps whose lengths hardly differ."""

from __future__ import annotations

import numpy as np
import pytest
from tokenlag.explain.lateness import Side, as_in, lean

N = 2000
N_SEEDS = 40


def side(seed: int, factor: float = 1.0, add_ms: float = 0.0, longer: float = 1.2) -> Side:
    """Decode-only steps of 20 to 24 ms and, in every tenth, prompt chunks that make it longer."""
    rng = np.random.default_rng(seed)
    mixed = np.arange(N) % 10 == 0
    length = rng.uniform(20.0, 24.0, N) * np.where(mixed, longer, 1.0)
    # What a model gets wrong of a kind of step, it gets wrong on both sides.
    expected = length * np.where(mixed, 0.9, 1.0)
    observed = (length * factor + add_ms) * rng.lognormal(0.0, 0.02, N)
    return Side(expected, observed, mixed)


@pytest.mark.parametrize(("factor", "add_ms"), [(1.3, 0.0), (1.0, 8.0)])
def test_the_form_is_told_though_steps_hardly_differ(factor: float, add_ms: float) -> None:
    right, wrong = 0, 0
    for seed in range(N_SEEDS):
        found = lean(side(seed), side(1000 + seed, factor, add_ms))
        if found is not None:
            is_right = (found.slope > 1.0) == (factor > 1.0)
            right += is_right
            wrong += not is_right
    assert right >= 0.9 * N_SEEDS
    assert wrong == 0


def test_steps_of_one_length_tell_nothing() -> None:
    one = side(1, longer=1.0)
    same = Side(np.full(N, 20.0), np.full(N, 20.0), np.zeros(N, dtype=bool))
    late = Side(np.full(N, 20.0), np.full(N, 26.0), np.zeros(N, dtype=bool))
    assert lean(same, late) is None
    few = Side(one.expected[:30], one.observed[:30] * 1.3, one.mixed[:30])
    assert lean(one, few) is None


def test_decode_alone_slower_is_neither() -> None:
    before, now = side(1, longer=3.0), side(2, longer=3.0)
    slower = np.where(now.mixed, now.observed, now.observed * 1.5)
    assert lean(before, Side(now.expected, slower, now.mixed)) is None


def test_what_the_model_gets_wrong_on_both_sides_goes_out() -> None:
    before, now = side(1), side(2)
    told = as_in(before, now)
    ratio = [float(np.median((now.observed / told)[kind])) for kind in (now.mixed, ~now.mixed)]
    assert ratio == pytest.approx([1.0, 1.0], abs=0.01)
    raw = float(np.median((now.observed / now.expected)[now.mixed]))
    assert raw == pytest.approx(1.0 / 0.9, abs=0.02)
