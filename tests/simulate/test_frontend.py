"""A pool of workers in front of the engine: the table of S06."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from tokenlag.errors import InputError
from tokenlag.simulate.frontend import Frontend, FrontendConfig
from tokenlag.simulate.log import Request
from tokenlag.simulate.recipe import load_recipe
from tokenlag.simulate.run import Run, run

from tests.simulate import measure as m
from tests.simulate.test_scenarios import near


def from_send_ms(done: Run, stamp: str) -> list[float]:
    return m.percentiles_ms([getattr(r, stamp) - r.sent_s for r in m.sent_in_window(done)])


@pytest.mark.parametrize("variant", ["fault", "control", "overload", "overload-2"])
def test_s06_table(variant: str) -> None:
    done = run(load_recipe("S06"), variant=variant)
    expected = done.variant.expected
    assert from_send_ms(done, "first_token_s") == near(expected["ttft_ms"])
    assert from_send_ms(done, "engine_s") == near(expected["pre_ms"])
    assert m.queue_ms(done) == near(expected["queue_ms"], 0.02, 0.5)
    assert m.prefill_ms(done)[0] == near(expected["prefill_p50_ms"], 0.02, 0.5)
    running = m.time_mean(m.steps_in_window(done), lambda s: s.n_running)
    assert running == near(expected["mean_running"])


@pytest.mark.parametrize("variant", ["burst", "burst-2"])
def test_s06_burst_of_256(variant: str) -> None:
    done = run(load_recipe("S06"), variant=variant)
    expected = done.variant.expected
    assert from_send_ms(done, "first_token_s") == near(expected["ttft_ms"])
    if "max_running" in expected:
        steps = done.epochs[0].steps
        assert max(s.n_running for s in steps) <= expected["max_running"]
        assert max(s.n_waiting for s in steps) == 0


def test_mean_wait_is_that_of_a_queue_with_fixed_service() -> None:
    # Pollaczek and Khinchine for M/D/1 at a load of 0.9: 0.9 · 150 / (2 · 0.1) = 675 ms.
    chance, pool = random.Random(1), Frontend(FrontendConfig(workers=1, service_ms=150))
    time_s, waits_s = 0.0, []
    for number in range(200_000):
        time_s += chance.expovariate(6)
        request = Request(number, time_s, time_s, time_s, 1800, 120)
        pool.take(request)
        waits_s.append(request.engine_s - time_s - 0.150)
    assert np.mean(waits_s) == pytest.approx(0.675, rel=0.05)


def test_one_worker_spaces_arrivals_and_two_do_not() -> None:
    engine_s = sorted(r.engine_s for r in run(load_recipe("S06")).requests)
    assert min(b - a for a, b in itertools.pairwise(engine_s)) >= 0.150 - 1e-9
    engine_s = sorted(r.engine_s for r in run(load_recipe("S06"), variant="control").requests)
    assert min(b - a for a, b in itertools.pairwise(engine_s)) < 0.075


def test_first_come_first_served() -> None:
    pool = Frontend(FrontendConfig(workers=2, service_ms=100, service_us_per_token=1000))
    sent = [Request(i, t, t, t, n, 1) for i, (t, n) in enumerate([(0, 100), (0, 0), (0, 0)])]
    for request in sent:
        pool.take(request)
    assert [r.engine_s for r in sent] == pytest.approx([0.2, 0.1, 0.2])
    with pytest.raises(InputError, match="at least one worker"):
        FrontendConfig(workers=0, service_ms=1)
