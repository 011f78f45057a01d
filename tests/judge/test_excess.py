"""When a slowness can be seen: against the alone cost, and against the baseline."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tokenlag.judge.excess import MIN_SLOW, Excess, find_excess

from tests.judge.making import a_store, all_of, requests


def judge(
    rows: list[dict[str, Any]],
    changes: list[tuple[Any, ...]] = (),  # type: ignore[assignment]
    itl_excess_ms: float = 0.0,
    is_closed_loop: bool = False,
) -> dict[str, Excess]:
    with a_store() as store:
        current = requests(store, rows)
        for metric, factor, base, effect, low in changes:
            store.execute(
                "insert into changes values (?, ?, ?, ?, ?, ?, ?)",
                [metric, factor, base, base + effect, effect, low, effect + 1.0],
            )
        return find_excess(store, current, itl_excess_ms, is_closed_loop=is_closed_loop)


def row(ttft: float = 100.0, alone: float = 100.0, **more: Any) -> dict[str, Any]:
    told = {"ttft_ms": ttft, "alone_ttft_ms": alone, "e2e_ms": 1000.0, "alone_e2e_ms": 1000.0}
    return told | {"n_output": 10} | more


def test_as_fast_as_alone_is_no_excess() -> None:
    found = judge([row()] * 50)
    assert found["ttft"].alone_ms == 0.0
    assert not any(e.is_visible or e.is_hinted for e in found.values())
    assert np.isnan(found["ttft"].rise_ms), "no baseline, no rise"


def test_excess_sums_what_is_above_the_alone_cost_and_nothing_below_cancels_it() -> None:
    found = judge([row(ttft=150.0)] * 2 + [row(ttft=20.0)] * 3)
    assert found["ttft"].alone_ms == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("n", "n_slow", "visible"),
    [(100, 10, True), (100, 9, False), (80, MIN_SLOW, True), (9, 9, False), (20, 7, False)],
)
def test_a_share_that_a_p90_would_notice_and_enough_of_them(
    n: int, n_slow: int, visible: bool
) -> None:
    rows = [row(ttft=3000.0)] * n_slow + [row()] * (n - n_slow)
    assert judge(rows)["ttft"].is_visible == visible


@pytest.mark.parametrize(
    ("alone", "ttft", "slow"),
    [(100.0, 1050.0, False), (100.0, 1150.0, True), (600.0, 2950.0, False), (600.0, 3050.0, True)],
)
def test_slow_is_five_times_the_alone_cost_and_a_second_more(
    alone: float, ttft: float, slow: bool
) -> None:
    assert judge([row(ttft=ttft, alone=alone)] * 20)["ttft"].is_visible == slow


@pytest.mark.parametrize(
    ("spacing_ms", "n_engines", "visible"),
    [(10_000.0, 1, True), (1_000.0, 1, False), (1_000.0, 4, True), (400.0, 1, True)],
    ids=["a tenth busy", "half busy", "half of one in four", "more than it can take"],
)
def test_a_busy_engine_shares_more(spacing_ms: float, n_engines: int, visible: bool) -> None:
    rows = [
        row(ttft=3500.0, alone=500.0)
        | {"arrival_ns": int(i * spacing_ms * 1e6), "engine_id": f"e{i % n_engines}"}
        | {"alone_prefill_ms": 500.0}
        for i in range(40)
    ]
    found = judge(rows)["ttft"]
    assert found.is_visible == visible
    if spacing_ms == 1_000.0 and n_engines == 1:
        assert found.factor == pytest.approx(10.0, rel=0.1)


@pytest.mark.parametrize(("apart_ms", "visible"), [(0.0, False), (5.0, False), (400.0, True)])
def test_requests_sent_together_wait_for_each_other(apart_ms: float, visible: bool) -> None:
    rows = [
        row(ttft=3000.0, alone=400.0)
        | {"arrival_ns": int((group * 60_000 + n * apart_ms) * 1e6), "alone_prefill_ms": 400.0}
        for group in range(10)
        for n in range(6)
    ]
    assert judge(rows)["ttft"].is_visible == visible


def test_a_few_slow_ones_hint_only() -> None:
    found = judge([row(ttft=1000.0)] * 3 + [row()] * 15)["ttft"]
    assert (found.is_visible, found.is_hinted) == (False, True)
    assert "3 of 18" in found.reason


def test_a_closed_loops_queue_is_its_own() -> None:
    rows = [row(ttft=2000.0, queue_ms=1900.0, e2e_ms=2900.0)] * 50
    assert judge(rows)["ttft"].is_visible
    found = judge(rows, is_closed_loop=True)
    assert not found["ttft"].is_visible
    assert found["e2e"].alone_ms == 0.0


def test_a_first_wave_is_not_the_service() -> None:
    rows = [row(ttft=2000.0, is_first_wave=True)] * 30 + [row()] * 30
    assert not judge(rows)["ttft"].is_visible


def test_what_was_not_measured_is_neither_slow_nor_counted() -> None:
    found = judge([row(ttft=None)] * 90 + [row(ttft=3000.0)] * 10)["ttft"]
    assert found.is_visible
    assert "10 of 10" in found.reason
    assert np.isnan(judge([row(ttft=None)] * 20)["ttft"].alone_ms)


@pytest.mark.parametrize(
    ("base", "effect", "low", "visible"),
    [
        (100.0, 30.0, 10.0, True),
        (100.0, 30.0, -1.0, False),
        (100.0, 15.0, 10.0, False),
        (50.0, 15.0, 10.0, False),
        (0.0, 30.0, 10.0, False),
    ],
)
def test_a_rise_over_the_baseline_beyond_chance_and_worth_noticing(
    base: float, effect: float, low: float, visible: bool
) -> None:
    found = judge([row()] * 50, [("ttft", "total", base, effect, low)])["ttft"]
    assert found.is_visible == visible
    assert found.rise_ms == pytest.approx(50 * effect)


def test_time_between_tokens_is_judged_by_the_token() -> None:
    rows = [row(n_output=11)] * 20
    # 80 ms a request are 8 ms a token; the baseline took 20.
    moved = judge(rows, [("decode", "rate", 20.0, 80.0, 40.0)])["itl"]
    assert moved.is_visible
    assert not judge(rows, [("decode", "rate", 20.0, 30.0, 10.0)])["itl"].is_visible
    assert judge(rows, itl_excess_ms=123.0)["itl"].alone_ms == 123.0


def test_a_busy_engine_is_not_slow_if_it_was_as_busy_before() -> None:
    """What moved counts where there is a baseline; high load always costs more than alone."""
    changes = [("ttft", "total", 3000.0, 20.0, -80.0)]
    found = judge([row(ttft=3000.0)] * 50, changes=changes)["ttft"]
    assert (found.is_visible, found.is_hinted) == (False, True)


def late_clients(late_ms: list[float], before_ms: list[float] | None = None) -> Excess:
    """Requests whose client saw the first chunk so much later than the server had it."""
    with a_store() as store:
        rows = [row() for _ in late_ms]
        requests(store, rows)
        if before_ms is not None:
            requests(store, [row() for _ in before_ms], "baseline")
        for key, late in enumerate([*late_ms, *(before_ms or [])]):
            window = "current" if key < len(late_ms) else "baseline"
            store.execute(
                "insert into edges (request_key, window_name, client_ttft_ms, late_first_ms) "
                "values (?, ?, ?, ?)",
                [key, window, 100.0 + late, late],
            )
        return find_excess(
            store, all_of(store), 0.0, is_closed_loop=False,
            baseline=None if before_ms is None else all_of(store, "baseline"),
        )["client"]  # fmt: skip


def test_what_clients_wait_beyond_the_server_is_a_symptom() -> None:
    assert late_clients([1500.0] * 10 + [5.0] * 40).is_visible
    assert not late_clients([1500.0] * 3 + [5.0] * 47).is_visible
    assert not late_clients([300.0] * 50).is_visible, "round trips around the world are no fault"


def test_clients_that_wait_more_than_before() -> None:
    before = [30.0 + i % 7 for i in range(50)]
    assert late_clients([120.0 + i % 9 for i in range(50)], before).is_visible
    assert not late_clients([31.0 + i % 7 for i in range(50)], before).is_visible
    assert not late_clients([2000.0] * 50, [2000.0] * 50).is_visible, "it was so before"


def against_baseline(now_ms: list[float], before_ms: list[float], per_s: float) -> Excess:
    """Requests of two windows by their E2E, alone 1,000 ms each; `per_s` times the arrivals."""
    rise = float(np.mean(now_ms) - np.mean(before_ms))
    with a_store() as store:
        told = [row(e2e_ms=ms, arrival_ns=int(i * 1e9 / per_s)) for i, ms in enumerate(now_ms)]
        requests(store, told)
        was = [row(e2e_ms=ms, arrival_ns=int(i * 1e9)) for i, ms in enumerate(before_ms)]
        requests(store, was, "baseline")
        store.execute(
            "insert into changes values ('e2e', 'total', ?, ?, ?, ?, ?)",
            [float(np.mean(before_ms)), float(np.mean(now_ms)), rise, rise * 0.8, rise * 1.2],
        )
        return find_excess(
            store, all_of(store), 0.0, is_closed_loop=False, baseline=all_of(store, "baseline")
        )["e2e"]


def test_a_rise_that_a_few_more_arrivals_make_near_the_end_is_none() -> None:
    before = [2500.0 + i % 7 for i in range(100)]
    now = [3350.0 + i % 7 for i in range(100)]
    # At 2.5 times the alone cost the engine is 0.6 loaded; 15 % more arrivals make it 0.69.
    assert against_baseline(now, before, 1.0).is_visible
    assert not against_baseline(now, before, 1.15).is_visible
    assert against_baseline([5000.0] * 100, before, 1.15).is_visible, "that is far more"


def test_a_rise_in_one_busy_stretch_is_chance() -> None:
    before = [1000.0 + i % 7 for i in range(160)]
    busy = [1000.0 + i % 7 + (3000.0 if 40 <= i < 60 else 0.0) for i in range(160)]
    assert not against_baseline(busy, before, 1.0).is_visible
    assert against_baseline([1400.0 + i % 7 for i in range(160)], before, 1.0).is_visible
