"""Open and closed loops, and a test's first wave."""

from __future__ import annotations

import heapq

import numpy as np
import pytest
from tokenlag.explain.arrivals import first_wave, is_closed_loop

NS = 1_000_000_000
N_SEEDS = 200


def poisson(seed: int, n: int = 200, rate: float = 4.0, service_s: float = 2.0):
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, n))
    done = at + rng.exponential(service_s, n) + 0.1
    return (at * NS).astype(np.int64), (done * NS).astype(np.int64)


def queued(seed: int, n: int = 200, rate: float = 4.0, slots: int = 2):
    """Open arrivals at an engine that is too slow for them: completions at its own pace."""
    rng = np.random.default_rng(seed)
    at = np.cumsum(rng.exponential(1 / rate, n))
    free = [0.0] * slots
    done = []
    for t in at.tolist():
        end = max(t, heapq.heappop(free)) + slots / rate * 1.2 * rng.uniform(0.8, 1.2)
        heapq.heappush(free, end)
        done.append(end)
    return (at * NS).astype(np.int64), (np.array(done) * NS).astype(np.int64)


def closed(seed: int, n_clients: int = 16, n: int = 200, think_s: float = 0.002):
    rng = np.random.default_rng(seed)
    ready = [rng.uniform(0, 0.05) for _ in range(n_clients)]
    heapq.heapify(ready)
    sent, done = [], []
    for _ in range(n):
        t = heapq.heappop(ready)
        end = t + rng.uniform(1.0, 3.0)
        sent.append(t)
        done.append(end)
        heapq.heappush(ready, end + rng.exponential(think_s))
    return np.sort(np.array(sent) * NS).astype(np.int64), (np.array(done) * NS).astype(np.int64)


@pytest.mark.parametrize("load", [poisson, queued])
def test_users_at_their_own_times_are_not_taken_for_a_closed_loop(load) -> None:
    assert not any(is_closed_loop(*load(seed)) for seed in range(N_SEEDS))


@pytest.mark.parametrize(("n_clients", "think_s"), [(2, 0.02), (16, 0.002), (64, 0.0005)])
def test_clients_that_wait_for_answers_are_seen(n_clients: int, think_s: float) -> None:
    """Those that send again within some 2 % of the time between two arrivals."""
    loads = [closed(seed, n_clients, think_s=think_s) for seed in range(N_SEEDS)]
    seen = sum(is_closed_loop(*load) for load in loads)
    assert seen >= 0.95 * N_SEEDS


def test_a_few_arrivals_or_no_completion_tell_nothing() -> None:
    sent, done = closed(1, n_clients=2, n=8)
    assert not is_closed_loop(sent, done)
    assert not is_closed_loop(sent, done[:0])
    assert not is_closed_loop(sent[:0], done)


def test_clients_that_think_as_long_as_they_wait_are_an_open_load() -> None:
    assert not any(is_closed_loop(*closed(seed, think_s=2.0)) for seed in range(N_SEEDS))


def test_the_first_wave_is_those_sent_before_anybody_got_a_token() -> None:
    burst = np.arange(20, dtype=np.int64) * NS // 100
    later = 5 * NS + np.arange(30, dtype=np.int64) * NS
    arrival = np.concatenate([burst, later])
    wave = first_wave(arrival, arrival + NS)
    assert wave.tolist() == [True] * 20 + [False] * 30


def test_a_burst_later_on_is_no_first_wave() -> None:
    early = np.arange(30, dtype=np.int64) * NS
    burst = 40 * NS + np.arange(20, dtype=np.int64) * NS // 100
    arrival = np.concatenate([early, burst])
    assert not first_wave(arrival, arrival + NS // 2).any()


def test_a_service_in_the_middle_of_its_day_has_no_first_wave() -> None:
    """Traces begin anywhere; where first tokens take long, several arrive before the first."""
    hits = 0
    for seed in range(N_SEEDS):
        arrival, _ = poisson(seed)
        hits += bool(first_wave(arrival, arrival + 2 * NS).any())
    assert hits <= 0.02 * N_SEEDS


def test_no_tokens_no_wave() -> None:
    some = np.arange(9, dtype=np.int64)
    assert not first_wave(some, some[:0]).any()
    assert not first_wave(some[:1], some[:1]).any()
