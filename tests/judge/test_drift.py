"""Tokens that become slower within a window, told from more company, from chance and from ramps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from tokenlag.judge.drift import MIN_REQUESTS, token_drift

from tests.judge.making import a_store, requests

N = 400
N_OUTPUT = 50
BASE_MS = 10.0
NEIGHBOUR_MS = 1.0
APART_MS = 150.0

Rows = Sequence[Mapping[str, Any]]
Series = np.ndarray[Any, Any]


def told(factor: Series, seed: int = 0, apart_ms: Series | float = APART_MS) -> Rows:
    """Requests of an engine whose steps cost `factor` times what their batch explains.

    Args:
        factor: from each request's arrival on.
        seed: of the arrivals and of the noise.
        apart_ms: mean time between arrivals, of all or of each.
    """
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(apart_ms, len(factor)))
    left, first, end = np.full(len(factor), N_OUTPUT), arrival.copy(), arrival.copy()
    now, n_arrived = 0.0, 0
    while (left > 0).any():
        n_arrived = int(np.searchsorted(arrival, now, "right"))
        running = np.flatnonzero(left[:n_arrived] > 0)
        if len(running) == 0:
            now = float(arrival[n_arrived]) + 1e-6
            continue
        times = factor[n_arrived - 1] * rng.lognormal(0.0, 0.05)
        now += times * (BASE_MS + NEIGHBOUR_MS * len(running))
        first[running[left[running] == N_OUTPUT]] = now
        left[running] -= 1
        end[running] = now
    return [
        {
            "arrival_ns": int(at * 1e6), "ttft_ms": one - at, "e2e_ms": last - at,
            "tpot_ms": (last - one) / (N_OUTPUT - 1), "n_output": N_OUTPUT,
            "n_new": 300, "engine_id": "e",
        }
        for at, one, last in zip(arrival.tolist(), first.tolist(), end.tolist(), strict=True)
    ]  # fmt: skip


def drift(rows: Rows) -> float | None:
    with a_store() as store:
        found = token_drift(requests(store, rows))
        assert found is None or found.engine is None
        return found.ratio if found else None


def stepped(n: int, before: float, after: float) -> Series:
    return np.where(np.arange(n) < n // 2, before, after)


@pytest.mark.parametrize("after", [1.5, 2.0])
def test_tokens_that_become_slower_for_good_are_told(after: float) -> None:
    found = drift(told(stepped(N, 1.0, after)))
    assert found is not None
    # Slower tokens keep streams longer: a part of the rise is booked to the company.
    assert 1.3 < found < 1.1 * after


def test_one_engine_of_three_that_becomes_slower_is_named() -> None:
    steady = [
        {**row, "engine_id": name}
        for name, seed in (("a", 1), ("b", 2))
        for row in told(np.ones(N), seed)
    ]
    slower = [{**row, "engine_id": "c"} for row in told(stepped(N, 1.0, 2.0), 3)]
    with a_store() as store:
        found = token_drift(requests(store, sorted(steady + slower, key=arrived)))
    assert found is not None
    assert found.engine == "c"
    assert 1.3 < found.ratio < 2.2
    with a_store() as store:
        assert token_drift(requests(store, sorted(steady, key=arrived))) is None


def arrived(row: Mapping[str, Any]) -> int:
    return int(row["arrival_ns"])


@pytest.mark.parametrize("seed", range(10))
def test_chance_is_no_drift(seed: int) -> None:
    assert drift(told(np.ones(N), seed)) is None


@pytest.mark.parametrize("seed", range(5))
def test_more_company_is_no_drift(seed: int) -> None:
    rows = told(np.ones(N), seed, stepped(N, 400.0, 80.0))
    tpot = [row["tpot_ms"] for row in rows]
    assert np.mean(tpot[N // 2 :]) > 1.4 * np.mean(tpot[: N // 2]), "nothing to put aside"
    assert drift(rows) is None


def test_a_slow_climb_and_a_fall_are_no_drift() -> None:
    assert drift(told(np.linspace(1.0, 2.0, N))) is None
    assert drift(told(stepped(N, 2.0, 1.0))) is None


def test_too_few_or_too_short_answers_say_nothing() -> None:
    assert drift(told(stepped(MIN_REQUESTS - 1, 1.0, 3.0))) is None
    short = [{**row, "n_output": 3} for row in told(stepped(N, 1.0, 3.0))]
    assert drift(short) is None


def test_without_times_nothing_is_said() -> None:
    assert drift([{**row, "tpot_ms": None} for row in told(stepped(N, 1.0, 3.0))]) is None
