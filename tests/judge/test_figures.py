"""The figures are those that docs/metrics.md defines."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenlag.explain.arrays import Columns
from tokenlag.judge import figures
from tokenlag.judge.sql import query

from tests.explain.tables import add
from tests.judge.making import a_store, all_of, requests

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(VALUES, st.floats(0, 1))
def test_equal_weights_give_the_plain_quantile(values: list[float], q: float) -> None:
    array = np.array(values)
    got = figures.weighted_quantile(array, np.full(len(array), 3.0), q)
    assert got == pytest.approx(float(np.quantile(array, q)))


@given(VALUES, st.integers(0, 10**6))
def test_weighted_quantiles_rise_and_stay_within(values: list[float], seed: int) -> None:
    array = np.array(values)
    weight = np.random.default_rng(seed).uniform(0.1, 9.0, len(array))
    got = [figures.weighted_quantile(array, weight, q) for q in (0.0, 0.5, 0.9, 0.99, 1.0)]
    assert got == sorted(got)
    assert min(values) <= got[0]
    assert got[-1] <= max(values)


def test_a_request_with_a_weight_stands_for_many() -> None:
    values, weight = np.array([10.0, 1000.0]), np.array([98.0, 2.0])
    assert figures.stat(values, weight).mean == pytest.approx(29.8)
    assert figures.weighted_quantile(values, weight, 0.5) < 100


def test_what_was_not_measured_is_none_and_not_zero() -> None:
    nothing = figures.stat(np.array([np.nan, np.nan]), np.ones(2))
    assert (nothing.p50, nothing.mean, nothing.n, nothing.max) == (None, None, 0, None)
    some = figures.stat(np.array([np.nan, 5.0]), np.ones(2))
    assert (some.p50, some.mean, some.n) == (5.0, 5.0, 1)


def test_gaps_count_each_stream_each_time() -> None:
    with a_store() as store:
        add(
            store, "gaps",
            {"gap_ms": 10.0, "own_ms": 10.0, "n_streams": 96},
            {"gap_ms": 500.0, "own_ms": 10.0, "n_streams": 3},
            {"gap_ms": 2000.0, "own_ms": 10.0, "n_streams": 1, "seq_key": 4},
            {"gap_ms": 9000.0, "n_streams": 50, "window_name": "baseline"},
        )  # fmt: skip
        got, excess = figures.gap_stat(store, "current")
        assert (got.p50, got.p90, got.p99, got.max, got.n) == (10.0, 10.0, 500.0, 2000.0, 100)
        assert got.mean == pytest.approx((960 + 1500 + 2000) / 100)
        assert excess == pytest.approx(3 * 490 + 1990)


def test_an_objective_on_gaps_reads_the_same_quantile() -> None:
    with a_store() as store:
        add(store, "gaps", *({"gap_ms": float(g), "n_streams": 1 + g % 7} for g in range(1, 60)))
        got, _ = figures.gap_stat(store, "current")
        for q, value in ((0.5, got.p50), (0.9, got.p90), (0.99, got.p99)):
            told = store.fetchall("select gap_ms from gap_quantiles('current', ?)", [q])
            assert told[0][0] == pytest.approx(value, abs=1.0)


def test_without_steps_there_are_no_gaps() -> None:
    with a_store() as store:
        got, excess = figures.gap_stat(store, "current")
        assert (got.p50, got.n) == (None, 0)
        assert np.isnan(excess)


def test_what_was_given_up_tells_nothing_of_its_end() -> None:
    with a_store() as store:
        requests(
            store,
            [{"e2e_ms": 100.0, "ttft_ms": 5.0}] * 3
            + [{"e2e_ms": 9e6, "ttft_ms": 7.0, "is_aborted": True}],
        )
        columns = Columns(store, query("request_columns"))
        got = figures.latency(store, columns, has_baseline=False)
        assert (got["e2e"].n, got["e2e"].max) == (3, 100.0)
        assert got["ttft"].n == 4
        assert got["queue"].n == 0
        assert got["e2e"].baseline is None


def test_each_metric_has_its_baseline_beside_it() -> None:
    with a_store() as store:
        requests(store, [{"queue_ms": 900.0}] * 4)
        requests(store, [{"queue_ms": 9.0}] * 4, "baseline")
        columns = Columns(store, query("request_columns"))
        got = figures.latency(store, columns, has_baseline=True)
        assert got["queue"].p90 == 900.0
        assert got["queue"].baseline is not None
        assert got["queue"].baseline.p90 == 9.0
        assert set(got) == {*figures.REQUEST_METRICS, "itl"}


def test_throughput_never_adds_prompt_to_output() -> None:
    with a_store() as store:
        requests(
            store,
            [{"n_prompt": 1000, "n_output": 50, "tpot_ms": 20.0, "weight": 2.0},
             {"n_prompt": 200, "tpot_ms": None}],
        )  # fmt: skip
        columns = Columns(store, query("request_columns"))
        got = figures.throughput(columns, {"current": 10.0}, "current")
        assert got is not None
        assert (got.prompt_tokens_per_s, got.output_tokens_per_s) == (220.0, 10.0)
        assert (got.requests_per_s, got.per_stream_tokens_per_s) == (0.3, 50.0)
        assert figures.throughput(columns, {"current": 0.0}, "current") is None
        assert figures.throughput(columns, {}, "baseline") is None


def test_goodput_counts_what_met_every_limit() -> None:
    with a_store() as store:
        rows = [
            {"ttft_ms": 100.0, "tpot_ms": 10.0, "n_output": 9},
            {"ttft_ms": 600.0, "tpot_ms": 10.0, "n_output": 9},
            {"ttft_ms": 100.0, "tpot_ms": 99.0, "n_output": 9},
            {"ttft_ms": 100.0, "n_output": 1},
            {"ttft_ms": None, "tpot_ms": 10.0, "n_output": 9},
            {"ttft_ms": 100.0, "tpot_ms": 10.0, "n_output": 9, "is_aborted": True},
        ]
        got = figures.share_within(requests(store, rows), {"ttft": 500.0, "tpot": 50.0})
        assert got == pytest.approx(2 / 6), "one token has no time between tokens to miss"
        assert figures.share_within(all_of(store, "baseline"), {"ttft": 500.0}) == 0.0


def test_goodput_of_a_figure_that_no_request_tells_is_unknown() -> None:
    with a_store() as store:
        of = requests(store, [{"ttft_ms": 100.0, "n_output": 9}, {"ttft_ms": 1.0, "n_output": 1}])
        assert figures.share_within(of, {"ttft": 500.0, "itl": 50.0}) == 0.5
        of = requests(store, [{"ttft_ms": 100.0, "n_output": 9}] * 3, "baseline")
        assert figures.share_within(of, {"ttft": 500.0, "itl": 50.0}) is None


def test_capabilities_are_what_the_window_holds() -> None:
    with a_store() as store:
        assert figures.capabilities(store) == set()
        requests(store, [{"queue_ms": 1.0, "n_cached": 0}], "baseline")
        assert figures.capabilities(store) == set(), "of the current window alone"
        requests(store, [{"queue_ms": 0.0, "n_cached": 0, "tenant": "a"}])
        assert figures.capabilities(store) == {"queue", "cached_tokens", "tenant"}
