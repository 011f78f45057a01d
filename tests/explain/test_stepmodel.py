"""The step model finds a known price again, says how far it is off, and never raises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tokenlag.explain import stepmodel
from tokenlag.explain.stepmodel import StepArrays, StepModel, fit

from tests.explain.steps import Truth, batches, steps_of


def mean_error(model: StepModel, truth: Truth, seed: int = 77) -> tuple[float, float]:
    """Median relative error against the truth without noise, on decode-only and mixed steps."""
    prefill, n, attention, ctx = batches(4000, seed)
    real = truth.ms(prefill, n, attention, ctx)
    error = np.abs(model.predict(prefill, n, attention, ctx) / real - 1.0)
    return float(np.median(error[prefill == 0])), float(np.median(error[prefill > 0]))


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_a_hinge_is_found_again(noise: float) -> None:
    truth = Truth(knee=256.0, per_token=0.04)
    model = fit(steps_of(truth, 6000, noise=noise))
    assert model.level == "hinge"
    assert model.reason is None
    tolerance = 0.01 + noise
    assert model.knee_tokens == pytest.approx(256, rel=0.5 if noise > 0.05 else 1e-9)
    assert model.base_ms == pytest.approx(truth.base, rel=tolerance)
    assert model.per_token_ms == pytest.approx(truth.per_token, rel=tolerance)
    assert model.per_attention_ms == pytest.approx(truth.per_attention, rel=tolerance)
    assert max(mean_error(model, truth)) < 0.005 + noise / 5


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_a_line_is_found_again_from_few_steps(noise: float) -> None:
    truth = Truth(knee=0.0)
    model = fit(steps_of(truth, 400, noise=noise))
    assert model.level == "linear"
    assert "too few to place a knee" in (model.reason or "")
    assert model.knee_tokens == 0.0
    assert model.per_token_ms == pytest.approx(truth.per_token, rel=0.01 + 2 * noise)
    assert max(mean_error(model, truth)) < 0.005 + noise / 2


def test_without_chunks_only_decoding_is_priced() -> None:
    truth = Truth()
    model = fit(steps_of(truth, 400, noise=0.02, mixed_frac=0.0))
    assert model.level == "decode"
    assert model.has_decode
    assert not model.has_prefill
    assert model.error_mixed_frac is None
    assert mean_error(model, truth)[0] < 0.01


def test_chunks_of_one_size_have_no_price() -> None:
    model = fit(steps_of(Truth(), 400, sizes=(512, 513)))
    assert model.level == "decode"
    assert "of 1 sizes" in (model.reason or "")


@pytest.mark.parametrize("n_steps", [0, 1, stepmodel.MIN_STEPS - 1])
def test_too_few_steps_give_no_model_and_say_so(n_steps: int) -> None:
    model = fit(steps_of(Truth(), n_steps))
    assert (model.level, model.n_steps) == ("none", n_steps)
    assert f"{n_steps} usable steps" in (model.reason or "")
    assert not model.has_decode


def test_outliers_and_unusable_steps_do_not_move_it() -> None:
    truth = Truth()
    steps = steps_of(truth, 3000, noise=0.02)
    cadence, usable = steps.cadence_ms.copy(), steps.usable.copy()
    cadence[::100] += 500.0
    cadence[1::10] *= 50.0
    usable[1::10] = False
    model = fit(replace(steps, cadence_ms=cadence, usable=usable))
    assert model.n_steps == int(usable.sum())
    assert max(mean_error(model, truth)) < 0.02


def test_its_error_on_mixed_steps_is_told_apart() -> None:
    """Ninety-seven in a hundred steps only decode; an overall error would hide the others'."""
    truth = Truth()
    steps = steps_of(truth, 8000, noise=0.01, mixed_frac=0.05)
    rng = np.random.default_rng(3)
    mixed = steps.n_prefill_tokens > 0
    cadence = steps.cadence_ms * np.where(mixed, np.exp(rng.normal(0.0, 0.3, len(mixed))), 1.0)
    model = fit(replace(steps, cadence_ms=cadence))
    assert model.error_decode_frac is not None
    assert model.error_mixed_frac is not None
    assert model.error_decode_frac < 0.01
    assert 0.12 < model.error_mixed_frac < 0.3, "0.67 of a spread of 0.3 is 0.2"


def soft_knee(tokens: np.ndarray) -> np.ndarray:
    """No corner: memory and compute bound add up smoothly between 100 and 400 tokens."""
    return np.asarray(0.04 * 60.0 * np.logaddexp(0.0, (tokens - 220.0) / 60.0))


def staircase(tokens: np.ndarray) -> np.ndarray:
    """Each started tile of 128 tokens costs all of it."""
    return np.asarray(0.04 * 128.0 * np.ceil(tokens / 128.0))


@pytest.mark.parametrize(
    ("shape", "bound"), [(soft_knee, 0.02), (staircase, 0.10)], ids=["soft knee", "staircase"]
)
def test_what_is_no_hinge_is_fitted_nearly_and_the_error_owned_up_to(shape, bound: float) -> None:
    truth = Truth(tokens_ms=shape)
    model = fit(steps_of(truth, 6000, noise=0.01))
    _, off_mixed = mean_error(model, truth)
    assert off_mixed < bound
    assert model.error_mixed_frac is not None
    assert model.error_mixed_frac > 0.5 * off_mixed, "reported at about what it is"
    assert model.error_mixed_frac < 3 * off_mixed + 0.02


def test_the_fit_is_the_same_every_time() -> None:
    steps = steps_of(Truth(knee=128.0), 4000, noise=0.05)
    assert fit(steps) == fit(steps)


def test_a_slower_second_half_shows_as_error_not_as_a_changed_price() -> None:
    truth = Truth()
    steps = steps_of(truth, 4000, noise=0.01)
    slow = np.where(np.arange(4000) >= 3000, 1.5, 1.0)
    model = fit(replace(steps, cadence_ms=steps.cadence_ms * slow))
    assert model.error_decode_frac == pytest.approx(1 - 1 / 1.5, abs=0.05)


# Time stamps are whole nanoseconds; counts are whole.
MILLISECONDS = st.floats(1e-6, 1e7) | st.just(0.0)
COUNTS = st.integers(0, 10**7).map(float)


@st.composite
def any_steps(draw: st.DrawFn) -> StepArrays:
    n = draw(st.integers(0, 80))
    cadence = draw(hnp.arrays(np.float64, n, elements=MILLISECONDS))
    tokens, decode, attention, ctx = (
        draw(hnp.arrays(np.float64, n, elements=COUNTS)) for _ in range(4)
    )
    return StepArrays(
        cadence_ms=cadence,
        n_prefill_tokens=tokens * draw(hnp.arrays(np.bool_, n)),
        n_decode=decode % 512,
        attention_work=attention,
        n_context_tokens=ctx,
        usable=draw(hnp.arrays(np.bool_, n, fill=st.just(True))),
    )


@settings(max_examples=150, deadline=None)
@given(any_steps())
def test_it_never_raises_and_never_prices_below_zero(steps: StepArrays) -> None:
    model = fit(steps)
    prices = (
        model.base_ms, model.per_seq_ms, model.per_token_ms, model.per_attention_ms,
        model.per_context_ms,
    )  # fmt: skip
    assert all(np.isfinite(p) and p >= 0 for p in prices)
    assert (model.level == "none") <= (model.reason is not None)
    assert model.n_steps == model.n_decode_steps + model.n_mixed_steps


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(1.0, 5e4), min_size=1, max_size=8),
    st.integers(1, 9000),
    st.integers(0, 20_000),
)
def test_alone_prefill_is_the_sum_of_its_steps(new: list[float], budget: int, cached: int) -> None:
    model = StepModel("hinge", None, 1000, 700, 300, 6.0, 0.05, 0.04, 128.0, 2e-6, 4e-5)
    n_new = np.floor(new)
    got = model.alone_prefill_ms(n_new, np.full(len(n_new), float(cached)), float(budget))
    for tokens, ms in zip(n_new.tolist(), got.tolist(), strict=True):
        done, total = 0.0, 0.0
        while done < tokens:
            c = min(float(budget), tokens - done)
            zero = np.zeros(1)
            attention = np.array([c * (cached + done + c / 2.0)])
            total += float(model.predict(np.array([c]), zero, attention, zero)[0])
            done += c
        assert ms == pytest.approx(total, rel=1e-6)


def test_alone_prefill_without_a_budget_is_one_step() -> None:
    model = StepModel("linear", None, 1000, 700, 300, 6.0, 0.05, 0.04, 0.0, 0.0, 4e-5)
    got = model.alone_prefill_ms(np.array([1000.0]), np.array([0.0]), None)
    assert got[0] == pytest.approx(6.0 + 40.0)
    assert model.alone_itl_ms(np.array([1000.0]))[0] == pytest.approx(6.0 + 0.05 + 0.04)
