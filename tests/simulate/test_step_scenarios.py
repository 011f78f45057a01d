"""The tables of the scenarios of step-time faults, hand-over and load generators."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from tokenlag.errors import InputError
from tokenlag.simulate.config import StepModel
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run, run
from tokenlag.simulate.steptime import make_effect

from tests.simulate import measure as m


@functools.cache
def made(recipe: str, variant: str, seed: int | None = None) -> Run:
    return run(load_recipe(recipe), variant=variant, seed=seed)


def expected(done: Run) -> dict:
    return dict(done.variant.expected)


def near(value, rel: float = 0.02, floor: float = 0.6):
    return pytest.approx(value, rel=rel, abs=floor)


@pytest.mark.parametrize("variant", ["pauses", "healthy"])
def test_s08_table(variant: str) -> None:
    done = made("S08", variant)
    want = expected(done)
    assert m.ttft_ms(done) == near(want["ttft_ms"])
    gaps = [gap * 1e3 for gap in m.gaps_s(done)]
    assert m.percentiles_ms(m.gaps_s(done)) == near(want["itl_ms"])
    assert max(gaps) == near(want["itl_max_ms"])
    slow = [s for s in m.steps_in_window(done) if s.end_s - s.busy_s > 0.1]
    # The table counts steps a little past its measuring window.
    assert len(m.steps_in_window(done)) == near(want["n_steps"], 0.03)
    assert len(slow) == pytest.approx(want["n_slow"], abs=1)
    if slow:
        # A pause begins with the first step at or after its time: exact but for a step.
        spacing = np.diff([s.start_s for s in slow])
        assert spacing.mean() == pytest.approx(want["spacing_s"], abs=0.002)
        assert np.median([s.n_decode for s in slow]) == pytest.approx(want["n_streams"], abs=1)
        assert np.mean([s.n_prefill > 0 for s in slow]) == pytest.approx(0.09, abs=0.05)


def test_s08_first_uses_come_once_for_each_shape() -> None:
    done = made("S08", "compile")
    slow = [s for s in done.epochs[0].steps if s.end_s - s.busy_s > 0.5]
    assert [round(s.start_s, 1) for s in slow] == pytest.approx(
        expected(done)["slow_at_s"], abs=0.11
    )
    shapes = [(s.n_prefill > 0, ((s.n_prefill or s.n_decode) - 1).bit_length()) for s in slow]
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("variant", ["host", "clock", "healthy"])
def test_s09_table(variant: str) -> None:
    done = made("S09", variant)
    want, steps = expected(done), done.epochs[0].steps
    decode = [1e3 * (s.end_s - s.busy_s) for s in steps if not s.n_prefill]
    prefill = [1e3 * (s.end_s - s.busy_s) for s in steps if s.n_prefill]
    assert np.median(decode) == near(want["decode_step_ms"], 0.005, 0.05)
    assert np.mean(prefill) == near(want["prefill_step_ms"], 0.005, 1)
    assert m.ttft_ms(done)[0] == near(want["ttft_ms"], 0.005, 1)
    assert 1e3 / np.median(decode) == near(want["tokens_per_s"], 0.01, 0.1)


@pytest.mark.parametrize("variant", ["fault", "control"])
def test_s10_table(variant: str) -> None:
    done = made("S10", variant)
    want, steps = expected(done), m.steps_in_window(done)
    assert m.time_mean(steps, lambda s: s.n_decode) == near(want["mean_decode"], 0.02)
    assert max(s.n_decode for s in steps) == pytest.approx(want["max_decode"], abs=2)
    assert np.median(m.gaps_s(done)) * 1e3 == near(want["itl_p50_ms"], 0.02, 0.1)
    assert m.ttft_ms(done)[0] == near(want["ttft_p50_ms"], 0.02, 0.1)
    assert max(s.n_waiting for s in steps) == 0


def test_s10_same_load_has_two_states() -> None:
    first = {
        seed: next(s.start_s for s in made("S10", "fault", seed).epochs[0].steps if s.n_decode > 32)
        for seed in (1, 2, 3)
    }
    assert first == pytest.approx({1: 4.3, 2: 56.0, 3: 18.2}, abs=0.1)
    calm = made("S10", "fault", 2)
    assert np.median(m.gaps_s(calm)) * 1e3 == near(6.1, 0.02, 0.1), "it came back"
    assert np.mean([s.n_decode > 32 for s in m.steps_in_window(calm)]) < 0.06


@pytest.mark.parametrize("variant", ["fault", "healthy"])
def test_s11_table(variant: str) -> None:
    done = made("S11", variant)
    want, (low, high) = expected(done), done.variant.measure_s
    sent = [r for r in done.requests if low <= r.sent_s < high]
    ttft = [r.first_token_s - r.sent_s for r in sent]
    queue = [1e3 * (r.legs[0].scheduled_s - r.sent_s) for r in sent]
    slot = [sum(b - a for a, b, why in r.legs[1].queues if why == "arrival") for r in sent]
    assert np.quantile(ttft, [0.5, 0.95]) == near(want["ttft_s"], 0.02, 0.01)
    assert np.quantile(queue, [0.5, 0.95]) == near(want["prefill_queue_ms"], 0.02)
    assert np.quantile(slot, [0.5, 0.95]) == near(want["slot_wait_s"], 0.02, 0.06)


def test_s11_n1000_is_bound_by_decode_not_by_slots_alone() -> None:
    done = made("S11", "n1000")
    ttft = [r.first_token_s - r.sent_s for r in done.requests if 60 <= r.sent_s < 220]
    # The table's 35 s leave out requests that had no token when its run ended.
    assert np.median(ttft) == pytest.approx(35.0, rel=0.25)


def test_s11_without_transfer_every_prompt_is_computed_twice() -> None:
    done = made("S11", "recompute")
    for request in done.requests[:20]:
        tokens = [sum(c.n_tokens for p in leg.prefills for c in p) for leg in request.legs]
        assert tokens == [4096, 4096]
        assert not any(why == "kv_transfer" for _, _, why in request.legs[1].queues)


def test_s11_eight_clients_wait_for_the_prefill_engine() -> None:
    done = made("S11", "clients")
    ttft = [r.first_token_s - r.sent_s for r in done.requests if r.turn > 1]
    assert np.median(ttft) == pytest.approx(8 * 0.137, rel=0.03)


@pytest.mark.parametrize("variant", ["burst-1", "burst-200", "burst-1000"])
def test_s12_table(variant: str) -> None:
    done = made("S12", variant)
    want = expected(done)
    ttft = np.array([1e3 * (r.first_token_s - r.sent_s) for r in done.requests])
    wave = np.array([r.turn == 0 for r in done.requests])
    assert len(ttft) == 320
    assert ttft.mean() == near(want["ttft_mean_ms"])
    assert np.quantile(ttft, [0.5, 0.99]) == near(want["ttft_ms"])
    assert [ttft[wave].mean(), ttft[wave].max()] == near(want["first_wave_ms"])
    assert ttft[~wave].mean() == near(want["later_mean_ms"])
    assert len(ttft) / done.end_s == near(want["requests_per_s"], 0.02, 0.02)
    queue = [1e3 * (r.scheduled_s - r.engine_s) for r in done.requests]
    prefill = [1e3 * (r.first_token_s - r.scheduled_s) for r in done.requests]
    assert np.median(queue) == near(want["queue_p50_ms"])
    assert np.median(prefill) == near(want["prefill_p50_ms"])


def test_s12_a_queue_in_the_client_does_not_show_in_its_figures() -> None:
    done = made("S12", "client-queue")
    want = expected(done)
    planned = [r.done_s - r.intended_s for r in done.requests]
    assert np.mean([r.done_s - r.sent_s for r in done.requests]) == near(
        want["e2e_mean_s"], 0, 0.01
    )
    assert np.mean(planned) == near(want["intended_mean_s"], 0, 0.01)
    assert np.quantile(planned, 0.99) == near(want["intended_p99_s"], 0, 0.01)
    assert all(a.done_s <= b.sent_s for a, b in itertools.pairwise(done.requests))


def test_speculation_yields_what_its_acceptance_says() -> None:
    done = made("speculation", "fault")
    for low, high, rate in ((0, 150, 0.8), (151, 300, 0.25)):
        steps = [s for s in done.epochs[0].steps if s.n_drafted and low <= s.start_s < high]
        # Of three drafts the first is accepted with p, the second with p², the third with p³.
        share = (rate + rate**2 + rate**3) / 3
        accepted = sum(s.n_accepted for s in steps) / sum(s.n_drafted for s in steps)
        assert accepted == pytest.approx(share, abs=0.01)
    for request in done.requests:
        assert len(done.epochs[0].token_times_s(request)) == request.n_output == request.n_generated


def test_an_effect_that_is_none_is_named() -> None:
    model = StepModel(6, 0.03, 0.04, 1e-5)
    with pytest.raises(InputError, match="effect 'naps' is none of"):
        make_effect({"kind": "naps"}, model, 0.0)
    with pytest.raises(InputError, match="add_ms"):
        make_effect({"kind": "pauses", "every_s": 1.0}, model, 0.0)


def test_forms_of_the_truth() -> None:
    knee = StepModel(6, 0.03, 0.04, 0.0, knee_tokens=200, knee_width=20)
    assert knee.cost_ms(50, 10, 0) == pytest.approx(knee.cost_ms(0, 10, 0), abs=0.05)
    assert knee.cost_ms(1200, 0, 0) == pytest.approx(6 + 0.03 * 1000, abs=0.05)
    tiles = StepModel(6, 0.03, 0.04, 0.0, tile_tokens=128, tile_seqs=8)
    assert tiles.cost_ms(1, 1, 0) == tiles.cost_ms(128, 8, 0) < tiles.cost_ms(129, 9, 0)


def test_noise_with_memory_keeps_its_spread() -> None:
    recipe = load_recipe("S08")
    table = {
        **recipe.table,
        "variants": {"v": {"step": {"effects": [], "noise_sigma": 0.05, "noise_rho": 0.9}}},
    }
    object.__setattr__(recipe, "table", table)
    done = run(recipe, variant="v")
    ratio = [
        np.log(
            (s.end_s - s.busy_s)
            * 1e3
            / done.variant.step.cost_ms(
                s.n_prefill, s.n_decode, s.n_context - s.n_decode + sum(c[2] for c in s.chunks)
            )
        )
        for s in done.epochs[0].steps
    ]
    assert np.std(ratio) == pytest.approx(0.05, rel=0.15)
    assert np.corrcoef(ratio[:-1], ratio[1:])[0, 1] == pytest.approx(0.9, abs=0.03)
