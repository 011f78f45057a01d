"""The comparison adds up exactly, is the same every time, and its intervals hold the truth."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenlag.explain import compare
from tokenlag.explain.compare import block_sums, effects, shapley_product, write_changes
from tokenlag.explain.run import prepare
from tokenlag.store.connection import Store

from tests.explain.tables import add

FACTORS = st.floats(0.001, 1e6)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(FACTORS, FACTORS), min_size=1, max_size=4))
def test_the_split_sums_to_the_difference(pairs: list[tuple[float, float]]) -> None:
    before, after = zip(*pairs, strict=True)
    shares = shapley_product(before, after)
    whole = math.prod(after) - math.prod(before)
    largest = math.prod(map(max, pairs))
    assert math.fsum(shares) == pytest.approx(whole, rel=1e-9, abs=1e-9 * largest)
    for share, (b, a) in zip(shares, pairs, strict=True):
        assert share == 0 if a == b else (share > 0) == (a > b)


def test_the_split_of_two_is_the_mean_of_both_orders() -> None:
    assert shapley_product([2.0, 10.0], [3.0, 20.0]) == pytest.approx([15.0, 25.0])


def test_an_unknown_factor_makes_the_split_unknown() -> None:
    assert all(math.isnan(s) for s in shapley_product([2.0, math.nan], [3.0, 1.0]))


COLUMNS = (
    "network_in", "frontend", "queue", "requeue", "prefill", "decode", "delivery", "uncovered",
    "ttft", "e2e", "n_prompt", "n_new", "n_output",
)  # fmt: skip


def window(seed: int, n: int, prompt: float = 500.0, price: float = 0.1, output: float = 50.0):
    """Requests whose phases are made of work and price; 40 % of each prompt is cached."""
    rng = np.random.default_rng(seed)
    c = {name: np.zeros(n) for name in COLUMNS}
    c["n_prompt"] = np.round(rng.lognormal(math.log(prompt), 0.5, n)) + 1
    c["n_new"] = np.round(0.6 * c["n_prompt"]) + 1
    c["n_output"] = rng.poisson(output, n) + 1.0
    c["queue"] = rng.exponential(20.0, n)
    c["prefill"] = price * c["n_new"] * rng.lognormal(0.0, 0.1, n)
    c["decode"] = 8.0 * (c["n_output"] - 1) * rng.lognormal(0.0, 0.1, n)
    c["ttft"] = c["queue"] + c["prefill"]
    c["e2e"] = c["ttft"] + c["decode"]
    return c


def sums_of(columns, weight=None) -> compare.Sums:
    n = len(columns["ttft"])
    arrival = np.arange(n, dtype=np.float64)
    return block_sums(columns, arrival, np.ones(n) if weight is None else weight)


def test_terms_add_up_to_the_change_of_their_phase_and_phases_to_the_whole() -> None:
    before, after = sums_of(window(1, 300)), sums_of(window(2, 200, prompt=900.0, price=0.13))
    got = effects(before.total(None), after.total(None))
    prefill = sum(got["prefill", name] for name in ("prompt_mix", "cache", "rate"))
    assert prefill == pytest.approx(got["prefill", "total"])
    decode = got["decode", "output_mix"] + got["decode", "rate"]
    assert decode == pytest.approx(got["decode", "total"])
    phases = sum(got[phase, "total"] for phase in compare.PHASES)
    assert phases == pytest.approx(got["e2e", "total"])
    assert got["prefill", "prompt_mix"] > 5 * abs(got["prefill", "cache"])


@pytest.mark.parametrize("moved", ["n_prompt", "n_new", "prefill"])
def test_what_alone_moved_has_the_whole_effect(moved: str) -> None:
    """Doubling one of work, uncached share or price moves that term and no other."""
    base, changed = window(1, 200), window(1, 200)
    for name in {"n_prompt": ("n_prompt", "n_new", "prefill"), "n_new": ("n_new", "prefill"),
                 "prefill": ("prefill",)}[moved]:  # fmt: skip
        changed[name] = 2.0 * changed[name]
    got = effects(sums_of(base).total(None), sums_of(changed).total(None))
    terms = {"n_prompt": "prompt_mix", "n_new": "cache", "prefill": "rate"}
    for name, term in terms.items():
        whole = got["prefill", "total"] if name == moved else 0.0
        assert got["prefill", term] == pytest.approx(whole, abs=1e-9)


def test_a_request_counts_by_its_weight() -> None:
    columns = window(1, 40)
    heavy = {k: np.concatenate([v, v[:10]]) for k, v in columns.items()}
    weight = np.ones(40)
    weight[:10] = 2.0
    assert sums_of(columns, weight).total(None) == pytest.approx(sums_of(heavy).total(None))


def test_what_was_not_measured_is_left_out_and_an_unmeasured_phase_is_unknown() -> None:
    columns = window(1, 40)
    columns["queue"][::2] = np.nan
    columns["delivery"][:] = np.nan
    got = effects(sums_of(columns).total(None), sums_of(columns).total(None))
    assert got["queue", "total"] == 0.0
    assert math.isnan(got["delivery", "total"])


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as opened:
        prepare(opened)
        yield opened


def fill(store: Store, name: str, columns) -> None:
    ((first,),) = store.fetchall("select count(*) from request_facts")
    rows = []
    for i in range(len(columns["ttft"])):
        row = {"request_key": first + i, "window_name": name, "arrival_ns": i}
        for column, values in columns.items():
            key = column if column.startswith("n_") else f"{column}_ms"
            value = float(values[i])
            row[key] = None if math.isnan(value) else value
        rows.append(row)
    add(store, "request_facts", *rows)


def changes(store: Store) -> dict[tuple[str, str], tuple[float, float, float]]:
    store.execute("delete from changes")
    write_changes(store)
    return {
        (m, f): (e, lo, hi)
        for m, f, e, lo, hi in store.fetchall(
            "select metric, factor, effect_ms, lo_ms, hi_ms from changes"
        )
    }


def test_intervals_are_the_same_every_time(store: Store) -> None:
    fill(store, "baseline", window(1, 100))
    fill(store, "current", window(2, 100))
    assert changes(store) == changes(store)


def test_without_a_baseline_or_with_a_handful_nothing_is_compared(store: Store) -> None:
    fill(store, "current", window(2, 100))
    assert changes(store) == {}
    fill(store, "baseline", window(1, compare.MIN_REQUESTS - 1))
    assert changes(store) == {}


def test_what_a_window_does_not_tell_has_no_row(store: Store) -> None:
    before, after = window(1, 50), window(2, 50)
    before["delivery"][:] = np.nan
    fill(store, "baseline", before)
    fill(store, "current", after)
    told = changes(store)
    assert ("delivery", "total") not in told
    assert ("queue", "total") in told


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Ninety in a hundred; with 20 blocks a bootstrap is a little too sure."""
    truth = 500.0 * math.exp(0.125) * 0.6 * (0.13 - 0.10) * math.exp(0.005)
    held, n = 0, 40
    for seed in range(n):
        before, after = sums_of(window(seed, 200)), sums_of(window(seed + 5000, 200, price=0.13))
        key = [("prefill", "rate")]
        low, high = _intervals(before, after, key)
        held += low <= truth <= high
    assert 0.8 * n <= held <= 0.99 * n


def _intervals(before, after, key) -> tuple[float, float]:
    every = list(effects(before.total(None), after.total(None)))
    low, high = compare._intervals(before, after, every)
    return low[key[0]], high[key[0]]


def test_the_same_traffic_twice_rarely_shows_a_change() -> None:
    moved, n = 0, 25
    for seed in range(n):
        low, high = _intervals(
            sums_of(window(seed, 200)), sums_of(window(seed + 500, 200)), [("ttft", "total")]
        )
        moved += low > 0 or high < 0
    assert moved <= 0.28 * n
