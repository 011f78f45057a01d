"""Several engines behind a router: the table of S05, and what each router does."""

from __future__ import annotations

import random

import pytest
from tokenlag.errors import InputError
from tokenlag.simulate.config import EngineConfig, StepModel
from tokenlag.simulate.fleet import Fleet, FleetConfig, Router
from tokenlag.simulate.frontend import FrontendConfig
from tokenlag.simulate.log import Request
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run, run

from tests.simulate import measure as m
from tests.simulate.test_scenarios import near


def engine_part(done: Run, engine: int) -> list[Request]:
    return [r for r in m.sent_in_window(done) if done.epochs[r.epoch].engine == engine]


def ttft_ms(requests: list[Request]) -> list[float]:
    return m.percentiles_ms([r.first_token_s - r.engine_s for r in requests])


def request(number: int, at_s: float, prefix: str | None = None, n_output: int = 8) -> Request:
    return Request(number, at_s, at_s, at_s, 64, n_output, prefix_id=prefix)


def test_s05_affinity_loads_one_engine_and_leaves_three_idle() -> None:
    done = run(load_recipe("S05"))
    expected = done.variant.expected
    hot, cold = engine_part(done, 0), engine_part(done, 2)
    assert ttft_ms(hot) == near(expected["hot_ttft_ms"])
    assert m.percentiles_ms([r.scheduled_s - r.engine_s for r in hot]) == near(
        expected["hot_queue_ms"]
    )
    assert ttft_ms(cold) == near(expected["cold_ttft_ms"], 0.04)
    # The table's p50 of all is 9,360; a queue that grows by 0.2 s a second moves it easily.
    assert m.ttft_ms(done) == near(expected["ttft_ms"], 0.03)
    assert m.prefill_ms(done)[0] == near(expected["prefill_p50_ms"], 0.03)
    steps = [s for s in done.epochs[0].steps if s.start_s >= 30]
    assert m.time_mean(steps, lambda s: s.n_running) == near(expected["hot_running"])
    assert m.time_mean(steps, lambda s: s.n_waiting) == near(expected["hot_waiting"])
    calm = [s for s in done.epochs[1].steps if s.start_s >= 30]
    assert m.time_mean(calm, lambda s: s.n_running) == near(expected["cold_running"], 0.05)
    assert all(r.prefix_id == "system-prompt" and r.n_cached == 2048 for r in hot)
    assert not any(r.prefix_id for r in cold)


def test_s05_in_turn_nobody_waits() -> None:
    done = run(load_recipe("S05"), variant="control")
    expected = done.variant.expected
    assert m.ttft_ms(done) == near(expected["ttft_ms"], 0.03)
    assert m.queue_ms(done) == near(expected["queue_ms"], 0.03, 0.3)
    assert m.prefill_ms(done)[0] == near(expected["prefill_p50_ms"], 0.03)
    for log in done.epochs:
        steps = [s for s in log.steps if s.start_s >= 30]
        assert m.time_mean(steps, lambda s: s.n_running) == near(expected["mean_running"], 0.05)


def test_a_slow_machine_takes_its_factor_for_the_same_batch() -> None:
    done = run(load_recipe("S05"), variant="slow-machine")
    model = done.variant.step
    for log in done.epochs:
        ratios = [
            1e3 * (s.end_s - s.busy_s)
            / model.cost_ms(
                s.n_prefill, s.n_decode, s.n_context - s.n_decode + sum(c[2] for c in s.chunks)
            )
            for s in log.steps
        ]  # fmt: skip
        assert ratios == pytest.approx([1.5 if log.engine == 2 else 1.0] * len(ratios), rel=1e-9)
    shares = [len([r for r in done.requests if r.epoch == i]) for i in range(4)]
    assert max(shares) - min(shares) <= 1


def test_a_fleet_of_one_is_the_engine_alone() -> None:
    recipe = load_recipe("S01")
    alone = run(recipe, variant="control")
    beside = Fleet(
        FleetConfig(),
        alone.variant.engine,
        alone.variant.step,
        frontend=None,
        seed=1,
        on_done=lambda *_: [],
    )
    copies = [
        Request(r.number, r.sent_s, r.arrival_s, r.engine_s, r.n_prompt, r.n_output)
        for r in alone.requests
    ]
    beside.add(copies)
    beside.run(float("inf"))
    assert [r.done_s for r in copies] == [r.done_s for r in alone.requests]
    assert len(beside.logs[0].steps) == alone.n_steps


def test_routers() -> None:
    turn = Router(FleetConfig(3))
    assert [turn.choose(request(i, 0)) for i in range(5)] == [0, 1, 2, 0, 1]
    near_cache = Router(FleetConfig(3, "affinity"))
    prefixes = ["a", None, "b", "a", None, None]
    assert [near_cache.choose(request(i, 0, p)) for i, p in enumerate(prefixes)] == [
        0, 1, 1, 0, 2, 2,
    ]  # fmt: skip
    least = Router(FleetConfig(2, "least-loaded"))
    assert [least.choose(request(i, 0)) for i in range(3)] == [0, 1, 0]
    least.done(0)
    least.done(0)
    assert least.choose(request(3, 0)) == 0


def test_nothing_is_lost_and_no_engine_looks_ahead() -> None:
    chance = random.Random(5)
    times = sorted(chance.uniform(0, 20) for _ in range(400))
    sent = [request(i, t, n_output=chance.randint(1, 60)) for i, t in enumerate(times)]
    fleet = Fleet(
        FleetConfig(3, "least-loaded", (1.0, 2.0, 1.0)),
        EngineConfig(max_seqs=8, max_batch_tokens=256, kv_tokens=40_000),
        StepModel(5, 0.05, 0.1, 1e-5),
        frontend=FrontendConfig(workers=2, service_ms=20),
        seed=3,
        on_done=lambda *_: [],
    )
    fleet.add(sent)
    fleet.run(float("inf"))
    assert all(r.n_generated == r.n_output for r in sent)
    assert sum(len(log.requests) for log in fleet.logs) == len(sent)
    for log in fleet.logs:
        assert all(a.end_s <= b.start_s for a, b in zip(log.steps, log.steps[1:], strict=False))
        for r in log.requests:
            assert r.arrival_s + 0.02 <= r.engine_s + 1e-9 <= r.scheduled_s + 2e-9
    # The slow engine holds its requests longer and so is given fewer.
    counts = [len(log.requests) for log in fleet.logs]
    assert counts[1] < min(counts[0], counts[2])


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"engines": 0}, "at least one engine"),
        ({"engines": 2, "router": "dice"}, "router 'dice' is none of"),
        ({"engines": 2, "step_factor": (1.0,)}, "one entry for each engine"),
    ],
)
def test_a_fleet_that_is_none_is_refused(config: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        FleetConfig(**config)
