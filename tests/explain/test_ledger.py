"""Every gap's terms sum to the gap, whatever the steps are."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.explain import blame, ledger
from tokenlag.explain.stepmodel import StepModel
from tokenlag.explain.streams import Steps

MODELS = [
    StepModel("linear", None, 100, 90, 10, 6.0, 0.1, 0.03, 0.0, 1e-7, 1e-5),
    StepModel("decode", None, 100, 100, 0, 6.0, 0.1),
    StepModel("none", "too few", 3, 3, 0),
]


def made_steps(draws: list[tuple[int, int, float, float]]) -> tuple[Steps, np.ndarray]:
    end, rows, idle = 0, [], []
    for n_prefill, n_decode, cadence_ms, idle_ms in draws:
        start = end + round(idle_ms * 1e6)
        end = start + round(cadence_ms * 1e6)
        rows.append((start, end, cadence_ms, n_prefill, n_decode))
        idle.append(idle_ms)
    columns = np.array(rows)
    steps = Steps(
        index=np.arange(len(rows)),
        start_ns=columns[:, 0].astype(np.int64),
        end_ns=columns[:, 1].astype(np.int64),
        cadence_ms=columns[:, 2],
        n_prefill_tokens=columns[:, 3].astype(np.int64),
        n_decode=columns[:, 4].astype(np.int64),
    )
    return steps, np.array(idle)


@given(
    draws=st.lists(
        st.tuples(
            st.integers(0, 4000), st.integers(0, 64), st.floats(0.1, 900.0), st.floats(0.0, 50.0)
        ),
        min_size=2,
        max_size=40,
    ),
    model=st.sampled_from(MODELS),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_the_terms_of_a_gap_sum_to_it(draws, model, data) -> None:
    steps, idle = made_steps(draws)
    n = len(steps.index)
    tokens, decoding = steps.n_prefill_tokens.astype(float), steps.n_decode.astype(float)
    context = decoding * 500.0
    zero = np.zeros(n)
    decode_only = (
        model.predict(zero, decoding, zero, context) if model.has_decode else np.full(n, np.nan)
    )
    marginal = np.where(tokens > 0, np.clip(steps.cadence_ms - decode_only, 0, steps.cadence_ms), 0)
    held = blame.hold_ms(steps, np.nan_to_num(marginal, nan=0.0))
    terms = ledger.step_terms(steps, model, context, decode_only, marginal, held, idle)
    from_at = data.draw(st.integers(0, n - 2))
    to_at = data.draw(st.integers(from_at + 1, n - 1))
    first, last = np.array([from_at]), np.array([to_at])
    gap_ms = (steps.end_ns[last] - steps.end_ns[first]) / 1e6
    parts = ledger.split(terms, gap_ms, first, last)
    assert set(parts) == set(ledger.TERMS)
    total = sum(np.nan_to_num(values, nan=0.0) for values in parts.values())
    np.testing.assert_allclose(total, gap_ms, rtol=1e-9, atol=1e-6)
    for name in ("prefill_ms", "skipped_ms", "host_ms"):
        assert np.nan_to_num(parts[name]).min() >= -1e-9


def test_a_mixed_step_is_its_own_step_plus_the_prompt() -> None:
    model = StepModel("linear", None, 100, 90, 10, 6.0, 0.1, 0.03, 0.0, 0.0, 1e-5)
    steps, idle = made_steps([(0, 8, 7.0, 0.0), (512, 8, 22.2, 0.0)])
    context = np.array([4000.0, 4008.0])
    decoding = steps.n_decode.astype(float)
    zero = np.zeros(2)
    decode_only = model.predict(zero, decoding, zero, context)
    prefill = np.array([0.0, 0.03 * 512])
    terms = ledger.step_terms(
        steps, model, context, decode_only, prefill, blame.hold_ms(steps, prefill), idle
    )
    parts = ledger.split(terms, np.array([22.2]), np.array([0]), np.array([1]))
    assert parts["alone_ms"][0] == 6.1
    np.testing.assert_allclose(parts["batch_ms"][0], 0.7)
    np.testing.assert_allclose(parts["context_ms"][0], 0.04008)
    np.testing.assert_allclose(parts["prefill_ms"][0], 15.36)
    np.testing.assert_allclose(parts["residual_ms"][0], 22.2 - 6.1 - 0.7 - 0.04008 - 15.36)
