"""Blame adds up: over a step's chunks, over culprits, over victims, and never past a wait."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.explain import blame
from tokenlag.explain.blame import Waits
from tokenlag.explain.streams import Chunks, Steps, find_streams

from tests.explain.schedule import Schedule, schedules

PRICES = st.just(0.0) | st.floats(1e-9, 1.0)


def parts(schedule: Schedule, per_token: float, per_attention: float):
    steps, chunks = schedule.steps(), schedule.chunks()
    streams = find_streams(steps, chunks, schedule.runs())
    share = blame.chunk_shares(chunks, per_token, per_attention, schedule.n_steps)
    # Some of each step is the chunks'; a step without decoding is all theirs.
    held = blame.hold_ms(steps, 0.7 * steps.cadence_ms * (steps.n_prefill_tokens > 0))
    return steps, chunks, streams, share, held


@settings(max_examples=150, deadline=None)
@given(schedules(), PRICES, PRICES)
def test_shares_of_a_steps_chunks_sum_to_one(
    schedule: Schedule, per_token: float, per_attention: float
) -> None:
    _, chunks, _, share, _ = parts(schedule, per_token, per_attention)
    assert (share >= 0).all()
    total = np.bincount(chunks.position, weights=share, minlength=schedule.n_steps)
    assert total[np.unique(chunks.position)] == pytest.approx(1.0)


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_a_step_holds_for_its_chunks_or_for_all_of_it(schedule: Schedule) -> None:
    steps, *_, held = parts(schedule, 1.0, 0.0)
    pure = (steps.n_decode == 0) & (steps.n_prefill_tokens > 0)
    assert held[pure] == pytest.approx(steps.cadence_ms[pure])
    assert (held <= steps.cadence_ms).all()
    assert (held[steps.n_prefill_tokens == 0] == 0).all()


@settings(max_examples=150, deadline=None)
@given(schedules(), PRICES, PRICES)
def test_all_blame_is_all_holding_times_all_waiting(
    schedule: Schedule, per_token: float, per_attention: float
) -> None:
    steps, chunks, streams, share, held = parts(schedule, per_token, per_attention)
    found = blame.blame_streams(steps, chunks, streams, held, share)
    assert found.effect_ms.sum() == pytest.approx(float((held * streams.n_waiting_on).sum()))
    assert found.hold_ms.sum() == pytest.approx(float(held.sum()))
    assert found.n_tokens.sum() == chunks.n_tokens.sum()
    assert found.handle.tolist() == sorted(set(chunks.handle.tolist()))
    assert (found.first <= found.last).all()
    assert (found.n_mixed_steps <= found.n_steps).all()


@settings(max_examples=150, deadline=None)
@given(schedules(), PRICES, PRICES)
def test_a_culprits_victims_share_what_it_is_blamed_for(
    schedule: Schedule, per_token: float, per_attention: float
) -> None:
    """Victims and the culprit's own stream (where it was preempted) make up the whole."""
    steps, chunks, streams, share, held = parts(schedule, per_token, per_attention)
    found = blame.blame_streams(steps, chunks, streams, held, share)
    for handle, effect in zip(found.handle.tolist(), found.effect_ms.tolist(), strict=True):
        victims, ms = blame.victims_of(handle, chunks, streams, held, share)
        assert handle not in victims
        assert ms.sum() + own_ms(handle, chunks, streams, held, share) == pytest.approx(effect)


def own_ms(handle, chunks, streams, held, share) -> float:
    """What a prompt's recomputation cost its own stream."""
    own = np.flatnonzero(streams.alive_handle == handle)
    if len(own) == 0:
        return 0.0
    first, last = streams.alive_first[own[0]], streams.alive_last[own[0]]
    inside = (chunks.handle == handle) & (chunks.position > first) & (chunks.position <= last)
    return float((held[chunks.position[inside]] * share[inside]).sum())


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_no_more_victims_than_streams(schedule: Schedule) -> None:
    steps, chunks, streams, share, held = parts(schedule, 1.0, 0.0)
    found = blame.blame_streams(steps, chunks, streams, held, share)
    assert (found.n_victims >= 0).all()
    assert (found.n_victims <= len(streams.alive_handle)).all()
    for handle, n in zip(found.handle.tolist(), found.n_victims.tolist(), strict=True):
        assert n >= len(blame.victims_of(handle, chunks, streams, held, share)[0])


@settings(max_examples=150, deadline=None)
@given(
    schedules(),
    st.lists(
        st.tuples(
            st.integers(100, 120), st.integers(0, 400), st.integers(1, 400), st.integers(1, 900)
        ),
        max_size=6,
    ),
)  # fmt: skip
def test_nobody_is_charged_more_than_was_waited(
    schedule: Schedule, waited: list[tuple[int, int, int, int]]
) -> None:
    steps, chunks, _, share, held = parts(schedule, 1.0, 1e-4)
    table = np.array(waited, dtype=np.int64).reshape(-1, 4)
    waits = Waits(
        table[:, 0], table[:, 1] * 10**6, (table[:, 1] + table[:, 2]) * 10**6,
        table[:, 3].astype(np.float64),
    )  # fmt: skip
    may = np.ones(schedule.n_steps, dtype=bool)
    found = blame.blame_queue(steps, chunks, share, held, may, waits)
    assert (found.behind_ms >= 0).all()
    assert (found.behind_ms <= table[:, 2] + 1e-6).all()
    assert found.effect_ms.sum() == pytest.approx(found.behind_ms.sum())
    lengths = blame.prompt_lengths(chunks)
    for culprit, ms, handle, tokens in zip(
        found.behind_handle, found.behind_ms, waits.handle, waits.n_tokens, strict=True
    ):
        assert (culprit >= 0) == (ms > 0)
        if ms > 0:
            assert lengths[int(culprit)] >= blame.LONGER_THAN_VICTIM * tokens, handle
    nobody = blame.blame_queue(steps, chunks, share, held, ~may, waits)
    assert nobody.behind_ms.sum() == 0


def prefill_alone(n: int = 4) -> tuple[Steps, Chunks]:
    """Handle 9's prompt of 1,000 tokens a step, 100 ms each, nobody decoding."""
    end = np.arange(1, n + 1, dtype=np.int64) * 100_000_000
    ones = np.ones(n, dtype=np.int64)
    steps = Steps(np.arange(n), end - 100_000_000, end, np.full(n, 100.0), 1000 * ones, 0 * ones)
    return steps, Chunks(9 * ones, np.arange(n), 1000 * ones, 1000 * np.arange(n))


def test_a_wait_behind_a_prompt_is_the_overlap_with_its_steps() -> None:
    steps, chunks = prefill_alone()
    waits = Waits(
        np.array([1, 2, 3]), np.array([50, 350, 500]) * 10**6, np.array([250, 1000, 600]) * 10**6,
        np.array([10.0, 10.0, 10.0]),
    )  # fmt: skip
    held = blame.hold_ms(steps, np.zeros(4))
    may = np.ones(4, dtype=bool)
    found = blame.blame_queue(steps, chunks, np.ones(4), held, may, waits)
    assert found.behind_ms == pytest.approx([200.0, 50.0, 0.0])
    assert found.culprit.tolist() == [9]
    assert (found.n_victims.tolist(), found.worst_ms.tolist()) == ([2], pytest.approx([200.0]))
    may[1] = False  # no slot was free while this step ran: the prompt is not why
    found = blame.blame_queue(steps, chunks, np.ones(4), held, may, waits)
    assert found.behind_ms == pytest.approx([100.0, 50.0, 0.0])


def test_a_prompt_not_much_longer_is_not_charged() -> None:
    steps, chunks = prefill_alone()
    waits = Waits(np.array([1]), np.array([0]), np.array([10**9]), np.array([1001.0]))
    held = blame.hold_ms(steps, np.zeros(4))
    found = blame.blame_queue(steps, chunks, np.ones(4), held, np.ones(4, dtype=bool), waits)
    assert len(found.culprit) == 0


def test_a_prompt_that_is_computed_twice_is_no_longer_for_it() -> None:
    chunks = Chunks(
        np.array([5, 5, 5, 5]), np.arange(4), np.array([300, 200, 300, 250]),
        np.array([100, 400, 100, 400]),
    )  # fmt: skip
    assert blame.prompt_lengths(chunks) == {5: 550}


def test_mode_shows_in_how_many_of_its_steps_others_decoded() -> None:
    steps, chunks = prefill_alone()
    streams = find_streams(steps, chunks, find_none())
    found = blame.blame_streams(steps, chunks, streams, steps.cadence_ms, np.ones(4))
    assert (found.n_steps.tolist(), found.n_mixed_steps.tolist()) == ([4], [0])


def find_none():
    from tokenlag.explain.streams import Runs

    nothing = np.zeros(0, dtype=np.int64)
    return Runs(nothing, nothing, nothing)
